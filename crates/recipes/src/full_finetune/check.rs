//! What can be wrong with the config of a full fine-tuning, besides types and ranges.

use config::{Merged, Node, Problem, ProblemKind, Problems, Value};
use metrics::MetricLoggerConfig;

use super::MeshShape;
use crate::settings::{CheckpointMode, FullFinetuneSettings, Place, Precision};
use crate::{Result, components};

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
        let profile_dir = settings.profiler.as_ref().and_then(|profiler| profiler.0.output_dir.as_deref());
        let output_dir = Some(settings.output_dir.as_path());
        components::check_output_dirs(&settings.checkpointer, output_dir, log_dir, profile_dir, config, problems);
        notice_offload(settings, problems);
        notice_ac_option(settings, problems);
        notice_optimizer(settings, problems);
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
    let before = problems.len();
    for (item, layer) in layers(keys) {
        if !matches!(layer, Layer::Block(_) | Layer::Named) {
            problems.wrong_value(item, "a layer: `tok_embeddings`, `layers.0` and so on, `norm`, `output`");
        }
    }
    if keys.set("custom_sharded_layers").is_some() && problems.len() == before {
        problems.notice(
            "`custom_sharded_layers` has no effect: embedding, every block and the head are sharded by themselves",
        );
    }
}

/// Refuses layers of `custom_sharded_layers` that a model of so many does not have.
pub(crate) fn check_layer_numbers(config: &Merged, num_layers: usize) -> Result<()> {
    let mut problems = Problems::new();
    for (item, layer) in layers(&Keys(config.root())) {
        if matches!(layer, Layer::Block(number) if number >= num_layers) {
            problems.wrong_value(item, format!("a layer of the model: `layers.0` to `layers.{}`", num_layers - 1));
        }
    }
    problems.finish()?;
    Ok(())
}

/// What an entry of `custom_sharded_layers` names.
enum Layer {
    /// One block, by its number.
    Block(usize),
    /// What every decoder has.
    Named,
    /// Nothing of a decoder.
    Unknown,
}

fn layers<'a>(keys: &Keys<'a>) -> impl Iterator<Item = (&'a Node, Layer)> {
    let list = keys.set("custom_sharded_layers").and_then(Node::as_list).unwrap_or_default();
    list.iter().map(|item| {
        let name = item.as_str().or(item.raw()).unwrap_or_default();
        let name = name.strip_prefix("decoder.").unwrap_or(name);
        let number = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let layer = match number {
            Some(number) => Layer::Block(number),
            None if ["tok_embeddings", "output", "norm", "layers"].contains(&name) => Layer::Named,
            None => Layer::Unknown,
        };
        (item, layer)
    })
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

/// `ac_option` counts blocks of `ac_mode: selective` only.
fn notice_ac_option(settings: &FullFinetuneSettings, problems: &mut Problems) {
    if settings.ac_option.is_some() && settings.ac_mode != Some(CheckpointMode::Selective) {
        problems.notice("`ac_option` has no effect without `ac_mode: selective`");
    }
}

/// What is asked of the optimizer and needs nothing, or changes nothing.
fn notice_optimizer(settings: &FullFinetuneSettings, problems: &mut Problems) {
    if settings.optimizer.rounds_by_chance() && settings.dtype != Some(Precision::Bf16) {
        problems.notice("stochastic rounding has no effect with `dtype: fp32`: only bf16 weights are rounded");
    }
    if settings.optimizer.is_paged() && settings.offload.optimizer != Place::Disk {
        problems.notice(
            "`Paged` has no effect on the CPU: an optimizer's states are in host memory anyway; \
             `offload.optimizer: disk` puts them in files",
        );
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
