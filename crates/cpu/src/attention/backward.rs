//! Backward pass of attention: scores are computed again, tile by tile.
//!
//! With p = exp(score - lse): dv += p^T d_o; dp = d_o v^T; dscore = p (dp - d_o . o); dq += scale dscore k;
//! dk += scale dscore^T q. Under a soft cap c, dscore has the factor 1 - (capped score / c)^2.

use std::ops::Range;

use tensor::ops::attention::{AttentionDims, check_forward, check_gradients};
use tensor::{Result, Tensor};

use super::forward::tiles;
use super::plan::{KEYS, Plan, Task, View};
use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::Disjoint;
use crate::isa::{Isa, per_isa};
use crate::numbers::{Element, dot, exp, tanh, with_element};
use crate::pack::{panels_of_columns, store, widen_rows};
use crate::scratch::Scratch;
use crate::tile::{Lhs, NR, Rhs, multiply};

/// Gradients of queries, keys and values; overwritten.
pub(crate) fn backward(
    backend: &CpuBackend,
    dq: &mut Tensor,
    dk: &mut Tensor,
    dv: &mut Tensor,
    d_o: &Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    o: &Tensor,
    lse: &Tensor,
    doc_start: &Tensor,
    dims: &AttentionDims,
) -> Result<()> {
    check_forward(o, lse, q, k, v, doc_start, dims)?;
    check_gradients([("dq", dq, q), ("dk", dk, k), ("dv", dv, v), ("d_o", d_o, o)])?;
    with_element!(q.dtype(), T => {
        let (d_o, q, k) = (Read::<T>::of(d_o)?, Read::<T>::of(q)?, Read::<T>::of(k)?);
        let (v, o, lse) = (Read::<T>::of(v)?, Read::<T>::of(o)?, Read::<f32>::of(lse)?);
        let doc_start = Read::<i32>::of(doc_start)?;
        let (mut dq, mut dk, mut dv) = (Write::<T>::of(dq)?, Write::<T>::of(dk)?, Write::<T>::of(dv)?);
        let plan = Plan::new(dims, &doc_start, backend.crew.num_threads());
        let inputs = Inputs { d_o: &d_o, q: &q, k: &k, v: &v, o: &o, lse: &lse };
        let dq = Disjoint::new(&mut dq);
        let key_gradients = KeyGradients { dk: Disjoint::new(&mut dk), dv: Disjoint::new(&mut dv) };
        let part_len = dims.keys * plan.head_width();
        // With several ranges of tokens each leaves its part of dk and dv here.
        let parts_len = if plan.chunks_per_row == 1 { 0 } else { plan.num_tasks() * 2 * part_len };
        let mut parts = Temp::new(&backend.pool, parts_len)?;
        let parts_out = Disjoint::new(&mut parts);
        backend.crew.run(plan.num_tasks(), |index, scratch| {
            let task = plan.task(index);
            let part = if plan.chunks_per_row == 1 { 0..0 } else { index * 2 * part_len..(index + 1) * 2 * part_len };
            // SAFETY: each task has its own part.
            #[expect(unsafe_code, reason = "each task has its own part")]
            let part = unsafe { parts_out.slice(part) };
            run_task(backend.isa, &plan, &task, &inputs, &dq, scratch, |dk, dv| {
                if plan.chunks_per_row == 1 {
                    key_gradients.store(backend.isa, &plan, &task, &task.keys, dk, dv);
                } else {
                    let (part_dk, part_dv) = part.split_at_mut(part_len);
                    part_dk[..dk.len()].copy_from_slice(dk);
                    part_dv[..dv.len()].copy_from_slice(dv);
                }
            });
        });
        if plan.chunks_per_row > 1 {
            sum_parts(backend, &plan, &parts, &key_gradients);
        }
    });
    Ok(())
}

struct Inputs<'a, T> {
    d_o: &'a [T],
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    lse: &'a [f32],
}

fn run_task<T: Element>(
    isa: Isa,
    plan: &Plan<'_>,
    task: &Task,
    inputs: &Inputs<'_, T>,
    dq: &Disjoint<'_, T>,
    scratch: &mut Scratch,
    finish: impl FnOnce(&[f32], &[f32]),
) {
    let (head_dim, width) = (plan.dims.head_dim, plan.head_width());
    let (num_keys, rows) = (task.keys.len(), plan.rows_per_block());
    let (panels_len, rows_len) = (num_keys.next_multiple_of(NR) * head_dim, num_keys * width);
    let [key_panels, value_panels, keys, dk, dv, queries, d_outs, dqs, scores, dscores, lse, delta] = scratch.arrays([
        panels_len,
        panels_len,
        rows_len,
        rows_len,
        rows_len,
        rows * width,
        rows * width,
        rows * width,
        rows * KEYS,
        rows * KEYS,
        rows,
        rows,
    ]);
    dk.fill(0.0);
    dv.fill(0.0);
    if task.tokens.is_empty() {
        return finish(dk, dv);
    }
    let (first, stride) = (plan.key_at(task, task.keys.start), plan.key_stride());
    panels_of_columns(isa, key_panels, &inputs.k[first..], stride, (head_dim, num_keys));
    panels_of_columns(isa, value_panels, &inputs.v[first..], stride, (head_dim, num_keys));
    widen_rows(isa, keys, width, &inputs.k[first..], stride, (num_keys, head_dim), 1.0);

    for start in task.tokens.clone().step_by(plan.tokens_per_block()) {
        let tokens = start..(start + plan.tokens_per_block()).min(task.tokens.end);
        let rows = tokens.len() * plan.group();
        for head in 0..plan.group() {
            let (first_row, at) = (head * tokens.len(), plan.query_at(task, head, tokens.start));
            let (size, stride) = ((tokens.len(), head_dim), plan.query_stride());
            widen_rows(isa, &mut queries[first_row * width..], width, &inputs.q[at..], stride, size, plan.dims.scale);
            widen_rows(isa, &mut d_outs[first_row * width..], width, &inputs.d_o[at..], stride, size, 1.0);
            let rows = first_row..first_row + tokens.len();
            row_dots(isa, &mut delta[rows.clone()], &inputs.d_o[at..], &inputs.o[at..], head_dim, stride);
            let lse_at = plan.lse_at(task, head) + tokens.start;
            lse[rows].copy_from_slice(&inputs.lse[lse_at..][..tokens.len()]);
        }
        dqs[..rows * width].fill(0.0);
        for tile in tiles(plan, task, tokens.clone()) {
            let (at, columns) = (tile.start - task.keys.start, tile.len().next_multiple_of(NR));
            let panels = |panels| Rhs::panels(panels, head_dim);
            let (q, d_o) = (Lhs::rows(queries, width), Lhs::rows(d_outs, width));
            multiply(isa, (rows, columns, head_dim), q, panels(&key_panels[at * head_dim..]), scores, KEYS, false);
            multiply(isa, (rows, columns, head_dim), d_o, panels(&value_panels[at * head_dim..]), dscores, KEYS, false);
            let view = View::new(plan, task, &tokens, &tile);
            let (lse, delta) = (&lse[..rows], &delta[..rows]);
            score_gradients(isa, scores, dscores, lse, delta, columns, plan.dims.soft_cap, &view);
            let of_keys = (tile.len(), width, rows);
            let (p, dscore) = (Lhs::transposed(scores, KEYS), Lhs::transposed(dscores, KEYS));
            multiply(isa, of_keys, p, Rhs::rows(d_outs, width), &mut dv[at * width..], width, true);
            multiply(isa, of_keys, dscore, Rhs::rows(queries, width), &mut dk[at * width..], width, true);
            let keys = Rhs::rows(&keys[at * width..], width);
            multiply(isa, (rows, width, tile.len()), Lhs::rows(dscores, KEYS), keys, dqs, width, true);
        }
        scale(isa, &mut dqs[..rows * width], plan.dims.scale);
        for head in 0..plan.group() {
            for (i, t) in tokens.clone().enumerate() {
                let at = plan.query_at(task, head, t);
                // SAFETY: tasks differ in heads, batch rows or tokens, so each element belongs to one of them.
                #[expect(unsafe_code, reason = "rows of dq belong to one task each")]
                let dq = unsafe { dq.slice(at..at + head_dim) };
                store(isa, dq, &dqs[(head * tokens.len() + i) * width..][..head_dim], false);
            }
        }
    }
    finish(dk, dv);
}

per_isa! {
    /// Products of rows `stride` apart, each with its counterpart.
    fn row_dots<const FMA: bool, T: Element>(out: &mut [f32], a: &[T], b: &[T], width: usize, stride: usize) {
        for (row, out) in out.iter_mut().enumerate() {
            *out = dot::<FMA, T, T>(&a[row * stride..][..width], &b[row * stride..][..width]);
        }
    }
}

per_isa! {
    fn scale<const FMA: bool>(x: &mut [f32], factor: f32) {
        for v in x {
            *v *= factor;
        }
    }
}

per_isa! {
    /// Turns scores into probabilities, and gradients of probabilities into gradients of scores; 0 where a query sees nothing.
    fn score_gradients<const FMA: bool>(
        scores: &mut [f32],
        dscores: &mut [f32],
        lse: &[f32],
        delta: &[f32],
        columns: usize,
        soft_cap: Option<f32>,
        view: &View<'_>,
    ) {
        for (row, (&lse, &delta)) in lse.iter().zip(delta).enumerate() {
            let (scores, dscores) = (&mut scores[row * KEYS..][..columns], &mut dscores[row * KEYS..][..columns]);
            let visible = view.columns(row);
            if let Some(cap) = soft_cap {
                for (score, dscore) in scores.iter_mut().zip(&mut *dscores) {
                    let tanh = tanh::<FMA>(*score / cap);
                    *score = exp::<FMA>(cap * tanh - lse);
                    *dscore = *score * (*dscore - delta) * (1.0 - tanh * tanh);
                }
            } else {
                for (score, dscore) in scores.iter_mut().zip(&mut *dscores) {
                    *score = exp::<FMA>(*score - lse);
                    *dscore = *score * (*dscore - delta);
                }
            }
            for hidden in [0..visible.start, visible.end..columns] {
                scores[hidden.clone()].fill(0.0);
                dscores[hidden].fill(0.0);
            }
        }
    }
}

struct KeyGradients<'a, T> {
    dk: Disjoint<'a, T>,
    dv: Disjoint<'a, T>,
}

impl<T: Element> KeyGradients<'_, T> {
    /// Stores all rows of the task's head: those of `keys` from `dk` and `dv`, zeros elsewhere.
    fn store(&self, isa: Isa, plan: &Plan<'_>, task: &Task, keys: &Range<usize>, dk: &[f32], dv: &[f32]) {
        let (head_dim, width) = (plan.dims.head_dim, plan.head_width());
        let (from_dk, from_dv) = (dk, dv);
        for s in 0..plan.dims.keys {
            let at = plan.key_at(task, s);
            // SAFETY: each key row of each head is stored by one task.
            #[expect(unsafe_code, reason = "rows of outputs belong to one task each")]
            let (dk, dv) = unsafe { (self.dk.slice(at..at + head_dim), self.dv.slice(at..at + head_dim)) };
            if keys.contains(&s) {
                let row = (s - keys.start) * width;
                store(isa, dk, &from_dk[row..][..head_dim], false);
                store(isa, dv, &from_dv[row..][..head_dim], false);
            } else {
                dk.fill(T::ZERO);
                dv.fill(T::ZERO);
            }
        }
    }
}

/// Adds up the parts of dk and dv that the ranges of tokens left.
fn sum_parts<T: Element>(backend: &CpuBackend, plan: &Plan<'_>, parts: &[f32], out: &KeyGradients<'_, T>) {
    let (isa, width) = (backend.isa, plan.head_width());
    let part_len = plan.dims.keys * width;
    let num_heads = plan.dims.batch * plan.dims.num_kv_heads;
    backend.crew.run(num_heads, |head, scratch| {
        let [dk, dv] = scratch.arrays([part_len, part_len]);
        dk.fill(0.0);
        dv.fill(0.0);
        let indices = head * plan.chunks_per_row..(head + 1) * plan.chunks_per_row;
        for index in indices.clone() {
            let keys = plan.task(index).keys;
            let (at, len) = (keys.start * width, keys.len() * width);
            let (part_dk, part_dv) = parts[index * 2 * part_len..][..2 * part_len].split_at(part_len);
            store(isa, &mut dk[at..][..len], &part_dk[..len], true);
            store(isa, &mut dv[at..][..len], &part_dv[..len], true);
        }
        let task = plan.task(indices.start);
        out.store(isa, plan, &task, &(0..plan.dims.keys), dk, dv);
    });
}
