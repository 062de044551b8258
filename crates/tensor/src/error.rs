//! What can go wrong in tensor code.

use crate::{DType, Device, ParamId, Shape};

/// Result of tensor code.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an op, a backend or the tape. All but [`Error::OutOfMemory`] and [`Error::Device`] mean that the caller
/// combined things that do not fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has another shape than the op takes.
    #[error("wrong shape for `{name}` of `{op}`: expected {expected}, found {found}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The argument.
        name: &'static str,
        /// The shape the other arguments ask for, in words.
        expected: String,
        /// The shape it has.
        found: Shape,
    },
    /// A tensor has another element type than the op takes.
    #[error("wrong dtype for `{name}` of `{op}`: expected {expected}, found {found}")]
    DType {
        /// The op.
        op: &'static str,
        /// The argument.
        name: &'static str,
        /// The dtypes it takes.
        expected: &'static str,
        /// The dtype it has.
        found: DType,
    },
    /// A tensor lives on another device than the backend's.
    #[error("tensor is on another device: expected {expected}, found {found}")]
    WrongDevice {
        /// The backend's device.
        expected: Device,
        /// The tensor's device.
        found: Device,
    },
    /// An index tensor points outside of what it indexes.
    #[error("index out of range in `{op}`: {index} is not below {bound} ({what})")]
    Index {
        /// The op.
        op: &'static str,
        /// What is indexed.
        what: &'static str,
        /// The index.
        index: i64,
        /// The first index that does not exist.
        bound: usize,
    },
    /// A view reaches outside of its tensor.
    #[error("rows {start}..{end} are outside of a tensor of shape {shape}")]
    View {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// No memory left on the device.
    #[error("out of memory on {device}: {bytes} bytes asked for")]
    OutOfMemory {
        /// The device.
        device: Device,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The device reported a failure.
    #[error("{device} failed: {reason}")]
    Device {
        /// The device.
        device: Device,
        /// What its driver said.
        reason: String,
    },
    /// A unit's code asked for a parameter that its host did not bring.
    #[error("a unit uses parameter {} that it does not list", param.0)]
    UnknownParam {
        /// The parameter.
        param: ParamId,
    },
    /// The host of the units could not serve a unit.
    #[error("{reason}")]
    Host {
        /// Why.
        reason: String,
    },
}
