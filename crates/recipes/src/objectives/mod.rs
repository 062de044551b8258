//! What a run trains for: which rows it takes, what it makes of a micro-batch, and what it logs beside the loss.
//!
//! A [`Goal`] is what the config says; on each rank it becomes an [`Objective`], which holds the frozen models that it compares with,
//! and which `train_step` runs on every micro-batch. Ranks, accumulation, clipping, updates, checkpoints know nothing of it.

mod frozen_model;
mod next_token;
mod preference;

use std::sync::Arc;

use checkpoint::WeightSource;
use data::Batch;
use dist::{Communicator, Mesh};
use models::{Decoder, ModelBatch};
use tensor::{Backend, Cx, DType, PassKey, Tensor, Var};
use train::{Files, Held, ParamStore};

use crate::Result;

pub use frozen_model::FrozenModel;
pub use next_token::NextToken;
pub use preference::{Averages, DpoConfig, Preference, PreferenceGoal, PreferenceLoss, RsoConfig};

/// Names and values of what is logged beside the loss, in the reference's order.
pub type Metrics = Vec<(&'static str, f64)>;

/// What a window holds on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Terms of the sum that the loss is the mean of. A window without any, on all ranks, is skipped.
    pub terms: usize,
    /// Tokens that the throughput counts.
    pub tokens: usize,
}

/// A micro-batch that ran forward.
pub struct Forward<'a> {
    /// What was recorded.
    pub cx: Cx<'a>,
    /// Its part of the loss, scaled.
    pub loss: f64,
    /// What the pass ends in and the gradient of that; `None` for a head whose gradients are there already.
    pub ends_in: Option<(Var, Tensor)>,
}

impl Forward<'_> {
    /// Runs it backward.
    pub(crate) fn backward(self) -> Result<()> {
        match self.ends_in {
            None => self.cx.backward()?,
            Some((y, dy)) => self.cx.backward_from(&y, dy)?,
        }
        Ok(())
    }
}

/// What is trained for, on one rank. All ranks make the same calls in the same order.
pub trait Objective {
    /// What a window holds.
    fn count(&self, window: &[Batch]) -> Count;

    /// Runs a micro-batch forward, and first, without a tape, whatever it compares with. Every term of the loss counts `scale` times.
    fn forward<'a>(
        &mut self,
        model: &Decoder,
        backend: &'a dyn Backend,
        store: &'a mut ParamStore,
        batch: &Batch,
        scale: f32,
        pass: PassKey,
    ) -> Result<Forward<'a>>;

    /// What the micro-batches since the last call showed, over all ranks.
    fn metrics(&mut self, _world: &Communicator) -> Result<Metrics> {
        Ok(Metrics::new())
    }

    /// Memory of its own models.
    fn held(&self) -> Held {
        Held::default()
    }
}

/// What a run trains for, before anything is loaded.
#[derive(Debug, Clone)]
pub enum Goal {
    /// Every next token.
    NextToken(NextToken),
    /// The better of two answers.
    Preference(PreferenceGoal),
}

impl Goal {
    /// The same goal, from the step on that needs the most memory.
    pub(crate) fn at_its_largest(&self) -> Self {
        match self {
            Self::NextToken(_) => Self::NextToken(NextToken::default()),
            Self::Preference(_) => self.clone(),
        }
    }

    /// Rows of a batch for each item of it that `batch_size` counts.
    pub(crate) fn rows_per_item(&self) -> usize {
        match self {
            Self::NextToken(_) => 1,
            Self::Preference(_) => 2,
        }
    }

    /// The objective on one rank; models of its own get their values from `weights`, or none to plan with.
    pub(crate) fn objective(
        &self,
        mesh: &Mesh,
        backend: &Arc<dyn Backend>,
        dtype: DType,
        files: Option<Files>,
        weights: Option<&WeightSource>,
    ) -> Result<Box<dyn Objective>> {
        Ok(match self {
            Self::NextToken(objective) => Box::new(*objective),
            Self::Preference(goal) => {
                let frozen = |model| FrozenModel::new(Arc::clone(model), mesh, backend, dtype, files, weights);
                Box::new(Preference::new(goal.loss, goal.averages, goal.reference.as_ref().map(frozen).transpose()?))
            }
        })
    }
}

/// A batch on the device, and its labels.
pub fn upload(backend: &dyn Backend, batch: &Batch) -> Result<(ModelBatch, Tensor)> {
    let shape = [batch.batch, batch.tokens_per_row];
    let inputs = ModelBatch {
        tokens: backend.from_i32(shape, &batch.tokens)?,
        positions: backend.from_i32(shape, &batch.positions)?,
        doc_start: backend.from_i32(shape, &batch.doc_start)?,
    };
    Ok((inputs, backend.from_i32(shape, &batch.labels)?))
}
