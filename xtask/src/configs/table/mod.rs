//! The table that all config files are made from: one row a config, grouped by recipe.

mod full;
mod lora;
mod other;

use super::models::Model;

/// Every config, in the order that recipes and configs are listed.
pub(super) fn configs() -> Vec<Config> {
    [full::configs(), lora::configs(), other::configs()].concat()
}

/// How weights are updated.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Optimizer {
    AdamW,
    Paged,
    Paged8bit,
}

/// What a config trains on.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Data {
    AlpacaCleaned,
    Alpaca,
    Cauldron,
    CauldronMix,
    StackExchange,
    Reviews,
    Gsm8k,
    Gsm8kSolutions,
    Commands,
}

/// An adapter.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) rank: u64,
    pub(super) alpha: u64,
    /// The weights under it have 4 bits.
    pub(super) quantised: bool,
    /// It has a magnitude for each output too.
    pub(super) dora: bool,
    /// There is one on the head.
    pub(super) on_output: bool,
}

/// One config. Words of the reference where keys are meant.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) recipe: &'static str,
    pub(super) name: &'static str,
    pub(super) model: &'static Model,
    pub(super) is_distributed: bool,
    pub(super) adapter: Option<Adapter>,
    /// Models that are kept but not trained, and what they are.
    pub(super) frozen: Vec<(&'static Model, &'static str)>,
    /// How many models of this size are trained.
    pub(super) trained_models: usize,
    pub(super) data: Data,
    /// Whether a part of the rows is kept for validation, and whether there is one.
    pub(super) holds_out: bool,
    pub(super) validates: bool,
    pub(super) optimizer: Optimizer,
    pub(super) lr: &'static str,
    pub(super) weight_decay: Option<&'static str>,
    pub(super) batch_size: usize,
    pub(super) accumulation: usize,
    pub(super) epochs: usize,
    pub(super) warmup: Option<usize>,
    pub(super) optimizer_in_bwd: bool,
    pub(super) recompute: bool,
    pub(super) offload: bool,
    pub(super) compile: bool,
    pub(super) clip: Option<&'static str>,
    pub(super) seed: Option<&'static str>,
    pub(super) max_seq_len: Option<usize>,
    pub(super) keep_last: Option<usize>,
    pub(super) only_adapter: bool,
    pub(super) low_cpu_ram: bool,
    pub(super) log_every: usize,
    pub(super) memory_stats: bool,
    pub(super) cpu_offload: Option<bool>,
    pub(super) sharded: Option<&'static str>,
    pub(super) tensor_parallel: Option<usize>,
    pub(super) mesh: bool,
    /// Where the reference calls the checkpoint's kind otherwise than the family.
    pub(super) model_type: Option<&'static str>,
}

impl Config {
    /// A config with nothing but defaults.
    pub(super) fn new(recipe: &'static str, name: &'static str, model: &'static Model) -> Self {
        Self {
            recipe,
            name,
            model,
            // The recipe that starts its own processes is one process for the program.
            is_distributed: recipe.contains("distributed") && !recipe.contains("async"),
            adapter: None,
            frozen: Vec::new(),
            trained_models: 1,
            data: Data::AlpacaCleaned,
            holds_out: false,
            validates: false,
            optimizer: Optimizer::AdamW,
            lr: "",
            weight_decay: None,
            batch_size: 1,
            accumulation: 1,
            epochs: 1,
            warmup: None,
            optimizer_in_bwd: false,
            recompute: false,
            offload: false,
            compile: false,
            clip: None,
            seed: None,
            max_seq_len: None,
            keep_last: None,
            only_adapter: false,
            low_cpu_ram: false,
            log_every: 1,
            memory_stats: true,
            cpu_offload: None,
            sharded: None,
            tensor_parallel: None,
            mesh: false,
            model_type: None,
        }
    }

    /// Whether it trains; otherwise it generates, evaluates or quantises.
    pub(super) fn is_training(&self) -> bool {
        !self.lr.is_empty()
    }
}

/// Methods that change a row: name, arguments, fields with their values.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $Type:ty),*) { $($field:ident: $value:expr),+ })+) => {
        impl Config {
            $(
                $(#[$doc])*
                pub(super) fn $name(self $(, $arg: $Type)*) -> Self {
                    Self { $($field: $value,)+ ..self }
                }
            )+
        }
    };
}

methods! {
    adamw(lr: &'static str) { optimizer: Optimizer::AdamW, lr: lr }
    paged(lr: &'static str) { optimizer: Optimizer::Paged, lr: lr }
    paged_8bit(lr: &'static str) { optimizer: Optimizer::Paged8bit, lr: lr }
    decay(weight_decay: &'static str) { weight_decay: Some(weight_decay) }
    /// Rows of a micro-batch, and micro-batches of a step.
    batch(batch_size: usize, accumulation: usize) { batch_size: batch_size, accumulation: accumulation }
    epochs(epochs: usize) { epochs: epochs }
    warmup(steps: usize) { warmup: Some(steps) }
    in_bwd() { optimizer_in_bwd: true }
    recompute() { recompute: true }
    offload() { offload: true }
    compile() { compile: true }
    clip(norm: &'static str) { clip: Some(norm) }
    seed(seed: &'static str) { seed: Some(seed) }
    on(data: Data) { data: data }
    /// Leaves the last 5 % of the rows out.
    hold_out() { holds_out: true }
    /// Validates on the last 5 % of the rows.
    validate() { holds_out: true, validates: true }
    max_seq_len(tokens: usize) { max_seq_len: Some(tokens) }
    keep_last(checkpoints: usize) { keep_last: Some(checkpoints) }
    only_adapter() { only_adapter: true }
    low_cpu_ram() { low_cpu_ram: true }
    log_every(steps: usize) { log_every: steps }
    no_memory_stats() { memory_stats: false }
    cpu_offload(wanted: bool) { cpu_offload: Some(wanted) }
    /// Layers that are sharded besides the blocks.
    shard(layers: &'static str) { sharded: Some(layers) }
    tensor_parallel(ranks: usize) { tensor_parallel: Some(ranks) }
    mesh() { mesh: true }
    model_type(name: &'static str) { model_type: Some(name) }
    trains(models: usize) { trained_models: models }
    lora(rank: u64, alpha: u64) { adapter: Some(Adapter { rank, alpha, quantised: false, dora: false, on_output: false }) }
    qlora(rank: u64, alpha: u64) { adapter: Some(Adapter { rank, alpha, quantised: true, dora: false, on_output: false }) }
    dora(rank: u64, alpha: u64) { adapter: Some(Adapter { rank, alpha, quantised: false, dora: true, on_output: false }) }
    qdora(rank: u64, alpha: u64) { adapter: Some(Adapter { rank, alpha, quantised: true, dora: true, on_output: false }) }
}

impl Config {
    /// Puts the adapter on the head too.
    fn on_output(mut self) -> Self {
        if let Some(adapter) = &mut self.adapter {
            adapter.on_output = true;
        }
        self
    }

    /// Keeps another model beside the one that is trained.
    fn beside(mut self, model: &'static Model, what: &'static str) -> Self {
        self.frozen.push((model, what));
        self
    }
}
