//! Root-mean-square norm: y = round(x * rstd) * w, with rstd = 1 / sqrt(mean(x^2) + eps); or y = x * rstd * (1 + w).
//!
//! Shapes:  x, y, dx, dy: (N, D); w, dw: (D); rstd: (N) f32.
//! Numbers: storage f32 or bf16, sums in f32. With a plain weight x * rstd is rounded to the storage dtype before the product
//!          with w, and the product is rounded again (the cast order of Hugging Face's Llama norm); with a weight from one there is
//!          one rounding, of the product (Gemma's norm).
//!          Backward uses x * rstd unrounded.
//! Grads:   dw accumulates or overwrites by flag, dx too.
//! Errors:  `Error::Shape` if the D of x and w differ.
//! Source:  Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.

use super::{Float, dot, expect_2d, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{DType, Result, Tensor};

/// How a norm computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// What a normed row is multiplied by.
    pub weight: NormWeight,
}

/// What the weight of a norm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormWeight {
    /// The factor itself.
    Plain,
    /// The factor less one.
    FromOne,
}

impl NormWeight {
    /// The factor.
    fn factor<T: Float>(self, w: T) -> T {
        match self {
            Self::Plain => w,
            Self::FromOne => T::ONE + w,
        }
    }
}

/// Checks the forward pass: (N, D).
pub fn check_forward(y: &Tensor, rstd: &Tensor, x: &Tensor, w: &Tensor) -> Result<(usize, usize)> {
    let op = "rms_norm_forward";
    let (rows, dim) = expect_2d(op, "x", x)?;
    expect_shape(op, "w", w, &[dim])?;
    expect_shape(op, "y", y, &[rows, dim])?;
    expect_shape(op, "rstd", rstd, &[rows])?;
    let dtype = expect_float(op, "x", x)?;
    expect_dtype(op, "w", w, dtype)?;
    expect_dtype(op, "y", y, dtype)?;
    expect_dtype(op, "rstd", rstd, DType::F32)?;
    Ok((rows, dim))
}

/// Checks the backward pass: (N, D).
pub fn check_backward(
    dx: Option<&Tensor>,
    dw: Option<&Tensor>,
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    rstd: &Tensor,
) -> Result<(usize, usize)> {
    let op = "rms_norm_backward";
    let (rows, dim) = expect_2d(op, "x", x)?;
    let dtype = expect_float(op, "x", x)?;
    expect_shape(op, "w", w, &[dim])?;
    expect_dtype(op, "w", w, dtype)?;
    expect_shape(op, "dy", dy, &[rows, dim])?;
    expect_dtype(op, "dy", dy, dtype)?;
    expect_shape(op, "rstd", rstd, &[rows])?;
    expect_dtype(op, "rstd", rstd, DType::F32)?;
    if let Some(dx) = dx {
        expect_shape(op, "dx", dx, &[rows, dim])?;
        expect_dtype(op, "dx", dx, dtype)?;
    }
    if let Some(dw) = dw {
        expect_shape(op, "dw", dw, &[dim])?;
        expect_dtype_or_f32(op, "dw", dw, dtype)?;
    }
    Ok((rows, dim))
}

/// Reference of the forward pass.
pub fn rms_norm_forward<T: Float>(y: &mut [T], rstd: &mut [T], x: &[T], w: &[T], norm: RmsNorm) {
    let dim = w.len();
    for (row, rstd) in rstd.iter_mut().enumerate() {
        let x = &x[row * dim..][..dim];
        let mean_square = dot(x, x) / T::from_f64(dim as f64);
        *rstd = T::ONE / (mean_square + T::from_f64(norm.eps.into())).sqrt();
        for d in 0..dim {
            y[row * dim + d] = x[d] * *rstd * norm.weight.factor(w[d]);
        }
    }
}

/// Reference of the backward pass. With n = x rstd and the factor f, w or 1 + w: dw = sum over rows of dy n, and
/// dx = rstd (dy f - n mean(dy f n)), where the second part comes from rstd's own dependence on x.
pub fn rms_norm_backward<T: Float>(
    dx: Option<(&mut [T], bool)>,
    dw: Option<(&mut [T], bool)>,
    dy: &[T],
    x: &[T],
    w: &[T],
    rstd: &[T],
    norm: RmsNorm,
) {
    let dim = w.len();
    let normed = |row: usize, d: usize| x[row * dim + d] * rstd[row];
    if let Some((dx, accumulate)) = dx {
        for row in 0..rstd.len() {
            let dnormed = |d: usize| dy[row * dim + d] * norm.weight.factor(w[d]);
            let mean = (0..dim).map(|d| dnormed(d) * normed(row, d)).sum::<T>() / T::from_f64(dim as f64);
            for d in 0..dim {
                let before = if accumulate { dx[row * dim + d] } else { T::ZERO };
                dx[row * dim + d] = before + rstd[row] * (dnormed(d) - normed(row, d) * mean);
            }
        }
    }
    if let Some((dw, accumulate)) = dw {
        for d in 0..dim {
            let before = if accumulate { dw[d] } else { T::ZERO };
            dw[d] = before + (0..rstd.len()).map(|row| dy[row * dim + d] * normed(row, d)).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_scaled_to_mean_square_one() {
        let (mut y, mut rstd) = ([0.0f64; 4], [0.0; 2]);
        for (weight, w) in [(NormWeight::Plain, [1.0, 2.0]), (NormWeight::FromOne, [0.0, 1.0])] {
            let norm = RmsNorm { eps: 1.0 / 16.0, weight };
            rms_norm_forward(&mut y, &mut rstd, &[1.0, 7.0, 0.0, 0.0], &w, norm);
            assert!((rstd[0] - (25.0f64 + 1.0 / 16.0).sqrt().recip()).abs() < 1e-15 && rstd[1] == 4.0, "{rstd:?}");
            assert_eq!(y, [rstd[0], 14.0 * rstd[0], 0.0, 0.0]);
        }
    }
}
