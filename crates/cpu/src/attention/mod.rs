//! Causal attention within documents, in tiles with an online softmax.
//!
//! Numbers: storage f32 or bf16; scores, softmax and sums in f32, outputs rounded once. Gradients of keys and values are summed
//!          over the query heads of a group and their tokens in order; where a call is cut into ranges of tokens, over
//!          those in order.

mod backward;
mod forward;
pub(crate) mod plan;

pub(crate) use backward::backward;
pub(crate) use forward::forward;
