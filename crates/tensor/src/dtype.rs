//! Element types of tensors.

use std::fmt;

/// The element type of a tensor.
///
/// Weights and activations are stored in [`DType::F32`] or [`DType::Bf16`] and summed in f32; everything that counts or
/// points (token ids, labels, positions, document starts) is [`DType::I32`]. [`DType::U8`] is for bytes that mean something to the op
/// that takes them, such as quantised optimizer states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: the upper half of binary32.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// Byte.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16)
    }

    /// Rounds to the nearest value of this type; integers leave numbers alone.
    pub fn rounding(self) -> fn(f32) -> f32 {
        match self {
            Self::Bf16 => |x| half::bf16::from_f32(x).to_f32(),
            Self::F32 | Self::I32 | Self::U8 => |x| x,
        }
    }

    /// The name that recipe configs use: `fp32`, `bf16`, `int32`, `uint8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::Bf16 => "bf16",
            Self::I32 => "int32",
            Self::U8 => "uint8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
