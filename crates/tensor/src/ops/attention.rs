//! Causal attention within documents, with grouped key/value heads: o = softmax(scale q k^T) v over the visible keys.
//!
//! Shapes:  q, o, dq, d_o: (B*T, N*H); k, v, dk, dv: (B*S, K*H); lse: (B, N, T) f32; doc_start: (B, T) i32.
//!          Query row t of a batch row stands at key row t + query_offset; N is a multiple of K, query head n reads
//!          key/value head n / (N/K).
//! Visible: key rows s with max(doc_start[b, t], row - window + 1) <= s <= row, where row = t + query_offset. Every query
//!          sees at least itself. doc_start counts key rows; padding is a document of its own.
//! Numbers: storage f32 or bf16; scores, softmax and sums in f32; outputs rounded once. With a soft cap c the scaled score x
//!          becomes c tanh(x / c).
//! Grads:   dq, dk, dv are overwritten.
//! Errors:  `Error::Shape`.
//! Source:  Dao et al. 2022, arXiv:2205.14135 (online softmax, only the log-sum-exp kept for backward).

use std::ops::{Range, RangeInclusive};

use super::{Float, add_scaled, dot, expect_dtype, expect_float, expect_shape};
use crate::{DType, Error, Result, Tensor};

/// Sizes and options of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionDims {
    /// B: rows of the batch.
    pub batch: usize,
    /// T: query tokens of a row.
    pub tokens: usize,
    /// S: key/value tokens of a row; at least T + query_offset.
    pub keys: usize,
    /// N: query heads.
    pub num_heads: usize,
    /// K: key/value heads.
    pub num_kv_heads: usize,
    /// H: elements of a head.
    pub head_dim: usize,
    /// Key row of the first query token: the filled part of a key/value cache.
    pub query_offset: usize,
    /// How many keys up to itself a query sees; `None` = no limit.
    pub window: Option<usize>,
    /// Factor on scores, usually 1 / sqrt(H).
    pub scale: f32,
    /// Soft cap on scaled scores; `None` = none.
    pub soft_cap: Option<f32>,
}

impl AttentionDims {
    /// The first key row that query row `t` of a batch row sees, given the start of its document.
    pub fn first_key(&self, t: usize, doc_start: i32) -> usize {
        let row = t + self.query_offset;
        let by_window = self.window.map_or(0, |w| (row + 1).saturating_sub(w.max(1)));
        (doc_start.max(0) as usize).max(by_window).min(row)
    }
}

/// Checks the forward pass.
pub fn check_forward(
    o: &Tensor,
    lse: &Tensor,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    doc_start: &Tensor,
    dims: &AttentionDims,
) -> Result<()> {
    let op = "attention";
    let AttentionDims { batch, tokens, keys, num_heads, num_kv_heads, head_dim, query_offset, .. } = *dims;
    let wrong = |expected: &str| Error::Shape { op, name: "k", expected: expected.to_owned(), found: k.shape() };
    if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
        return Err(wrong("a number of query heads that is a multiple of the key/value heads"));
    }
    if keys < tokens + query_offset {
        return Err(wrong("at least as many keys as query_offset + query tokens"));
    }
    let dtype = expect_float(op, "q", q)?;
    for (name, t) in [("q", q), ("o", o)] {
        expect_shape(op, name, t, &[batch * tokens, num_heads * head_dim])?;
        expect_dtype(op, name, t, dtype)?;
    }
    for (name, t) in [("k", k), ("v", v)] {
        expect_shape(op, name, t, &[batch * keys, num_kv_heads * head_dim])?;
        expect_dtype(op, name, t, dtype)?;
    }
    expect_shape(op, "lse", lse, &[batch, num_heads, tokens])?;
    expect_dtype(op, "lse", lse, DType::F32)?;
    expect_shape(op, "doc_start", doc_start, &[batch, tokens])?;
    expect_dtype(op, "doc_start", doc_start, DType::I32)
}

/// Checks that gradients have the shapes and dtypes of what they are gradients of.
pub fn check_gradients(pairs: [(&'static str, &Tensor, &Tensor); 4]) -> Result<()> {
    for (name, gradient, of) in pairs {
        expect_shape("attention_backward", name, gradient, of.dims())?;
        expect_dtype("attention_backward", name, gradient, of.dtype())?;
    }
    Ok(())
}

impl AttentionDims {
    /// Where query row `t` of head `n` lies in q, o and their gradients.
    fn query(&self, b: usize, t: usize, n: usize) -> Range<usize> {
        let start = ((b * self.tokens + t) * self.num_heads + n) * self.head_dim;
        start..start + self.head_dim
    }

    /// Where key row `s` that query head `n` reads lies in k, v and their gradients.
    fn key(&self, b: usize, s: usize, n: usize) -> Range<usize> {
        let kv_head = n / (self.num_heads / self.num_kv_heads);
        let start = ((b * self.keys + s) * self.num_kv_heads + kv_head) * self.head_dim;
        start..start + self.head_dim
    }

    /// The key rows that query row `t` of batch row `b` sees.
    fn visible(&self, b: usize, t: usize, doc_start: &[i32]) -> RangeInclusive<usize> {
        self.first_key(t, doc_start[b * self.tokens + t])..=t + self.query_offset
    }

    /// A score from the product of query and key, and its derivative by that product.
    fn score<T: Float>(&self, product: T) -> (T, T) {
        let scale = T::from_f64(f64::from(self.scale));
        let scaled = scale * product;
        match self.soft_cap {
            None => (scaled, scale),
            Some(cap) => {
                let cap = T::from_f64(f64::from(cap));
                let tanh = (scaled / cap).tanh();
                (cap * tanh, scale * (T::ONE - tanh * tanh))
            }
        }
    }
}

/// Reference of the forward pass.
pub fn attention_forward<T: Float>(
    o: &mut [T],
    lse: &mut [T],
    q: &[T],
    k: &[T],
    v: &[T],
    doc_start: &[i32],
    dims: &AttentionDims,
) {
    o.fill(T::ZERO);
    for (i, lse) in lse.iter_mut().enumerate() {
        let (b, n, t) = (i / dims.tokens / dims.num_heads, i / dims.tokens % dims.num_heads, i % dims.tokens);
        let query = dims.query(b, t, n);
        let visible = dims.visible(b, t, doc_start);
        let score = |s| dims.score(dot(&q[query.clone()], &k[dims.key(b, s, n)])).0;
        let scores: Vec<T> = visible.clone().map(score).collect();
        let max = scores.iter().copied().fold(T::NEG_INFINITY, T::max);
        *lse = max + scores.iter().map(|&score| (score - max).exp()).sum::<T>().ln();
        for (s, score) in visible.zip(scores) {
            add_scaled(&mut o[query.clone()], (score - *lse).exp(), &v[dims.key(b, s, n)]);
        }
    }
}

/// Reference of the backward pass. With p = exp(score - lse) and o = sum p v:
/// dv = p d_o, and dscore = p (d_o . v - d_o . o), where the second part is the softmax's normalisation.
pub fn attention_backward<T: Float>(
    dq: &mut [T],
    dk: &mut [T],
    dv: &mut [T],
    d_o: &[T],
    q: &[T],
    k: &[T],
    v: &[T],
    o: &[T],
    lse: &[T],
    doc_start: &[i32],
    dims: &AttentionDims,
) {
    for gradient in [&mut *dq, &mut *dk, &mut *dv] {
        gradient.fill(T::ZERO);
    }
    for (i, &lse) in lse.iter().enumerate() {
        let (b, n, t) = (i / dims.tokens / dims.num_heads, i / dims.tokens % dims.num_heads, i % dims.tokens);
        let query = dims.query(b, t, n);
        let (q, d_o, o) = (&q[query.clone()], &d_o[query.clone()], &o[query.clone()]);
        let normalisation = dot(d_o, o);
        for s in dims.visible(b, t, doc_start) {
            let key = dims.key(b, s, n);
            let (score, slope) = dims.score(dot(q, &k[key.clone()]));
            let p = (score - lse).exp();
            let dproduct = slope * p * (dot(d_o, &v[key.clone()]) - normalisation);
            add_scaled(&mut dq[query.clone()], dproduct, &k[key.clone()]);
            add_scaled(&mut dk[key.clone()], dproduct, q);
            add_scaled(&mut dv[key], p, d_o);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: AttentionDims = AttentionDims {
        batch: 1,
        tokens: 4,
        keys: 4,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 1,
        query_offset: 0,
        window: None,
        scale: 1.0,
        soft_cap: None,
    };

    /// o for values 1, 2, 4, 8 and queries of 0, which look at all visible keys alike; both heads agree.
    fn means(doc_start: &[i32], dims: &AttentionDims) -> Vec<f64> {
        let num_queries = dims.tokens * dims.num_heads;
        let (mut o, mut lse) = (vec![f64::NAN; num_queries], vec![f64::NAN; num_queries]);
        let (q, k, v) = (vec![0.0; num_queries], [3.0, -1.0, 2.0, 5.0], [1.0, 2.0, 4.0, 8.0]);
        attention_forward(&mut o, &mut lse, &q, &k, &v, doc_start, dims);
        let heads: (Vec<f64>, Vec<f64>) = o.chunks(2).map(|heads| (heads[0], heads[1])).unzip();
        assert_eq!(heads.0, heads.1);
        heads.0.iter().map(|o| (o * 1e9).round() / 1e9).collect()
    }

    #[test]
    fn visible_keys_are_averaged() {
        assert_eq!(means(&[0; 4], &DIMS), [1.0, 1.5, 2.333333333, 3.75]);
        assert_eq!(means(&[0, 0, 2, 2], &DIMS), [1.0, 1.5, 4.0, 6.0]);
        assert_eq!(means(&[0; 4], &AttentionDims { window: Some(2), ..DIMS }), [1.0, 1.5, 3.0, 6.0]);
        assert_eq!(means(&[0; 4], &AttentionDims { window: Some(1), ..DIMS }), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(means(&[-7, 9, 9, 9], &DIMS), [1.0, 2.0, 4.0, 8.0]);
        let cached = AttentionDims { tokens: 2, query_offset: 1, ..DIMS };
        assert_eq!(means(&[0, 2], &cached), [1.5, 4.0]);
    }

    #[test]
    fn first_keys_lie_between_document_and_row() {
        let windowed = AttentionDims { window: Some(3), query_offset: 10, ..DIMS };
        assert_eq!([0, 1, 11].map(|start| windowed.first_key(2, start)), [10, 10, 11]);
        assert_eq!([-1, 0, 2, 3].map(|start| DIMS.first_key(2, start)), [0, 0, 2, 2]);
        assert_eq!(AttentionDims { window: Some(0), ..DIMS }.first_key(2, 0), 2);
    }

    #[test]
    fn a_soft_cap_bounds_scores() {
        let dims = AttentionDims { tokens: 1, keys: 1, num_heads: 1, soft_cap: Some(2.0), scale: 0.5, ..DIMS };
        let (mut o, mut lse) = ([0.0f64], [0.0]);
        attention_forward(&mut o, &mut lse, &[100.0], &[100.0], &[3.0], &[0], &dims);
        assert!((lse[0] - 2.0).abs() < 1e-12 && (o[0] - 3.0).abs() < 1e-12, "{lse:?} {o:?}");
    }
}
