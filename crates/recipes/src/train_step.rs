//! One optimizer step: the arithmetic that every training recipe shares.
//!
//! The unmasked tokens of the whole accumulation window, on all ranks, are counted before the first forward pass, so that every
//! gradient is born with its final scale 1 / total: nothing is multiplied afterwards but by the clip factor. Summing over
//! ranks is then all there is to it, however unequal their tokens are.
//!
//! Numbers: loss = sum over micro-batches and ranks of their scaled losses, in f64 over f32 parts; norms in f64.
//! Errors:  `Error::NonFinite` before any parameter of the step has changed, except that with updates inside backward only
//!          the loss is looked at, not the gradients.

use data::Batch;
use dist::Communicator;
use models::{Decoder, ModelBatch};
use optim::clip_factor;
use tensor::{Backend, Cx, Tensor};
use train::ParamStore;

use crate::{Error, Result};

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Mean loss over the unmasked tokens of the window, on all ranks.
    pub loss: f64,
    /// Unmasked tokens of the window, on all ranks.
    pub num_tokens: usize,
    /// Norm of all gradients together, before clipping; `None` if updates ran inside backward.
    pub grad_norm: Option<f64>,
}

/// Trains on one accumulation window with learning rate `lr`; `None` if all its tokens are masked on all ranks, which changes
/// nothing. All ranks call it together, each with its own rows, and get the same report.
///
/// `step` is the number of the step for messages, from 1.
pub fn train_window(
    model: &Decoder,
    store: &mut ParamStore,
    window: &[Batch],
    lr: f64,
    clip_grad_norm: Option<f64>,
    step: u64,
) -> Result<Option<StepReport>> {
    let own_tokens: usize = window.iter().map(|batch| batch.num_unmasked).sum();
    let world = store.world().clone();
    let num_tokens = sum(&world, own_tokens as f64)? as usize;
    if num_tokens == 0 {
        return Ok(None);
    }
    let backend = std::sync::Arc::clone(store.backend());
    let scale = 1.0 / num_tokens as f32;

    store.begin_step(lr)?;
    let mut loss = 0.0;
    for (number, batch) in window.iter().enumerate() {
        let _micro_batch = backend.span(|| format!("micro-batch {number}"));
        let (inputs, labels) = upload(&*backend, batch)?;
        let mut cx = Cx::training(&*backend, store);
        let forward = backend.span(|| "forward");
        let part = model.loss(&mut cx, &inputs, &labels, scale)?;
        loss += f64::from(backend.read_scalar(&part)?);
        drop(forward);
        if !loss.is_finite() {
            return Err(Error::NonFinite { step, loss, grad_norm: None });
        }
        let _backward = backend.span(|| "backward");
        cx.backward()?;
    }
    let loss = sum(&world, loss)?;

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
    Ok(Some(StepReport { loss, num_tokens, grad_norm }))
}

/// The sum of a value over all ranks.
fn sum(world: &Communicator, value: f64) -> Result<f64> {
    Ok(world.sum(vec![value]).wait()?.into_iter().sum())
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
