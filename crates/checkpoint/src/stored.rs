//! Element types as files store them, and their conversion to the types tensors have.
//!
//! Shapes:  a tensor is a flat run of elements here; any range of them can be converted, block borders or not.
//! Numbers: same type in and out copies bits. Everything else goes through f32 and is rounded once, to nearest even;
//!          f64 to bf16 therefore rounds twice.
//! Panics:  never for a range inside the tensor and a destination of its size, which the caller checks.

use std::fmt;

use half::{bf16, f16};
use safetensors::Dtype;
use tensor::DType;

use crate::gguf::BlockType;

/// How a file stores the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// Byte.
    U8,
    /// Quantised blocks of a GGUF file.
    Block(BlockType),
    /// Another type of safetensors: its bytes can be had, its values cannot.
    Opaque(Dtype),
}

impl Stored {
    /// Elements that share `unit_bytes`.
    pub(crate) const fn unit_elements(self) -> usize {
        match self {
            Self::Block(kind) => kind.block_elements(),
            _ => 1,
        }
    }

    /// Bytes of one element or block. Opaque types have none here: their spans come from the file.
    pub(crate) const fn unit_bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
            Self::Block(kind) => kind.block_bytes(),
            Self::Opaque(_) => 0,
        }
    }

    /// Whether the values can be read as `wanted`.
    pub const fn converts_to(self, wanted: DType) -> bool {
        match self {
            Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::Block(_) => wanted.is_float(),
            Self::I32 => matches!(wanted, DType::I32),
            Self::U8 => matches!(wanted, DType::U8),
            Self::Opaque(_) => false,
        }
    }

    /// The tensor type that holds these values best: its own where it has one, f32 for all else.
    pub const fn nearest_dtype(self) -> Option<DType> {
        match self {
            Self::F64 | Self::F32 | Self::F16 | Self::Block(_) => Some(DType::F32),
            Self::Bf16 => Some(DType::Bf16),
            Self::I32 => Some(DType::I32),
            Self::U8 => Some(DType::U8),
            Self::Opaque(_) => None,
        }
    }

    /// Converts the elements from `first` on into `dst`, whose length decides how many.
    ///
    /// `bytes` are those of the whole tensor. The caller has asked [`Stored::converts_to`].
    pub(crate) fn convert(self, dst: &mut [u8], wanted: DType, bytes: &[u8], first: usize) {
        let same = matches!(
            (self, wanted),
            (Self::F32, DType::F32) | (Self::Bf16, DType::Bf16) | (Self::I32, DType::I32) | (Self::U8, DType::U8)
        );
        if same {
            let start = first * self.unit_bytes();
            dst.copy_from_slice(&bytes[start..start + dst.len()]);
            return;
        }
        let mut values = [0.0f32; CHUNK];
        let size = wanted.size_bytes();
        for (k, dst) in dst.chunks_mut(CHUNK * size).enumerate() {
            let values = &mut values[..dst.len() / size];
            self.decode(values, bytes, first + k * CHUNK);
            if wanted == DType::Bf16 {
                for (dst, &value) in dst.as_chunks_mut::<2>().0.iter_mut().zip(values.iter()) {
                    *dst = bf16::from_f32(value).to_le_bytes();
                }
            } else {
                for (dst, &value) in dst.as_chunks_mut::<4>().0.iter_mut().zip(values.iter()) {
                    *dst = value.to_le_bytes();
                }
            }
        }
    }

    /// The elements from `first` on as f32; `out` decides how many.
    fn decode(self, out: &mut [f32], bytes: &[u8], first: usize) {
        if let Self::Block(kind) = self {
            return decode_blocks(out, kind, bytes, first);
        }
        let bytes = &bytes[first * self.unit_bytes()..];
        match self {
            Self::F64 => fill(out, bytes, |b: [u8; 8]| f64::from_le_bytes(b) as f32),
            Self::F32 => fill(out, bytes, f32::from_le_bytes),
            Self::F16 => fill(out, bytes, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => fill(out, bytes, |b| bf16::from_le_bytes(b).to_f32()),
            Self::I32 => fill(out, bytes, |b| i32::from_le_bytes(b) as f32),
            Self::U8 | Self::Block(_) | Self::Opaque(_) => {}
        }
    }
}

/// Elements converted at a time: a multiple of every block.
const CHUNK: usize = 1024;

fn fill<const N: usize>(out: &mut [f32], bytes: &[u8], value: impl Fn([u8; N]) -> f32) {
    for (out, &element) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = value(element);
    }
}

fn decode_blocks(out: &mut [f32], kind: BlockType, bytes: &[u8], first: usize) {
    let (elements, size) = (kind.block_elements(), kind.block_bytes());
    let block_at = |index: usize| &bytes[index * size..(index + 1) * size];
    let mut scratch = [0.0f32; 256];
    let mut done = 0;
    while done < out.len() {
        let (index, skip) = ((first + done) / elements, (first + done) % elements);
        let take = (elements - skip).min(out.len() - done);
        if take == elements {
            kind.dequantize(&mut out[done..done + elements], block_at(index));
        } else {
            kind.dequantize(&mut scratch[..elements], block_at(index));
            out[done..done + take].copy_from_slice(&scratch[skip..skip + take]);
        }
        done += take;
    }
}

impl From<Dtype> for Stored {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F64 => Self::F64,
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
            Dtype::I32 => Self::I32,
            Dtype::U8 => Self::U8,
            other => Self::Opaque(other),
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F64 => f.write_str("F64"),
            Self::F32 => f.write_str("F32"),
            Self::F16 => f.write_str("F16"),
            Self::Bf16 => f.write_str("BF16"),
            Self::I32 => f.write_str("I32"),
            Self::U8 => f.write_str("U8"),
            Self::Block(kind) => kind.fmt(f),
            Self::Opaque(dtype) => dtype.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn to_f32(stored: Stored, bytes: &[u8], first: usize, count: usize) -> Vec<f32> {
        let mut dst = vec![0; 4 * count];
        stored.convert(&mut dst, DType::F32, bytes, first);
        dst.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    #[test]
    fn every_float_type_reads_as_f32() {
        let (a, b) = (1.5f32, -0.25f32);
        let cases: [(Stored, Vec<u8>); 4] = [
            (Stored::F64, [f64::from(a).to_le_bytes(), f64::from(b).to_le_bytes()].concat()),
            (Stored::F32, [a.to_le_bytes(), b.to_le_bytes()].concat()),
            (Stored::F16, [f16::from_f32(a).to_le_bytes(), f16::from_f32(b).to_le_bytes()].concat()),
            (Stored::Bf16, [bf16::from_f32(a).to_le_bytes(), bf16::from_f32(b).to_le_bytes()].concat()),
        ];
        for (stored, bytes) in cases {
            assert_eq!(to_f32(stored, &bytes, 0, 2), [a, b], "{stored}");
            assert_eq!(to_f32(stored, &bytes, 1, 1), [b], "{stored}");
        }
    }

    #[test]
    fn f32_to_bf16_rounds_to_nearest_even() {
        // Exactly between two bf16 neighbours: the even one, up and down.
        let bytes = [0x3f80_8000u32.to_le_bytes(), 0x3f81_8000u32.to_le_bytes()].concat();
        let mut dst = [0; 4];
        Stored::F32.convert(&mut dst, DType::Bf16, &bytes, 0);
        assert_eq!([dst[0], dst[1]], 0x3f80u16.to_le_bytes());
        assert_eq!([dst[2], dst[3]], 0x3f82u16.to_le_bytes());
    }

    #[test]
    fn nan_payloads_survive_a_copy() {
        let bytes = 0x7fc0_1234u32.to_le_bytes();
        let mut dst = [0; 4];
        Stored::F32.convert(&mut dst, DType::F32, &bytes, 0);
        assert_eq!(dst, bytes);
    }

    #[test]
    fn integers_and_opaque_types_do_not_become_floats() {
        assert!(!Stored::I32.converts_to(DType::F32));
        assert!(Stored::I32.converts_to(DType::I32));
        assert!(!Stored::Opaque(Dtype::I8).converts_to(DType::F32));
        assert!(!Stored::F32.converts_to(DType::I32));
        assert!(Stored::U8.converts_to(DType::U8));
        assert!(!Stored::U8.converts_to(DType::I32) && !Stored::F32.converts_to(DType::U8));
    }

    proptest! {
        #[test]
        fn any_range_of_blocks_equals_that_range_of_the_whole(
            bytes in proptest::collection::vec(0u8..0x70, 5 * 34),
            first in 0usize..160,
            count in 0usize..160,
        ) {
            let stored = Stored::Block(BlockType::Q8_0);
            let whole = to_f32(stored, &bytes, 0, 160);
            let count = count.min(160 - first);
            prop_assert_eq!(&to_f32(stored, &bytes, first, count)[..], &whole[first..first + count]);
        }

        #[test]
        fn long_runs_cross_chunks_unharmed(values in proptest::collection::vec(-1e3f32..1e3, 2000..2600)) {
            let bytes: Vec<u8> = values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
            prop_assert_eq!(to_f32(Stored::F64, &bytes, 0, values.len()), values);
        }
    }
}
