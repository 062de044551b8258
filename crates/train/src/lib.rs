//! The parameter store and its units: where every parameter lives and when it moves.
//!
//! A [`ParamStore`] owns the *home* of every parameter: one flat buffer a unit, its gradients laid out the same
//! way, and its optimizer states. It is the [`tensor::UnitHost`] of a training pass, so recomputation, optimizer steps inside backward
//! and gradient accumulation are its policies; models and ops know nothing of them.
//!
//! ```text
//! unit k:  home    | embed .... | pad |          (parameters' dtype)
//!          grads   | dembed ... | pad |          (parameters' dtype, or f32 while several micro-batches add up)
//!          states  | exp_avg .. | pad |  ...     (as the optimizer describes them; `states.rs`)
//!          shards  | 0 .. | 1 .. | 2 .. |        (of each buffer above, one a rank)
//! ```
//!
//! With several ranks a rank holds one shard of each buffer. A visit of a unit gathers its values (`gather.rs`); its gradients
//! are summed into shards when its backward is done (`gradients.rs`); updates touch shards only. Buffers may live in files.

mod error;
mod gather;
mod gradients;
mod group;
mod load;
mod merge;
mod save;
mod states;
mod store;
mod unit;

pub use error::{Error, Result};
pub use load::{check_adapter, check_optimizer, check_weights};
pub use store::{Files, Held, ParamStore, Policy};
