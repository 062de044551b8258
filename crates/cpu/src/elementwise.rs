//! Sums of tensors, multiples, copies with a cast, zeros, soft caps, sums of squares.
//!
//! Numbers: computed in f32, rounded once. A sum of squares is taken in f32 within [`SEGMENT`] elements and in f64 over them,
//!          in the order of segments.

use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use tensor::ops::elementwise::{
    Columns, check_add, check_add_in_place, check_copy, check_copy_columns, check_scale_in_place,
    check_soft_cap_in_place,
};
use tensor::{DType, Error, Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, dot, tanh, with_element};
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
    fn scale_slice<const FMA: bool, T: Element>(x: &mut [T], factor: f32) {
        for x in x {
            *x = T::from_f32(x.to_f32() * factor);
        }
    }
}

per_isa! {
    /// `y = cap tanh(y / cap)`.
    pub(crate) fn soft_cap_slice<const FMA: bool, T: Element>(y: &mut [T], cap: f32) {
        for y in y {
            *y = T::from_f32(cap * tanh::<FMA>(y.to_f32() / cap));
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

/// Some columns of `src` to some of `dst`.
pub(crate) fn copy_columns(backend: &CpuBackend, dst: &mut Tensor, src: &Tensor, columns: Columns) -> Result<()> {
    let [num_rows, width, src_width] = check_copy_columns(dst, src, columns)?;
    let Columns { count, from, to } = columns;
    with_element!(src.dtype(), T => {
        let src = Read::<T>::of(src)?;
        let mut dst = Write::<T>::of(dst)?;
        let per_task = backend.crew.rows_per_task(num_rows, count);
        backend.crew.run_rows(num_rows, per_task, Rows::new(&mut dst, width), |rows, dst, _| {
            for (row, dst) in rows.zip(dst.chunks_exact_mut(width.max(1))) {
                dst[to..to + count].copy_from_slice(&src[row * src_width + from..][..count]);
            }
        });
    });
    Ok(())
}

/// `x *= factor`.
pub(crate) fn scale_in_place(backend: &CpuBackend, x: &mut Tensor, factor: f32) -> Result<()> {
    let len = check_scale_in_place(x)?;
    with_element!(x.dtype(), T => {
        let mut x = Write::<T>::of(x)?;
        backend.crew.run_elements(len, Rows::new(&mut x, 1), |_, x| scale_slice(backend.isa, x, factor));
    });
    Ok(())
}

/// `y = cap tanh(y / cap)`.
pub(crate) fn soft_cap_in_place(backend: &CpuBackend, y: &mut Tensor, cap: f32) -> Result<()> {
    let len = check_soft_cap_in_place(y)?;
    with_element!(y.dtype(), T => {
        let mut y = Write::<T>::of(y)?;
        backend.crew.run_elements(len, Rows::new(&mut y, 1), |_, y| soft_cap_slice(backend.isa, y, cap));
    });
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
