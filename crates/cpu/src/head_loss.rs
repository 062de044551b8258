//! Output head and cross entropy in chunks of tokens; log-probabilities of labels (`label_log_probs.rs`) are the same pass.
//!
//! Logits are held transposed, (V, C) for a chunk of C unmasked tokens, so that the weight is read where it lies in all three
//! products and statistics of tokens are taken lane by lane:
//!
//! ```text
//! logits = w h^T   blocks of vocabulary rows, soft-capped where there is a cap: the block's largest logit and sum of exponentials, for each token
//! lse, loss        over blocks, in order
//! dlogits          = scale (e^(logit - lse) - onehot), made block by block; under a soft cap c times 1 - (logit / c)^2
//! dw (+)= dlogits h          dh = sum over workers' shares of the vocabulary of dlogits^T w
//! ```
//!
//! Logits of bf16 factors are products of pairs where the processor multiplies those; the other two products have a factor of
//! f32, dlogits.
//!
//! Numbers: logits, softmax, dlogits and sums in f32. With bf16 gradients each chunk's part of dw is rounded once.

use std::ops::Range;
use std::sync::PoisonError;

use half::bf16;
use tensor::ops::IGNORE_INDEX;
use tensor::ops::head_loss::{HeadLossOut, check, check_labels};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::{Disjoint, Rows};
use crate::elementwise::soft_cap_slice;
use crate::isa::{Isa, per_isa};
use crate::numbers::{Element, exp, with_element};
use crate::pack::{panels_of_columns, panels_of_rows, store, widen};
use crate::pairs::{self, Packed};
use crate::scratch::Scratch;
use crate::tile::{Lhs, MR, NR, Rhs, multiply};

/// Bytes of the logits of a chunk, at most (but a chunk has at least NR tokens).
const LOGITS_BYTES: usize = 32 << 20;
/// Tokens of a chunk at most: their f32 rows stay in the second cache beside a block of the weight.
const MAX_TOKENS: usize = 8 * NR;
/// Vocabulary rows of a block.
pub(crate) const BLOCK: usize = 16 * MR;
/// Rows of the weight that scratch memory has room for: a block's in whole strips, of either kind.
pub(crate) const W_ROWS: usize = BLOCK.next_multiple_of(pairs::MR);
/// Terms of a block of a sum over the model's dimension; even, for pairs.
const TERMS: usize = 320;
/// Rows of statistics that a block leaves: largest logit, sum of exponentials, logit of the label.
pub(crate) const STATISTICS: usize = 3;

/// Loss of the head's tokens, and gradients where wanted.
pub(crate) fn head_loss(
    backend: &CpuBackend,
    out: HeadLossOut<'_>,
    h: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    scale: f32,
    soft_cap: Option<f32>,
) -> Result<()> {
    let (_, dim, vocab) = check(&out, h, w, labels)?;
    let HeadLossOut { loss, mut dh, mut dw } = out;
    let labels = Read::<i32>::of(labels)?;
    check_labels("head_loss", &labels, vocab)?;
    let dw_dtype = dw.as_ref().map_or(w.dtype(), |(dw, _)| dw.dtype());
    with_element!(w.dtype(), T => with_element!(dw_dtype, G => {
        let (h, w) = (Read::<T>::of(h)?, Read::<T>::of(w)?);
        let mut loss = Write::<f32>::of(loss)?;
        let mut dh = dh.as_mut().map(|dh| Write::<T>::of(dh)).transpose()?;
        let dw_accumulate = dw.as_ref().is_some_and(|(_, accumulate)| *accumulate);
        let mut dw = dw.as_mut().map(|(dw, _)| Write::<G>::of(dw)).transpose()?;
        let scale = Scale::Same(scale);
        let head = Head { isa: backend.isa, dim, vocab, h: &h, w: &w, labels: &labels, scale, soft_cap };
        let out = Out { log_probs: None, dh: dh.as_deref_mut(), dw: dw.as_deref_mut(), dw_accumulate };
        loss[0] += (f64::from(scale.of(0)) * head.run(backend, out)?) as f32;
        Ok(())
    }))
}

/// Tokens of a chunk: as many as [`LOGITS_BYTES`] hold, spread evenly over chunks, in whole panels.
pub(crate) fn chunk_len(num_tokens: usize, vocab: usize) -> usize {
    let most = (LOGITS_BYTES / size_of::<f32>() / vocab.max(1) / NR * NR).clamp(NR, MAX_TOKENS);
    let num_chunks = num_tokens.div_ceil(most).max(1);
    num_tokens.div_ceil(num_chunks).next_multiple_of(NR).max(NR)
}

/// Elements of a chunk's transpose of h, in f32 or with every token's elements in pairs.
pub(crate) fn transposed_len(width: usize, dim: usize) -> usize {
    width.next_multiple_of(pairs::NR) * dim
}

/// Blocks of a sum over the model's dimension, and whether there is one before.
fn blocks_of_terms(dim: usize) -> impl Iterator<Item = (Range<usize>, bool)> {
    let num_blocks = dim.div_ceil(TERMS).max(1);
    let terms = dim.div_ceil(num_blocks).next_multiple_of(2);
    (0..num_blocks).map(move |block| (block * terms..((block + 1) * terms).min(dim), block > 0))
}

/// What the loss of a token, minus its label's log-probability, counts for in gradients.
#[derive(Clone, Copy)]
pub(crate) enum Scale<'a> {
    /// As much as any other's.
    Same(f32),
    /// Minus what is given for its log-probability.
    Minus(&'a [f32]),
}

impl Scale<'_> {
    /// Of a token.
    fn of(self, token: u32) -> f32 {
        match self {
            Self::Same(scale) => scale,
            Self::Minus(upstream) => -upstream[token as usize],
        }
    }
}

/// A head and the tokens that it sees.
pub(crate) struct Head<'a, T> {
    pub(crate) isa: Isa,
    pub(crate) dim: usize,
    pub(crate) vocab: usize,
    pub(crate) h: &'a [T],
    pub(crate) w: &'a [T],
    /// Each of them in the vocabulary, or masked.
    pub(crate) labels: &'a [i32],
    pub(crate) scale: Scale<'a>,
    pub(crate) soft_cap: Option<f32>,
}

/// What a head leaves behind.
pub(crate) struct Out<'a, T, G> {
    /// Log-probabilities of labels.
    pub(crate) log_probs: Option<&'a mut [f32]>,
    pub(crate) dh: Option<&'a mut [T]>,
    pub(crate) dw: Option<&'a mut [G]>,
    pub(crate) dw_accumulate: bool,
}

/// A chunk's tokens, in f32.
struct Chunk<'a> {
    tokens: &'a [u32],
    /// Tokens, filled up to whole panels.
    width: usize,
    /// Panels of columns of h.
    panels: &'a [f32],
    /// Panels of tokens: columns of the transpose of h; as pairs where [`Head::paired`] says so.
    transposed: &'a [f32],
}

impl<T: Element> Head<'_, T> {
    /// All tokens that are not masked, chunk by chunk: the sum of their losses, unscaled.
    pub(crate) fn run<G: Element>(&self, backend: &CpuBackend, mut out: Out<'_, T, G>) -> Result<f64> {
        let mut tokens = backend.order.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.clear();
        tokens.extend((0..self.labels.len() as u32).filter(|&t| self.labels[t as usize] != IGNORE_INDEX));
        if let Some(log_probs) = &mut out.log_probs {
            log_probs.fill(0.0);
        }
        if let Some(dh) = &mut out.dh {
            let len = dh.len();
            backend.crew.run_elements(len, Rows::new(dh, 1), |_, dh| dh.fill(T::ZERO));
        }
        if let (Some(dw), true) = (&mut out.dw, tokens.is_empty() && !out.dw_accumulate) {
            let len = dw.len();
            backend.crew.run_elements(len, Rows::new(dw, 1), |_, dw| dw.fill(G::ZERO));
        }
        let mut total = 0.0;
        for tokens in tokens.chunks(chunk_len(tokens.len(), self.vocab)) {
            total += self.chunk(backend, tokens, &mut out)?;
            out.dw_accumulate = true;
        }
        Ok(total)
    }

    /// One chunk: the sum of its tokens' losses, unscaled; gradients are added where wanted.
    fn chunk<G: Element>(&self, backend: &CpuBackend, tokens: &[u32], out: &mut Out<'_, T, G>) -> Result<f64> {
        let width = tokens.len().next_multiple_of(NR);
        let row_len = self.dim.next_multiple_of(NR);
        let mut panels = Temp::new(&backend.pool, tokens.len() * row_len)?;
        let mut transposed = Temp::new(&backend.pool, transposed_len(width, self.dim))?;
        self.gather(backend, tokens, &mut panels, &mut transposed)?;
        let chunk = Chunk { tokens, width, panels: &panels, transposed: &transposed };

        let num_blocks = self.vocab.div_ceil(BLOCK);
        let want_grad = out.dh.is_some() || out.dw.is_some();
        let mut logits = Temp::new(&backend.pool, if want_grad { self.vocab * width } else { 0 })?;
        let mut statistics = Temp::new(&backend.pool, num_blocks * STATISTICS * width)?;
        let kept = want_grad.then(|| Rows::new(&mut logits, BLOCK * width));
        let outputs = (kept, Rows::new(&mut statistics, STATISTICS * width));
        backend.crew.run_rows(num_blocks, 1, outputs, |block, (logits, statistics), scratch| {
            self.logits_of_block(&chunk, self.vocab_rows(block.start), logits, statistics, scratch);
        });
        let mut of_tokens = Temp::new(&backend.pool, 2 * width)?;
        let (lse, per_token) = of_tokens.split_at_mut(width);
        let loss = combine(self.isa, lse, per_token, &mut statistics, tokens.len());
        if let Some(log_probs) = &mut out.log_probs {
            tokens.iter().zip(&*per_token).for_each(|(&t, log_prob)| log_probs[t as usize] = *log_prob);
        }
        if want_grad {
            per_token.fill(0.0);
            per_token.iter_mut().zip(tokens).for_each(|(scale, &t)| *scale = self.scale.of(t));
            self.gradients(backend, &chunk, &logits, (lse, per_token), out)?;
        }
        Ok(loss)
    }

    /// Elements that are multiplied as pairs for the logits.
    fn paired<'s>(&self, elements: &'s [T]) -> Option<&'s [bf16]> {
        if self.isa.multiplies_pairs() { T::as_bf16(elements) } else { None }
    }

    fn vocab_rows(&self, block: usize) -> Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.vocab)
    }

    /// Brings the tokens' rows of h into both orders.
    fn gather(&self, backend: &CpuBackend, tokens: &[u32], panels: &mut [f32], transposed: &mut [f32]) -> Result<()> {
        let mut rows = Temp::new(&backend.pool, tokens.len() * self.dim)?;
        for (&t, row) in tokens.iter().zip(rows.chunks_exact_mut(self.dim.max(1))) {
            widen(self.isa, row, &self.h[t as usize * self.dim..][..self.dim]);
        }
        panels_of_rows(self.isa, panels, &rows, self.dim, (tokens.len(), self.dim));
        let size = (self.dim, tokens.len());
        if let Some(h) = self.paired(self.h) {
            let rows: &mut [bf16] = bytemuck::cast_slice_mut(&mut rows);
            for (&t, row) in tokens.iter().zip(rows.chunks_exact_mut(self.dim.max(1))) {
                row.copy_from_slice(&h[t as usize * self.dim..][..self.dim]);
            }
            pairs::panels_of_columns(self.isa, bytemuck::cast_slice_mut(transposed), rows, self.dim, size);
        } else {
            panels_of_columns(self.isa, transposed, &rows, self.dim, size);
        }
        Ok(())
    }

    /// Logits of a block of the vocabulary and what the softmax needs of them.
    fn logits_of_block(
        &self,
        chunk: &Chunk<'_>,
        rows: Range<usize>,
        logits: Option<&mut [f32]>,
        statistics: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (isa, dim, width) = (self.isa, self.dim, chunk.width);
        let [wide, own] = scratch.arrays([W_ROWS * dim, BLOCK * width]);
        let logits = logits.unwrap_or(own);
        self.logits(logits, rows.clone(), chunk, wide);
        let logits = &mut logits[..rows.len() * width];
        if let Some(cap) = self.soft_cap {
            soft_cap_slice(isa, logits, cap);
        }
        let (max, rest) = statistics.split_at_mut(width);
        let (total, of_label) = rest.split_at_mut(width);
        block_statistics(isa, max, total, logits);
        for (column, &t) in chunk.tokens.iter().enumerate() {
            let label = self.labels[t as usize] as usize;
            of_label[column] = if rows.contains(&label) { logits[(label - rows.start) * width + column] } else { 0.0 };
        }
    }

    /// `logits = w h^T` for some rows of the weight; `scratch` has room for [`W_ROWS`] in f32.
    fn logits(&self, logits: &mut [f32], rows: Range<usize>, chunk: &Chunk<'_>, scratch: &mut [f32]) {
        let (isa, dim, width) = (self.isa, self.dim, chunk.width);
        let w = &self.w[rows.start * dim..rows.end * dim];
        if let Some(w) = self.paired(w) {
            let strips = bytemuck::cast_slice_mut(scratch);
            pairs::strips_of_rows(isa, strips, w, dim, (dim, rows.len()));
            let (transposed, num_pairs) = (bytemuck::cast_slice(chunk.transposed), dim.div_ceil(2));
            for (terms, accumulate) in blocks_of_terms(dim) {
                let first = terms.start / 2;
                let a = Packed { data: &strips[first * pairs::MR..], stride: num_pairs * pairs::MR };
                let b = Packed { data: &transposed[first * pairs::NR..], stride: num_pairs * pairs::NR };
                let size = (rows.len(), width, terms.len().div_ceil(2));
                pairs::multiply(isa, size, a, b, logits, width, accumulate);
            }
            return;
        }
        let w = T::as_f32(w).unwrap_or_else(|| {
            widen(isa, scratch, w);
            &*scratch
        });
        for (terms, accumulate) in blocks_of_terms(dim) {
            let a = Lhs::rows(&w[terms.start.min(w.len())..], dim);
            let b = Rhs { data: &chunk.transposed[terms.start * NR..], panel_stride: dim * NR, row_stride: NR };
            multiply(isa, (rows.len(), width, terms.len()), a, b, logits, width, accumulate);
        }
    }

    /// Gradients of a chunk, from its logits and each token's log-sum-exp and scale.
    fn gradients<G: Element>(
        &self,
        backend: &CpuBackend,
        chunk: &Chunk<'_>,
        logits: &[f32],
        of_tokens: (&[f32], &[f32]),
        out: &mut Out<'_, T, G>,
    ) -> Result<()> {
        let (dh, dw, dw_accumulate) = (out.dh.as_deref_mut(), out.dw.as_deref_mut(), out.dw_accumulate);
        let (isa, dim, width) = (self.isa, self.dim, chunk.width);
        let row_len = dim.next_multiple_of(NR);
        let num_blocks = self.vocab.div_ceil(BLOCK);
        // Each share of the vocabulary sums its own dh, and shares are added in order.
        let num_shares = backend.crew.num_threads().min(num_blocks).max(1);
        let share_len = width * row_len;
        let mut shares = Temp::new(&backend.pool, if dh.is_some() { num_shares * share_len } else { 0 })?;
        let dw = dw.map(Disjoint::new);
        let outputs = dh.is_some().then(|| Rows::new(&mut shares, share_len));
        backend.crew.run_rows(num_shares, 1, outputs, |share, mut dh, scratch| {
            let blocks = share.start * num_blocks / num_shares..share.end * num_blocks / num_shares;
            if let Some(dh) = &mut dh {
                dh.fill(0.0);
            }
            for block in blocks {
                let rows = self.vocab_rows(block);
                let [dlogits, w_panels, dw_rows] = scratch.arrays([BLOCK * width, BLOCK * row_len, 2 * MR * row_len]);
                let dlogits = &mut dlogits[..rows.len() * width];
                self.dlogits_of_block(chunk, rows.clone(), logits, of_tokens, dlogits);
                if let Some(dw) = &dw {
                    for first in (0..rows.len()).step_by(2 * MR) {
                        let num_rows = (2 * MR).min(rows.len() - first);
                        let a = Lhs::rows(&dlogits[first * width..], width);
                        let terms = chunk.tokens.len();
                        let b = Rhs::panels(chunk.panels, terms);
                        multiply(isa, (num_rows, row_len, terms), a, b, dw_rows, row_len, false);
                        for i in 0..num_rows {
                            let at = (rows.start + first + i) * dim;
                            // SAFETY: shares differ in rows of the vocabulary.
                            #[expect(unsafe_code, reason = "rows of dw belong to one share each")]
                            let dw = unsafe { dw.slice(at..at + dim) };
                            store(isa, dw, &dw_rows[i * row_len..][..dim], dw_accumulate);
                        }
                    }
                }
                if let Some(dh) = &mut dh {
                    let w = &self.w[rows.start * dim..rows.end * dim];
                    panels_of_rows(isa, w_panels, w, dim, (rows.len(), dim));
                    let b = Rhs::panels(w_panels, rows.len());
                    let a = Lhs::transposed(dlogits, width);
                    multiply(isa, (chunk.tokens.len(), row_len, rows.len()), a, b, dh, row_len, true);
                }
            }
        });
        if let Some(dh) = dh {
            let mut sum = Temp::new(&backend.pool, row_len)?;
            for (row, &t) in chunk.tokens.iter().enumerate() {
                sum.fill(0.0);
                for share in 0..num_shares {
                    store(isa, &mut sum, &shares[share * share_len + row * row_len..][..row_len], true);
                }
                store(isa, &mut dh[t as usize * dim..][..dim], &sum[..dim], false);
            }
        }
        Ok(())
    }

    fn dlogits_of_block(
        &self,
        chunk: &Chunk<'_>,
        rows: Range<usize>,
        logits: &[f32],
        (lse, scales): (&[f32], &[f32]),
        dlogits: &mut [f32],
    ) {
        let width = chunk.width;
        let logits = &logits[rows.start * width..rows.end * width];
        softmax_rows(self.isa, dlogits, logits, lse, scales);
        for (column, &t) in chunk.tokens.iter().enumerate() {
            let label = self.labels[t as usize] as usize;
            if rows.contains(&label) {
                dlogits[(label - rows.start) * width + column] -= scales[column];
            }
        }
        if let Some(cap) = self.soft_cap {
            soft_cap_slopes(self.isa, dlogits, logits, cap);
        }
    }
}

per_isa! {
    /// For each column the largest of a block's logits, and the sum of exponentials relative to it.
    fn block_statistics<const FMA: bool>(max: &mut [f32], total: &mut [f32], logits: &[f32]) {
        let width = max.len();
        max.fill(f32::NEG_INFINITY);
        total.fill(0.0);
        for row in logits.chunks_exact(width) {
            for (max, &logit) in max.iter_mut().zip(row) {
                *max = if logit > *max { logit } else { *max };
            }
        }
        for row in logits.chunks_exact(width) {
            for ((total, max), logit) in total.iter_mut().zip(&*max).zip(row) {
                *total += exp::<FMA>(logit - max);
            }
        }
    }
}

per_isa! {
    /// Log-sum-exps of all tokens out of the blocks' statistics, and `logit of the label - lse`, whose negatives it sums over the
    /// first `num_tokens`.
    fn combine<const FMA: bool>(
        lse: &mut [f32],
        log_probs: &mut [f32],
        statistics: &mut [f32],
        num_tokens: usize
    ) -> f64 {
        let width = lse.len();
        lse.fill(f32::NEG_INFINITY);
        for block in statistics.chunks_exact(STATISTICS * width) {
            for (max, &of_block) in lse.iter_mut().zip(block) {
                *max = if of_block > *max { of_block } else { *max };
            }
        }
        let (sums, rest) = statistics.split_at_mut(STATISTICS * width);
        let (max, sums) = sums.split_at_mut(width);
        let (total, of_label) = sums.split_at_mut(width);
        for ((total, max), lse) in total.iter_mut().zip(&*max).zip(&*lse) {
            *total *= exp::<FMA>(max - lse);
        }
        for block in rest.chunks_exact(STATISTICS * width) {
            let (max, block) = block.split_at(width);
            for (i, total) in total.iter_mut().enumerate() {
                *total += block[i] * exp::<FMA>(max[i] - lse[i]);
                of_label[i] += block[width + i];
            }
        }
        let mut loss = 0.0;
        for (i, lse) in lse.iter_mut().enumerate() {
            // f64 keeps the difference of two large numbers sharp.
            let exact = f64::from(*lse) + f64::from(total[i]).ln();
            let cost = exact - f64::from(of_label[i]);
            if i < num_tokens {
                loss += cost;
            }
            log_probs[i] = -cost as f32;
            *lse = exact as f32;
        }
        loss
    }
}

per_isa! {
    /// `out = scale e^(logit - lse)`, with one `lse` and one scale a column.
    fn softmax_rows<const FMA: bool>(out: &mut [f32], logits: &[f32], lse: &[f32], scales: &[f32]) {
        let width = lse.len();
        for (out, logits) in out.chunks_exact_mut(width).zip(logits.chunks_exact(width)) {
            for (((out, logit), lse), scale) in out.iter_mut().zip(logits).zip(lse).zip(scales) {
                *out = scale * exp::<FMA>(logit - lse);
            }
        }
    }
}

per_isa! {
    /// Gradients of logits before a soft cap, from those of logits under it.
    fn soft_cap_slopes<const FMA: bool>(dlogits: &mut [f32], logits: &[f32], cap: f32) {
        for (dlogit, logit) in dlogits.iter_mut().zip(logits) {
            let tanh = logit / cap;
            *dlogit *= 1.0 - tanh * tanh;
        }
    }
}

#[cfg(test)]
mod tests {
    use tensor::rng::Stream;
    use tensor::{Backend, DType};
    use testing::compare::Tolerance;
    use testing::op_table::check_head_loss;

    use super::*;
    use crate::CpuConfig;

    #[test]
    fn logits_of_pairs_equal_their_reference() {
        for threads in [1, 2, 3] {
            let config = CpuConfig { threads: Some(threads), isa: Some(Isa::EMULATED_BF16), ..CpuConfig::default() };
            check_head_loss(&CpuBackend::new(config).expect("threads start"), DType::Bf16);
        }
    }

    /// Loss and gradients of 41 tokens, with sums of several blocks.
    fn long_sums(isa: Isa) -> Vec<f64> {
        let (num_tokens, dim, vocab) = (41, 645, 110);
        let backend = CpuBackend::new(CpuConfig { threads: Some(2), isa: Some(isa), ..CpuConfig::default() });
        let backend: &dyn Backend = &backend.expect("threads start");
        let normal = |seed: u64, rows: usize| {
            let mut values = vec![0.0; rows * dim];
            Stream::new(seed, 1).fill_normal(&mut values, 0.2);
            backend.from_f32([rows, dim], DType::Bf16, &values).expect("small tensors fit")
        };
        let (h, w, mut dh, mut dw) = (normal(1, num_tokens), normal(2, vocab), normal(3, num_tokens), normal(4, vocab));
        let labels: Vec<i32> = (0..num_tokens as i32).map(|t| t * 5 % vocab as i32).collect();
        let labels = backend.from_i32([num_tokens], &labels).expect("small tensors fit");
        let mut loss = backend.from_f32([1], DType::F32, &[0.0]).expect("small tensors fit");
        let out = HeadLossOut { loss: &mut loss, dh: Some(&mut dh), dw: Some((&mut dw, false)) };
        backend.head_loss(out, &h, &w, &labels, 1.0, None).expect("shapes fit");
        let all = [&loss, &dh, &dw].map(|x| backend.to_f32(x).expect("numbers"));
        all.concat().into_iter().map(f64::from).collect()
    }

    #[test]
    fn logits_of_pairs_with_long_sums_equal_those_of_f32() {
        let (paired, wide) = (long_sums(Isa::EMULATED_BF16), long_sums(Isa::from_name("portable").expect("there")));
        assert!(paired != wide, "pairs were not multiplied");
        testing::compare::assert_close("loss, dh, dw", &paired, &wide, Tolerance::nmse(1e-6));
    }

    #[test]
    fn blocks_of_terms_are_even_and_cover_all() {
        for dim in [0, 1, 2, 319, 320, 321, 641, 957, 4096] {
            let blocks: Vec<(Range<usize>, bool)> = blocks_of_terms(dim).collect();
            assert!(!blocks.is_empty() && blocks.iter().skip(1).all(|(terms, after)| *after && !terms.is_empty()));
            let covered =
                blocks.iter().fold(0, |end, (terms, _)| if terms.start == end { terms.end } else { usize::MAX });
            assert_eq!(covered, dim);
            assert!(blocks.iter().all(|(terms, _)| terms.start % 2 == 0 && terms.len() <= TERMS));
        }
    }
}
