//! How much memory a run needs, known before anything is loaded.
//!
//! The plan is the run itself, without its memory: some optimizer steps, or a prompt and its next tokens, on the backend's planner, which
//! counts what the backend would hold for the same calls and computes nothing. So it follows the code that runs, whatever the policies.
//!
//! Numbers: bytes of one rank; what lives outside of tensors (rows, tokenizer, program) is not part of it.
//! Checked: `tests/memory.rs` compares plans with what runs held.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use data::Batch;
use dist::Mesh;
use models::Decoder;
use optim::Optimizer;
use tensor::{Backend, DType, MemoryStats};
use train::{Files, Held, ParamStore, Policy};

use crate::console::Console;
pub use crate::finetune::MeshShape;
use crate::finetune::{files_of, policy_of};
pub use crate::objectives::Goal;
use crate::settings::{FinetuneSettings, Offload, Place, Precision};
use crate::train_step::{StepKey, train_window};
use crate::{Error, Result};

/// What a plan depends on, besides model and optimizer.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The ranks.
    pub mesh: MeshShape,
    /// What the store does.
    pub policy: Policy,
    /// Number format of weights.
    pub dtype: DType,
    /// Rows of a micro-batch.
    pub batch: usize,
    /// Tokens of the longest row.
    pub tokens: usize,
    /// Micro-batches of a step.
    pub accumulation: usize,
    /// What lives in files.
    pub files: Option<Files>,
}

impl Shape {
    /// What the settings say, for rows of at most `tokens` tokens.
    pub(crate) fn of(settings: &FinetuneSettings, mesh: MeshShape, tokens: usize) -> Self {
        let dtype = settings.dtype.unwrap_or(Precision::Fp32).dtype();
        Self {
            mesh,
            policy: policy_of(settings, dtype),
            dtype,
            batch: settings.batch_size,
            tokens,
            accumulation: settings.gradient_accumulation_steps,
            files: files_of(settings),
        }
    }
}

/// Bytes that one rank needs at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Its share of the parameters, those of models that it compares with too.
    pub parameters: u64,
    /// Parameters of other ranks while they are here.
    pub gathered: u64,
    /// Gradients.
    pub gradients: u64,
    /// Its share of the optimizer's states.
    pub optimizer: u64,
    /// What forward keeps for backward, and what backward passes on.
    pub activations: u64,
    /// Keys and values of the tokens of an answer.
    pub cache: u64,
    /// Memory kept for reuse, scratch memory of workers, what travels between ranks.
    pub buffers: u64,
    /// What lives in files instead of memory.
    pub files: u64,
}

/// Tokens of a micro-batch that are planned at most; their ids alone are a gigabyte.
const MOST_TOKENS: usize = 1 << 26;

/// Steps that are planned.
const STEPS: u64 = 3;

/// Memory in which tensors travel between ranks, on each of them.
const TRAVELLING_BYTES: u64 = 16 << 20;

impl MemoryPlan {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// The parts by name, in the order in which they are told.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("parameters", self.parameters),
            ("gathered parameters", self.gathered),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer),
            ("activations", self.activations),
            ("key/value cache", self.cache),
            ("buffers", self.buffers),
        ]
    }

    /// The plan of a training run on a backend like `backend`.
    pub fn new(
        goal: &Goal,
        model: &Decoder,
        optimizer: &Optimizer,
        shape: &Shape,
        backend: &dyn Backend,
    ) -> Result<Self> {
        let too_many = Error::TooManyTokens { batch: shape.batch, tokens: shape.tokens };
        let rows = shape.batch.saturating_mul(goal.rows_per_item());
        if rows.checked_mul(shape.tokens).is_none_or(|tokens| tokens > MOST_TOKENS) {
            return Err(too_many);
        }
        let planner = backend.planner();
        let layout = Arc::new(model.layout().clone());
        let mesh = Mesh::planned(shape.mesh.replicate, shape.mesh.shard);
        let mut store =
            ParamStore::on_mesh(Arc::clone(&planner), layout, shape.dtype, shape.policy, &mesh, shape.files.clone())?;
        store.set_optimizer(optimizer.clone(), 0);
        let mut objective = goal.at_its_largest().objective(&mesh, &planner, shape.dtype, shape.files.clone(), None)?;
        // Two micro-batches add up as any number does. Steps, because the first one allocates the states, and what is kept for
        // reuse settles in the next ones.
        let window = vec![worst_batch(rows, shape.tokens); shape.accumulation.min(2)];
        for step in 1..=STEPS {
            train_window(&mut *objective, model, &mut store, &window, 0.0, None, StepKey { step, seed: 0 })?;
        }
        let (held, beside) = (store.most_held(), objective.held());
        let held =
            Held { parameters: held.parameters + beside.parameters, gathered: held.gathered + beside.gathered, ..held };
        let travelling = if shape.mesh.num_ranks() > 1 { TRAVELLING_BYTES } else { 0 };
        Ok(Self::of_counts(held, 0, planner.memory(), travelling))
    }

    /// What was counted, by its parts.
    pub(crate) fn of_counts(held: Held, cache: u64, stats: MemoryStats, travelling: u64) -> Self {
        let named = held.parameters + held.gathered + held.gradients + held.optimizer + cache;
        Self {
            parameters: held.parameters,
            gathered: held.gathered,
            gradients: held.gradients,
            optimizer: held.optimizer,
            activations: (stats.peak_live_bytes as u64).saturating_sub(named),
            cache,
            buffers: (stats.peak_held_bytes - stats.peak_live_bytes + stats.scratch_bytes) as u64 + travelling,
            files: stats.peak_file_bytes as u64,
        }
    }
}

/// A batch of the longest rows, without a masked token.
fn worst_batch(rows: usize, tokens_per_row: usize) -> Batch {
    let size = rows * tokens_per_row;
    Batch {
        batch: rows,
        tokens_per_row,
        tokens: vec![0; size],
        labels: vec![0; size],
        positions: vec![0; size],
        doc_start: vec![0; size],
        num_unmasked: size,
    }
}

/// Tells the plan, and refuses a run that the free memory cannot hold, with the settings that would fit.
pub(crate) fn check(
    goal: &Goal,
    model: &Decoder,
    settings: &FinetuneSettings,
    shape: &Shape,
    backend: &dyn Backend,
    local_ranks: usize,
    console: Console,
) -> Result<()> {
    let plan = MemoryPlan::new(goal, model, &settings.optimizer, shape, backend)?;
    console.info(&format!("Memory{}: {plan}.", if local_ranks == 1 { "" } else { " of each rank" }));
    if let Some(files) = &shape.files {
        let needed = plan.files * local_ranks as u64;
        // A folder that is not there yet is made on the disk of the one above it.
        let there = files.dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
        match checkpoint::free_bytes(there) {
            Some(free) if free < needed => {
                return Err(Error::NotEnoughDisk { dir: files.dir.clone(), needed, free });
            }
            // Where nobody tells, making the files does.
            _ => {}
        }
    }
    let total_with = |settings: &FinetuneSettings| -> Result<u64> {
        let shape = Shape::of(settings, shape.mesh, shape.tokens);
        Ok(MemoryPlan::new(goal, model, &settings.optimizer, &shape, backend)?.total() * local_ranks as u64)
    };
    check_free(plan, local_ranks, settings, REMEDIES, total_with)
}

/// `Error::NotEnoughMemory` if the ranks of this machine need more than is free, with the remedies that would fit.
pub(crate) fn check_free<S: Clone>(
    plan: MemoryPlan,
    ranks: usize,
    settings: &S,
    remedies: &[Remedy<S>],
    total_with: impl Fn(&S) -> Result<u64>,
) -> Result<()> {
    let Some(free) = metrics::available_memory() else { return Ok(()) };
    let needed = plan.total() * ranks as u64;
    if needed <= free {
        return Ok(());
    }
    let remedy = find_remedy(settings, remedies, free, total_with)?;
    Err(Error::NotEnoughMemory { needed, free, plan: Box::new(plan), ranks, remedy })
}

/// One setting if one is enough, else as many as it takes, in their order; what saves most if nothing is enough.
fn find_remedy<S: Clone>(
    settings: &S,
    remedies: &[Remedy<S>],
    free: u64,
    total_with: impl Fn(&S) -> Result<u64>,
) -> Result<Option<crate::error::Remedy>> {
    let usable: Vec<&Remedy<S>> = remedies.iter().filter(|remedy| (remedy.applies)(settings)).collect();
    let alone = usable.iter().map(std::slice::from_ref);
    let together = (2..=usable.len()).map(|count| &usable[..count]);
    let mut best: Option<crate::error::Remedy> = None;
    for chosen in alone.chain(together) {
        let mut changed = settings.clone();
        chosen.iter().for_each(|remedy| (remedy.change)(&mut changed));
        let total = total_with(&changed)?;
        if best.as_ref().is_none_or(|best| total < best.total) {
            let settings = chosen.iter().map(|remedy| remedy.text.to_owned()).collect();
            best = Some(crate::error::Remedy { settings, total, fits: total <= free });
        }
        if total <= free {
            break;
        }
    }
    Ok(best)
}

/// A setting that saves memory.
pub(crate) struct Remedy<S> {
    /// As it is typed.
    pub(crate) text: &'static str,
    /// Whether it changes a config, and may be combined with what it says.
    pub(crate) applies: fn(&S) -> bool,
    pub(crate) change: fn(&mut S),
}

/// In the order in which they are worth trying: what changes no result comes first.
const REMEDIES: &[Remedy<FinetuneSettings>] = &[
    Remedy {
        text: "enable_activation_checkpointing=True",
        applies: |s| !s.enable_activation_checkpointing && s.ac_mode.is_none(),
        change: |s| s.enable_activation_checkpointing = true,
    },
    Remedy {
        text: "optimizer_in_bwd=True",
        applies: |s| !s.optimizer_in_bwd && s.gradient_accumulation_steps == 1 && s.clip_grad_norm.is_none(),
        change: |s| s.optimizer_in_bwd = true,
    },
    Remedy { text: "batch_size=1", applies: |s| s.batch_size > 1, change: |s| s.batch_size = 1 },
    Remedy {
        text: "dtype=bf16",
        applies: |s| s.dtype != Some(Precision::Bf16),
        change: |s| s.dtype = Some(Precision::Bf16),
    },
    Remedy {
        text: "optimizer=bitsandbytes.optim.AdamW8bit",
        applies: |s| s.optimizer.in_8_bits().is_some(),
        change: |s| s.optimizer = s.optimizer.in_8_bits().unwrap_or_else(|| s.optimizer.clone()),
    },
    Remedy {
        text: "offload.parameters=disk offload.gradients=disk offload.optimizer=disk",
        applies: |s| s.offload == Offload::default(),
        change: |s| {
            s.offload.parameters = Place::Disk;
            s.offload.gradients = Place::Disk;
            s.offload.optimizer = Place::Disk;
        },
    },
];

impl fmt::Display for MemoryPlan {
    /// `3.42 GiB = parameters 0.50 GiB, gradients ...`; parts of nothing are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", gib(self.total()), PartList(self))?;
        if self.files > 0 { write!(f, "; {} in files", gib(self.files)) } else { Ok(()) }
    }
}

/// The parts of a plan that are something: `parameters 2.3 GiB, gradients 2.3 GiB`.
pub(crate) struct PartList<'a>(pub(crate) &'a MemoryPlan);

impl fmt::Display for PartList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.parts();
        let some: Vec<String> = parts
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| format!("{name} {}", gib(*bytes)))
            .collect();
        f.write_str(&some.join(", "))
    }
}

/// Bytes as people read them: `2.3 GiB`, or `310 MiB` below one.
pub(crate) fn gib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}
