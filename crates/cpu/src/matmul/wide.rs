//! Products of factors as f32: bf16 is widened, rows of f32 are read where they lie.

use std::ops::Range;

use tensor::Result;

use super::tasks::{self, Scheme, multiply_rows};
use super::{Factor, Product};
use crate::CpuBackend;
use crate::buffer::Temp;
use crate::crew::{Disjoint, Rows};
use crate::isa::Isa;
use crate::numbers::Element;
use crate::pack::{panels_of_columns, panels_of_rows, strips_of_columns, widen};
use crate::tile::{Lhs, MR, NR, Rhs, multiply};

/// `c (+)= a b`.
pub(super) fn run<T: Element, O: Element>(
    product: &Product<'_, T>,
    backend: &CpuBackend,
    c: &Disjoint<'_, O>,
    accumulate: bool,
) -> Result<()> {
    let &Product { m, n, k, a, b } = product;
    let multiply_rows = |rows: Range<usize>, a: Lhs<'_>| {
        multiply_rows(&Wide { isa: backend.isa, n, k, a, b }, backend, c, rows, (n, k), accumulate);
    };
    if let Factor::Plain(a) = a
        && let Some(a) = T::as_f32(a)
    {
        multiply_rows(0..m, Lhs::rows(a, k));
        return Ok(());
    }
    let rows_at_once = rows_at_once(m, k);
    let mut prepared = Temp::new(&backend.pool, rows_at_once * k)?;
    for first in (0..m).step_by(rows_at_once) {
        let rows = first..(first + rows_at_once).min(m);
        let a = prepare_rows(product, backend, rows.clone(), &mut prepared);
        multiply_rows(rows, a);
    }
    Ok(())
}

/// Rows that are widened or transposed together.
pub(super) fn rows_at_once(m: usize, k: usize) -> usize {
    tasks::rows_at_once::<Wide<'_, f32>>(m, k)
}

/// Rows of the left factor as f32.
fn prepare_rows<'p, T: Element>(
    product: &Product<'_, T>,
    backend: &CpuBackend,
    rows: Range<usize>,
    prepared: &'p mut [f32],
) -> Lhs<'p> {
    let (m, k, isa) = (product.m, product.k, backend.isa);
    let num_strips = rows.len().div_ceil(MR);
    let outputs = Rows::new(prepared, MR * k);
    let strips_per_task = backend.crew.rows_per_task(num_strips, MR * k);
    backend.crew.run_rows(num_strips, strips_per_task, outputs, |strips, part, _| {
        let start = rows.start + strips.start * MR;
        let end = (rows.start + strips.end * MR).min(rows.end);
        match product.a {
            Factor::Plain(a) => widen(isa, part, &a[start * k..end * k]),
            Factor::Transposed(a) => strips_of_columns(isa, part, &a[start.min(a.len())..], m, (k, end - start)),
        }
    });
    match product.a {
        Factor::Plain(_) => Lhs::rows(prepared, k),
        Factor::Transposed(_) => Lhs { data: prepared, strip_stride: MR * k, row_stride: 1, col_stride: MR },
    }
}

/// Some rows of the left factor, and the right one of (k, n).
struct Wide<'a, T> {
    isa: Isa,
    n: usize,
    k: usize,
    a: Lhs<'a>,
    b: Factor<'a, T>,
}

impl<T: Element> Scheme for Wide<'_, T> {
    const MR: usize = MR;
    const NR: usize = NR;
    const STEP: usize = 1;
    const COLUMNS: usize = 6 * NR;
    const MAX_ROWS: usize = 256 * MR;
    const ROWS_AT_ONCE: usize = 4 * MR;

    fn packed_len(num_terms: usize, num_columns: usize) -> usize {
        num_terms * num_columns.next_multiple_of(NR)
    }

    fn pack(&self, packed: &mut [f32], terms: Range<usize>, columns: Range<usize>) {
        let size = (terms.len(), columns.len());
        match self.b {
            Factor::Plain(b) => {
                let start = (terms.start * self.n + columns.start).min(b.len());
                panels_of_rows(self.isa, packed, &b[start..], self.n, size);
            }
            Factor::Transposed(b) => {
                let start = (columns.start * self.k + terms.start).min(b.len());
                panels_of_columns(self.isa, packed, &b[start..], self.k, size);
            }
        }
    }

    fn multiply(
        &self,
        sums: &mut [f32],
        width: usize,
        rows: Range<usize>,
        terms: Range<usize>,
        packed: &[f32],
        accumulate: bool,
    ) {
        let start = rows.start / MR * self.a.strip_stride + terms.start * self.a.col_stride;
        let a = Lhs { data: &self.a.data[start.min(self.a.data.len())..], ..self.a };
        let b = Rhs::panels(packed, terms.len());
        multiply(self.isa, (rows.len(), width, terms.len()), a, b, sums, width, accumulate);
    }
}
