//! Training as if quantised, as its users meet it: going on from a checkpoint, and what a checkpoint holds.

use super::common::read_log;
use super::runs::{Place, STEPS, check_resuming_of};

const QUANTIZER: [&str; 2] =
    ["quantizer._component_=torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer", "quantizer.groupsize=8"];
const ADAPTER: [&str; 3] = ["model.lora_attn_modules=[q_proj, v_proj]", "model.lora_rank=4", "optimizer.lr=3e-2"];

#[test]
fn resuming() {
    let full = || Place::new().with_recipe("qat_single_device");
    let after = [&QUANTIZER[..], &["fake_quant_after_n_steps=2", "dtype=bf16"]].concat();
    check_resuming_of(&full, "from the third step on", &after, 2 * STEPS, &[1, 2, STEPS]);
    let lora = || Place::new().with_recipe("qat_lora_finetune_distributed");
    check_resuming_of(&lora, "an adapter", &[&QUANTIZER[..], &ADAPTER].concat(), 2 * STEPS, &[3]);
}

#[test]
fn the_first_steps_run_with_full_numbers() {
    let place = Place::new().with_recipe("qat_single_device");
    place.train("late", &[&QUANTIZER[..], &["fake_quant_after_n_steps=2"]].concat());
    place.train("never", &[&QUANTIZER[..], &["fake_quant_after_n_steps=1000"]].concat());
    place.train("at_once", &[&QUANTIZER[..], &["fake_quant_after_n_steps=0"]].concat());
    place.train_with("full_finetune_single_device", 2, "plain", &[]);
    let losses = |out: &str| -> Vec<f64> {
        read_log(&place.at(out)).iter().map(|step| step.get("loss").expect("logged")).collect()
    };
    let (late, never, at_once, plain) = (losses("late"), losses("never"), losses("at_once"), losses("plain"));
    assert_eq!(never, plain);
    assert_eq!(late[..2], plain[..2]);
    assert!((late[2] - plain[2]).abs() > 1e-5, "{late:?} {plain:?}");
    assert!((at_once[0] - plain[0]).abs() > 1e-5, "{at_once:?} {plain:?}");
}
