//! Tensors, the contract of every op with its naive reference, and the tape.
//!
//! - [`Tensor`]: a contiguous, row-major view of a device buffer, with a [`Shape`] and a [`DType`].
//! - [`Backend`]: the object-safe list of coarse ops that every device implements; [`ops`] holds, one file an op, what
//!   each of them takes and gives, the shape checks that all backends share, and a naive reference to compare with.
//! - [`Cx`] and [`Var`]: how model code is written: forward only, recorded on a [`tape`] when gradients are wanted.
//! - [`profile`]: a backend around another one that records ops, and spans of code.
//! - [`UnitHost`]: who gives a unit (embedding, block, head) its parameters and takes its gradients.
//!
//! ```text
//! model code --Cx::linear(..)--> Backend::matmul_nt          (forward)
//!                       \------> Tape: LinearOp { x, w }     (what backward needs)
//! Cx::backward: ops consumed in reverse --> Backend::matmul_nn, matmul_tn --> UnitHost::gradient
//! ```

pub mod backend;
mod buffer;
mod dtype;
mod error;
pub mod ops;
pub mod profile;
pub mod rng;
mod shape;
pub mod tape;
mod tensor_type;

pub use backend::{Backend, MemoryStats};
pub use buffer::{Buffer, Device, DeviceKind};
pub use dtype::DType;
pub use error::{Error, Result};
pub use shape::Shape;
pub use tape::{
    AdapterSpec, Cx, GradientTarget, Init, ModelLayout, ParamId, ParamKind, ParamSpec, ParamView, PassKey, Phase,
    UnitHost, UnitId, UnitKind, UnitSpec, Var,
};
pub use tensor_type::Tensor;
