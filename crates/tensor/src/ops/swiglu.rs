//! Gated activation: h = silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
//!
//! Shapes:  h, gate, up and their gradients: (T, F).
//! Numbers: storage f32 or bf16; computed in f32, rounded once.
//! Grads:   dgate = dh * up * (s + gate * s * (1 - s)) with s = sigmoid(gate); dup = dh * silu(gate); both overwritten.
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Shazeer 2020, arXiv:2002.05202.

use super::{Float, expect_dtype, expect_float, expect_shape};
use crate::{Result, Tensor};

/// Checks that all tensors have the shape and dtype of `gate`; gives the number of elements.
pub fn check(gate: &Tensor, others: &[(&'static str, &Tensor)]) -> Result<usize> {
    let dtype = expect_float("swiglu", "gate", gate)?;
    for (name, t) in others {
        expect_shape("swiglu", name, t, gate.dims())?;
        expect_dtype("swiglu", name, t, dtype)?;
    }
    Ok(gate.num_elements())
}

fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Reference of the forward pass.
pub fn swiglu_forward<T: Float>(h: &mut [T], gate: &[T], up: &[T]) {
    for i in 0..h.len() {
        h[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

/// Reference of the backward pass.
pub fn swiglu_backward<T: Float>(dgate: &mut [T], dup: &mut [T], dh: &[T], gate: &[T], up: &[T]) {
    for i in 0..dh.len() {
        let s = sigmoid(gate[i]);
        dgate[i] = dh[i] * up[i] * (s + gate[i] * s * (T::ONE - s));
        dup[i] = dh[i] * gate[i] * s;
    }
}
