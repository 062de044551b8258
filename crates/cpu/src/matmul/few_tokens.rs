//! `y = x w^T` for few tokens: the weight passes once, as the left factor, where it lies.

use tensor::Result;

use crate::CpuBackend;
use crate::buffer::Temp;
use crate::crew::Disjoint;
use crate::isa::per_isa;
use crate::numbers::{Element, dot};
use crate::pack::{panels_of_columns, store, widen};
use crate::tile::{Lhs, MR, NR, Rhs, multiply};

/// Up to this many tokens the weight is the left factor.
pub(crate) const FEW_TOKENS: usize = 3 * NR;
/// Up to this many tokens products are taken row by row, which reads the weight as fast as memory gives it.
const DOT_TOKENS: usize = 2;

per_isa! {
    /// `out[row, token] = w[row] . x[token]` for rows of `k` terms.
    fn dots<const FMA: bool, T: Element>(out: &mut [f32], stride: usize, w: &[T], x: &[f32], k: usize, num_tokens: usize) {
        for (row, out) in out.chunks_exact_mut(stride).enumerate() {
            let w = &w[row * k..][..k];
            for token in 0..num_tokens {
                out[token] = dot::<FMA, T, f32>(w, &x[token * k..][..k]);
            }
        }
    }
}

/// Elements of f32 size that all workers share: the tokens, in f32.
pub(crate) fn shared_len(m: usize, k: usize) -> usize {
    m.next_multiple_of(NR) * k
}

/// `y (+)= x w^T` with at most [`FEW_TOKENS`] tokens.
pub(super) fn few_tokens<T: Element, O: Element>(
    backend: &CpuBackend,
    y: &mut [O],
    x: &[T],
    w: &[T],
    (m, n, k): (usize, usize, usize),
    accumulate: bool,
) -> Result<()> {
    /// Rows of the weight that are widened together.
    const ROWS: usize = 2 * MR;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let (isa, width) = (backend.isa, m.next_multiple_of(NR));
    let by_dots = m <= DOT_TOKENS;
    let mut x_wide = Temp::new(&backend.pool, shared_len(m, k))?;
    if by_dots {
        widen(isa, &mut x_wide, x);
    } else {
        panels_of_columns(isa, &mut x_wide, x, k, (k, m));
    }
    let x = &*x_wide;
    let y = Disjoint::new(y);
    let rows_per_task = backend.crew.rows_per_task(n, k * m.div_ceil(DOT_TOKENS)).next_multiple_of(ROWS).min(16 * ROWS);
    backend.crew.run(n.div_ceil(rows_per_task), |index, scratch| {
        let rows = index * rows_per_task..((index + 1) * rows_per_task).min(n);
        let [wide, sums, line] = scratch.arrays([ROWS * k, rows_per_task * width, rows_per_task]);
        let w = &w[rows.start * k..rows.end * k];
        let sums = &mut sums[..rows.len() * width];
        if by_dots {
            dots(isa, sums, width, w, x, k, m);
        } else {
            for first in (0..rows.len()).step_by(ROWS) {
                let num_rows = ROWS.min(rows.len() - first);
                let w = &w[first * k..][..num_rows * k];
                let w = T::as_f32(w).unwrap_or_else(|| {
                    widen(isa, wide, w);
                    &*wide
                });
                let sums = &mut sums[first * width..][..num_rows * width];
                multiply(isa, (num_rows, width, k), Lhs::rows(w, k), Rhs::panels(x, k), sums, width, false);
            }
        }
        for token in 0..m {
            for (row, line) in line[..rows.len()].iter_mut().enumerate() {
                *line = sums[row * width + token];
            }
            // SAFETY: tasks differ in rows of the weight, which are columns of y.
            #[expect(unsafe_code, reason = "each element of y belongs to one task")]
            let y = unsafe { y.slice(token * n + rows.start..token * n + rows.end) };
            store(isa, y, &line[..rows.len()], accumulate);
        }
    });
    Ok(())
}
