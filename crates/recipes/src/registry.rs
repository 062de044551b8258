//! The recipes and the configs that the program carries, by name.
//!
//! A recipe stays in the table when it is not built in this version: its configs can be listed, copied and checked. A built-in
//! config is listed under the recipe that it is for; any other recipe may be given it too. The texts are the files of the
//! folder `configs/`, which `cargo xtask configs` writes.
//!
//! Checked: `tests/configs.rs` (the table against the folder, every config against the recipe it is for).

/// A recipe, built or not.
#[derive(Debug)]
pub struct Recipe {
    /// What is typed behind `tune run`.
    pub name: &'static str,
    /// What it does, in a line of help.
    pub summary: &'static str,
    /// Whether it can run as several processes.
    pub supports_distributed: bool,
    /// Whether this version runs it.
    pub is_available: bool,
    /// The configs made for it, in the order to list them.
    pub configs: &'static [BuiltInConfig],
}

/// A config that the program carries.
#[derive(Debug)]
pub struct BuiltInConfig {
    /// What is typed behind `--config`.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

/// All recipes, in the order to list them.
pub fn all() -> &'static [Recipe] {
    RECIPES
}

/// The recipe `name`.
pub fn find(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.name == name)
}

/// The built-in config `name`, with the recipe that it is for.
pub fn find_config(name: &str) -> Option<(&'static Recipe, &'static BuiltInConfig)> {
    RECIPES.iter().find_map(|recipe| config_of(recipe, name).map(|config| (recipe, config)))
}

/// The built-in config `name` for `recipe`: one of its own, else one of another recipe.
pub fn find_config_for(recipe: &Recipe, name: &str) -> Option<&'static BuiltInConfig> {
    config_of(recipe, name).or_else(|| find_config(name).map(|(_, config)| config))
}

fn config_of(recipe: &Recipe, name: &str) -> Option<&'static BuiltInConfig> {
    recipe.configs.iter().find(|config| config.name == name)
}

/// Whether a recipe can run as several processes.
#[derive(Clone, Copy, PartialEq)]
enum Devices {
    One,
    Many,
}
use Devices::{Many, One};

const fn recipe(
    name: &'static str,
    devices: Devices,
    summary: &'static str,
    configs: &'static [BuiltInConfig],
) -> Recipe {
    Recipe { name, summary, supports_distributed: matches!(devices, Many), is_available: false, configs }
}

impl Recipe {
    const fn available(mut self) -> Self {
        self.is_available = true;
        self
    }
}

/// Configs by the names of their files, without the ending.
macro_rules! configs {
    ($($name:literal)*) => {
        &[$(BuiltInConfig { name: $name, text: include_str!(concat!("../../../configs/", $name, ".yaml")) }),*]
    };
}

/// In the order of the reference.
const RECIPES: &[Recipe] = &[
    recipe(
        "dev/grpo_full_finetune_distributed",
        Many,
        "train every weight to get rewards for answers (GRPO)",
        configs! {
            "dev/3B_full_grpo" "dev/qwen3B_sync_grpo"
        },
    ),
    recipe(
        "dev/async_grpo_full_finetune_distributed",
        One,
        "GRPO with processes of its own that write and score answers",
        configs! {
            "dev/qwen3B_async_grpo"
        },
    ),
    recipe(
        "full_finetune_single_device",
        One,
        "train every weight of a model on one device",
        configs! {
            "llama2/7B_full_low_memory" "llama3/8B_full_single_device" "llama3_1/8B_full_single_device"
            "llama3_2/1B_full_single_device" "llama3_2/3B_full_single_device" "mistral/7B_full_low_memory"
            "phi3/mini_full_low_memory" "phi4/14B_full_low_memory" "qwen2/7B_full_single_device"
            "qwen2/0.5B_full_single_device" "qwen2/1.5B_full_single_device" "qwen2_5/0.5B_full_single_device"
            "qwen2_5/1.5B_full_single_device" "qwen2_5/3B_full_single_device" "qwen2_5/7B_full_single_device"
            "llama3_2_vision/11B_full_single_device" "qwen3/0.6B_full_single_device"
            "qwen3/1.7B_full_single_device" "qwen3/4B_full_single_device" "qwen3/8B_full_single_device"
        },
    )
    .available(),
    recipe(
        "full_finetune_distributed",
        Many,
        "train every weight of a model on several devices",
        configs! {
            "llama2/7B_full" "llama2/13B_full" "llama3/8B_full" "llama3_1/8B_full" "llama3_2/1B_full"
            "llama3_2/3B_full" "llama3/70B_full" "llama3_1/70B_full" "llama3_3/70B_full"
            "llama3_3/70B_full_multinode" "mistral/7B_full" "gemma/2B_full" "gemma/7B_full" "gemma2/2B_full"
            "gemma2/9B_full" "gemma2/27B_full" "phi3/mini_full" "phi4/14B_full" "qwen2/7B_full"
            "qwen2/0.5B_full" "qwen2/1.5B_full" "qwen2_5/0.5B_full" "qwen2_5/1.5B_full" "qwen2_5/3B_full"
            "qwen2_5/7B_full" "llama3_2_vision/11B_full" "llama3_2_vision/90B_full" "llama4/scout_17B_16E_full"
            "llama4/maverick_17B_128E_full" "qwen3/0.6B_full" "qwen3/1.7B_full" "qwen3/4B_full" "qwen3/8B_full"
            "dev/3B_sft_for_grpo" "dev/8B_full_experimental"
        },
    )
    .available(),
    recipe(
        "lora_finetune_single_device",
        One,
        "train an adapter (LoRA, QLoRA, DoRA) on one device",
        configs! {
            "llama2/7B_lora_single_device" "llama2/7B_qlora_single_device" "llama3/8B_lora_single_device"
            "llama3_1/8B_lora_single_device" "llama3/8B_qlora_single_device" "llama3_2/1B_lora_single_device"
            "llama3_2/3B_lora_single_device" "llama3/8B_dora_single_device" "llama3/8B_qdora_single_device"
            "llama3_1/8B_qlora_single_device" "llama3_2/1B_qlora_single_device"
            "llama3_2/3B_qlora_single_device" "llama2/13B_qlora_single_device" "mistral/7B_lora_single_device"
            "mistral/7B_qlora_single_device" "gemma/2B_lora_single_device" "gemma/2B_qlora_single_device"
            "gemma/7B_lora_single_device" "gemma/7B_qlora_single_device" "gemma2/2B_lora_single_device"
            "gemma2/2B_qlora_single_device" "gemma2/9B_lora_single_device" "gemma2/9B_qlora_single_device"
            "gemma2/27B_lora_single_device" "gemma2/27B_qlora_single_device" "phi3/mini_lora_single_device"
            "phi3/mini_qlora_single_device" "phi4/14B_lora_single_device" "phi4/14B_qlora_single_device"
            "qwen2/7B_lora_single_device" "qwen2/0.5B_lora_single_device" "qwen2/1.5B_lora_single_device"
            "qwen2_5/0.5B_lora_single_device" "qwen2_5/1.5B_lora_single_device" "qwen2_5/3B_lora_single_device"
            "qwen2_5/7B_lora_single_device" "qwen2_5/14B_lora_single_device"
            "llama3_2_vision/11B_lora_single_device" "llama3_2_vision/11B_qlora_single_device"
            "qwen3/0.6B_lora_single_device" "qwen3/1.7B_lora_single_device" "qwen3/4B_lora_single_device"
            "qwen3/8B_lora_single_device" "qwen3/14B_lora_single_device"
        },
    )
    .available(),
    recipe(
        "lora_dpo_single_device",
        One,
        "train an adapter to prefer the better of two answers (DPO)",
        configs! {
            "llama2/7B_lora_dpo_single_device" "llama3_1/8B_lora_dpo_single_device"
        },
    )
    .available(),
    recipe(
        "lora_dpo_distributed",
        Many,
        "DPO with an adapter on several devices",
        configs! {
            "llama2/7B_lora_dpo" "llama3_1/8B_lora_dpo"
        },
    )
    .available(),
    recipe(
        "full_dpo_distributed",
        Many,
        "DPO with every weight on several devices",
        configs! {
            "llama3_1/8B_full_dpo"
        },
    )
    .available(),
    recipe(
        "ppo_full_finetune_single_device",
        One,
        "train every weight to please a reward model (PPO)",
        configs! {
            "mistral/7B_full_ppo_low_memory" "llama2/1B_full_ppo_low_memory_single_device"
        },
    ),
    recipe(
        "lora_finetune_distributed",
        Many,
        "train an adapter (LoRA, QLoRA, DoRA) on several devices",
        configs! {
            "llama2/7B_lora" "llama2/13B_lora" "llama2/70B_lora" "llama2/7B_qlora" "llama2/70B_qlora"
            "llama3/8B_dora" "llama3/70B_lora" "llama3_1/70B_lora" "llama3_3/70B_lora" "llama3_3/70B_qlora"
            "llama3/8B_lora" "llama3_1/8B_lora" "llama3_2/1B_lora" "llama3_2/3B_lora" "llama3_1/405B_qlora"
            "mistral/7B_lora" "gemma/2B_lora" "gemma/7B_lora" "gemma2/2B_lora" "gemma2/9B_lora"
            "gemma2/27B_lora" "phi3/mini_lora" "phi4/14B_lora" "qwen2/7B_lora" "qwen2/0.5B_lora"
            "qwen2/1.5B_lora" "qwen2_5/0.5B_lora" "qwen2_5/1.5B_lora" "qwen2_5/3B_lora" "qwen2_5/7B_lora"
            "qwen2_5/32B_lora" "qwen2_5/72B_lora" "llama3_2_vision/11B_lora" "llama3_2_vision/11B_qlora"
            "llama3_2_vision/90B_lora" "llama3_2_vision/90B_qlora" "llama4/scout_17B_16E_lora" "qwen3/0.6B_lora"
            "qwen3/1.7B_lora" "qwen3/4B_lora" "qwen3/8B_lora" "qwen3/32B_lora"
        },
    )
    .available(),
    recipe(
        "dev/lora_finetune_distributed_multi_dataset",
        Many,
        "train an adapter on a mixture of datasets",
        configs! {
            "dev/11B_lora_multi_dataset"
        },
    ),
    recipe(
        "generate",
        One,
        "answer a prompt",
        configs! {
            "generation"
        },
    )
    .available(),
    recipe(
        "dev/generate_v2",
        One,
        "answer a prompt, which may hold a picture",
        configs! {
            "llama2/generation_v2" "llama3_2_vision/11B_generation_v2"
        },
    ),
    recipe(
        "dev/generate_v2_distributed",
        Many,
        "answer a prompt with a model on several devices",
        configs! {
            "llama3/70B_generation_distributed" "llama3_1/70B_generation_distributed"
            "llama3_3/70B_generation_distributed" "llama4/scout_17B_16E_generation_distributed"
        },
    ),
    recipe(
        "dev/early_exit_finetune_distributed",
        Many,
        "train a model to answer from its earlier layers too",
        configs! { "llama2/7B_full_early_exit" },
    ),
    recipe(
        "eleuther_eval",
        One,
        "evaluate a model with the EleutherAI harness",
        configs! {
            "eleuther_evaluation" "llama3_2_vision/11B_evaluation" "qwen2/evaluation" "qwen2_5/evaluation"
            "gemma/evaluation" "phi4/evaluation" "phi3/evaluation" "mistral/evaluation" "llama3_2/evaluation"
            "qwen3/evaluation" "llama3_1/evaluation"
        },
    ),
    recipe(
        "quantize",
        One,
        "quantise the weights of a model",
        configs! {
            "quantization"
        },
    ),
    recipe(
        "qat_single_device",
        One,
        "train every weight as if it were quantised (QAT)",
        configs! {
            "qwen2_5/3B_qat_single_device" "qwen2_5/1.5B_qat_single_device" "llama2/1B_qat_single_device"
        },
    )
    .available(),
    recipe(
        "qat_distributed",
        Many,
        "QAT on several devices",
        configs! {
            "llama2/7B_qat_full" "llama3/8B_qat_full" "llama3_1/8B_qat_full" "llama3_2/3B_qat_full"
            "qwen3/0.6B_qat_full" "qwen3/1.7B_qat_full" "qwen3/4B_qat_full" "qwen3/8B_qat_full"
        },
    )
    .available(),
    recipe(
        "qat_lora_finetune_distributed",
        Many,
        "QAT with an adapter on several devices",
        configs! {
            "llama3/8B_qat_lora" "llama3_1/8B_qat_lora" "llama3_2/1B_qat_lora" "llama3_2/3B_qat_lora"
            "qwen3/0.6B_qat_lora" "qwen3/1.7B_qat_lora" "qwen3/32B_qat_lora" "qwen3/4B_qat_lora"
            "qwen3/8B_qat_lora"
        },
    )
    .available(),
    recipe(
        "knowledge_distillation_single_device",
        One,
        "train an adapter to answer as a larger model does",
        configs! {
            "qwen2/1.5_to_0.5B_KD_lora_single_device" "llama3_2/8B_to_1B_KD_lora_single_device"
            "qwen3/14B_to_8B_KD_lora_single_device" "qwen2_5/14B_to_7B_KD_lora_single_device"
        },
    ),
    recipe(
        "knowledge_distillation_distributed",
        Many,
        "distillation on several devices",
        configs! {
            "qwen2/1.5_to_0.5B_KD_lora_distributed" "llama3_2/8B_to_1B_KD_lora_distributed"
        },
    ),
];
