//! Units and their host: who brings parameters and takes gradients.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::ops::fake_quantise::FakeQuant;
use crate::{Result, Shape, Tensor};

/// A parameter of a model, numbered in the order in which the model lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

/// A unit of a model: the embedding, one block, or the head, numbered in forward order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub u32);

/// How a parameter starts when no checkpoint gives it values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// Normal numbers of mean 0 and standard deviation 0.02.
    Normal,
    /// Ones.
    Ones,
    /// Zeros.
    Zeros,
    /// Uniform numbers between -b and b, with b = 1 / sqrt(K) for a matrix of K columns.
    Uniform,
}

/// How a parameter is held, and whether it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// It is trained: it has gradients and optimizer states.
    Trained,
    /// It stays as it is.
    Frozen,
    /// It stays as it is, held in blocks of 4-bit numbers (`ops::nf4`); a unit that runs gets it in full.
    Nf4,
}

/// A parameter as its model lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// Its name in Hugging Face checkpoints.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Where the shape comes from, in the words of `config.json`: `(num_key_value_heads * head_dim, hidden_size)`.
    pub meaning: &'static str,
    /// How it starts without a checkpoint.
    pub init: Init,
    /// How it is held, and whether it changes.
    pub kind: ParamKind,
    /// How the linear layer that it is the weight of is quantised for show; `None` = it is not.
    pub fake_quant: Option<FakeQuant>,
}

/// A low-rank change of a weight: `W' = W + scale * B A`, and with a magnitude `m` every row of that is brought to length `m`.
///
/// Source: Hu et al. 2021, arXiv:2106.09685; with a magnitude Liu et al. 2024, arXiv:2402.09353.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSpec {
    /// The weight that it changes, (N, K).
    pub weight: ParamId,
    /// Which of the weight's rows.
    pub rows: Range<usize>,
    /// A (R, K).
    pub a: ParamId,
    /// B (rows, R).
    pub b: ParamId,
    /// m (rows).
    pub magnitude: Option<ParamId>,
    /// What `B A` is multiplied by: alpha / rank.
    pub scale: f32,
    /// Share of the inputs of A that is set to zero in training.
    pub dropout: f32,
}

/// What part of a model a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitKind {
    /// The token embedding.
    Embedding,
    /// One decoder block.
    Block,
    /// Final norm and output head.
    Head,
}

/// A unit as its model lists it. A parameter belongs to exactly one unit; others may borrow it (a tied head).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitSpec {
    /// What it is.
    pub kind: UnitKind,
    /// The parameters that belong to it.
    pub owns: Vec<ParamId>,
    /// Parameters of other units that it uses.
    pub borrows: Vec<ParamId>,
}

/// All parameters and units of a model; a [`ParamId`] and a [`UnitId`] is an index into these lists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelLayout {
    /// The parameters, in checkpoint order.
    pub params: Vec<ParamSpec>,
    /// The units, in forward order.
    pub units: Vec<UnitSpec>,
    /// Changes of its weights, whose parameters are among `params`.
    pub adapters: Vec<AdapterSpec>,
}

impl ModelLayout {
    /// The parameter `id`.
    pub fn param(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0 as usize]
    }

    /// The unit `id`.
    pub fn unit(&self, id: UnitId) -> &UnitSpec {
        &self.units[id.0 as usize]
    }

    /// The same model with nothing to train; what is held in 4 bits stays so.
    #[must_use]
    pub fn frozen(mut self) -> Self {
        for param in self.params.iter_mut().filter(|param| param.kind == ParamKind::Trained) {
            param.kind = ParamKind::Frozen;
        }
        self
    }

    /// Parameters that belong to no adapter, in checkpoint order.
    pub fn base_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        let of_adapters: HashSet<ParamId> = self.adapter_params().collect();
        (0..self.params.len()).map(|id| ParamId(id as u32)).filter(move |id| !of_adapters.contains(id))
    }

    /// Parameters of adapters, in checkpoint order.
    pub fn adapter_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.adapters.iter().flat_map(|adapter| [Some(adapter.a), Some(adapter.b), adapter.magnitude]).flatten()
    }

    /// Number of weights, those of adapters left out.
    pub fn num_elements(&self) -> usize {
        self.base_params().map(|id| self.param(id).shape.num_elements()).sum()
    }

    /// Number of weights that are trained.
    pub fn num_trained(&self) -> usize {
        let trained = self.params.iter().filter(|param| param.kind == ParamKind::Trained);
        trained.map(|param| param.shape.num_elements()).sum()
    }
}

/// A parameter as a running unit sees it.
#[derive(Debug, Clone)]
pub struct ParamView {
    /// Which parameter.
    pub id: ParamId,
    /// Its values, complete, on the computing device.
    pub tensor: Tensor,
    /// Whether it wants a gradient.
    pub trainable: bool,
    /// How the linear layer that it is the weight of is quantised for show; `None` = it is not.
    pub fake_quant: Option<FakeQuant>,
}

/// Why a unit is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Forward without gradients.
    Inference,
    /// Forward of a training pass; a backward visit follows.
    Forward,
    /// Backward of a training pass, with or without running forward again.
    Backward,
}

/// Where the gradient of a parameter goes.
#[derive(Debug)]
pub struct GradientTarget {
    /// The gradient's memory.
    pub tensor: Tensor,
    /// Whether it holds earlier contributions to add to; otherwise its contents are undefined.
    pub accumulate: bool,
}

/// Owns the parameters of a model's units and decides where they live and how long.
///
/// For each unit of a training pass the order is: `enter(Forward)`, `leave(Forward)`, later `enter(Backward)`,
/// `gradient(..)` for its trainable parameters, `leave(Backward)`. The head may ask for gradients in its forward visit,
/// because its loss computes them in the same pass.
pub trait UnitHost {
    /// Makes the parameters of a unit (owned and borrowed) available on the computing device.
    fn enter(&mut self, unit: UnitId, phase: Phase) -> Result<Arc<[ParamView]>>;
    /// Takes them back. After `leave(.., Backward)` the unit's gradients have all its contributions of this pass.
    fn leave(&mut self, unit: UnitId, phase: Phase) -> Result<()>;
    /// Whether the unit runs again in backward instead of keeping what it computed.
    fn recomputes(&self, unit: UnitId) -> bool;
    /// Where the next contribution to a parameter's gradient goes.
    fn gradient(&mut self, param: ParamId) -> Result<GradientTarget>;
}
