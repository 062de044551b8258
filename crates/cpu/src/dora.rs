//! Lengths of the rows of a weight with its low-rank change, and columns brought to trained lengths.
//!
//! Numbers: a row of the changed weight is added up in f32, term by term of the rank; dmagnitude is summed over blocks of [`ROWS`]
//!          rows, then over blocks in order, whatever the number of threads.

use tensor::ops::dora::{DoraDims, check_norm, check_scale_backward, check_scale_forward};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, dot, mul_add, with_element};
use crate::pack::{store, widen};
use crate::rms_norm::{ROWS, sum_rows};

per_isa! {
    /// The lengths of rows; `row` is memory for one.
    fn row_lengths<const FMA: bool, T: Element>(norm: &mut [f32], row: &mut [f32], w: &[T], a: &[f32], b: &[T], scale: f32) {
        let (k, rank) = (row.len(), b.len() / norm.len().max(1));
        for (n, norm) in norm.iter_mut().enumerate() {
            for (row, w) in row.iter_mut().zip(&w[n * k..][..k]) {
                *row = w.to_f32();
            }
            for (r, b) in b[n * rank..][..rank].iter().enumerate() {
                let b = scale * b.to_f32();
                for (row, a) in row.iter_mut().zip(&a[r * k..][..k]) {
                    *row = mul_add::<FMA>(b, *a, *row);
                }
            }
            *norm = dot::<FMA, f32, f32>(row, row).sqrt();
        }
    }
}

per_isa! {
    /// `y = z * factors`, row by row.
    fn scale_rows<const FMA: bool, T: Element>(y: &mut [T], z: &[T], factors: &[f32]) {
        let width = factors.len().max(1);
        for (y, z) in y.chunks_exact_mut(width).zip(z.chunks_exact(width)) {
            for (y, (z, factor)) in y.iter_mut().zip(z.iter().zip(factors)) {
                *y = T::from_f32(z.to_f32() * factor);
            }
        }
    }
}

per_isa! {
    /// The sum over rows of `dy * z`.
    fn sum_of_products<const FMA: bool, T: Element>(sum: &mut [f32], dy: &[T], z: &[T]) {
        sum.fill(0.0);
        let width = sum.len().max(1);
        for (dy, z) in dy.chunks_exact(width).zip(z.chunks_exact(width)) {
            for (sum, (dy, z)) in sum.iter_mut().zip(dy.iter().zip(z)) {
                *sum = mul_add::<FMA>(dy.to_f32(), z.to_f32(), *sum);
            }
        }
    }
}

/// The lengths of the rows of `w + scale b a`.
pub(crate) fn norm(
    backend: &CpuBackend,
    norm: &mut Tensor,
    w: &Tensor,
    a: &Tensor,
    b: &Tensor,
    scale: f32,
) -> Result<()> {
    let DoraDims { n, k, rank } = check_norm(norm, w, a, b)?;
    with_element!(w.dtype(), T => {
        let (w, a, b) = (Read::<T>::of(w)?, Read::<T>::of(a)?, Read::<T>::of(b)?);
        let mut a_wide = Temp::new(&backend.pool, rank * k)?;
        widen(backend.isa, &mut a_wide, &a);
        let mut norm = Write::<f32>::of(norm)?;
        let per_task = backend.crew.rows_per_task(n, k * (1 + rank));
        backend.crew.run_rows(n, per_task, Rows::new(&mut norm, 1), |rows, norm, scratch| {
            let [row] = scratch.arrays([k]);
            let (w, b) = (&w[rows.start * k..rows.end * k], &b[rows.start * rank..rows.end * rank]);
            row_lengths(backend.isa, norm, row, w, &a_wide, b, scale);
        });
    });
    Ok(())
}

/// Fills `factors` with magnitude / norm, 0 where the norm is.
fn fill_factors(backend: &CpuBackend, factors: &mut [f32], magnitude: &Tensor, norm: &[f32]) -> Result<()> {
    with_element!(magnitude.dtype(), T => widen(backend.isa, factors, &Read::<T>::of(magnitude)?));
    divide(factors, norm);
    Ok(())
}

fn divide(values: &mut [f32], norm: &[f32]) {
    for (value, &norm) in values.iter_mut().zip(norm) {
        *value = if norm == 0.0 { 0.0 } else { *value / norm };
    }
}

fn scale<T: Element>(backend: &CpuBackend, y: &mut [T], z: &[T], factors: &[f32], num_rows: usize) {
    let dim = factors.len();
    let per_task = backend.crew.rows_per_task(num_rows, dim);
    backend.crew.run_rows(num_rows, per_task, Rows::new(y, dim), |rows, y, _| {
        scale_rows(backend.isa, y, &z[rows.start * dim..rows.end * dim], factors);
    });
}

/// `y = z * magnitude / norm`.
pub(crate) fn scale_forward(
    backend: &CpuBackend,
    y: &mut Tensor,
    z: &Tensor,
    magnitude: &Tensor,
    norm: &Tensor,
) -> Result<()> {
    let (num_rows, dim) = check_scale_forward(y, z, magnitude, norm)?;
    let mut factors = Temp::new(&backend.pool, dim)?;
    fill_factors(backend, &mut factors, magnitude, &Read::<f32>::of(norm)?)?;
    with_element!(z.dtype(), T => {
        let z = Read::<T>::of(z)?;
        scale(backend, &mut Write::<T>::of(y)?, &z, &factors, num_rows);
    });
    Ok(())
}

/// Gradients of the scaling.
pub(crate) fn scale_backward(
    backend: &CpuBackend,
    dz: &mut Tensor,
    dmagnitude: Option<(&mut Tensor, bool)>,
    dy: &Tensor,
    z: &Tensor,
    magnitude: &Tensor,
    norm: &Tensor,
) -> Result<()> {
    let of_magnitude = dmagnitude.as_ref().map(|(tensor, _)| &**tensor);
    let (num_rows, dim) = check_scale_backward(dz, of_magnitude, dy, z, magnitude, norm)?;
    let norm = Read::<f32>::of(norm)?;
    let mut factors = Temp::new(&backend.pool, dim)?;
    fill_factors(backend, &mut factors, magnitude, &norm)?;
    with_element!(z.dtype(), T => {
        let (dy, z) = (Read::<T>::of(dy)?, Read::<T>::of(z)?);
        scale(backend, &mut Write::<T>::of(dz)?, &dy, &factors, num_rows);
        let Some((dmagnitude, accumulate)) = dmagnitude else { return Ok(()) };
        let num_tasks = num_rows.div_ceil(ROWS);
        let mut parts = Temp::new(&backend.pool, num_tasks * dim)?;
        backend.crew.run_rows(num_tasks, 1, Rows::new(&mut parts, dim), |task, part, _| {
            let rows = task.start * ROWS * dim..(task.end * ROWS).min(num_rows) * dim;
            sum_of_products(backend.isa, part, &dy[rows.clone()], &z[rows]);
        });
        sum_rows(backend.isa, &mut factors, &parts);
        divide(&mut factors, &norm);
        with_element!(dmagnitude.dtype(), O => {
            store(backend.isa, &mut Write::<O>::of(dmagnitude)?, &factors, accumulate);
        });
    });
    Ok(())
}
