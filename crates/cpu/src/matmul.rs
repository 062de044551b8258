//! Matrix products in the three layouts that a linear layer needs.
//!
//! `c = a b` is cut into tasks of some columns. The left factor is brought into f32 once, by all workers (rows
//! of f32 are read where they lie); each task packs its own columns of the right factor, so that they stay in its core's
//! cache while the left factor streams past. Sums of more than [`TERMS`] terms go in blocks that are added up in f32.
//! Products with few tokens read the weight as the left factor, where it lies.
//!
//! Numbers: storage f32 or bf16, sums in f32, rounded once.

use tensor::ops::matmul::{MatmulDims, check_nn, check_nt, check_tn};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::{Disjoint, Rows};
use crate::isa::per_isa;
use crate::numbers::{Element, dot, with_element};
use crate::pack::{panels_of_columns, panels_of_rows, store, strips_of_columns, widen};
use crate::scratch::Scratch;
use crate::tile::{Lhs, MR, NR, Rhs, multiply};

/// Columns of a task: with [`TERMS`] terms they fill a quarter of a 512 KiB cache. Twice as many where tasks are plenty.
const COLUMNS: usize = 6 * NR;
/// Terms of a block of a sum: a strip of the left factor and a panel of the right one fit a 32 KiB cache together.
const TERMS: usize = 320;
/// Rows of a task at most.
pub(crate) const MAX_ROWS: usize = 256 * MR;
/// Rows that are stored together, while they are in the innermost cache.
const ROWS_AT_ONCE: usize = 4 * MR;
/// Elements of the left factor that are brought into f32 together.
pub(crate) const MAX_PREPARED: usize = 4 << 20;
/// Up to this many tokens the weight is the left factor.
const FEW_TOKENS: usize = 3 * NR;
/// Up to this many tokens products are taken row by row, which reads the weight as fast as memory gives it.
const DOT_TOKENS: usize = 2;

/// `y = x w^T`.
pub(crate) fn nt(backend: &CpuBackend, y: &mut Tensor, x: &Tensor, w: &Tensor) -> Result<()> {
    let MatmulDims { m, n, k } = check_nt(y, x, w)?;
    with_element!(x.dtype(), T => with_element!(y.dtype(), O => {
        let (x, w) = (Read::<T>::of(x)?, Read::<T>::of(w)?);
        let mut y = Write::<O>::of(y)?;
        if m <= FEW_TOKENS {
            return few_tokens(backend, &mut y, &x, &w, (m, n, k));
        }
        let product = Product { m, n, k, a: Factor::Plain(&x), b: Factor::Transposed(&w) };
        product.run(backend, &mut y, false)
    }))
}

/// `dx (+)= dy w`.
pub(crate) fn nn(backend: &CpuBackend, dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
    let MatmulDims { m, n, k } = check_nn(dx, dy, w)?;
    with_element!(dy.dtype(), T => {
        let (dy, w) = (Read::<T>::of(dy)?, Read::<T>::of(w)?);
        let mut dx = Write::<T>::of(dx)?;
        let product = Product { m, n: k, k: n, a: Factor::Plain(&dy), b: Factor::Plain(&w) };
        product.run(backend, &mut dx, accumulate)
    })
}

/// `dw (+)= dy^T x`.
pub(crate) fn tn(backend: &CpuBackend, dw: &mut Tensor, dy: &Tensor, x: &Tensor, accumulate: bool) -> Result<()> {
    let MatmulDims { m, n, k } = check_tn(dw, dy, x)?;
    with_element!(dy.dtype(), T => with_element!(dw.dtype(), O => {
        let (dy, x) = (Read::<T>::of(dy)?, Read::<T>::of(x)?);
        let mut dw = Write::<O>::of(dw)?;
        let product = Product { m: n, n: k, k: m, a: Factor::Transposed(&dy), b: Factor::Plain(&x) };
        product.run(backend, &mut dw, accumulate)
    }))
}

/// A factor as it lies in memory: its own rows, or its columns as rows.
#[derive(Clone, Copy)]
enum Factor<'a, T> {
    Plain(&'a [T]),
    Transposed(&'a [T]),
}

/// `c = a b` with a: (m, k), b: (k, n).
struct Product<'a, T> {
    m: usize,
    n: usize,
    k: usize,
    a: Factor<'a, T>,
    b: Factor<'a, T>,
}

impl<T: Element> Product<'_, T> {
    fn run<O: Element>(&self, backend: &CpuBackend, c: &mut [O], accumulate: bool) -> Result<()> {
        let &Self { m, n, k, .. } = self;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let c = Disjoint::new(c);
        if let Factor::Plain(a) = self.a
            && let Some(a) = T::as_f32(a)
        {
            self.multiply_rows(backend, 0..m, Lhs::rows(a, k), &c, accumulate);
            return Ok(());
        }
        let rows_at_once = (MAX_PREPARED / k.max(1)).max(MAX_ROWS).min(m).next_multiple_of(MR);
        let mut prepared = Temp::new(&backend.pool, rows_at_once * k)?;
        for first in (0..m).step_by(rows_at_once) {
            let rows = first..(first + rows_at_once).min(m);
            let a = self.prepare_rows(backend, rows.clone(), &mut prepared);
            self.multiply_rows(backend, rows, a, &c, accumulate);
        }
        Ok(())
    }

    /// Rows of the left factor as f32.
    fn prepare_rows<'p>(&self, backend: &CpuBackend, rows: std::ops::Range<usize>, prepared: &'p mut [f32]) -> Lhs<'p> {
        let (m, k, isa) = (self.m, self.k, backend.isa);
        let num_strips = rows.len().div_ceil(MR);
        let outputs = Rows::new(prepared, MR * k);
        let strips_per_task = backend.crew.rows_per_task(num_strips, MR * k);
        backend.crew.run_rows(num_strips, strips_per_task, outputs, |strips, part, _| {
            let start = rows.start + strips.start * MR;
            let end = (rows.start + strips.end * MR).min(rows.end);
            match self.a {
                Factor::Plain(a) => widen(isa, part, &a[start * k..end * k]),
                Factor::Transposed(a) => strips_of_columns(isa, part, &a[start.min(a.len())..], m, (k, end - start)),
            }
        });
        match self.a {
            Factor::Plain(_) => Lhs::rows(prepared, k),
            Factor::Transposed(_) => Lhs { data: prepared, strip_stride: MR * k, row_stride: 1, col_stride: MR },
        }
    }

    /// Some rows of c; `a` holds just these rows.
    fn multiply_rows<O: Element>(
        &self,
        backend: &CpuBackend,
        rows: std::ops::Range<usize>,
        a: Lhs<'_>,
        c: &Disjoint<'_, O>,
        accumulate: bool,
    ) {
        let num_threads = backend.crew.num_threads();
        let columns = if self.n >= 4 * num_threads * 2 * COLUMNS { 2 * COLUMNS } else { COLUMNS };
        let column_tasks = self.n.div_ceil(columns);
        let row_tasks = if num_threads == 1 { 1 } else { (2 * num_threads).div_ceil(column_tasks) };
        let rows_per_task = rows.len().div_ceil(row_tasks).next_multiple_of(MR).min(MAX_ROWS);
        let row_tasks = rows.len().div_ceil(rows_per_task);
        backend.crew.run(column_tasks * row_tasks, |index, scratch| {
            let column = index / row_tasks * columns;
            let row = index % row_tasks * rows_per_task;
            let task = Task {
                rows: row..(row + rows_per_task).min(rows.len()),
                columns: column..(column + columns).min(self.n),
            };
            let a = Lhs { data: &a.data[row / MR * a.strip_stride..], ..a };
            self.multiply_task(backend, &task, a, scratch, |row_of_task, columns, sums| {
                let start = (rows.start + row + row_of_task) * self.n;
                // SAFETY: tasks differ in rows or columns, so each element of c belongs to one of them.
                #[expect(unsafe_code, reason = "each element of c belongs to one task")]
                let c = unsafe { c.slice(start + columns.start..start + columns.end) };
                store(backend.isa, c, sums, accumulate);
            });
        });
    }

    /// One task: hands finished rows of sums to `finish`.
    fn multiply_task(
        &self,
        backend: &CpuBackend,
        task: &Task,
        a: Lhs<'_>,
        scratch: &mut Scratch,
        finish: impl Fn(usize, std::ops::Range<usize>, &[f32]),
    ) {
        let (isa, k) = (backend.isa, self.k);
        let (num_rows, num_columns) = (task.rows.len(), task.columns.len());
        let num_blocks = k.div_ceil(TERMS).max(1);
        let terms = k.div_ceil(num_blocks);
        let width = num_columns.next_multiple_of(NR);
        let kept_rows = if num_blocks == 1 { ROWS_AT_ONCE } else { num_rows };
        let [panels, sums] = scratch.arrays([terms * width, kept_rows * width]);
        for block in 0..num_blocks {
            let (first, last) = (block * terms, ((block + 1) * terms).min(k));
            let terms = last - first;
            match self.b {
                Factor::Plain(b) => {
                    let start = (first * self.n + task.columns.start).min(b.len());
                    panels_of_rows(isa, panels, &b[start..], self.n, (terms, num_columns));
                }
                Factor::Transposed(b) => {
                    let start = (task.columns.start * k + first).min(b.len());
                    panels_of_columns(isa, panels, &b[start..], k, (terms, num_columns));
                }
            }
            let b = Rhs::panels(panels, terms);
            for row in (0..num_rows).step_by(ROWS_AT_ONCE) {
                let rows = ROWS_AT_ONCE.min(num_rows - row);
                let start = if num_blocks == 1 { 0 } else { row * width };
                let sums = &mut sums[start..][..rows * width];
                let data = &a.data[(row / MR * a.strip_stride + first * a.col_stride).min(a.data.len())..];
                multiply(isa, (rows, width, terms), Lhs { data, ..a }, b, sums, width, block > 0);
                if block + 1 == num_blocks {
                    for i in 0..rows {
                        finish(row + i, task.columns.clone(), &sums[i * width..][..num_columns]);
                    }
                }
            }
        }
    }
}

/// A part of c, in rows of the left factor at hand.
struct Task {
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
}

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

/// `y = x w^T` for few tokens: the weight passes once, as the left factor, where it lies.
fn few_tokens<T: Element, O: Element>(
    backend: &CpuBackend,
    y: &mut [O],
    x: &[T],
    w: &[T],
    (m, n, k): (usize, usize, usize),
) -> Result<()> {
    /// Rows of the weight that are widened together.
    const ROWS: usize = 2 * MR;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let (isa, width) = (backend.isa, m.next_multiple_of(NR));
    let by_dots = m <= DOT_TOKENS;
    let mut x_wide = Temp::new(&backend.pool, width * k)?;
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
            store(isa, y, &line[..rows.len()], false);
        }
    });
    Ok(())
}
