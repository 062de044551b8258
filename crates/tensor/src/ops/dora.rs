//! What DoRA adds to a low-rank adapter: rows of the changed weight are brought to a trained length.
//!
//! ```text
//! norm[n] = || w[n] + scale * sum_r b[n, r] a[r] ||
//! y[m, n] = z[m, n] * magnitude[n] / norm[n]          z = x (w + scale b a)^T
//! ```
//!
//! Shapes:  w: (N, K); a: (R, K); b: (N, R); norm, magnitude, dmagnitude: (N); z, y, dz, dy: (M, N).
//! Numbers: storage f32 or bf16, norm f32; sums in f32; y and dz are rounded once. Where a norm is 0, its outputs are 0.
//! Grads:   the norm counts as a constant. dz = dy * magnitude / norm overwrites; dmagnitude = sum over m of dy * z / norm accumulates
//!          or overwrites by flag.
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Liu et al. 2024, arXiv:2402.09353, equations 5, 11 and section 4.3 (the constant norm).

use super::{Float, dot, expect_2d, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{DType, Result, Tensor};

/// Sizes of a changed weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoraDims {
    /// N: rows of the weight.
    pub n: usize,
    /// K: its columns.
    pub k: usize,
    /// R: the rank.
    pub rank: usize,
}

/// Checks the norm.
pub fn check_norm(norm: &Tensor, w: &Tensor, a: &Tensor, b: &Tensor) -> Result<DoraDims> {
    let op = "dora_norm";
    let ((n, k), (rank, _)) = (expect_2d(op, "w", w)?, expect_2d(op, "a", a)?);
    let dtype = expect_float(op, "w", w)?;
    for (name, t, shape) in [("a", a, [rank, k]), ("b", b, [n, rank])] {
        expect_shape(op, name, t, &shape)?;
        expect_dtype(op, name, t, dtype)?;
    }
    expect_shape(op, "norm", norm, &[n])?;
    expect_dtype(op, "norm", norm, DType::F32)?;
    Ok(DoraDims { n, k, rank })
}

fn check_scale(
    op: &'static str,
    z: &Tensor,
    like_z: &[(&'static str, &Tensor)],
    magnitude: &Tensor,
    norm: &Tensor,
) -> Result<(usize, usize)> {
    let (m, n) = expect_2d(op, "z", z)?;
    let dtype = expect_float(op, "z", z)?;
    for (name, t) in like_z {
        expect_shape(op, name, t, &[m, n])?;
        expect_dtype(op, name, t, dtype)?;
    }
    expect_shape(op, "magnitude", magnitude, &[n])?;
    expect_dtype(op, "magnitude", magnitude, dtype)?;
    expect_shape(op, "norm", norm, &[n])?;
    expect_dtype(op, "norm", norm, DType::F32)?;
    Ok((m, n))
}

/// Checks the scaling: (M, N).
pub fn check_scale_forward(y: &Tensor, z: &Tensor, magnitude: &Tensor, norm: &Tensor) -> Result<(usize, usize)> {
    check_scale("dora_scale_forward", z, &[("y", y)], magnitude, norm)
}

/// Checks the scaling's backward pass: (M, N).
pub fn check_scale_backward(
    dz: &Tensor,
    dmagnitude: Option<&Tensor>,
    dy: &Tensor,
    z: &Tensor,
    magnitude: &Tensor,
    norm: &Tensor,
) -> Result<(usize, usize)> {
    let op = "dora_scale_backward";
    let (m, n) = check_scale(op, z, &[("dy", dy), ("dz", dz)], magnitude, norm)?;
    if let Some(dmagnitude) = dmagnitude {
        expect_shape(op, "dmagnitude", dmagnitude, &[n])?;
        expect_dtype_or_f32(op, "dmagnitude", dmagnitude, magnitude.dtype())?;
    }
    Ok((m, n))
}

/// Reference of the norm.
pub fn dora_norm<T: Float>(norm: &mut [T], w: &[T], a: &[T], b: &[T], scale: T, dims: DoraDims) {
    let DoraDims { k, rank, .. } = dims;
    for (row, norm) in norm.iter_mut().enumerate() {
        let changed = |column: usize| {
            let change: T = (0..rank).map(|r| b[row * rank + r] * a[r * k + column]).sum();
            w[row * k + column] + scale * change
        };
        let row: Vec<T> = (0..k).map(changed).collect();
        *norm = dot(&row, &row).sqrt();
    }
}

/// What a column is multiplied by.
fn factor<T: Float>(magnitude: T, norm: T) -> T {
    if norm == T::ZERO { T::ZERO } else { magnitude / norm }
}

/// Reference of the scaling.
pub fn dora_scale_forward<T: Float>(y: &mut [T], z: &[T], magnitude: &[T], norm: &[T]) {
    for (i, y) in y.iter_mut().enumerate() {
        let column = i % norm.len();
        *y = z[i] * factor(magnitude[column], norm[column]);
    }
}

/// Reference of the scaling's backward pass.
pub fn dora_scale_backward<T: Float>(
    dz: &mut [T],
    dmagnitude: Option<(&mut [T], bool)>,
    dy: &[T],
    z: &[T],
    magnitude: &[T],
    norm: &[T],
) {
    dora_scale_forward(dz, dy, magnitude, norm);
    let Some((dmagnitude, accumulate)) = dmagnitude else { return };
    let dim = norm.len();
    for (column, dmagnitude) in dmagnitude.iter_mut().enumerate() {
        let before = if accumulate { *dmagnitude } else { T::ZERO };
        let sum: T = (0..dy.len() / dim).map(|row| dy[row * dim + column] * z[row * dim + column]).sum();
        *dmagnitude = before + factor(sum, norm[column]);
    }
}
