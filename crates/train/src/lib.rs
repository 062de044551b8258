//! The parameter store and its units: where every parameter lives and when it moves.
//!
//! A [`ParamStore`] owns the *home* of every parameter: one flat buffer a unit, its gradients and its optimizer states laid
//! out the same way. It is the [`tensor::UnitHost`] of a training pass, so recomputation, optimizer steps inside backward
//! and gradient accumulation are its policies; models and ops know nothing of them.
//!
//! ```text
//! unit k:  home    | embed .... | pad |          (parameters' dtype)
//!          grads   | dembed ... | pad |          (parameters' dtype, or f32 while several micro-batches add up)
//!          states  | exp_avg .. | pad |  ...     (parameters' dtype)
//! ```

mod error;
mod group;
mod load;
mod save;
mod store;
mod unit;

pub use error::{Error, Result};
pub use load::check_weights;
pub use store::{ParamStore, Policy};
