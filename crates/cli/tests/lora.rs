//! Adapters as their users meet them: what a checkpoint holds, going on from it, and several ranks.

use super::common::{read_log, succeed, tune};
use super::curves::curve;
use super::runs::{Place, STEPS, check_resuming_of};

const LORA: &str = "lora_finetune_single_device";
const ADAPTER: [&str; 4] = [
    "model.lora_attn_modules=[q_proj, v_proj, output_proj]",
    "model.apply_lora_to_mlp=True",
    "model.lora_rank=4",
    "optimizer.lr=3e-2",
];

fn place() -> Place {
    Place::new().with_recipe(LORA)
}

fn names(file: &std::path::Path) -> Vec<String> {
    let bytes = std::fs::read(file).expect("saved");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("well formed");
    let mut names: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn a_checkpoint_holds_the_adapter_and_weights_with_it() {
    let place = place();
    place.train("out", &[&ADAPTER[..], &["model.use_dora=True", "epochs=1"]].concat());
    let saved = place.at("out/epoch_0");
    let adapter = names(&saved.join("adapter_model.safetensors"));
    assert_eq!(adapter.len() % 3, 0);
    for part in ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"] {
        let name = format!("base_model.model.model.layers.0.mlp.down_proj.{part}");
        assert!(adapter.contains(&name), "{name} in {adapter:?}");
    }
    let config = std::fs::read_to_string(saved.join("adapter_config.json")).expect("saved");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!((&config["r"], &config["lora_alpha"], &config["use_dora"]), (&4.into(), &16.into(), &true.into()));
    assert_eq!(config["peft_type"], "LORA");
    let modules = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    assert_eq!(config["target_modules"], serde_json::json!(modules));
    assert_eq!(names(&saved.join("model.safetensors")).iter().filter(|name| name.contains("lora")).count(), 0);
    assert!(saved.join("tokenizer.json").is_file() && saved.join("config.json").is_file());

    // The merged folder is a model of its own: a full run starts from it.
    place.train_with(
        "full_finetune_single_device",
        2,
        "full",
        &["model=null", "checkpointer.checkpoint_dir=out/epoch_0", "epochs=1"],
    );
    let (lora, full) = (read_log(&place.at("out")), read_log(&place.at("full")));
    let loss = |steps: &[super::common::LoggedStep], at: usize| steps[at].get("loss").expect("logged");
    assert!(loss(&full, 0) < loss(&lora, 0) - 0.05, "it begins where the adapter ended: {full:?}, {lora:?}");
}

#[test]
fn an_adapter_alone_is_small_and_enough_to_go_on_from() {
    let place = place();
    let only = [&ADAPTER[..], &["save_adapter_weights_only=True", "epochs=1"]].concat();
    place.train("out", &only);
    let saved = place.at("out/epoch_0");
    assert!(saved.join("adapter_model.safetensors").is_file() && !saved.join("model.safetensors").exists());
    place.train("out", &[&only[..4], &["save_adapter_weights_only=True", "resume_from_checkpoint=True"]].concat());
    place.train("whole", &[&ADAPTER[..], &["save_adapter_weights_only=True"]].concat());
    let adapter = |out: &str| std::fs::read(place.at(out).join("epoch_1/adapter_model.safetensors")).expect("saved");
    testing::assert_same_bits("stopped after an epoch", &adapter("out"), &adapter("whole"));
    // What is saved also starts another run.
    let from = format!("checkpointer.adapter_checkpoint={}", place.at("out/epoch_1").display());
    place.train("again", &[&ADAPTER[..], &[&from, "epochs=1"]].concat());
    let first = |out: &str| read_log(&place.at(out))[0].get("loss").expect("logged");
    assert!(first("again") < first("whole") - 0.03, "{} {}", first("again"), first("whole"));
}

#[test]
fn resuming_adapters() {
    for kind in [
        &[
            "lr_scheduler._component_=torchtune.training.get_cosine_schedule_with_warmup",
            "lr_scheduler.num_warmup_steps=2",
        ][..],
        &["model.use_dora=True", "dtype=bf16", "optimizer_in_bwd=True"],
        &["model.quantize_base=True", "dtype=bf16", "model.lora_dropout=0.2"],
    ] {
        check_resuming_of(&place, &format!("{kind:?}"), &[&ADAPTER[..], kind].concat(), 2 * STEPS, &[1, STEPS, 8]);
    }
}

#[test]
fn a_checkpoint_of_another_adapter_is_refused() {
    let place = place();
    place.train("out", &[&ADAPTER[..], &["epochs=1"]].concat());
    let resume = |more: &str| {
        let mut command = tune(&place.at(""));
        command.args(["run", LORA, "--config", "run.yaml", "output_dir=out", "resume_from_checkpoint=True"]);
        let output = command.args(ADAPTER).arg(more).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert!(resume("model.lora_alpha=32").contains("expected lora_alpha / lora_rank = 32 / 4 = 8, found 16 / 4 = 4"));
    assert!(resume("model.lora_rank=8").contains("lora_A"));
    assert!(resume("model.use_dora=True").contains("lora_magnitude_vector"));
}

#[test]
fn ranks_log_the_curve_of_one() {
    let Some(conformance) = testing::conformance_dir() else { return };
    for (name, num_ranks) in [("lora", 2), ("dora", 2)] {
        let Some(curve) = curve(&conformance, name) else { continue };
        let out = tempfile::tempdir().expect("a temporary folder");
        let output_dir = out.path().join("run");
        let mut command = tune(&conformance);
        command.args(["run", "--nproc_per_node", &num_ranks.to_string(), "lora_finetune_distributed"]);
        command.args(["--config", &format!("training/{}", curve.config), "batch_size=1"]).args(&curve.overrides);
        command.args(curve.start()).arg(format!("output_dir={}", output_dir.display()));
        succeed(&mut command);
        curve.compare(&read_log(&output_dir), &format!("{name} on {num_ranks} ranks"));
    }
}
