//! Log-probabilities of labels: the pass of `head_loss.rs` without a loss, and backward the same pass with a scale for each token.

use tensor::ops::head_loss::check_labels;
use tensor::ops::label_log_probs::{check_backward, check_forward};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::head_loss::{Head, Out, Scale};
use crate::numbers::with_element;

/// `log_probs[t] = log softmax(h[t] w^T)[label]`.
pub(crate) fn forward(
    backend: &CpuBackend,
    log_probs: &mut Tensor,
    h: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    soft_cap: Option<f32>,
) -> Result<()> {
    let (_, dim, vocab) = check_forward(log_probs, h, w, labels)?;
    let labels = Read::<i32>::of(labels)?;
    check_labels("label_log_probs_forward", &labels, vocab)?;
    with_element!(w.dtype(), T => {
        let (h, w) = (Read::<T>::of(h)?, Read::<T>::of(w)?);
        let mut log_probs = Write::<f32>::of(log_probs)?;
        let scale = Scale::Same(1.0);
        let head = Head { isa: backend.isa, dim, vocab, h: &h, w: &w, labels: &labels, scale, soft_cap };
        let out = Out::<T, T> { log_probs: Some(&mut log_probs), dh: None, dw: None, dw_accumulate: false };
        head.run(backend, out)?;
        Ok(())
    })
}

/// `dh = dlogits w`, `dw (+)= dlogits^T h` with `dlogits = d_log_probs (onehot - softmax)`.
pub(crate) fn backward(
    backend: &CpuBackend,
    mut dh: Option<&mut Tensor>,
    mut dw: Option<(&mut Tensor, bool)>,
    d_log_probs: &Tensor,
    h: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    soft_cap: Option<f32>,
) -> Result<()> {
    let gradients = (dh.as_deref(), dw.as_ref().map(|(dw, _)| &**dw));
    let (_, dim, vocab) = check_backward(gradients.0, gradients.1, d_log_probs, h, w, labels)?;
    let labels = Read::<i32>::of(labels)?;
    check_labels("label_log_probs_backward", &labels, vocab)?;
    let dw_dtype = dw.as_ref().map_or(w.dtype(), |(dw, _)| dw.dtype());
    with_element!(w.dtype(), T => with_element!(dw_dtype, G => {
        let (h, w) = (Read::<T>::of(h)?, Read::<T>::of(w)?);
        let d_log_probs = Read::<f32>::of(d_log_probs)?;
        let mut dh = dh.as_mut().map(|dh| Write::<T>::of(dh)).transpose()?;
        let dw_accumulate = dw.as_ref().is_some_and(|(_, accumulate)| *accumulate);
        let mut dw = dw.as_mut().map(|(dw, _)| Write::<G>::of(dw)).transpose()?;
        let scale = Scale::Minus(&d_log_probs);
        let head = Head { isa: backend.isa, dim, vocab, h: &h, w: &w, labels: &labels, scale, soft_cap };
        let out = Out { log_probs: None, dh: dh.as_deref_mut(), dw: dw.as_deref_mut(), dw_accumulate };
        head.run(backend, out)?;
        Ok(())
    }))
}
