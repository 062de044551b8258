//! Sums of tensors, multiples, copies with a cast or of some columns, soft caps, sums of squares.
//!
//! Numbers: storage f32 or bf16; computed in f32, rounded once (to nearest, ties to even).
//! Errors:  `Error::Shape`, `Error::DType`.

use super::{Float, add_scaled, expect_2d, expect_dtype, expect_float, expect_shape};
use crate::{DType, Error, Result, Tensor};

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

/// Checks `y = cap tanh(y / cap)`; gives the number of elements.
pub fn check_soft_cap_in_place(y: &Tensor) -> Result<usize> {
    expect_float("soft_cap_in_place", "y", y)?;
    Ok(y.num_elements())
}

/// Checks `x *= factor`; gives the number of elements.
pub fn check_scale_in_place(x: &Tensor) -> Result<usize> {
    expect_float("scale_in_place", "x", x)?;
    Ok(x.num_elements())
}

/// Reference of `x *= factor`.
pub fn scale_in_place<T: Float>(x: &mut [T], factor: T) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Which columns of a matrix are copied to which of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// How many.
    pub count: usize,
    /// The first of the source.
    pub from: usize,
    /// The first of the destination.
    pub to: usize,
}

/// Checks copying of columns; gives rows, columns of the destination, columns of the source. `Error::Shape` if there are not so many.
pub fn check_copy_columns(dst: &Tensor, src: &Tensor, columns: Columns) -> Result<[usize; 3]> {
    let op = "copy_columns";
    let ((rows, width), (src_rows, src_width)) = (expect_2d(op, "dst", dst)?, expect_2d(op, "src", src)?);
    expect_shape(op, "src", src, &[rows, src_width])?;
    let dtype = expect_float(op, "src", src)?;
    expect_dtype(op, "dst", dst, dtype)?;
    for (name, t, first, width) in [("src", src, columns.from, src_width), ("dst", dst, columns.to, width)] {
        if first + columns.count > width {
            let expected = format!("at least {} columns", first + columns.count);
            return Err(Error::Shape { op, name, expected, found: t.shape() });
        }
    }
    Ok([src_rows, width, src_width])
}

/// Reference of copying columns between matrices of so many columns.
pub fn copy_columns<T: Float>(dst: &mut [T], dst_width: usize, src: &[T], src_width: usize, columns: Columns) {
    let Columns { count, from, to } = columns;
    for (dst, src) in dst.chunks_exact_mut(dst_width.max(1)).zip(src.chunks_exact(src_width.max(1))) {
        dst[to..to + count].copy_from_slice(&src[from..from + count]);
    }
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

/// `cap tanh(x / cap)`, which stays within the cap on either side, and its slope at x.
pub(crate) fn soft_cap<T: Float>(x: T, cap: T) -> (T, T) {
    let tanh = (x / cap).tanh();
    (cap * tanh, T::ONE - tanh * tanh)
}

/// Reference of `y = cap tanh(y / cap)`.
pub fn soft_cap_in_place<T: Float>(y: &mut [T], cap: T) {
    for y in y {
        *y = soft_cap(*y, cap).0;
    }
}

/// Reference of the sum of the squares of all elements.
pub fn sum_of_squares<T: Float>(x: &[T]) -> f64 {
    x.iter().map(|&v| v.to_f64() * v.to_f64()).sum()
}
