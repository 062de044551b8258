//! Cross entropy of every next token: supervised fine-tuning.
//!
//! Numbers: the mean over all unmasked tokens of the window, on all ranks. The head leaves its gradients behind in the forward pass,
//!          born with that scale.

use data::Batch;
use models::Decoder;
use tensor::{Backend, Cx, PassKey};
use train::ParamStore;

use super::{Count, Forward, Objective, upload};
use crate::Result;

/// The objective.
#[derive(Debug, Clone, Copy, Default)]
pub struct NextToken {
    /// Steps, from the first, that run with full numbers in layers that are quantised for show.
    pub exact_steps: u64,
}

impl Objective for NextToken {
    fn count(&self, window: &[Batch]) -> Count {
        let unmasked = window.iter().map(|batch| batch.num_unmasked).sum();
        Count { terms: unmasked, tokens: unmasked }
    }

    fn forward<'a>(
        &mut self,
        model: &Decoder,
        backend: &'a dyn Backend,
        store: &'a mut ParamStore,
        batch: &Batch,
        scale: f32,
        pass: PassKey,
    ) -> Result<Forward<'a>> {
        let (inputs, labels) = upload(backend, batch)?;
        let mut cx = Cx::training(backend, store).keyed(pass);
        if pass.step <= self.exact_steps {
            cx = cx.without_fake_quant();
        }
        let loss = model.loss(&mut cx, &inputs, &labels, scale)?;
        Ok(Forward { loss: f64::from(backend.read_scalar(&loss)?), cx, ends_in: None })
    }
}
