//! What can be wrong with the config of a full fine-tuning, besides types and ranges.

use config::{Merged, Node, Problem, ProblemKind, Problems, Value};
use metrics::MetricLoggerConfig;

use super::MeshShape;
use crate::components;
use crate::settings::{FullFinetuneSettings, Place};

/// What the recipes differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One device.
    Single,
    /// Any number of ranks.
    Distributed,
}

/// Keys that only several ranks give a meaning to.
const KEYS_OF_RANKS: &[&str] = &[
    "fsdp_cpu_offload",
    "fsdp_reshard_after_forward",
    "custom_sharded_layers",
    "data_parallel_shard_dim",
    "data_parallel_replicate_dim",
    "tensor_parallel_dim",
    "tensor_parallel_plan",
    "context_parallel_dim",
    "context_parallel_rotate_method",
];

/// The checked config; `None` after its problems were reported.
pub(crate) fn check(config: &Merged, problems: &mut Problems, name: &str, kind: Kind) -> Option<FullFinetuneSettings> {
    let settings = FullFinetuneSettings::check(config.root(), problems);
    // Looks at the config itself: what is wrong elsewhere hides nothing.
    let keys = Keys(config.root());
    refuse_combinations(&keys, problems);
    refuse_not_available(&keys, problems, kind);
    components::check_device(config, problems);
    components::check_collate(config, problems);
    components::check_packing(config, problems);
    components::check_model_type(config, problems);
    match kind {
        Kind::Single => notice_keys_of_ranks(&keys, problems, name),
        Kind::Distributed => check_layers(&keys, problems),
    }
    notice_without_effect(&keys, problems, name, kind);
    components::notice_torch_only_keys(config, problems);
    if let Some(settings) = &settings {
        let log_dir = settings.metric_logger.as_ref().and_then(MetricLoggerConfig::log_dir);
        components::check_output_dirs(&settings.checkpointer, Some(&settings.output_dir), log_dir, config, problems);
        notice_offload(settings, problems);
    }
    settings
}

/// How `num_ranks` share the work.
pub(crate) fn mesh_shape(
    settings: &FullFinetuneSettings,
    num_ranks: usize,
    config: &Merged,
    problems: &mut Problems,
) -> MeshShape {
    let replicate = settings.data_parallel_replicate_dim;
    let shard = match settings.data_parallel_shard_dim {
        dim if dim > 0 => dim as usize,
        _ => (num_ranks / replicate).max(1),
    };
    let keys = Keys(config.root());
    if let (0, Some(node)) = (settings.data_parallel_shard_dim, keys.set("data_parallel_shard_dim")) {
        problems.wrong_value(node, "-1 or an integer >= 1");
    }
    let shape = MeshShape { replicate, shard };
    if replicate.saturating_mul(shard) != num_ranks {
        let node = keys.set("data_parallel_shard_dim").or_else(|| keys.set("data_parallel_replicate_dim"));
        if let Some(node) = node {
            problems
                .refuse(
                    node,
                    format!(
                        "data_parallel_replicate_dim * data_parallel_shard_dim = {replicate} * {shard} is not the number of ranks, {num_ranks}"
                    ),
                )
                .hint("leave both out to share one copy among all ranks, or start another number with `--nproc-per-node`");
        }
    }
    shape
}

/// Top-level keys of a config.
struct Keys<'a>(&'a Node);

impl<'a> Keys<'a> {
    /// The value of a key, unless it is null.
    fn set(&self, key: &str) -> Option<&'a Node> {
        self.0.at(key).filter(|node| !node.is_null())
    }

    fn on(&self, key: &str) -> Option<&'a Node> {
        self.set(key).filter(|node| *node.value() == Value::Bool(true))
    }

    fn above_one(&self, key: &str) -> Option<&'a Node> {
        self.set(key).filter(|node| matches!(node.value(), Value::Int(number) if *number > 1))
    }
}

/// Keys that are fine alone but not together.
fn refuse_combinations(keys: &Keys<'_>, problems: &mut Problems) {
    if keys.on("optimizer_in_bwd").is_none() {
        return;
    }
    if let Some(node) = keys.set("clip_grad_norm") {
        problems
            .refuse(node, "`optimizer_in_bwd: True` updates before all gradients are known, so none can be clipped")
            .hint("set `clip_grad_norm=None`, or `optimizer_in_bwd=False`");
    }
    if let Some(node) = keys.above_one("gradient_accumulation_steps") {
        problems
            .refuse(node, "`optimizer_in_bwd: True` updates in every micro-batch, so nothing can add up")
            .hint("set `gradient_accumulation_steps=1`, or `optimizer_in_bwd=False`");
    }
}

/// Keys that would change results and cannot be honoured.
fn refuse_not_available(keys: &Keys<'_>, problems: &mut Problems, kind: Kind) {
    if let Some(node) = keys.on("resize_token_embeddings") {
        problems.refuse(node, "growing the embedding is not available yet in this version");
    }
    if kind == Kind::Single {
        return;
    }
    let parallel = ["tensor_parallel_dim", "context_parallel_dim"].map(|key| (key, keys.above_one(key), "1"));
    let fp8 = ("enable_fp8_training", keys.on("enable_fp8_training"), "False");
    for (key, node, without) in parallel.into_iter().chain([fp8]) {
        let Some(node) = node else { continue };
        problems.push(Problem {
            key: node.path().to_owned(),
            origin: node.origin().clone(),
            kind: ProblemKind::NotAvailable {
                role: "setting",
                name: format!("{key}: {}", node.raw().unwrap_or_default()),
            },
            hint: Some(format!("set `{key}={without}`")),
        });
    }
    if let Some(node) = keys.set("run_val_every_n_steps") {
        problems
            .refuse(node, "validation during training is not available yet in this version")
            .hint("set `run_val_every_n_steps=None`");
    }
}

fn notice_keys_of_ranks(keys: &Keys<'_>, problems: &mut Problems, name: &str) {
    let set: Vec<String> =
        KEYS_OF_RANKS.iter().filter(|key| keys.set(key).is_some()).map(|key| format!("`{key}`")).collect();
    if !set.is_empty() {
        let verb = if set.len() == 1 { "has" } else { "have" };
        problems.notice(format!("{} {verb} no effect: recipe `{name}` runs on one rank", set.join(", ")));
    }
}

/// The layers that are sharded by themselves: those of the reference's names that a decoder has.
fn check_layers(keys: &Keys<'_>, problems: &mut Problems) {
    let Some(list) = keys.set("custom_sharded_layers") else { return };
    let mut known = true;
    for item in list.as_list().unwrap_or_default() {
        let name = item.as_str().or(item.raw()).unwrap_or_default();
        let name = name.strip_prefix("decoder.").unwrap_or(name);
        let is_block = name
            .strip_prefix("layers.")
            .is_some_and(|rest| rest.split('.').next().is_some_and(|n| n.parse::<usize>().is_ok()));
        if !is_block && !["tok_embeddings", "output", "norm", "layers"].contains(&name) {
            known = false;
            problems.wrong_value(item, "a layer: `tok_embeddings`, `layers.0` and so on, `norm`, `output`");
        }
    }
    if known {
        problems.notice(
            "`custom_sharded_layers` has no effect: embedding, every block and the head are sharded by themselves",
        );
    }
}

fn notice_without_effect(keys: &Keys<'_>, problems: &mut Problems, name: &str, kind: Kind) {
    if keys.on("enable_activation_offloading").is_some() {
        problems.notice("`enable_activation_offloading` has no effect: activations are in host memory already");
    }
    if keys.on("enable_async_checkpointing").is_some() {
        problems.notice("`enable_async_checkpointing` has no effect: checkpoints are saved in the foreground");
    }
    if kind == Kind::Single && keys.set("run_val_every_n_steps").is_some() {
        problems.notice(format!("`run_val_every_n_steps` has no effect: recipe `{name}` does not validate"));
    }
    if kind == Kind::Distributed && keys.on("fsdp_cpu_offload").is_some() {
        problems.notice("`fsdp_cpu_offload` has no effect on the CPU: everything lives in host memory already");
    }
    if let (Some(_), Some(mode)) = (keys.on("enable_activation_checkpointing"), keys.set("ac_mode")) {
        problems.notice(format!(
            "`ac_mode={}` goes before `enable_activation_checkpointing`",
            mode.as_str().unwrap_or_default()
        ));
    }
}

fn notice_offload(settings: &FullFinetuneSettings, problems: &mut Problems) {
    let offload = &settings.offload;
    let places =
        [("parameters", offload.parameters), ("gradients", offload.gradients), ("optimizer", offload.optimizer)];
    let host: Vec<String> =
        places.iter().filter(|(_, place)| *place == Place::Host).map(|(what, _)| format!("`offload.{what}`")).collect();
    if !host.is_empty() {
        let verb = if host.len() == 1 { "has" } else { "have" };
        problems.notice(format!(
            "{} {verb} no effect on the CPU: `device` and `host` are the same memory",
            host.join(", ")
        ));
    }
}
