//! Matrix products in the three layouts that a linear layer needs.
//!
//! Shapes:  x, dx: (M, K); y, dy: (M, N); w, dw: (N, K). M tokens, K inputs, N outputs.
//! Numbers: storage f32 or bf16, sums in f32; outputs are rounded once. `y` and `dw` may be f32 over bf16 inputs.
//! Grads:   dw accumulates or overwrites by flag, dx and y too.
//! Errors:  `Error::Shape`, `Error::DType`.

use super::{Float, add_scaled, dot, expect_2d, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{Result, Tensor};

/// Sizes of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulDims {
    /// Tokens: rows of x and y.
    pub m: usize,
    /// Outputs: columns of y, rows of w.
    pub n: usize,
    /// Inputs: columns of x and w.
    pub k: usize,
}

/// Checks `y (+)= x w^T`.
pub fn check_nt(y: &Tensor, x: &Tensor, w: &Tensor) -> Result<MatmulDims> {
    let op = "matmul_nt";
    let ((m, k), (n, _)) = (expect_2d(op, "x", x)?, expect_2d(op, "w", w)?);
    expect_shape(op, "w", w, &[n, k])?;
    expect_shape(op, "y", y, &[m, n])?;
    let dtype = expect_float(op, "x", x)?;
    expect_dtype(op, "w", w, dtype)?;
    expect_dtype_or_f32(op, "y", y, dtype)?;
    Ok(MatmulDims { m, n, k })
}

/// Checks `dx (+)= dy w`.
pub fn check_nn(dx: &Tensor, dy: &Tensor, w: &Tensor) -> Result<MatmulDims> {
    let op = "matmul_nn";
    let ((m, n), (_, k)) = (expect_2d(op, "dy", dy)?, expect_2d(op, "w", w)?);
    expect_shape(op, "w", w, &[n, k])?;
    expect_shape(op, "dx", dx, &[m, k])?;
    let dtype = expect_float(op, "dy", dy)?;
    expect_dtype(op, "w", w, dtype)?;
    expect_dtype(op, "dx", dx, dtype)?;
    Ok(MatmulDims { m, n, k })
}

/// Checks `dw (+)= dy^T x`.
pub fn check_tn(dw: &Tensor, dy: &Tensor, x: &Tensor) -> Result<MatmulDims> {
    let op = "matmul_tn";
    let ((m, n), (_, k)) = (expect_2d(op, "dy", dy)?, expect_2d(op, "x", x)?);
    expect_shape(op, "x", x, &[m, k])?;
    expect_shape(op, "dw", dw, &[n, k])?;
    let dtype = expect_float(op, "dy", dy)?;
    expect_dtype(op, "x", x, dtype)?;
    expect_dtype_or_f32(op, "dw", dw, dtype)?;
    Ok(MatmulDims { m, n, k })
}

/// Reference of `y (+)= x w^T`.
pub fn matmul_nt<T: Float>(y: &mut [T], x: &[T], w: &[T], dims: MatmulDims, accumulate: bool) {
    let MatmulDims { n, k, .. } = dims;
    for (i, y) in y.iter_mut().enumerate() {
        let (token, output) = (i / n, i % n);
        let before = if accumulate { *y } else { T::ZERO };
        *y = before + dot(&x[token * k..][..k], &w[output * k..][..k]);
    }
}

/// Reference of `dx (+)= dy w`.
pub fn matmul_nn<T: Float>(dx: &mut [T], dy: &[T], w: &[T], dims: MatmulDims, accumulate: bool) {
    let MatmulDims { m, n, k } = dims;
    if !accumulate {
        dx.fill(T::ZERO);
    }
    for token in 0..m {
        for output in 0..n {
            add_scaled(&mut dx[token * k..][..k], dy[token * n + output], &w[output * k..][..k]);
        }
    }
}

/// Reference of `dw (+)= dy^T x`.
pub fn matmul_tn<T: Float>(dw: &mut [T], dy: &[T], x: &[T], dims: MatmulDims, accumulate: bool) {
    let MatmulDims { m, n, k } = dims;
    if !accumulate {
        dw.fill(T::ZERO);
    }
    for token in 0..m {
        for output in 0..n {
            add_scaled(&mut dw[output * k..][..k], dy[token * n + output], &x[token * k..][..k]);
        }
    }
}
