//! One file an op: what it takes and gives, the checks that every backend runs first, and a naive reference.
//!
//! A reference is a plain function over slices, generic over [`Float`] so that gradient checks can run it in f64 and
//! backends can be compared with it. It is written to be read, not to be fast.

use crate::{DType, Error, Result, Shape, Tensor};

pub mod adamw;
pub mod adamw8bit;
pub mod attention;
pub mod bias;
pub mod dora;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod fake_quantise;
mod float;
pub mod glu;
pub mod head_loss;
pub mod label_log_probs;
pub mod matmul;
pub mod nf4;
pub mod rms_norm;
pub mod rope;
pub mod rounding;
pub mod sgd;

pub use float::Float;
pub(crate) use float::{add_scaled, dot};

/// The label that takes no part in a loss.
pub const IGNORE_INDEX: i32 = -100;

/// `Error::Shape` unless `t` has the dimensions `expected`.
pub(crate) fn expect_shape(op: &'static str, name: &'static str, t: &Tensor, expected: &[usize]) -> Result<()> {
    if t.dims() == expected {
        return Ok(());
    }
    Err(Error::Shape { op, name, expected: Shape::new(expected).to_string(), found: t.shape() })
}

/// The two dimensions of `t`, or `Error::Shape`.
pub(crate) fn expect_2d(op: &'static str, name: &'static str, t: &Tensor) -> Result<(usize, usize)> {
    match *t.dims() {
        [rows, cols] => Ok((rows, cols)),
        _ => Err(Error::Shape { op, name, expected: "two dimensions".to_owned(), found: t.shape() }),
    }
}

/// `Error::DType` unless `t` is f32 or bf16.
pub(crate) fn expect_float(op: &'static str, name: &'static str, t: &Tensor) -> Result<DType> {
    if t.dtype().is_float() {
        return Ok(t.dtype());
    }
    Err(Error::DType { op, name, expected: "fp32 or bf16", found: t.dtype() })
}

/// `Error::DType` unless `t` has the dtype `expected`.
pub(crate) fn expect_dtype(op: &'static str, name: &'static str, t: &Tensor, expected: DType) -> Result<()> {
    if t.dtype() == expected {
        return Ok(());
    }
    Err(Error::DType { op, name, expected: expected.name(), found: t.dtype() })
}

/// `Error::DType` unless `t` has the dtype `like` or is f32.
pub(crate) fn expect_dtype_or_f32(op: &'static str, name: &'static str, t: &Tensor, like: DType) -> Result<()> {
    if t.dtype() == DType::F32 {
        return Ok(());
    }
    expect_dtype(op, name, t, like)
}
