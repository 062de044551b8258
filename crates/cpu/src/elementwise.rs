//! Sums of tensors, copies with a cast, zeros, sums of squares.
//!
//! Numbers: computed in f32, rounded once. A sum of squares is taken in f32 within [`SEGMENT`] elements and in f64 over them,
//!          in the order of segments.

use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use tensor::ops::elementwise::{check_add, check_add_in_place, check_copy};
use tensor::{DType, Error, Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, dot, with_element};
use crate::pack::{store, widen};

/// Elements whose squares are summed in f32.
const SEGMENT: usize = 4096;

per_isa! {
    fn add_slices<const FMA: bool, T: Element>(y: &mut [T], a: &[T], b: &[T]) {
        for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
            *y = T::from_f32(a.to_f32() + b.to_f32());
        }
    }
}

per_isa! {
    fn add_to_slice<const FMA: bool, O: Element, T: Element>(y: &mut [O], x: &[T]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = O::from_f32(y.to_f32() + x.to_f32());
        }
    }
}

per_isa! {
    fn sum_squares<const FMA: bool, T: Element>(x: &[T]) -> f64 {
        let mut sum = 0.0;
        for x in x.chunks(SEGMENT) {
            sum += f64::from(dot::<FMA, T, T>(x, x));
        }
        sum
    }
}

/// `y = a + b`.
pub(crate) fn add(backend: &CpuBackend, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    let len = check_add(y, a, b)?;
    with_element!(y.dtype(), T => {
        let (a, b) = (Read::<T>::of(a)?, Read::<T>::of(b)?);
        let mut y = Write::<T>::of(y)?;
        backend.crew.run_elements(len, Rows::new(&mut y, 1), |part, y| {
            add_slices(backend.isa, y, &a[part.clone()], &b[part]);
        });
    });
    Ok(())
}

/// `y += x`.
pub(crate) fn add_in_place(backend: &CpuBackend, y: &mut Tensor, x: &Tensor) -> Result<()> {
    let len = check_add_in_place(y, x)?;
    with_element!(y.dtype(), O => with_element!(x.dtype(), T => {
        let x = Read::<T>::of(x)?;
        let mut y = Write::<O>::of(y)?;
        backend.crew.run_elements(len, Rows::new(&mut y, 1), |part, y| add_to_slice(backend.isa, y, &x[part]));
    }));
    Ok(())
}

/// `dst = src`, with a cast where the dtypes differ.
pub(crate) fn copy(backend: &CpuBackend, dst: &mut Tensor, src: &Tensor) -> Result<()> {
    let len = check_copy(dst, src)?;
    match (dst.dtype(), src.dtype()) {
        (DType::F32, DType::Bf16) => {
            let src = Read::<bf16>::of(src)?;
            let mut dst = Write::<f32>::of(dst)?;
            let outputs = Rows::new(&mut dst, 1);
            backend.crew.run_elements(len, outputs, |part, dst| widen(backend.isa, dst, &src[part]));
        }
        (DType::Bf16, DType::F32) => {
            let src = Read::<f32>::of(src)?;
            let mut dst = Write::<bf16>::of(dst)?;
            let outputs = Rows::new(&mut dst, 1);
            backend.crew.run_elements(len, outputs, |part, dst| store(backend.isa, dst, &src[part], false));
        }
        _ => {
            let src = Read::<u8>::of(src)?;
            let mut dst = Write::<u8>::of(dst)?;
            let outputs = Rows::new(&mut dst, 1);
            backend.crew.run_elements(src.len(), outputs, |part, dst| dst.copy_from_slice(&src[part]));
        }
    }
    Ok(())
}

/// Fills with zeros.
pub(crate) fn fill_zero(backend: &CpuBackend, dst: &mut Tensor) -> Result<()> {
    let mut dst = Write::<u8>::of(dst)?;
    let len = dst.len();
    backend.crew.run_elements(len, Rows::new(&mut dst, 1), |_, dst| dst.fill(0));
    Ok(())
}

/// The sum of the squares of all elements.
pub(crate) fn sum_of_squares(backend: &CpuBackend, x: &Tensor) -> Result<f64> {
    /// Tasks at most; their number does not depend on the threads, so neither do the bits.
    const TASKS: usize = 64;
    if !x.dtype().is_float() {
        let (op, name, expected) = ("sum_of_squares", "x", "fp32 or bf16");
        return Err(Error::DType { op, name, expected, found: x.dtype() });
    }
    with_element!(x.dtype(), T => {
        let x = Read::<T>::of(x)?;
        let per_task = x.len().div_ceil(TASKS).next_multiple_of(SEGMENT);
        let sums: [AtomicU64; TASKS] = std::array::from_fn(|_| AtomicU64::new(0));
        backend.crew.run(x.len().div_ceil(per_task.max(1)), |task, _| {
            let start = task * per_task;
            let sum = sum_squares(backend.isa, &x[start..(start + per_task).min(x.len())]);
            sums[task].store(sum.to_bits(), Ordering::Relaxed);
        });
        Ok(sums.into_iter().map(|sum| f64::from_bits(sum.into_inner())).sum())
    })
}
