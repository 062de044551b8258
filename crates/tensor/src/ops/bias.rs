//! Bias of a linear layer: b is added to every row of y; backwards, db is the sum of the rows of dy.
//!
//! Shapes:  y, dy: (M, N); b, db: (N).
//! Numbers: storage f32 or bf16; y + b is computed in f32 and rounded once, so the product that y was before has been rounded
//!          already. db is summed in f32 and rounded once.
//! Grads:   db accumulates or overwrites by flag; dy passes through to the product.
//! Errors:  `Error::Shape` if the N of y and b differ.

use super::{Float, expect_2d, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{Result, Tensor};

/// Checks the addition: (M, N).
pub fn check_in_place(y: &Tensor, b: &Tensor) -> Result<(usize, usize)> {
    let op = "bias_in_place";
    let (rows, dim) = expect_2d(op, "y", y)?;
    let dtype = expect_float(op, "y", y)?;
    expect_shape(op, "b", b, &[dim])?;
    expect_dtype(op, "b", b, dtype)?;
    Ok((rows, dim))
}

/// Checks the backward pass: (M, N).
pub fn check_backward(db: &Tensor, dy: &Tensor) -> Result<(usize, usize)> {
    let op = "bias_backward";
    let (rows, dim) = expect_2d(op, "dy", dy)?;
    let dtype = expect_float(op, "dy", dy)?;
    expect_shape(op, "db", db, &[dim])?;
    expect_dtype_or_f32(op, "db", db, dtype)?;
    Ok((rows, dim))
}

/// Reference of the addition.
pub fn bias_in_place<T: Float>(y: &mut [T], b: &[T]) {
    for (i, y) in y.iter_mut().enumerate() {
        *y += b[i % b.len()];
    }
}

/// Reference of the backward pass.
pub fn bias_backward<T: Float>(db: &mut [T], dy: &[T], accumulate: bool) {
    let dim = db.len();
    for (n, db) in db.iter_mut().enumerate() {
        let before = if accumulate { *db } else { T::ZERO };
        *db = before + (0..dy.len() / dim).map(|row| dy[row * dim + n]).sum();
    }
}
