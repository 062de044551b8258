//! How a product is cut into tasks and blocks, whichever way blocks are computed.

use std::ops::Range;

use crate::CpuBackend;
use crate::crew::Disjoint;
use crate::numbers::Element;
use crate::pack::store;
use crate::scratch::Scratch;

/// Terms of a block of a sum: a strip of the left factor and a panel of the right one fit a 32 KiB cache together.
const TERMS: usize = 320;
/// Elements of f32 size of the left factor that are brought into order together.
const MAX_PREPARED: usize = 4 << 20;

/// A way to compute blocks of a product, with both factors at hand: some rows of the left one in order, the right one as it
/// lies. Rows are counted from the first of those.
pub(super) trait Scheme: Sync {
    /// Rows that a tile has; ranges of rows begin at multiples of it.
    const MR: usize;
    /// Columns of blocks come in multiples of it.
    const NR: usize;
    /// Terms of blocks come in multiples of it, but for the last.
    const STEP: usize;
    /// Columns of a task: with [`TERMS`] terms they fill a quarter of a 512 KiB cache. Twice as many where tasks are plenty.
    const COLUMNS: usize;
    /// Rows of a task at most.
    const MAX_ROWS: usize;
    /// Rows that are stored together, while they are in the innermost cache.
    const ROWS_AT_ONCE: usize;

    /// Elements of f32 size that a block of the right factor takes.
    fn packed_len(num_terms: usize, num_columns: usize) -> usize;

    /// Brings a block of the right factor into order.
    fn pack(&self, packed: &mut [f32], terms: Range<usize>, columns: Range<usize>);

    /// `sums (+)=` rows of the left factor times a packed block of these terms and `width` columns.
    fn multiply(
        &self,
        sums: &mut [f32],
        width: usize,
        rows: Range<usize>,
        terms: Range<usize>,
        packed: &[f32],
        accumulate: bool,
    );
}

/// Rows of the left factor that are brought into order together, if each takes `row_len` elements of f32 size.
pub(super) fn rows_at_once<S: Scheme>(m: usize, row_len: usize) -> usize {
    (MAX_PREPARED / row_len.max(1)).max(S::MAX_ROWS).min(m).next_multiple_of(S::MR)
}

/// A part of c, in rows of the left factor at hand.
struct Task {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The rows `rows` of c, which has `n` columns of `k` terms.
pub(super) fn multiply_rows<S: Scheme, O: Element>(
    scheme: &S,
    backend: &CpuBackend,
    c: &Disjoint<'_, O>,
    rows: Range<usize>,
    (n, k): (usize, usize),
    accumulate: bool,
) {
    let num_threads = backend.crew.num_threads();
    let columns = if n >= 4 * num_threads * 2 * S::COLUMNS { 2 * S::COLUMNS } else { S::COLUMNS };
    let column_tasks = n.div_ceil(columns);
    let row_tasks = if num_threads == 1 { 1 } else { (2 * num_threads).div_ceil(column_tasks) };
    let rows_per_task = rows.len().div_ceil(row_tasks).next_multiple_of(S::MR).min(S::MAX_ROWS);
    let row_tasks = rows.len().div_ceil(rows_per_task);
    backend.crew.run(column_tasks * row_tasks, |index, scratch| {
        let column = index / row_tasks * columns;
        let row = index % row_tasks * rows_per_task;
        let task =
            Task { rows: row..(row + rows_per_task).min(rows.len()), columns: column..(column + columns).min(n) };
        multiply_task(scheme, &task, k, scratch, |row, sums| {
            let start = (rows.start + row) * n;
            // SAFETY: tasks differ in rows or columns, so each element of c belongs to one of them.
            #[expect(unsafe_code, reason = "each element of c belongs to one task")]
            let c = unsafe { c.slice(start + task.columns.start..start + task.columns.end) };
            store(backend.isa, c, sums, accumulate);
        });
    });
}

/// One task: hands finished rows of sums to `finish`.
fn multiply_task<S: Scheme>(scheme: &S, task: &Task, k: usize, scratch: &mut Scratch, finish: impl Fn(usize, &[f32])) {
    let (num_rows, num_columns) = (task.rows.len(), task.columns.len());
    let num_blocks = k.div_ceil(TERMS).max(1);
    // At most TERMS, as that is a multiple of any step; so no block is empty.
    let terms_per_block = k.div_ceil(num_blocks).next_multiple_of(S::STEP);
    let width = num_columns.next_multiple_of(S::NR);
    let kept_rows = if num_blocks == 1 { S::ROWS_AT_ONCE } else { num_rows };
    let [packed, sums] = scratch.arrays([S::packed_len(terms_per_block, num_columns), kept_rows * width]);
    for block in 0..num_blocks {
        let terms = block * terms_per_block..((block + 1) * terms_per_block).min(k);
        scheme.pack(packed, terms.clone(), task.columns.clone());
        for first in (0..num_rows).step_by(S::ROWS_AT_ONCE) {
            let rows = first..(first + S::ROWS_AT_ONCE).min(num_rows);
            let start = if num_blocks == 1 { 0 } else { first * width };
            let sums = &mut sums[start..][..rows.len() * width];
            let rows_at_hand = task.rows.start + rows.start..task.rows.start + rows.end;
            scheme.multiply(sums, width, rows_at_hand.clone(), terms.clone(), packed, block > 0);
            if block + 1 == num_blocks {
                for (row, sums) in rows_at_hand.zip(sums.chunks_exact(width)) {
                    finish(row, &sums[..num_columns]);
                }
            }
        }
    }
}
