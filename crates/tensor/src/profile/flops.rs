//! Floating-point operations of the matrix products that ops are made of: one multiplication and one addition a term.
//!
//! Everything else that an op computes (exponentials, norms, rotations) is not counted, nor is what a kernel computes and throws
//! away, such as masked scores or padding.
//!
//! Checked: by hand below, and against the loops of the references.

use crate::ops::IGNORE_INDEX;
use crate::ops::attention::AttentionDims;

/// Products of the forward pass of attention: scores and output.
pub const ATTENTION_FORWARD: usize = 2;
/// Products of its backward pass: the scores again, then the gradients of values, scores, queries and keys.
pub const ATTENTION_BACKWARD: usize = 5;

/// One product of (M, K) and (K, N), in whatever layout.
pub fn matmul(m: usize, k: usize, n: usize) -> f64 {
    2.0 * m as f64 * k as f64 * n as f64
}

/// So many products over the scores that are seen: `num_scores` of each query head.
pub fn attention(products: usize, num_scores: u64, num_heads: usize, head_dim: usize) -> f64 {
    2.0 * products as f64 * num_scores as f64 * num_heads as f64 * head_dim as f64
}

/// The head: logits of the tokens that bear a loss, and one product more for each gradient that is wanted.
pub fn head_loss(num_unmasked: usize, dim: usize, vocab: usize, num_gradients: usize) -> f64 {
    (1 + num_gradients) as f64 * matmul(num_unmasked, dim, vocab)
}

/// How many scores one query head sees, over all rows of the batch; `doc_start` (B, T).
pub fn visible_scores(doc_start: &[i32], dims: &AttentionDims) -> u64 {
    if dims.tokens == 0 {
        return 0;
    }
    let seen = |(i, &start): (usize, &i32)| {
        let t = i % dims.tokens;
        (t + dims.query_offset + 1 - dims.first_key(t, start)) as u64
    };
    doc_start.iter().enumerate().map(seen).sum()
}

/// Labels that bear a loss.
pub fn num_unmasked(labels: &[i32]) -> usize {
    labels.iter().filter(|&&label| label != IGNORE_INDEX).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: AttentionDims = AttentionDims {
        batch: 2,
        tokens: 4,
        keys: 4,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 8,
        query_offset: 0,
        window: None,
        scale: 1.0,
        soft_cap: None,
    };

    #[test]
    fn products_by_hand() {
        assert_eq!(matmul(3, 5, 7), 2.0 * 105.0);
        assert_eq!(matmul(0, 5, 7), 0.0);
        // Too large for 32 bits.
        assert_eq!(matmul(1 << 20, 1 << 13, 1 << 17), (1u64 << 51) as f64);
        assert_eq!(head_loss(2, 3, 5, 0), 60.0);
        assert_eq!(head_loss(2, 3, 5, 2), 180.0);
        assert_eq!(attention(ATTENTION_FORWARD, 10, 6, 8), 2.0 * 2.0 * 10.0 * 48.0);
    }

    #[test]
    fn scores_are_those_that_queries_see() {
        // 1 + 2 + 3 + 4 a row.
        assert_eq!(visible_scores(&[0; 8], &DIMS), 20);
        // Two documents of two tokens in the second row: 1 + 2 + 1 + 2.
        assert_eq!(visible_scores(&[0, 0, 0, 0, 0, 0, 2, 2], &DIMS), 16);
        assert_eq!(visible_scores(&[0; 8], &AttentionDims { window: Some(2), ..DIMS }), 14);
        let cached = AttentionDims { tokens: 1, batch: 1, query_offset: 3, ..DIMS };
        assert_eq!(visible_scores(&[0], &cached), 4);
        for doc_start in [&[][..], &[0]] {
            assert_eq!(visible_scores(doc_start, &AttentionDims { tokens: 0, ..DIMS }), 0);
        }
    }

    #[test]
    fn masked_labels_bear_no_loss() {
        assert_eq!(num_unmasked(&[3, IGNORE_INDEX, 0, IGNORE_INDEX]), 2);
        assert_eq!(num_unmasked(&[]), 0);
    }
}
