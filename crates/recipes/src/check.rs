//! Checking a config for a recipe without running it, and finding the recipe that a config is for.

use config::{Merged, Node, Origin, Problem, ProblemKind, Problems};

use crate::registry::{self, Recipe};
use crate::{built, sections};

/// Everything that can be said about a config without weights and rows: every section's components, types and ranges, what
/// the recipe requires and what it cannot combine. A recipe that is not built is itself a problem; the components of its
/// config are checked all the same.
pub fn check(recipe: &Recipe, config: &Merged) -> Problems {
    let mut problems = Problems::new();
    match built(recipe.name) {
        Some(built) => (built.check)(config, &mut problems),
        None => {
            let kind = ProblemKind::NotAvailable { role: "recipe", name: recipe.name.to_owned() };
            problems.push(Problem { key: String::new(), origin: Origin::Code, kind, hint: None });
            sections::check_sections(config.root(), &mut problems);
        }
    }
    problems
}

/// The recipe whose sections and keys a config has.
pub fn guess_recipe(config: &Merged) -> &'static Recipe {
    let name = guess(config.root());
    registry::find(name).expect("only registered recipes are guessed")
}

/// Keys that only recipes for several devices read.
const DISTRIBUTED_KEYS: &[&str] = &[
    "fsdp_cpu_offload",
    "fsdp_reshard_after_forward",
    "custom_sharded_layers",
    "tensor_parallel_dim",
    "tensor_parallel_plan",
    "context_parallel_dim",
    "data_parallel_shard_dim",
    "data_parallel_replicate_dim",
    "use_distributed_state_dict",
];

fn guess(root: &Node) -> &'static str {
    let has = |key: &str| root.get(key).is_some_and(|node| !node.is_absent());
    let component = |key: &str| root.get(key).and_then(Node::component_name).unwrap_or_default();
    let one_or_many = |one, many| if DISTRIBUTED_KEYS.iter().any(|key| has(key)) { many } else { one };
    let model = component("model").rsplit('.').next().unwrap_or_default();
    let has_adapter =
        model.starts_with("lora_") || model.starts_with("qlora_") || root.at("model.lora_attn_modules").is_some();
    let sft = || match (has_adapter, component("quantizer").contains("QAT")) {
        (true, true) => "qat_lora_finetune_distributed",
        (false, true) => one_or_many("qat_single_device", "qat_distributed"),
        (true, false) => one_or_many("lora_finetune_single_device", "lora_finetune_distributed"),
        (false, false) => one_or_many("full_finetune_single_device", "full_finetune_distributed"),
    };
    let first_signs: &[(&str, &'static str)] = &[
        ("orchestration", "dev/async_grpo_full_finetune_distributed"),
        ("grpo_samples", "dev/grpo_full_finetune_distributed"),
        ("policy_model", "ppo_full_finetune_single_device"),
        ("early_exit_loss", "dev/early_exit_finetune_distributed"),
        ("layer_dropout", "dev/early_exit_finetune_distributed"),
        ("datasets", "dev/lora_finetune_distributed_multi_dataset"),
        ("tasks", "eleuther_eval"),
    ];
    if let Some((_, recipe)) = first_signs.iter().find(|(key, _)| has(key)) {
        return recipe;
    }
    if has("teacher_model") {
        return one_or_many("knowledge_distillation_single_device", "knowledge_distillation_distributed");
    }
    if has("prompt") {
        let is_v2 = root.at("prompt.user").is_some_and(|user| user.as_map().is_some());
        let v2 = one_or_many("dev/generate_v2", "dev/generate_v2_distributed");
        return if is_v2 || v2 == "dev/generate_v2_distributed" { v2 } else { "generate" };
    }
    if ["DPOLoss", "RSOLoss"].iter().any(|loss| component("loss").ends_with(loss)) {
        let lora = one_or_many("lora_dpo_single_device", "lora_dpo_distributed");
        return if has_adapter { lora } else { "full_dpo_distributed" };
    }
    if has("quantizer") && !has("optimizer") {
        return "quantize";
    }
    sft()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_calls_available_what_is_built() {
        for recipe in registry::all() {
            assert_eq!(recipe.is_available, built(recipe.name).is_some(), "{}", recipe.name);
        }
    }

    #[test]
    fn sections_tell_the_recipe() {
        for (yaml, recipe) in [
            ("{}", "full_finetune_single_device"),
            ("model: {_component_: torchtune.models.llama3.lora_llama3_8b}", "lora_finetune_single_device"),
            (
                "{model: {_component_: torchtune.models.llama3.lora_llama3_8b}, fsdp_cpu_offload: false}",
                "lora_finetune_distributed",
            ),
            ("prompt: {user: hi}", "generate"),
            ("prompt: {user: {text: hi}}", "dev/generate_v2"),
            ("loss: {_component_: torchtune.rlhf.loss.DPOLoss}", "full_dpo_distributed"),
            (
                "{model: {lora_attn_modules: [q_proj]}, loss: {_component_: torchtune.rlhf.loss.RSOLoss}}",
                "lora_dpo_single_device",
            ),
            ("{quantizer: {_component_: torchtune.training.quantization.Int8DynActInt4WeightQuantizer}}", "quantize"),
            ("teacher_model: {_component_: x}", "knowledge_distillation_single_device"),
        ] {
            let config = Merged::from_text("run.yaml", yaml).expect("valid YAML");
            assert_eq!(guess_recipe(&config).name, recipe, "{yaml}");
        }
    }
}
