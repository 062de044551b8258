//! Token embedding: `y[t] = scale w[tokens[t]]`.
//!
//! Shapes:  tokens: (T) i32; y, dy: (T, D); w, dw: (V, D).
//! Numbers: storage f32 or bf16; products with the scale are taken in f32 and rounded once, so that a scale of 1 copies rows;
//!          dw is summed per row in token order.
//! Grads:   dw accumulates or is zeroed first, by flag.
//! Errors:  `Error::Index` if a token is not in 0..V.

use super::{Float, add_scaled, expect_2d, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{DType, Error, Result, Tensor};

/// Checks the forward pass: (T, D, V).
pub fn check_forward(y: &Tensor, tokens: &Tensor, w: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "embedding_forward";
    let (vocab, dim) = expect_2d(op, "w", w)?;
    let num_tokens = tokens.num_elements();
    expect_dtype(op, "tokens", tokens, DType::I32)?;
    expect_shape(op, "y", y, &[num_tokens, dim])?;
    let dtype = expect_float(op, "w", w)?;
    expect_dtype(op, "y", y, dtype)?;
    Ok((num_tokens, dim, vocab))
}

/// Checks the backward pass: (T, D, V).
pub fn check_backward(dw: &Tensor, dy: &Tensor, tokens: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "embedding_backward";
    let (vocab, dim) = expect_2d(op, "dw", dw)?;
    let num_tokens = tokens.num_elements();
    expect_dtype(op, "tokens", tokens, DType::I32)?;
    expect_shape(op, "dy", dy, &[num_tokens, dim])?;
    let dtype = expect_float(op, "dy", dy)?;
    expect_dtype_or_f32(op, "dw", dw, dtype)?;
    Ok((num_tokens, dim, vocab))
}

/// `Error::Index` unless every token is in 0..vocab; for backends that see the tokens on the host.
pub fn check_tokens(op: &'static str, tokens: &[i32], vocab: usize) -> Result<()> {
    match tokens.iter().find(|&&t| t < 0 || t as usize >= vocab) {
        None => Ok(()),
        Some(&t) => Err(Error::Index { op, what: "token id in the vocabulary", index: i64::from(t), bound: vocab }),
    }
}

/// Reference of the forward pass; `dim` is D.
pub fn embedding_forward<T: Float>(y: &mut [T], tokens: &[i32], w: &[T], dim: usize, scale: T) {
    for (t, &token) in tokens.iter().enumerate() {
        for d in 0..dim {
            y[t * dim + d] = scale * w[token as usize * dim + d];
        }
    }
}

/// Reference of the backward pass; `dim` is D.
pub fn embedding_backward<T: Float>(dw: &mut [T], dy: &[T], tokens: &[i32], dim: usize, scale: T, accumulate: bool) {
    if !accumulate {
        dw.fill(T::ZERO);
    }
    for (t, &token) in tokens.iter().enumerate() {
        add_scaled(&mut dw[token as usize * dim..][..dim], scale, &dy[t * dim..][..dim]);
    }
}
