//! Rows and groups as few bits hold them: a pass for the range, one for the numbers, while they are in the nearest cache.

use tensor::ops::fake_quantise::{FakeQuant, OffsetCode, RowCode, Scheme, check_groups, check_rows, symmetric_scale};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, LANES, with_element};

/// The nearest integer, ties to even, 0 without a sign. Exact below 2^22; beyond it numbers are far out of any range of codes.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    /// Adding it leaves no bits for fractions.
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND) - ROUND
}

/// `x` within the bounds; NaN stays.
#[inline(always)]
fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// The nearest value of the element type.
#[inline(always)]
fn rounded<T: Element>(x: f32) -> f32 {
    T::from_f32(x).to_f32()
}

/// The least and the largest of some numbers and `start`; NaN if a number is not finite.
#[inline(always)]
fn range<T: Element>(x: &[T], start: (f32, f32)) -> (f32, f32) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (mut lo, mut hi, mut probe) = ([start.0; LANES], [start.1; LANES], [0.0f32; LANES]);
    let mut take = |i: usize, x: T| {
        let x = x.to_f32();
        lo[i] = if x < lo[i] { x } else { lo[i] };
        hi[i] = if x > hi[i] { x } else { hi[i] };
        // 0 for every number, NaN for what is none and for infinity.
        probe[i] += x * 0.0;
    };
    for chunk in chunks {
        for (i, x) in chunk.iter().enumerate() {
            take(i, *x);
        }
    }
    for (i, x) in rest.iter().enumerate() {
        take(i, *x);
    }
    let probe: f32 = probe.iter().sum();
    let lo = lo.iter().fold(start.0, |least, &x| if x < least { x } else { least });
    let hi = hi.iter().fold(start.1, |most, &x| if x > most { x } else { most });
    (lo + probe, hi + probe)
}

per_isa! {
    fn rows<const FMA: bool, T: Element>(y: &mut [T], x: &[T], width: usize) {
        for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            let (lo, hi) = range(x, (0.0, 0.0));
            let RowCode { scale, inverse, zero } = RowCode::new(lo, hi, rounded::<T>);
            for (y, x) in y.iter_mut().zip(x) {
                let q = clamp(nearest(x.to_f32() * inverse) + zero, -128.0, 127.0);
                *y = T::from_f32((q - zero) * scale);
            }
        }
    }
}

per_isa! {
    fn groups_around_zero<const FMA: bool, T: Element>(y: &mut [T], w: &[T], size: usize) {
        for (y, w) in y.chunks_exact_mut(size).zip(w.chunks_exact(size)) {
            let (lo, hi) = range(w, (0.0, 0.0));
            let scale = symmetric_scale(if hi < -lo { -lo } else { hi }, rounded::<T>);
            let inverse = 1.0 / scale;
            for (y, w) in y.iter_mut().zip(w) {
                *y = T::from_f32(clamp(nearest(w.to_f32() * inverse), -8.0, 7.0) * scale);
            }
        }
    }
}

per_isa! {
    fn groups_with_offset<const FMA: bool, T: Element>(y: &mut [T], w: &[T], size: usize) {
        for (y, w) in y.chunks_exact_mut(size).zip(w.chunks_exact(size)) {
            let (lo, hi) = range(w, (f32::INFINITY, f32::NEG_INFINITY));
            let OffsetCode { scale, middle, low } = OffsetCode::new(lo, hi, rounded::<T>);
            for (y, w) in y.iter_mut().zip(w) {
                let steps = rounded::<T>(rounded::<T>(w.to_f32() - low) / scale);
                let q = clamp(nearest(steps), 0.0, 15.0);
                *y = T::from_f32(rounded::<T>((q - 8.0) * scale) + middle);
            }
        }
    }
}

/// Every row of `x` in 8 bits an element.
pub(crate) fn of_rows(backend: &CpuBackend, y: &mut Tensor, x: &Tensor) -> Result<()> {
    let (num_rows, width) = check_rows(y, x)?;
    if width == 0 {
        return Ok(());
    }
    with_element!(x.dtype(), T => {
        let x = Read::<T>::of(x)?;
        let mut y = Write::<T>::of(y)?;
        let per_task = backend.crew.rows_per_task(num_rows, width);
        backend.crew.run_rows(num_rows, per_task, Rows::new(&mut y, width), |task, y, _| {
            rows(backend.isa, y, &x[task.start * width..task.end * width], width);
        });
    });
    Ok(())
}

/// Every group of the rows of `w` in 4 bits a weight.
pub(crate) fn of_groups(backend: &CpuBackend, y: &mut Tensor, w: &Tensor, quant: FakeQuant) -> Result<()> {
    let (num_rows, width) = check_groups(y, w, quant)?;
    let size = quant.group_size;
    with_element!(w.dtype(), T => {
        let w = Read::<T>::of(w)?;
        let mut y = Write::<T>::of(y)?;
        let num_groups = num_rows * (width / size);
        let per_task = backend.crew.rows_per_task(num_groups, size);
        backend.crew.run_rows(num_groups, per_task, Rows::new(&mut y, size), |task, y, _| {
            let w = &w[task.start * size..task.end * size];
            match quant.scheme {
                Scheme::Int8Int4 => groups_around_zero(backend.isa, y, w, size),
                Scheme::Int4 => groups_with_offset(backend.isa, y, w, size),
            }
        });
    });
    Ok(())
}
