//! Preference optimisation as its users meet it: first losses, references, ranks, going on from a checkpoint.

use serde_json::json;

use super::common::LoggedStep;
use super::runs::{Place, check_resuming_of};

const LORA: &str = "lora_dpo_single_device";
const FULL: &str = "full_dpo_distributed";
const ADAPTER: [&str; 3] = ["model.lora_attn_modules=[q_proj, v_proj]", "model.lora_rank=4", "optimizer.lr=3e-2"];
/// The trained folder as policy and as reference.
const TRAINED: [&str; 5] = [
    "model=null",
    "checkpointer.checkpoint_dir=sft/epoch_0",
    "ref_checkpointer._component_=torchtune.training.FullModelHFCheckpointer",
    "ref_checkpointer.checkpoint_dir=sft/epoch_0",
    "ref_checkpointer.output_dir=unused",
];

/// Steps of an epoch: ten pairs, two a step.
const STEPS: u64 = 5;

/// Pairs beside a trained model.
fn place(recipe: &'static str) -> Place {
    let place = Place::new().with_recipe(recipe);
    place.train_with("full_finetune_single_device", 2, "sft", &["epochs=1"]);
    let side = |number: usize, answer: &str| {
        let question = format!("Question {number}?");
        json!([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    };
    let pairs: Vec<_> = (0..10)
        .map(|number| {
            let (better, worse) = ("yes ".repeat(number % 4 + 1), "no ".repeat(number % 3 + 1));
            json!({"chosen": side(number, &better), "rejected": side(number, &worse)})
        })
        .collect();
    std::fs::write(place.at("pairs.json"), json!(pairs).to_string()).expect("writable");
    let config = std::fs::read_to_string(place.at("run.yaml")).expect("there");
    let rows = "torchtune.datasets.instruct_dataset\n  source: json\n  data_files: rows.json";
    let of_pairs = "torchtune.datasets.preference_dataset\n  source: json\n  data_files: pairs.json";
    assert!(config.contains(rows));
    std::fs::write(place.at("run.yaml"), config.replace(rows, of_pairs)).expect("writable");
    place
}

fn value(step: &LoggedStep, name: &str) -> f64 {
    step.get(name).unwrap_or_else(|| panic!("no {name} in {step:?}"))
}

#[test]
fn the_first_loss_is_the_logarithm_of_two() {
    let place = place(FULL);
    place.train("full", &TRAINED);
    place.train_with(LORA, 2, "lora", &ADAPTER);
    place.train_with("lora_dpo_distributed", 2, "ranks", &ADAPTER);
    for out in ["full", "lora", "ranks"] {
        let log = place.log(out);
        assert_eq!(log.len() as u64, 2 * STEPS, "{out}");
        assert!((value(&log[0], "loss") - std::f64::consts::LN_2).abs() < 1e-6, "{out}: {:?}", log[0]);
        assert_eq!((value(&log[0], "rewards/chosen"), value(&log[0], "rewards/rejected")), (0.0, 0.0), "{out}");
        let last = log.last().expect("logged");
        assert!(value(last, "loss") < 0.65 && value(last, "rewards/margins") > 0.0, "{out}: {last:?}");
    }
}

#[test]
fn rewards_are_differences_to_the_reference() {
    let place = place(FULL);
    place.train("reference", &[&TRAINED[..], &["epochs=1"]].concat());
    let policy = ["checkpointer.checkpoint_dir=reference/epoch_0", "epochs=1"];
    place.train("policy", &[&TRAINED[..], &policy].concat());
    let (reference, policy) = (&place.log("reference")[0], &place.log("policy")[0]);
    for side in ["chosen", "rejected"] {
        let log_probs = |step: &LoggedStep| value(step, &format!("log_probs/{side}"));
        let (found, expected) =
            (value(policy, &format!("rewards/{side}")), 0.1 * (log_probs(policy) - log_probs(reference)));
        assert!(expected.abs() > 1e-3, "the policy is not the reference: {expected}");
        assert!((found - expected).abs() < 1e-4, "{side}: {found}, expected {expected}");
    }
}

#[test]
fn ranks_are_one_rank_with_all_pairs() {
    let place = place(FULL);
    for (recipe, overrides) in [(FULL, &TRAINED[..]), ("lora_dpo_distributed", &ADAPTER)] {
        place.train_with(recipe, 2, "one", overrides);
        let ranks = [overrides, &["batch_size=1"]].concat();
        let mut command = super::common::tune(&place.at(""));
        command.args(["run", "--nproc_per_node", "2", recipe, "--config", "run.yaml", "output_dir=two"]).args(&ranks);
        super::common::succeed(&mut command);
        for (found, expected) in place.log("two").iter().zip(&place.log("one")) {
            for name in ["loss", "rewards/margins", "rewards/accuracies", "log_probs/chosen"] {
                let (found, expected) = (value(found, name), value(expected, name));
                assert!(
                    (found - expected).abs() < 2e-4 * expected.abs().max(1.0),
                    "{recipe}, {name}: {found}, {expected}"
                );
            }
        }
        for out in ["one", "two"] {
            std::fs::remove_dir_all(place.at(out)).expect("removed");
        }
    }
}

#[test]
fn resuming() {
    check_resuming_of(&|| place(LORA), "an adapter", &[&ADAPTER[..], &["dtype=bf16"]].concat(), 2 * STEPS, &[1, STEPS]);
    check_resuming_of(&|| place(FULL), "every weight", &TRAINED, 2 * STEPS, &[3, STEPS]);
}
