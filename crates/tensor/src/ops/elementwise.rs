//! Sums of tensors, copies with a cast, sums of squares.
//!
//! Numbers: storage f32 or bf16; computed in f32, rounded once (to nearest, ties to even).
//! Errors:  `Error::Shape`, `Error::DType`.

use super::{Float, add_scaled, expect_dtype, expect_float, expect_shape};
use crate::{DType, Result, Tensor};

/// Checks `y = a + b`; gives the number of elements.
pub fn check_add(y: &Tensor, a: &Tensor, b: &Tensor) -> Result<usize> {
    let dtype = expect_float("add", "a", a)?;
    for (name, t) in [("b", b), ("y", y)] {
        expect_shape("add", name, t, a.dims())?;
        expect_dtype("add", name, t, dtype)?;
    }
    Ok(a.num_elements())
}

/// Checks `y += x`; gives the number of elements.
pub fn check_add_in_place(y: &Tensor, x: &Tensor) -> Result<usize> {
    expect_float("add_in_place", "x", x)?;
    expect_shape("add_in_place", "y", y, x.dims())?;
    if y.dtype() != DType::F32 {
        expect_dtype("add_in_place", "y", y, x.dtype())?;
    }
    Ok(x.num_elements())
}

/// Checks `dst = src`, where f32 and bf16 convert into each other and i32 copies into i32.
pub fn check_copy(dst: &Tensor, src: &Tensor) -> Result<usize> {
    expect_shape("copy", "dst", dst, src.dims())?;
    if src.dtype().is_float() {
        expect_float("copy", "dst", dst)?;
    } else {
        expect_dtype("copy", "dst", dst, src.dtype())?;
    }
    Ok(src.num_elements())
}

/// Reference of `y = a + b`.
pub fn add<T: Float>(y: &mut [T], a: &[T], b: &[T]) {
    for i in 0..y.len() {
        y[i] = a[i] + b[i];
    }
}

/// Reference of `y += x`.
pub fn add_in_place<T: Float>(y: &mut [T], x: &[T]) {
    add_scaled(y, T::ONE, x);
}

/// Reference of the sum of the squares of all elements.
pub fn sum_of_squares<T: Float>(x: &[T]) -> f64 {
    x.iter().map(|&v| v.to_f64() * v.to_f64()).sum()
}
