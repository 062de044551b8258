//! Token embedding: y[t] = scale w[tokens[t]].
//!
//! Numbers: rows are copied, or multiplied in f32 and rounded once; a row of dw is summed in f32 over its tokens in order, and rounded once.

use tensor::ops::embedding::{check_backward, check_forward, check_tokens};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::{Disjoint, Rows};
use crate::isa::per_isa;
use crate::numbers::{Element, mul_add, with_element};
use crate::pack::{store, widen};

per_isa! {
    fn scale_row<const FMA: bool, T: Element>(y: &mut [T], w: &[T], scale: f32) {
        for (y, w) in y.iter_mut().zip(w) {
            *y = T::from_f32(w.to_f32() * scale);
        }
    }
}

/// `y[t] = scale w[tokens[t]]`.
pub(crate) fn forward(backend: &CpuBackend, y: &mut Tensor, tokens: &Tensor, w: &Tensor, scale: f32) -> Result<()> {
    let (num_tokens, dim, vocab) = check_forward(y, tokens, w)?;
    with_element!(w.dtype(), T => {
        let (tokens, w) = (Read::<i32>::of(tokens)?, Read::<T>::of(w)?);
        check_tokens("embedding_forward", &tokens, vocab)?;
        let mut y = Write::<T>::of(y)?;
        let rows_per_task = backend.crew.rows_per_task(num_tokens, dim);
        backend.crew.run_rows(num_tokens, rows_per_task, Rows::new(&mut y, dim), |rows, y, _| {
            for (t, y) in rows.zip(y.chunks_exact_mut(dim.max(1))) {
                let w = &w[tokens[t] as usize * dim..][..dim];
                if scale == 1.0 {
                    y.copy_from_slice(w);
                } else {
                    scale_row(backend.isa, y, w, scale);
                }
            }
        });
    });
    Ok(())
}

per_isa! {
    fn add_row<const FMA: bool, T: Element>(sum: &mut [f32], x: &[T], scale: f32) {
        for (sum, x) in sum.iter_mut().zip(x) {
            *sum = mul_add::<FMA>(x.to_f32(), scale, *sum);
        }
    }
}

/// `dw[tokens[t]] += scale dy[t]`, after zeroing `dw` unless `accumulate`.
pub(crate) fn backward(
    backend: &CpuBackend,
    dw: &mut Tensor,
    dy: &Tensor,
    tokens: &Tensor,
    scale: f32,
    accumulate: bool,
) -> Result<()> {
    let (num_tokens, dim, vocab) = check_backward(dw, dy, tokens)?;
    with_element!(dy.dtype(), T => with_element!(dw.dtype(), O => {
        let (tokens, dy) = (Read::<i32>::of(tokens)?, Read::<T>::of(dy)?);
        check_tokens("embedding_backward", &tokens, vocab)?;
        let mut dw = Write::<O>::of(dw)?;
        if !accumulate {
            let len = dw.len();
            backend.crew.run_elements(len, Rows::new(&mut dw, 1), |_, dw| dw.fill(O::ZERO));
        }
        // Uses of a token side by side, in order; each token's uses belong to one task.
        let mut order = backend.order.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        order.clear();
        order.extend(0..num_tokens as u32);
        order.sort_unstable_by_key(|&t| (tokens[t as usize], t));
        let uses: &[u32] = &order;
        let token_of = |position: usize| tokens[uses[position] as usize];
        let dw = Disjoint::new(&mut dw);
        let per_task = backend.crew.rows_per_task(num_tokens, dim);
        backend.crew.run(num_tokens.div_ceil(per_task), |task, scratch| {
            let [sum] = scratch.arrays([dim]);
            let end = ((task + 1) * per_task).min(num_tokens);
            let mut at = task * per_task;
            // A token whose uses begin in an earlier task belongs to that task.
            while at > 0 && at < end && token_of(at) == token_of(at - 1) {
                at += 1;
            }
            while at < end {
                let token = token_of(at);
                // SAFETY: all uses of a token are added by the one task in which they begin, so no other writes this row.
                #[expect(unsafe_code, reason = "rows are chosen by tokens, each by one task")]
                let row = unsafe { dw.slice(token as usize * dim..(token as usize + 1) * dim) };
                widen(backend.isa, sum, row);
                while at < num_tokens && token_of(at) == token {
                    add_row(backend.isa, sum, &dy[uses[at] as usize * dim..][..dim], scale);
                    at += 1;
                }
                store(backend.isa, row, sum, false);
            }
        });
    }));
    Ok(())
}
