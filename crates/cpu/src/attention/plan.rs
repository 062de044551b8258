//! How attention is cut into tasks and tiles, and what both passes share.
//!
//! A task is one key/value head of one batch row with a range of query tokens. Its keys are brought into f32 once, in the
//! orders that products read; then it walks over blocks of queries (some tokens, all query heads of the group) and tiles of
//! [`KEYS`] keys, skipping tiles that no query of the block sees.

use std::ops::Range;

use tensor::ops::attention::AttentionDims;

use crate::tile::{MR, NR};

/// Keys of a tile: whole panels for scores, whole strips for the gradients of keys and values.
pub(crate) const KEYS: usize = 96;

/// Rows of a block of queries, about as many as there are keys in a tile.
pub(crate) const ROWS: usize = 96;

const _: () = assert!(KEYS.is_multiple_of(NR) && KEYS.is_multiple_of(MR));

/// The tasks of one call.
pub(crate) struct Plan<'a> {
    pub(crate) dims: &'a AttentionDims,
    pub(crate) doc_start: &'a [i32],
    /// Ranges of query tokens of each batch row, in order.
    chunks: Vec<Range<usize>>,
    /// Ranges of a batch row.
    pub(crate) chunks_per_row: usize,
}

/// One task.
pub(crate) struct Task {
    pub(crate) batch_row: usize,
    pub(crate) kv_head: usize,
    /// Query tokens.
    pub(crate) tokens: Range<usize>,
    /// Key rows that some query of the task sees, and those between.
    pub(crate) keys: Range<usize>,
}

impl<'a> Plan<'a> {
    /// Cuts a call into tasks that keep `num_threads` workers busy alike.
    pub(crate) fn new(dims: &'a AttentionDims, doc_start: &'a [i32], num_threads: usize) -> Self {
        let chunks_per_row = Self::chunks_per_row(dims, num_threads);
        let mut chunks = Vec::with_capacity(dims.batch * chunks_per_row);
        for row in 0..dims.batch {
            // Ranges see about equally many keys.
            let seen = |t: usize| t + dims.query_offset + 1 - dims.first_key(t, doc_start[row * dims.tokens + t]);
            let total: usize = (0..dims.tokens).map(seen).sum();
            let (mut t, mut sum) = (0, 0);
            for chunk in 1..=chunks_per_row {
                let start = t;
                while t < dims.tokens && (chunk == chunks_per_row || sum * chunks_per_row < total * chunk) {
                    sum += seen(t);
                    t += 1;
                }
                chunks.push(start..t);
            }
        }
        Self { dims, doc_start, chunks, chunks_per_row }
    }

    pub(crate) fn chunks_per_row(dims: &AttentionDims, num_threads: usize) -> usize {
        /// Fewer tokens are not worth a task: each task reads all keys before its tokens.
        const MIN_TOKENS: usize = 64;
        let heads = (dims.batch * dims.num_kv_heads).max(1);
        let at_most = dims.tokens.div_ceil(MIN_TOKENS).clamp(1, 4 * num_threads);
        let idle = |chunks: usize| {
            let tasks = heads * chunks;
            let rounds = tasks.div_ceil(num_threads);
            (rounds * num_threads - tasks) as f64 / (rounds * num_threads) as f64
        };
        // The fewest chunks that leave a tenth of the workers' time unused at most; else the best there is.
        let candidates = 1..=at_most;
        candidates.clone().find(|&chunks| idle(chunks) <= 0.1).unwrap_or_else(|| {
            candidates.min_by(|&a, &b| idle(a).total_cmp(&idle(b))).expect("there is at least one chunk")
        })
    }

    pub(crate) fn num_tasks(&self) -> usize {
        self.chunks.len() * self.dims.num_kv_heads
    }

    /// Task `index`; chunks of a batch row and key/value head follow each other.
    pub(crate) fn task(&self, index: usize) -> Task {
        let (head, chunk) = (index / self.chunks_per_row, index % self.chunks_per_row);
        let (batch_row, kv_head) = (head / self.dims.num_kv_heads, head % self.dims.num_kv_heads);
        let tokens = self.chunks[batch_row * self.chunks_per_row + chunk].clone();
        let keys = self.keys_of(batch_row, tokens.clone());
        Task { batch_row, kv_head, tokens, keys }
    }

    /// The first key that a query sees.
    pub(crate) fn first_key(&self, batch_row: usize, t: usize) -> usize {
        self.dims.first_key(t, self.doc_start[batch_row * self.dims.tokens + t])
    }

    /// From the first key that any of the queries sees to the last; empty without queries.
    pub(crate) fn keys_of(&self, batch_row: usize, tokens: Range<usize>) -> Range<usize> {
        let first = tokens.clone().map(|t| self.first_key(batch_row, t)).min().unwrap_or(0);
        let end = if tokens.is_empty() { first } else { tokens.end + self.dims.query_offset };
        first..end
    }

    /// Query heads of a key/value head.
    pub(crate) fn group(&self) -> usize {
        self.dims.num_heads / self.dims.num_kv_heads
    }

    /// Tokens of a block of queries: few, since all see the keys up to the last one's.
    pub(crate) fn tokens_per_block(&self) -> usize {
        /// Tokens at most.
        const TOKENS: usize = 32;
        (ROWS / self.group()).clamp(1, TOKENS)
    }

    /// Rows of a block of queries, at most.
    pub(crate) fn rows_per_block(&self) -> usize {
        self.tokens_per_block() * self.group()
    }

    /// Elements of a head, filled up to whole panels.
    pub(crate) fn head_width(&self) -> usize {
        self.dims.head_dim.next_multiple_of(NR)
    }

    /// Where query head `head` of the task's group lies in q, o and their gradients, for token `t`.
    pub(crate) fn query_at(&self, task: &Task, head: usize, t: usize) -> usize {
        let row = task.batch_row * self.dims.tokens + t;
        (row * self.dims.num_heads + task.kv_head * self.group() + head) * self.dims.head_dim
    }

    /// Where the task's head lies in k, v and their gradients, for key row `s`.
    pub(crate) fn key_at(&self, task: &Task, s: usize) -> usize {
        ((task.batch_row * self.dims.keys + s) * self.dims.num_kv_heads + task.kv_head) * self.dims.head_dim
    }

    /// Where the log-sum-exps of query head `head` of the task's group begin.
    pub(crate) fn lse_at(&self, task: &Task, head: usize) -> usize {
        (task.batch_row * self.dims.num_heads + task.kv_head * self.group() + head) * self.dims.tokens
    }

    /// Elements between rows of q, o and their gradients.
    pub(crate) fn query_stride(&self) -> usize {
        self.dims.num_heads * self.dims.head_dim
    }

    /// Elements between rows of k, v and their gradients.
    pub(crate) fn key_stride(&self) -> usize {
        self.dims.num_kv_heads * self.dims.head_dim
    }
}

/// What the rows of a block of queries see of a tile of keys.
pub(crate) struct View<'a> {
    plan: &'a Plan<'a>,
    batch_row: usize,
    tokens: Range<usize>,
    tile: Range<usize>,
    /// Whether every row sees every key.
    pub(crate) full: bool,
}

impl<'a> View<'a> {
    pub(crate) fn new(plan: &'a Plan<'a>, task: &Task, tokens: &Range<usize>, tile: &Range<usize>) -> Self {
        let batch_row = task.batch_row;
        let full = tile.end <= tokens.start + plan.dims.query_offset + 1
            && tokens.clone().all(|t| plan.first_key(batch_row, t) <= tile.start);
        Self { plan, batch_row, tokens: tokens.clone(), tile: tile.clone(), full }
    }

    /// The columns of the tile that a row of the block sees.
    pub(crate) fn columns(&self, row: usize) -> Range<usize> {
        if self.full {
            return 0..self.tile.len();
        }
        let t = self.tokens.start + row % self.tokens.len();
        visible_columns(self.plan.first_key(self.batch_row, t), t + self.plan.dims.query_offset, &self.tile)
    }
}

/// The part of a tile's keys that a query sees, as columns.
fn visible_columns(first_key: usize, row: usize, tile: &Range<usize>) -> Range<usize> {
    let start = first_key.max(tile.start).min(tile.end);
    let end = (row + 1).clamp(start, tile.end);
    start - tile.start..end - tile.start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(batch: usize, tokens: usize, num_heads: usize, num_kv_heads: usize) -> AttentionDims {
        let (head_dim, keys, query_offset) = (8, tokens + 3, 2);
        let (window, scale, soft_cap) = (Some(100), 1.0, None);
        AttentionDims { batch, tokens, keys, num_heads, num_kv_heads, head_dim, query_offset, window, scale, soft_cap }
    }

    #[test]
    fn tasks_cover_every_query_of_every_head_once() {
        for (batch, tokens, kv_heads, threads) in [(1, 1, 1, 4), (2, 300, 3, 2), (1, 1000, 1, 3), (3, 0, 2, 2)] {
            let dims = dims(batch, tokens, 2 * kv_heads, kv_heads);
            let doc_start = vec![0; batch * tokens];
            let plan = Plan::new(&dims, &doc_start, threads);
            let mut seen = vec![0; batch * kv_heads * tokens];
            for index in 0..plan.num_tasks() {
                let task = plan.task(index);
                for t in task.tokens.clone() {
                    seen[(task.batch_row * kv_heads + task.kv_head) * tokens + t] += 1;
                    assert!(task.keys.start <= plan.first_key(task.batch_row, t) && t + 2 < task.keys.end);
                }
            }
            assert!(seen.iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn workers_get_tasks_of_like_cost() {
        let mut dims = dims(1, 4096, 3, 3);
        dims.window = None;
        let doc_start = vec![0; 4096];
        let plan = Plan::new(&dims, &doc_start, 2);
        assert_eq!(plan.num_tasks() % 2, 0);
        let costs: Vec<usize> = (0..plan.num_tasks()).map(|i| plan.task(i).tokens.map(|t| t + 3).sum()).collect();
        let (least, most) = (*costs.iter().min().unwrap(), *costs.iter().max().unwrap());
        assert!(most - least < most / 50, "{costs:?}");
    }

    #[test]
    fn visible_columns_are_clipped_to_the_tile() {
        assert_eq!(visible_columns(3, 7, &(0..10)), 3..8);
        assert_eq!(visible_columns(3, 7, &(5..10)), 0..3);
        assert_eq!(visible_columns(3, 7, &(8..10)), 0..0);
        assert_eq!(visible_columns(30, 37, &(8..10)), 2..2);
    }
}
