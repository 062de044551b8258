//! What can be wrong with the config of a fine-tuning, besides types and ranges.

use config::{Merged, Node, Problem, ProblemKind, Problems, Value};
use metrics::MetricLoggerConfig;
use models::families::Builder;

use super::{Aim, Finetune, MeshShape};
use crate::components::ItemKind;
use crate::settings::{CheckpointMode, FinetuneSettings, Place, Precision};
use crate::{Result, components};

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
pub(super) fn check(recipe: &Finetune, config: &Merged, problems: &mut Problems) -> Option<FinetuneSettings> {
    let settings = FinetuneSettings::check(config.root(), problems);
    // Looks at the config itself: what is wrong elsewhere hides nothing.
    let keys = Keys(config.root());
    refuse_combinations(&keys, problems);
    refuse_not_available(&keys, problems, recipe);
    components::check_device(config, problems);
    let takes = recipe.aim.takes();
    components::check_dataset(config, recipe.name, takes, problems);
    components::check_loss_kind(config, recipe.name, takes, problems);
    components::check_collate(config, takes, problems);
    if takes == ItemKind::Rows {
        components::check_packing(config, problems);
    }
    components::check_model_type("checkpointer", config, problems);
    check_reference(recipe, &keys, config, problems);
    check_quantizer(recipe, &keys, problems);
    if recipe.on_ranks {
        check_layers(&keys, problems);
    } else {
        notice_keys_of_ranks(&keys, problems, recipe.name);
    }
    notice_without_effect(&keys, problems, recipe);
    components::notice_torch_only_keys(config, problems);
    if let Some(settings) = &settings {
        let log_dir = settings.metric_logger.as_ref().and_then(MetricLoggerConfig::log_dir);
        let profile_dir = settings.profiler.as_ref().and_then(|profiler| profiler.0.output_dir.as_deref());
        let output_dir = Some(settings.output_dir.as_path());
        let (read, other) = (&settings.checkpointer, settings.ref_checkpointer.as_ref());
        components::check_output_dirs(read, other, output_dir, log_dir, profile_dir, config, problems);
        check_adapter(recipe, settings, &keys, problems);
        notice_offload(settings, problems);
        notice_ac_option(settings, problems);
        notice_optimizer(settings, problems);
    }
    settings
}

/// Whether there is a model to compare with where the recipe needs one.
fn check_reference(recipe: &Finetune, keys: &Keys<'_>, config: &Merged, problems: &mut Problems) {
    const KEY: &str = "ref_checkpointer";
    let node = keys.set(KEY);
    match (recipe.has_reference(), node) {
        (true, None) => {
            problems.missing(keys.0, KEY, "a checkpointer for the frozen model that training compares with").hint(
                format!(
                    "give it the keys of `checkpointer`, or train an adapter with `{}`",
                    recipe.sibling(true, recipe.quantises)
                ),
            );
        }
        (true, Some(_)) => {
            components::check_model_type(KEY, config, problems);
            let adapter = keys.0.at("ref_checkpointer.adapter_checkpoint").filter(|node| !node.is_null());
            if let Some(node) = adapter.filter(|node| node.as_str() != Some("adapter_model.pt")) {
                problems
                    .refuse(node, "the reference is read without an adapter")
                    .hint("name a folder in which the adapter is worked into the weights");
            }
        }
        (false, Some(_)) => {
            let why = match recipe.aim {
                Aim::NextToken => "compares with no other model",
                Aim::Preference => "compares with the model without its adapter",
            };
            problems.notice(format!("`{KEY}` has no effect: recipe `{}` {why}", recipe.name));
        }
        (false, None) => {}
    }
}

/// Whether layers are quantised for show as the recipe wants it.
fn check_quantizer(recipe: &Finetune, keys: &Keys<'_>, problems: &mut Problems) {
    const KEY: &str = "quantizer";
    match (recipe.quantises, keys.set(KEY)) {
        (true, None) => {
            let plain = recipe.sibling(recipe.trains_adapter, false);
            problems
                .missing(keys.0, KEY, "a quantizer with `QAT` in its name")
                .hint(format!("to train without one, run `{plain}`"));
        }
        (false, Some(node)) => {
            let qat = match recipe.aim {
                Aim::NextToken => format!("run `{}`, or ", recipe.sibling(recipe.trains_adapter, true)),
                Aim::Preference => String::new(),
            };
            problems
                .refuse(node.get("_component_").unwrap_or(node), format!("recipe `{}` quantises nothing", recipe.name))
                .hint(format!("{qat}remove `{KEY}`"));
        }
        _ => {}
    }
    if !recipe.quantises && keys.set("fake_quant_after_n_steps").is_some() {
        problems
            .notice(format!("`fake_quant_after_n_steps` has no effect: recipe `{}` quantises nothing", recipe.name));
    }
    for key in ["use_dora", "quantize_base"] {
        if let Some(node) = keys.on_in(&format!("model.{key}")).filter(|_| recipe.quantises) {
            problems
                .refuse(node, format!("recipe `{}` quantises the weights under adapters in its own way", recipe.name))
                .hint(format!("set `model.{key}=False`"));
        }
    }
}

/// Whether the model has an adapter as the recipe wants one.
fn check_adapter(recipe: &Finetune, settings: &FinetuneSettings, keys: &Keys<'_>, problems: &mut Problems) {
    let has_adapter = settings.model.as_ref().is_some_and(|model| model.lora.is_some());
    let node = keys.set("model").map(|model| model.get("_component_").unwrap_or(model));
    if recipe.aim == Aim::Preference
        && let Some(node) = keys.on_in("model.apply_lora_to_output")
    {
        problems.push(Problem {
            key: node.path().to_owned(),
            origin: node.origin().clone(),
            kind: ProblemKind::NotAvailable {
                role: "setting",
                name: format!("apply_lora_to_output: True in `{}`", recipe.name),
            },
            hint: Some("set `model.apply_lora_to_output=False`".to_owned()),
        });
    }
    match (recipe.trains_adapter, has_adapter) {
        (true, false) => {
            let expected = "a builder with an adapter, or `lora_attn_modules` with `ferrotune.models.auto`";
            match node {
                Some(node) => problems.wrong_value(node, expected),
                None => problems.missing(keys.0, "model", expected),
            }
            .hint(format!("to train every weight, run `{}`", recipe.sibling(false, recipe.quantises)));
        }
        (false, true) => {
            if let Some(node) = node {
                let auto = settings.model.as_ref().is_some_and(|model| model.builder == Builder::NONE);
                let without = if auto { "leave the keys of adapters out" } else { "name the builder without `lora_`" };
                problems
                    .refuse(node, format!("recipe `{}` trains every weight, not an adapter", recipe.name))
                    .hint(format!("run `{}`, or {without}", recipe.sibling(true, recipe.quantises)));
            }
        }
        _ => {}
    }
    let in_4_bits =
        settings.model.as_ref().and_then(|model| model.lora.as_ref()).is_some_and(|lora| lora.quantize_base);
    if let Some(node) = node.filter(|_| recipe.quantises && in_4_bits && keys.on_in("model.quantize_base").is_none()) {
        problems
            .refuse(node, format!("recipe `{}` quantises the weights under adapters in its own way", recipe.name))
            .hint("name the builder with `lora_` instead of `qlora_`");
    }
    if recipe.trains_adapter {
        if keys.on("low_cpu_ram").is_some() {
            problems.notice("`low_cpu_ram` has no effect: weights are read from the disk as they are needed");
        }
        return;
    }
    if let Some(node) = keys.0.at("checkpointer.adapter_checkpoint").filter(|_| settings.adapter().is_some()) {
        problems
            .refuse(node, format!("recipe `{}` trains every weight, not an adapter", recipe.name))
            .hint(format!("run `{}`", recipe.sibling(true, recipe.quantises)));
    }
    for key in ["save_adapter_weights_only", "low_cpu_ram"] {
        if keys.on(key).is_some() {
            problems.notice(format!("`{key}` has no effect: recipe `{}` has no adapter", recipe.name));
        }
    }
}

/// How `num_ranks` share the work.
pub(crate) fn mesh_shape(
    settings: &FinetuneSettings,
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

    /// A key of a section that is on.
    fn on_in(&self, path: &str) -> Option<&'a Node> {
        self.0.at(path).filter(|node| *node.value() == Value::Bool(true))
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
fn refuse_not_available(keys: &Keys<'_>, problems: &mut Problems, recipe: &Finetune) {
    if let Some(node) = keys.on("resize_token_embeddings") {
        problems.refuse(node, "growing the embedding is not available yet in this version");
    }
    if !recipe.on_ranks {
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

fn notice_without_effect(keys: &Keys<'_>, problems: &mut Problems, recipe: &Finetune) {
    let name = recipe.name;
    if keys.on("enable_activation_offloading").is_some() {
        problems.notice("`enable_activation_offloading` has no effect: activations are in host memory already");
    }
    if keys.on("enable_async_checkpointing").is_some() {
        problems.notice("`enable_async_checkpointing` has no effect: checkpoints are saved in the foreground");
    }
    if !recipe.on_ranks && keys.set("run_val_every_n_steps").is_some() {
        problems.notice(format!("`run_val_every_n_steps` has no effect: recipe `{name}` does not validate"));
    }
    if recipe.on_ranks && keys.on("fsdp_cpu_offload").is_some() {
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
fn notice_ac_option(settings: &FinetuneSettings, problems: &mut Problems) {
    if settings.ac_option.is_some() && settings.ac_mode != Some(CheckpointMode::Selective) {
        problems.notice("`ac_option` has no effect without `ac_mode: selective`");
    }
}

/// What is asked of the optimizer and needs nothing, or changes nothing.
fn notice_optimizer(settings: &FinetuneSettings, problems: &mut Problems) {
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

fn notice_offload(settings: &FinetuneSettings, problems: &mut Problems) {
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
