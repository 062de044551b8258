//! Checking the config of a recipe that is not built: what can be said of it all the same.
//!
//! Every section with a `_component_`, at any depth and inside lists, is looked up. Its key tells what kind of component it
//! must be; without such a key, every kind is tried. One that is built is checked with all of its keys. One that is known is a
//! problem of its own, and only the components inside it are looked at. At the top level, a key close to one that some recipe
//! reads is a slip, and any other unknown key is ignored with a notice.

use checkpoint::CHECKPOINTERS;
use config::{FromNode, Node, Problem, ProblemKind, Problems, Value, most_alike, nearest};
use data::{DATASETS, DatasetConfig, PREFERENCE_DATASETS, PreferenceDatasetConfig};
use metrics::{METRIC_LOGGERS, MetricLoggerConfig};
use models::{MODELS, ModelSection};
use optim::{OPTIMIZERS, Optimizer, SCHEDULES, ScheduleConfig};
use tokenizers::components::{TOKENIZERS, TokenizerConfig};

use crate::components::{
    COLLATORS, Checkpointer, KD_LOSSES, LOSSES, Loss, QUANTIZERS, REWARD_FUNCTIONS, TENSOR_PARALLEL_PLANS, TRANSFORMS,
};
use crate::profiling::{PROFILERS, Profiler};

/// Checks every component of a config, and its top-level keys.
pub(crate) fn check_sections(root: &Node, problems: &mut Problems) {
    let Some(sections) = root.as_map() else { return };
    for (key, node) in sections.iter() {
        check_key(key.as_str(), node, problems);
        check_within(key.as_str(), node, problems);
    }
}

/// One kind of component: the keys it stands behind, and what its table of names says.
struct Kind {
    keys: &'static [&'static str],
    /// Whether the name is that of a component whose keys can be checked.
    is_built: fn(&str) -> bool,
    is_not_built: fn(&str) -> bool,
    /// All names, to find the one that was meant.
    names: fn() -> Vec<&'static str>,
    /// Checks a section that must be such a component.
    check: fn(&Node, &mut Problems),
}

/// A kind with its table of names, and the type that its sections are read as, if there is one.
macro_rules! kind {
    ($keys:expr, $names:expr, $Section:ty) => {
        Kind {
            check: |section, problems| {
                <$Section>::from_node(section, problems);
            },
            ..kind!($keys, $names)
        }
    };
    ($keys:expr, $names:expr) => {
        Kind {
            keys: &$keys,
            is_built: |name| $names.find(name).is_some(),
            is_not_built: |name| $names.is_not_built(name),
            names: || $names.shown().collect(),
            check: |section, problems| {
                $names.choose(section, problems);
            },
        }
    };
}

const KINDS: &[Kind] = &[
    kind!(["model", "policy_model", "reward_and_value_model", "teacher_model"], MODELS, ModelSection),
    kind!(["tokenizer"], TOKENIZERS, TokenizerConfig),
    kind!(
        [
            "checkpointer",
            "ref_checkpointer",
            "ref_policy_checkpointer",
            "reward_checkpointer",
            "teacher_checkpointer",
            "value_checkpointer"
        ],
        CHECKPOINTERS,
        Checkpointer
    ),
    Kind { check: check_dataset, ..kind!(["dataset", "dataset_val", "datasets"], DATASETS) },
    kind!([], PREFERENCE_DATASETS, PreferenceDatasetConfig),
    kind!(["transform", "message_transform", "model_transform"], TRANSFORMS),
    kind!(["optimizer"], OPTIMIZERS, Optimizer),
    kind!(["lr_scheduler"], SCHEDULES, ScheduleConfig),
    kind!(["loss"], LOSSES, Loss),
    kind!(["kd_loss"], KD_LOSSES),
    kind!(["metric_logger"], METRIC_LOGGERS, MetricLoggerConfig),
    kind!(["profiler"], PROFILERS, Profiler),
    kind!(["quantizer"], QUANTIZERS),
    kind!(["tensor_parallel_plan"], TENSOR_PARALLEL_PLANS),
    kind!(["reward_functions"], REWARD_FUNCTIONS),
];

/// A dataset of rows, or of pairs: which of them a recipe takes is its own business.
fn check_dataset(section: &Node, problems: &mut Problems) {
    match section.component_name().and_then(|name| PREFERENCE_DATASETS.find(name)) {
        Some(check_pairs) => {
            check_pairs(section, problems);
        }
        None => {
            DatasetConfig::from_node(section, problems);
        }
    }
}

/// Checks the components at and below `node`, which stands behind `key`.
fn check_within(key: &str, node: &Node, problems: &mut Problems) {
    match node.value() {
        // What a list is called says what its elements are: `reward_functions: [{_component_: ...}, ...]`.
        Value::List(items) => items.iter().for_each(|item| check_within(key, item, problems)),
        Value::Map(keys) if !node.is_absent() => {
            let all_checked = node.is_component() && check_component(key, node, problems);
            for (key, node) in keys.iter().filter(|_| !all_checked) {
                check_within(key.as_str(), node, problems);
            }
        }
        // The one component that is named without a section.
        Value::String(_) if key == "collate_fn" => {
            COLLATORS.look_up(node, problems);
        }
        _ => {}
    }
}

/// Checks one component; true if that was all of its keys.
fn check_component(key: &str, section: &Node, problems: &mut Problems) -> bool {
    let name = section.component_name().unwrap_or_default();
    let by_name = || KINDS.iter().find(|kind| (kind.is_built)(name) || (kind.is_not_built)(name));
    match KINDS.iter().find(|kind| kind.keys.contains(&key)).or_else(by_name) {
        Some(kind) => {
            (kind.check)(section, problems);
            (kind.is_built)(name)
        }
        None => {
            unknown_component(section, problems);
            false
        }
    }
}

/// Reports a component of no known kind.
fn unknown_component(section: &Node, problems: &mut Problems) {
    let Some(component) = section.get("_component_") else { return };
    let Some(name) = component.as_str().filter(|_| !component.is_missing()) else {
        problems.wrong_value(component, "the name of a component, such as `torch.optim.AdamW`");
        return;
    };
    let known = KINDS.iter().flat_map(|kind| (kind.names)());
    let hint = most_alike(name, known, 1).first().map(|meant| format!("did you mean `{meant}`?"));
    let kind = ProblemKind::UnknownComponent { role: "component", name: name.to_owned() };
    problems.push(Problem { key: component.path().to_owned(), origin: component.origin().clone(), kind, hint });
}

/// Checks that some recipe reads the top-level key `key`.
fn check_key(key: &str, node: &Node, problems: &mut Problems) {
    if TOP_LEVEL_KEYS.contains(&key) || node.is_referenced() {
        return;
    }
    match nearest(key, TOP_LEVEL_KEYS.iter().copied()) {
        Some(meant) => {
            problems.unknown_key(node, meant.to_owned());
        }
        None => problems.notice(format!("unknown key `{key}` is ignored")),
    }
}

/// Top-level keys that a recipe reads, or that configs of torchtune have had without effect.
#[rustfmt::skip]
const TOP_LEVEL_KEYS: &[&str] = &[
    // Nearly every recipe.
    "checkpointer", "cudnn_deterministic_mode", "device", "dtype", "log_level", "model", "output_dir", "quantizer", "seed",
    "tokenizer",
    // Training.
    "ac_mode", "ac_option", "activation_offloading_use_streams", "batch_size", "batch_size_val", "clip_grad_norm",
    "collate_fn", "compile", "dataset", "dataset_val", "enable_activation_checkpointing", "enable_activation_offloading",
    "enable_async_checkpointing", "epochs", "gradient_accumulation_steps", "log_every_n_steps", "log_peak_memory_stats",
    "loss", "lr_scheduler", "max_steps_per_epoch", "metric_logger", "optimizer", "optimizer_in_bwd",
    "overwrite_output_dir", "profiler", "resize_token_embeddings", "resume_from_checkpoint", "run_val_every_n_steps",
    "save_every_n_epochs", "save_every_n_steps", "shuffle",
    // Adapters, quantisation, distillation, preferences, early exits, many datasets.
    "dataloader", "datasets", "early_exit_loss", "fake_quant_after_n_steps", "kd_loss", "kd_ratio", "layer_dropout",
    "low_cpu_ram", "ref_checkpointer", "save_adapter_weights_only", "teacher_checkpointer", "teacher_model",
    // Several devices.
    "context_parallel_dim", "context_parallel_rotate_method", "custom_sharded_layers", "data_parallel_replicate_dim",
    "data_parallel_shard_dim", "enable_fp8_training", "fp8_recipe_name", "fsdp", "fsdp_cpu_offload",
    "fsdp_reshard_after_forward", "memory_efficient_fsdp_wrap", "tensor_parallel_dim", "tensor_parallel_plan",
    "use_distributed_state_dict", "use_flex",
    // Reinforcement learning.
    "debug_logging_enabled", "debug_num_samples_per_step", "forward_batch_size", "gamma", "grpo_samples", "inference",
    "kl_coeff", "lmbda", "max_generated_tokens", "min_response_length", "num_steps", "orchestration", "penalise_no_eos",
    "policy_model", "postprocessing", "ppo_batch_size", "ppo_epochs", "ref_policy_checkpointer", "reward_and_value_model",
    "reward_checkpointer", "reward_functions", "reward_penalty", "stop_token_ids", "temperature", "top_k", "training",
    "value_checkpointer", "whiten_rewards",
    // Generation and evaluation.
    "apply_chat_template", "chat_template", "enable_kv_cache", "include_path", "limit", "max_new_tokens", "max_seq_length",
    "prompt", "tasks",
    // Only referred to from other keys.
    "base_model_path", "model_dir", "name",
];
