//! One optimizer step: the arithmetic that every training recipe shares.
//!
//! The terms of the loss (unmasked tokens, pairs) in the whole accumulation window, on all ranks, are counted before the first
//! forward pass, so that every gradient is born with its final scale 1 / total: nothing is multiplied afterwards but by the clip
//! factor. Summing over ranks is then all there is to it, however unequal their terms are.
//!
//! Numbers: loss = sum over micro-batches and ranks of their scaled losses, in f64 over f32 parts; norms in f64.
//! Errors:  `Error::NonFinite` before any parameter of the step has changed, except that with updates inside backward only
//!          the loss is looked at, not the gradients.

use data::Batch;
use dist::Communicator;
use models::Decoder;
use optim::clip_factor;
use tensor::PassKey;
use train::ParamStore;

use crate::objectives::{Count, Metrics, Objective};
use crate::{Error, Result};

pub use crate::objectives::upload;

/// What one step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Mean loss over the terms of the window, on all ranks.
    pub loss: f64,
    /// What the throughput counts of the window, on all ranks.
    pub num_tokens: usize,
    /// What the objective saw.
    pub metrics: Metrics,
    /// Norm of all gradients together, before clipping; `None` if updates ran inside backward.
    pub grad_norm: Option<f64>,
}

/// Which step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepKey {
    /// Its number, from 1.
    pub step: u64,
    /// Of what is drawn at random in it.
    pub seed: u64,
}

/// Trains on one accumulation window with learning rate `lr`; `None` if it holds nothing to train on, on all ranks, which changes
/// nothing. All ranks call it together, each with its own rows, and get the same report.
pub fn train_window(
    objective: &mut dyn Objective,
    model: &Decoder,
    store: &mut ParamStore,
    window: &[Batch],
    lr: f64,
    clip_grad_norm: Option<f64>,
    key: StepKey,
) -> Result<Option<StepReport>> {
    let step = key.step;
    let world = store.world().clone();
    let Count { terms, tokens } = objective.count(window);
    let [terms, tokens] = sum(&world, [terms as f64, tokens as f64])?;
    if terms == 0.0 {
        return Ok(None);
    }
    let backend = std::sync::Arc::clone(store.backend());
    let scale = 1.0 / terms as f32;

    store.begin_step(lr)?;
    let mut loss = 0.0;
    for (number, batch) in window.iter().enumerate() {
        let _micro_batch = backend.span(|| format!("micro-batch {number}"));
        let pass = PassKey { seed: key.seed, step, micro_batch: number as u32, rank: world.rank() as u32 };
        let forward = backend.span(|| "forward");
        let part = objective.forward(model, &*backend, store, batch, scale, pass)?;
        loss += part.loss;
        drop(forward);
        if !loss.is_finite() {
            return Err(Error::NonFinite { step, loss, grad_norm: None });
        }
        let _backward = backend.span(|| "backward");
        part.backward()?;
    }
    let [loss] = sum(&world, [loss])?;
    let metrics = objective.metrics(&world)?;

    let norm = backend.span(|| "gradient norm");
    let grad_norm = if store.updates_in_backward() { None } else { Some(store.gradient_norm()?) };
    if let Some(norm) = grad_norm.filter(|norm| !norm.is_finite()) {
        return Err(Error::NonFinite { step, loss, grad_norm: Some(norm) });
    }
    drop(norm);
    let factor = match (grad_norm, clip_grad_norm) {
        (Some(norm), Some(max_norm)) => clip_factor(norm, max_norm),
        _ => 1.0,
    };
    let _optimizer = backend.span(|| "optimizer");
    store.finish_step(factor)?;
    backend.flush()?;
    Ok(Some(StepReport { loss, num_tokens: tokens as usize, metrics, grad_norm }))
}

/// The sums of values over all ranks.
fn sum<const N: usize>(world: &Communicator, values: [f64; N]) -> Result<[f64; N]> {
    let sums = world.sum(values.to_vec()).wait()?;
    Ok(sums.try_into().expect("one for each value"))
}
