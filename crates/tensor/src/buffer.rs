//! Device memory as tensors see it.

use std::any::Any;
use std::fmt;

/// What kind of device memory lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Host memory, computed on by CPU threads.
    Cpu,
}

/// One device of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Which of its kind, from 0.
    pub index: usize,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
        }
    }
}

/// A run of device memory, owned by the backend that allocated it and given back to it on drop.
///
/// Tensors share buffers. A backend must refuse (by panicking, which is a bug in the caller) to write to a buffer that is
/// being read or written by another op at the same moment, so that sharing is never a data race.
pub trait Buffer: fmt::Debug + Send + Sync + Any {
    /// Where the memory is.
    fn device(&self) -> Device;
    /// Size in bytes.
    fn len_bytes(&self) -> usize;
    /// The concrete buffer, for its own backend.
    fn as_any(&self) -> &dyn Any;
}
