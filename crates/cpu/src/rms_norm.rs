//! Root-mean-square norm: y = round(x * rstd) * w, with rstd = 1 / sqrt(mean(x^2) + eps); or y = x * rstd * (1 + w).
//!
//! Numbers: sums in f32, in lanes. dw is summed over blocks of [`ROWS`] rows, then over blocks in order, whatever the number
//!          of threads.

use tensor::ops::rms_norm::{NormWeight, RmsNorm, check_backward, check_forward};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, dot, dot3, mul_add, with_element};
use crate::pack::store;

/// Rows whose parts of dw are summed by one task.
pub(crate) const ROWS: usize = 32;

/// How a weight multiplies a normed row.
trait Weight: Send + Sync {
    /// What is multiplied by.
    fn factor<T: Element>(w: T) -> f32;
    /// A normed element times its factor.
    fn apply<T: Element>(normed: f32, w: T) -> T;
    /// The sum of dy, factor and x multiplied.
    fn dot<const FMA: bool, T: Element>(dy: &[T], w: &[T], x: &[T]) -> f32;
}

/// [`NormWeight::Plain`]
struct Plain;

impl Weight for Plain {
    #[inline(always)]
    fn factor<T: Element>(w: T) -> f32 {
        w.to_f32()
    }

    #[inline(always)]
    fn apply<T: Element>(normed: f32, w: T) -> T {
        T::from_f32(T::from_f32(normed).to_f32() * w.to_f32())
    }

    #[inline(always)]
    fn dot<const FMA: bool, T: Element>(dy: &[T], w: &[T], x: &[T]) -> f32 {
        dot3::<FMA, T>(dy, w, x)
    }
}

/// [`NormWeight::FromOne`]
struct FromOne;

impl Weight for FromOne {
    #[inline(always)]
    fn factor<T: Element>(w: T) -> f32 {
        1.0 + w.to_f32()
    }

    #[inline(always)]
    fn apply<T: Element>(normed: f32, w: T) -> T {
        T::from_f32(normed * Self::factor(w))
    }

    #[inline(always)]
    fn dot<const FMA: bool, T: Element>(dy: &[T], w: &[T], x: &[T]) -> f32 {
        dot3::<FMA, T>(dy, w, x) + dot::<FMA, T, T>(dy, x)
    }
}

/// Runs an expression with `$W` standing for the kind of weight.
macro_rules! with_weight {
    ($weight:expr, $W:ident => $body:expr) => {
        match $weight {
            NormWeight::Plain => {
                type $W = Plain;
                $body
            }
            NormWeight::FromOne => {
                type $W = FromOne;
                $body
            }
        }
    };
}

per_isa! {
    fn forward_rows<const FMA: bool, T: Element, W: Weight>(y: &mut [T], rstd: &mut [f32], x: &[T], w: &[T], eps: f32) {
        let dim = w.len();
        for (row, rstd) in rstd.iter_mut().enumerate() {
            let (x, y) = (&x[row * dim..][..dim], &mut y[row * dim..][..dim]);
            let r = 1.0 / (dot::<FMA, T, T>(x, x) / dim as f32 + eps).sqrt();
            for (y, (x, w)) in y.iter_mut().zip(x.iter().zip(w)) {
                *y = W::apply(x.to_f32() * r, *w);
            }
            *rstd = r;
        }
    }
}

/// Forward pass; keeps `rstd`.
pub(crate) fn forward(
    backend: &CpuBackend,
    y: &mut Tensor,
    rstd: &mut Tensor,
    x: &Tensor,
    w: &Tensor,
    norm: RmsNorm,
) -> Result<()> {
    let (num_rows, dim) = check_forward(y, rstd, x, w)?;
    with_element!(x.dtype(), T => with_weight!(norm.weight, W => {
        let (x, w) = (Read::<T>::of(x)?, Read::<T>::of(w)?);
        let (mut y, mut rstd) = (Write::<T>::of(y)?, Write::<f32>::of(rstd)?);
        let outputs = (Rows::new(&mut y, dim), Rows::new(&mut rstd, 1));
        backend.crew.run_rows(num_rows, backend.crew.rows_per_task(num_rows, dim), outputs, |rows, (y, rstd), _| {
            let x = &x[rows.start * dim..rows.end * dim];
            forward_rows::<T, W>(backend.isa, y, rstd, x, &w, norm.eps);
        });
    }));
    Ok(())
}

/// Inputs of the backward pass for some rows.
struct Saved<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    w: &'a [T],
    rstd: &'a [f32],
}

per_isa! {
    /// With n = x rstd and g = dy times the factor: dx (+)= rstd (g - n mean(g n)).
    fn dx_rows<const FMA: bool, T: Element, W: Weight>(dx: &mut [T], saved: &Saved<'_, T>, accumulate: bool) {
        let dim = saved.w.len();
        for (row, &rstd) in saved.rstd.iter().enumerate() {
            let at = row * dim..(row + 1) * dim;
            let (dy, x, dx) = (&saved.dy[at.clone()], &saved.x[at.clone()], &mut dx[at]);
            let g_dot_x = W::dot::<FMA, T>(dy, saved.w, x);
            let factor = g_dot_x * rstd * rstd / dim as f32;
            for (dx, ((dy, w), x)) in dx.iter_mut().zip(dy.iter().zip(saved.w).zip(x)) {
                let of_row = rstd * (dy.to_f32() * W::factor(*w) - x.to_f32() * factor);
                *dx = T::from_f32(if accumulate { dx.to_f32() + of_row } else { of_row });
            }
        }
    }
}

per_isa! {
    /// dw = sum over rows of dy n.
    fn dw_of_rows<const FMA: bool, T: Element>(dw: &mut [f32], saved: &Saved<'_, T>) {
        let dim = saved.w.len();
        dw.fill(0.0);
        for (row, &rstd) in saved.rstd.iter().enumerate() {
            let (dy, x) = (&saved.dy[row * dim..][..dim], &saved.x[row * dim..][..dim]);
            for (dw, (dy, x)) in dw.iter_mut().zip(dy.iter().zip(x)) {
                *dw = mul_add::<FMA>(dy.to_f32(), x.to_f32() * rstd, *dw);
            }
        }
    }
}

per_isa! {
    /// The sum of rows that lie one after the other, in order.
    pub(crate) fn sum_rows<const FMA: bool>(sum: &mut [f32], rows: &[f32]) {
        sum.fill(0.0);
        for row in rows.chunks_exact(sum.len().max(1)) {
            for (sum, v) in sum.iter_mut().zip(row) {
                *sum += v;
            }
        }
    }
}

/// Backward pass.
pub(crate) fn backward(
    backend: &CpuBackend,
    mut dx: Option<(&mut Tensor, bool)>,
    mut dw: Option<(&mut Tensor, bool)>,
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    rstd: &Tensor,
    norm: RmsNorm,
) -> Result<()> {
    let (num_rows, dim) =
        check_backward(dx.as_ref().map(|(t, _)| &**t), dw.as_ref().map(|(t, _)| &**t), dy, x, w, rstd)?;
    with_element!(x.dtype(), T => {
        let (dy, x, w) = (Read::<T>::of(dy)?, Read::<T>::of(x)?, Read::<T>::of(w)?);
        let rstd = Read::<f32>::of(rstd)?;
        let dx_accumulate = dx.as_ref().is_some_and(|(_, accumulate)| *accumulate);
        let mut dx = dx.as_mut().map(|(dx, _)| Write::<T>::of(dx)).transpose()?;
        let num_tasks = num_rows.div_ceil(ROWS);
        let mut parts = dw.is_some().then(|| Temp::new(&backend.pool, num_tasks * dim)).transpose()?;
        let outputs = (
            dx.as_mut().map(|dx| Rows::new(dx, ROWS * dim)),
            parts.as_mut().map(|parts| Rows::new(parts, dim)),
        );
        backend.crew.run_rows(num_tasks, 1, outputs, |task, (dx, part), _| {
            let rows = task.start * ROWS..(task.end * ROWS).min(num_rows);
            let at = rows.start * dim..rows.end * dim;
            let saved = Saved { dy: &dy[at.clone()], x: &x[at], w: &w, rstd: &rstd[rows] };
            if let Some(dx) = dx {
                with_weight!(norm.weight, W => dx_rows::<T, W>(backend.isa, dx, &saved, dx_accumulate));
            }
            if let Some(part) = part {
                dw_of_rows(backend.isa, part, &saved);
            }
        });
        if let (Some((dw, accumulate)), Some(parts)) = (dw.as_mut(), parts) {
            let mut sum = Temp::new(&backend.pool, dim)?;
            sum_rows(backend.isa, &mut sum, &parts);
            with_element!(dw.dtype(), O => store(backend.isa, &mut Write::<O>::of(dw)?, &sum, *accumulate));
        }
    });
    Ok(())
}
