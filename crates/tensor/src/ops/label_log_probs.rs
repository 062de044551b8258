//! Log-probabilities of labels under the output head: for each token the logarithm of its label's softmax(h w^T), 0 where the label
//! is masked. With a soft cap c every logit x is c tanh(x / c) instead.
//!
//! For losses that are no sum over tokens: what a token's log-probability counts for is known after the forward pass only, so
//! gradients cannot be left behind there as `head_loss` does.
//!
//! Shapes:  h, dh: (T, D); w, dw: (V, D); labels: (T) i32, already aligned with h (nothing is shifted), `IGNORE_INDEX` = masked;
//!          log_probs, d_log_probs: (T) f32.
//! Numbers: storage f32 or bf16; logits, softmax and sums in f32. No (T, V) matrix is ever held: masked tokens are dropped and the
//!          others walked in chunks, in backward too, which computes their logits again.
//!          The gradients of logits may be rounded to the dtype of h before they meet w and h.
//! Grads:   dlogits = d_log_probs (onehot(label) - softmax), times 1 - tanh(x / c)^2 under a soft cap; dh is overwritten (rows of masked
//!          tokens are zero); dw accumulates or overwrites by flag. d_log_probs of masked tokens are not looked at.
//! Errors:  `Error::Index` if a label is neither `IGNORE_INDEX` nor in 0..V.

use super::head_loss::{check_gradients, check_head};
use super::{Float, IGNORE_INDEX, add_scaled, dot, elementwise, expect_dtype, expect_shape};
use crate::{DType, Result, Tensor};

/// Checks a forward call: (T, D, V).
pub fn check_forward(log_probs: &Tensor, h: &Tensor, w: &Tensor, labels: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "label_log_probs_forward";
    let (num_tokens, dim, vocab) = check_head(op, h, w, labels)?;
    expect_shape(op, "log_probs", log_probs, &[num_tokens])?;
    expect_dtype(op, "log_probs", log_probs, DType::F32)?;
    Ok((num_tokens, dim, vocab))
}

/// Checks a backward call: (T, D, V).
pub fn check_backward(
    dh: Option<&Tensor>,
    dw: Option<&Tensor>,
    d_log_probs: &Tensor,
    h: &Tensor,
    w: &Tensor,
    labels: &Tensor,
) -> Result<(usize, usize, usize)> {
    let op = "label_log_probs_backward";
    let (num_tokens, dim, vocab) = check_head(op, h, w, labels)?;
    expect_shape(op, "d_log_probs", d_log_probs, &[num_tokens])?;
    expect_dtype(op, "d_log_probs", d_log_probs, DType::F32)?;
    check_gradients(op, dh, dw, h, w)?;
    Ok((num_tokens, dim, vocab))
}

/// The logits of one token, soft-capped where there is a cap.
struct Logits<T> {
    /// One a row of the weight.
    values: Vec<T>,
    /// What each changes by with the logit before the cap.
    slopes: Vec<T>,
    /// The logarithm of the sum of their exponentials.
    lse: T,
}

impl<T: Float> Logits<T> {
    /// Those of the row `h`.
    fn of(h: &[T], w: &[T], soft_cap: Option<T>) -> Self {
        let cap = |logit: T| soft_cap.map_or((logit, T::ONE), |cap| elementwise::soft_cap(logit, cap));
        let (values, slopes): (Vec<T>, Vec<T>) = w.chunks_exact(h.len()).map(|w| cap(dot(h, w))).unzip();
        let max = values.iter().copied().fold(T::NEG_INFINITY, T::max);
        let lse = max + values.iter().map(|&logit| (logit - max).exp()).sum::<T>().ln();
        Self { values, slopes, lse }
    }
}

/// Reference of the forward pass; `dim` is D.
pub fn label_log_probs_forward<T: Float>(
    log_probs: &mut [T],
    h: &[T],
    w: &[T],
    labels: &[i32],
    dim: usize,
    soft_cap: Option<T>,
) {
    log_probs.fill(T::ZERO);
    for (t, &label) in labels.iter().enumerate().filter(|(_, label)| **label != IGNORE_INDEX) {
        let logits = Logits::of(&h[t * dim..][..dim], w, soft_cap);
        log_probs[t] = logits.values[label as usize] - logits.lse;
    }
}

/// Reference of the backward pass; `dim` is D.
pub fn label_log_probs_backward<T: Float>(
    mut dh: Option<&mut [T]>,
    mut dw: Option<(&mut [T], bool)>,
    d_log_probs: &[T],
    h: &[T],
    w: &[T],
    labels: &[i32],
    dim: usize,
    soft_cap: Option<T>,
) {
    if let Some(dh) = &mut dh {
        dh.fill(T::ZERO);
    }
    if let Some((dw, false)) = &mut dw {
        dw.fill(T::ZERO);
    }
    for (t, &label) in labels.iter().enumerate().filter(|(_, label)| **label != IGNORE_INDEX) {
        let h = &h[t * dim..][..dim];
        let logits = Logits::of(h, w, soft_cap);
        for (v, (&logit, &slope)) in logits.values.iter().zip(&logits.slopes).enumerate() {
            let onehot = if v == label as usize { T::ONE } else { T::ZERO };
            let dlogit = d_log_probs[t] * (onehot - (logit - logits.lse).exp()) * slope;
            if let Some(dh) = &mut dh {
                add_scaled(&mut dh[t * dim..][..dim], dlogit, &w[v * dim..][..dim]);
            }
            if let Some((dw, _)) = &mut dw {
                add_scaled(&mut dw[v * dim..][..dim], dlogit, h);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_share_the_vocabulary() {
        let (w, labels) = ([1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, -1.0], [IGNORE_INDEX, 2]);
        let mut log_probs = [f64::NAN; 2];
        label_log_probs_forward(&mut log_probs, &[0.0; 4], &w, &labels, 2, None);
        assert_eq!(log_probs[0], 0.0);
        assert!((log_probs[1] + 4.0f64.ln()).abs() < 1e-12, "{log_probs:?}");
        let (mut dh, mut dw) = ([f64::NAN; 4], [f64::NAN; 8]);
        let gradients = (Some(&mut dh[..]), Some((&mut dw[..], false)));
        label_log_probs_backward(gradients.0, gradients.1, &[f64::NAN, 0.5], &[0.0; 4], &w, &labels, 2, None);
        // dlogits = 0.5 * (onehot - 1/4): the rows of w cancel but for the label's.
        assert_eq!((dh, dw), ([0.0, 0.0, -0.5, 0.0], [0.0; 8]));
    }
}
