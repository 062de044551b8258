//! Products of bf16 factors as they are, two terms at once.

use std::ops::Range;

use half::bf16;
use tensor::Result;

use super::tasks::{self, Scheme, multiply_rows};
use super::{Factor, Product};
use crate::CpuBackend;
use crate::buffer::Temp;
use crate::crew::{Disjoint, Rows};
use crate::isa::Isa;
use crate::numbers::Element;
use crate::pairs::{
    LANES, MR, NR, Packed, multiply, panels_of_columns, panels_of_rows, strips_of_columns, strips_of_rows,
};

/// `c (+)= a b`.
pub(super) fn run<O: Element>(
    product: &Product<'_, bf16>,
    backend: &CpuBackend,
    c: &Disjoint<'_, O>,
    accumulate: bool,
) -> Result<()> {
    let &Product { m, n, k, b, .. } = product;
    let rows_at_once = rows_at_once(m, k);
    let mut prepared = Temp::new(&backend.pool, rows_at_once * row_len(k))?;
    for first in (0..m).step_by(rows_at_once) {
        let rows = first..(first + rows_at_once).min(m);
        let a = prepare_rows(product, backend, rows.clone(), &mut prepared);
        multiply_rows(&Paired { isa: backend.isa, n, k, a, b }, backend, c, rows, (n, k), accumulate);
    }
    Ok(())
}

/// Pairs of a row of `k` terms; each has the size of an f32.
pub(super) fn row_len(k: usize) -> usize {
    k.div_ceil(2)
}

/// Rows that are packed together.
pub(super) fn rows_at_once(m: usize, k: usize) -> usize {
    tasks::rows_at_once::<Paired<'_>>(m, row_len(k))
}

/// Rows of the left factor in strips of pairs.
fn prepare_rows<'p>(
    product: &Product<'_, bf16>,
    backend: &CpuBackend,
    rows: Range<usize>,
    prepared: &'p mut [f32],
) -> Packed<'p> {
    let (m, k, isa) = (product.m, product.k, backend.isa);
    let strip_len = MR * row_len(k);
    let num_strips = rows.len().div_ceil(MR);
    let outputs = Rows::new(prepared, strip_len);
    let strips_per_task = backend.crew.rows_per_task(num_strips, strip_len);
    backend.crew.run_rows(num_strips, strips_per_task, outputs, |strips, part, _| {
        let start = rows.start + strips.start * MR;
        let end = (rows.start + strips.end * MR).min(rows.end);
        let part = bytemuck::cast_slice_mut(part);
        match product.a {
            Factor::Plain(a) => strips_of_rows(isa, part, &a[start * k..], k, (k, end - start)),
            Factor::Transposed(a) => strips_of_columns(isa, part, &a[start.min(a.len())..], m, (k, end - start)),
        }
    });
    Packed { data: bytemuck::cast_slice(prepared), stride: strip_len }
}

/// Some rows of the left factor, and the right one of (k, n).
struct Paired<'a> {
    isa: Isa,
    n: usize,
    k: usize,
    a: Packed<'a>,
    b: Factor<'a, bf16>,
}

impl Scheme for Paired<'_> {
    const MR: usize = MR;
    const NR: usize = LANES;
    const STEP: usize = 2;
    const COLUMNS: usize = 6 * NR;
    const MAX_ROWS: usize = 64 * MR;
    const ROWS_AT_ONCE: usize = 2 * MR;

    fn packed_len(num_terms: usize, num_columns: usize) -> usize {
        row_len(num_terms) * num_columns.next_multiple_of(NR)
    }

    fn pack(&self, packed: &mut [f32], terms: Range<usize>, columns: Range<usize>) {
        let size = (terms.len(), columns.len());
        let packed = bytemuck::cast_slice_mut(packed);
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
        let pairs = row_len(terms.len());
        let start = rows.start / MR * self.a.stride + terms.start / 2 * MR;
        let a = Packed { data: &self.a.data[start.min(self.a.data.len())..], ..self.a };
        let b = Packed { data: bytemuck::cast_slice(packed), stride: pairs * NR };
        multiply(self.isa, (rows.len(), width, pairs), a, b, sums, width, accumulate);
    }
}
