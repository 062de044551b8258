//! Forward pass of attention.

use std::ops::Range;

use tensor::ops::attention::{AttentionDims, check_forward};
use tensor::{Result, Tensor};

use super::plan::{KEYS, Plan, Task, View};
use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Disjoint;
use crate::isa::{Isa, per_isa};
use crate::numbers::{Element, exp, max_of, sum_lanes, tanh, with_element};
use crate::pack::{panels_of_columns, store, widen_rows};
use crate::scratch::Scratch;
use crate::tile::{Lhs, NR, Rhs, multiply};

/// Attention of every query; keeps the log-sum-exp of its scores.
pub(crate) fn forward(
    backend: &CpuBackend,
    o: &mut Tensor,
    lse: &mut Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    doc_start: &Tensor,
    dims: &AttentionDims,
) -> Result<()> {
    check_forward(o, lse, q, k, v, doc_start, dims)?;
    with_element!(q.dtype(), T => {
        let (q, k, v) = (Read::<T>::of(q)?, Read::<T>::of(k)?, Read::<T>::of(v)?);
        let doc_start = Read::<i32>::of(doc_start)?;
        let (mut o, mut lse) = (Write::<T>::of(o)?, Write::<f32>::of(lse)?);
        let plan = Plan::new(dims, &doc_start, backend.crew.num_threads());
        let outputs = Outputs { o: Disjoint::new(&mut o), lse: Disjoint::new(&mut lse) };
        backend.crew.run(plan.num_tasks(), |index, scratch| {
            run_task(backend.isa, &plan, &plan.task(index), (&q, &k, &v), &outputs, scratch);
        });
    });
    Ok(())
}

struct Outputs<'a, T> {
    o: Disjoint<'a, T>,
    lse: Disjoint<'a, f32>,
}

fn run_task<T: Element>(
    isa: Isa,
    plan: &Plan<'_>,
    task: &Task,
    (q, k, v): (&[T], &[T], &[T]),
    outputs: &Outputs<'_, T>,
    scratch: &mut Scratch,
) {
    if task.tokens.is_empty() {
        return;
    }
    let (head_dim, width) = (plan.dims.head_dim, plan.head_width());
    let (num_keys, rows) = (task.keys.len(), plan.rows_per_block());
    let [keys, values, queries, scores, sums, max, total, factors] = scratch.arrays([
        num_keys.next_multiple_of(NR) * head_dim,
        num_keys * width,
        rows * head_dim,
        rows * KEYS,
        rows * width,
        rows,
        rows,
        rows,
    ]);
    let first = plan.key_at(task, task.keys.start);
    panels_of_columns(isa, keys, &k[first..], plan.key_stride(), (head_dim, num_keys));
    widen_rows(isa, values, width, &v[first..], plan.key_stride(), (num_keys, head_dim), 1.0);

    for start in task.tokens.clone().step_by(plan.tokens_per_block()) {
        let tokens = start..(start + plan.tokens_per_block()).min(task.tokens.end);
        let rows = tokens.len() * plan.group();
        for head in 0..plan.group() {
            let queries = &mut queries[head * tokens.len() * head_dim..];
            let q = &q[plan.query_at(task, head, tokens.start)..];
            widen_rows(isa, queries, head_dim, q, plan.query_stride(), (tokens.len(), head_dim), plan.dims.scale);
        }
        let mut state = Softmax {
            max: &mut max[..rows],
            total: &mut total[..rows],
            sums: &mut sums[..rows * width],
            width,
            factors: &mut factors[..rows],
        };
        state.max.fill(f32::NEG_INFINITY);
        state.total.fill(0.0);
        state.sums.fill(0.0);
        for tile in tiles(plan, task, tokens.clone()) {
            let (at, columns) = (tile.start - task.keys.start, tile.len().next_multiple_of(NR));
            let panels = Rhs::panels(&keys[at * head_dim..], head_dim);
            multiply(isa, (rows, columns, head_dim), Lhs::rows(queries, head_dim), panels, scores, KEYS, false);
            let view = View::new(plan, task, &tokens, &tile);
            add_tile(isa, &mut state, scores, columns, plan.dims.soft_cap, &view);
            let values = Rhs::rows(&values[at * width..], width);
            multiply(isa, (rows, width, tile.len()), Lhs::rows(scores, KEYS), values, state.sums, width, true);
        }
        finish(isa, plan, task, tokens, &mut state, outputs);
    }
}

/// The tiles of keys that some of a block's queries see; they begin at whole panels of the task's keys.
pub(super) fn tiles(plan: &Plan<'_>, task: &Task, tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let keys = plan.keys_of(task.batch_row, tokens);
    let start = keys.start - (keys.start - task.keys.start) % NR;
    (start..keys.end).step_by(KEYS).map(move |start| start..(start + KEYS).min(keys.end))
}

/// The state of an online softmax over rows: the largest score so far, and sums relative to it.
struct Softmax<'a> {
    max: &'a mut [f32],
    total: &'a mut [f32],
    sums: &'a mut [f32],
    width: usize,
    /// What the sums so far are multiplied with when a tile is added.
    factors: &'a mut [f32],
}

per_isa! {
    /// Turns a tile's scores into exponentials, and sums so far into sums relative to the new largest score.
    fn add_tile<const FMA: bool>(
        state: &mut Softmax<'_>,
        scores: &mut [f32],
        columns: usize,
        soft_cap: Option<f32>,
        view: &View<'_>,
    ) {
        let num_rows = state.max.len();
        // Row by row the largest score; all rows' factors together, so that no row waits for its exponential.
        for row in 0..num_rows {
            let scores = &mut scores[row * KEYS..][..columns];
            if let Some(cap) = soft_cap {
                for score in &mut *scores {
                    *score = cap * tanh::<FMA>(*score / cap);
                }
            }
            let visible = view.columns(row);
            scores[..visible.start].fill(f32::NEG_INFINITY);
            scores[visible.end..].fill(f32::NEG_INFINITY);
            let (before, of_tile) = (state.max[row], max_of(scores));
            state.factors[row] = before;
            state.max[row] = if of_tile > before { of_tile } else { before };
        }
        for (factor, max) in state.factors.iter_mut().zip(&*state.max) {
            // Without a visible key so far both are infinite, and there is nothing to multiply.
            *factor = if *factor == *max { 1.0 } else { exp::<FMA>(*factor - *max) };
        }
        for row in 0..num_rows {
            let (scores, factor) = (&mut scores[row * KEYS..][..columns], state.factors[row]);
            // Without a visible key so far any finite number makes all exponentials 0.
            let max = if state.max[row] == f32::NEG_INFINITY { 0.0 } else { state.max[row] };
            state.total[row] = state.total[row] * factor + exponentials::<FMA>(scores, max);
            if factor != 1.0 {
                for sum in &mut state.sums[row * state.width..][..state.width] {
                    *sum *= factor;
                }
            }
        }
    }
}

/// Replaces scores by e^(score - max) and gives their sum. The number of scores is a multiple of NR.
#[inline(always)]
fn exponentials<const FMA: bool>(scores: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0.0f32; NR];
    for chunk in scores.as_chunks_mut::<NR>().0 {
        for i in 0..NR {
            chunk[i] = exp::<FMA>(chunk[i] - max);
            lanes[i] += chunk[i];
        }
    }
    sum_lanes(lanes)
}

per_isa! {
    fn scale_row<const FMA: bool>(row: &mut [f32], factor: f32) {
        for v in row {
            *v *= factor;
        }
    }
}

/// Divides a block's sums by their totals and stores them.
fn finish<T: Element>(
    isa: Isa,
    plan: &Plan<'_>,
    task: &Task,
    tokens: Range<usize>,
    state: &mut Softmax<'_>,
    outputs: &Outputs<'_, T>,
) {
    let head_dim = plan.dims.head_dim;
    for head in 0..plan.group() {
        let first_row = head * tokens.len();
        let lse_at = plan.lse_at(task, head);
        // SAFETY: tasks differ in heads, batch rows or tokens, so each element belongs to one of them.
        #[expect(unsafe_code, reason = "rows of outputs belong to one task each")]
        let lse = unsafe { outputs.lse.slice(lse_at + tokens.start..lse_at + tokens.end) };
        for (i, t) in tokens.clone().enumerate() {
            let row = first_row + i;
            let sums = &mut state.sums[row * state.width..][..head_dim];
            scale_row(isa, sums, 1.0 / state.total[row]);
            let at = plan.query_at(task, head, t);
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "rows of outputs belong to one task each")]
            let o = unsafe { outputs.o.slice(at..at + head_dim) };
            store(isa, o, sums, false);
            lse[i] = state.max[row] + state.total[row].ln();
        }
    }
}
