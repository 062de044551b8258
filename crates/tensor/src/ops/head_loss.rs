//! Output head and cross entropy together: loss = scale * sum over unmasked tokens of -log of the label's softmax(h w^T). With a
//! soft cap c every logit x is c tanh(x / c) instead.
//!
//! Shapes:  h, dh: (T, D); w, dw: (V, D); labels: (T) i32, already aligned with h (the loss never shifts), `IGNORE_INDEX` =
//!          masked; loss: (1) f32.
//! Numbers: storage f32 or bf16; logits, softmax and sums in f32. No (T, V) matrix is ever held: masked tokens are dropped
//!          and the others walked in chunks; with bf16 gradients each chunk's part of dw is rounded once.
//!          The gradients of logits may be rounded to the dtype of h before they meet w and h.
//! Grads:   dlogits = scale * (softmax - onehot(label)), times 1 - tanh(x / c)^2 under a soft cap; dh is overwritten (rows of masked tokens are zero); dw
//!          accumulates or overwrites by flag; loss accumulates.
//! Errors:  `Error::Index` if a label is neither `IGNORE_INDEX` nor in 0..V.

use super::label_log_probs::{label_log_probs_backward, label_log_probs_forward};
use super::{Float, IGNORE_INDEX, expect_2d, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{DType, Error, Result, Tensor};

/// Where a head's results go.
#[derive(Debug)]
pub struct HeadLossOut<'a> {
    /// (1) f32; the scaled loss is added.
    pub loss: &'a mut Tensor,
    /// (T, D): gradient of h, overwritten; `None` = not wanted.
    pub dh: Option<&'a mut Tensor>,
    /// (V, D) and whether it accumulates; `None` = not wanted (a frozen head). In the dtype of w or f32.
    pub dw: Option<(&'a mut Tensor, bool)>,
}

/// Checks a call: (T, D, V).
pub fn check(out: &HeadLossOut<'_>, h: &Tensor, w: &Tensor, labels: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "head_loss";
    let sizes = check_head(op, h, w, labels)?;
    expect_shape(op, "loss", out.loss, &[1])?;
    expect_dtype(op, "loss", out.loss, DType::F32)?;
    check_gradients(op, out.dh.as_deref(), out.dw.as_ref().map(|(dw, _)| &**dw), h, w)?;
    Ok(sizes)
}

/// Checks the inputs of a head: (T, D, V).
pub(crate) fn check_head(op: &'static str, h: &Tensor, w: &Tensor, labels: &Tensor) -> Result<(usize, usize, usize)> {
    let ((num_tokens, dim), (vocab, _)) = (expect_2d(op, "h", h)?, expect_2d(op, "w", w)?);
    let dtype = expect_float(op, "h", h)?;
    expect_shape(op, "w", w, &[vocab, dim])?;
    expect_dtype(op, "w", w, dtype)?;
    expect_shape(op, "labels", labels, &[num_tokens])?;
    expect_dtype(op, "labels", labels, DType::I32)?;
    Ok((num_tokens, dim, vocab))
}

/// Checks the gradients of a head whose inputs are as they should be.
pub(crate) fn check_gradients(
    op: &'static str,
    dh: Option<&Tensor>,
    dw: Option<&Tensor>,
    h: &Tensor,
    w: &Tensor,
) -> Result<()> {
    if let Some(dh) = dh {
        expect_shape(op, "dh", dh, h.dims())?;
        expect_dtype(op, "dh", dh, h.dtype())?;
    }
    if let Some(dw) = dw {
        expect_shape(op, "dw", dw, w.dims())?;
        expect_dtype_or_f32(op, "dw", dw, w.dtype())?;
    }
    Ok(())
}

/// `Error::Index` unless every label is `IGNORE_INDEX` or in 0..vocab; for backends that see the labels on the host.
pub fn check_labels(op: &'static str, labels: &[i32], vocab: usize) -> Result<()> {
    match labels.iter().find(|&&l| l != IGNORE_INDEX && (l < 0 || l as usize >= vocab)) {
        None => Ok(()),
        Some(&l) => {
            let what = "label in the vocabulary";
            Err(Error::Index { op, what, index: i64::from(l), bound: vocab })
        }
    }
}

/// Reference of a call, which is that of the log-probabilities with one upstream for all; `dim` is D. The loss is added to `loss`.
pub fn head_loss<T: Float>(
    loss: &mut T,
    dh: Option<&mut [T]>,
    dw: Option<(&mut [T], bool)>,
    h: &[T],
    w: &[T],
    labels: &[i32],
    dim: usize,
    scale: T,
    soft_cap: Option<T>,
) {
    let mut log_probs = vec![T::ZERO; labels.len()];
    label_log_probs_forward(&mut log_probs, h, w, labels, dim, soft_cap);
    *loss -= scale * log_probs.into_iter().sum();
    label_log_probs_backward(dh, dw, &vec![-scale; labels.len()], h, w, labels, dim, soft_cap);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_vocabulary() {
        let (mut loss, mut dh, mut dw) = (10.0f64, [f64::NAN; 4], [f64::NAN; 8]);
        let (w, labels) = ([1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, -1.0], [2, IGNORE_INDEX]);
        head_loss(&mut loss, Some(&mut dh), Some((&mut dw, false)), &[0.0; 4], &w, &labels, 2, 0.5, None);
        assert!((loss - (10.0 + 0.5 * 4.0f64.ln())).abs() < 1e-12, "{loss}");
        // dlogits = 0.5 * (1/4 - onehot): the rows of w cancel but for the label's.
        assert_eq!((dh, dw), ([0.5, 0.0, 0.0, 0.0], [0.0; 8]));
    }
}
