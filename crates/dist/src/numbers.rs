//! Sums of what ranks sent: bytes of f32 or bf16 into f32, and back with one rounding.
//!
//! Numbers: bf16 is widened exactly and rounded to nearest, ties to even; NaN stays NaN. Loops are branch-free, so that they
//!          become vector code. Bytes need no alignment.

use tensor::DType;

/// Calls `each` with every sum and the number that stands at its place in `bytes`. Panics: if the lengths do not fit.
#[inline(always)]
fn zip(sums: &mut [f32], bytes: &[u8], dtype: DType, each: impl Fn(&mut f32, f32)) {
    assert_eq!(sums.len() * dtype.size_bytes(), bytes.len(), "one number for each sum");
    match dtype {
        DType::Bf16 => {
            for (sum, &number) in sums.iter_mut().zip(bytes.as_chunks().0) {
                each(sum, f32::from_bits(u32::from(u16::from_ne_bytes(number)) << 16));
            }
        }
        DType::F32 => {
            for (sum, &number) in sums.iter_mut().zip(bytes.as_chunks().0) {
                each(sum, f32::from_ne_bytes(number));
            }
        }
        DType::I32 | DType::U8 => unreachable!("only floating-point tensors are summed"),
    }
}

/// `sums = numbers`.
pub(crate) fn widen(sums: &mut [f32], bytes: &[u8], dtype: DType) {
    zip(sums, bytes, dtype, |sum, number| *sum = number);
}

/// `sums += numbers`.
pub(crate) fn add(sums: &mut [f32], bytes: &[u8], dtype: DType) {
    zip(sums, bytes, dtype, |sum, number| *sum += number);
}

/// `numbers = sums`, rounded. Panics: if the lengths do not fit.
pub(crate) fn round(bytes: &mut [u8], sums: &[f32], dtype: DType) {
    assert_eq!(sums.len() * dtype.size_bytes(), bytes.len(), "one number for each sum");
    match dtype {
        DType::Bf16 => {
            for (number, &sum) in bytes.as_chunks_mut().0.iter_mut().zip(sums) {
                *number = round_to_bf16(sum).to_ne_bytes();
            }
        }
        DType::F32 => bytes.copy_from_slice(bytemuck::cast_slice(sums)),
        DType::I32 | DType::U8 => unreachable!("only floating-point tensors are summed"),
    }
}

#[inline(always)]
fn round_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN keeps its upper half and becomes quiet; rounding could carry it into infinity.
    let nan = (bits >> 16) | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bf16_is_rounded_as_by_half(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            prop_assert_eq!(round_to_bf16(x), bf16::from_f32(x).to_bits());
        }
    }

    #[test]
    fn numbers_are_widened_added_and_rounded_at_any_alignment() {
        for dtype in [DType::F32, DType::Bf16] {
            let mut stored = vec![0u8; 1 + 3 * dtype.size_bytes()];
            round(&mut stored[1..], &[1.0, -2.5, f32::NAN], dtype);
            let mut sums = [7.0; 3];
            widen(&mut sums, &stored[1..], dtype);
            assert_eq!(sums[..2], [1.0, -2.5]);
            add(&mut sums, &stored[1..], dtype);
            assert_eq!(sums[..2], [2.0, -5.0]);
            assert!(sums[2].is_nan());
        }
    }

    #[test]
    #[should_panic(expected = "one number for each sum")]
    fn other_lengths_are_refused() {
        add(&mut [0.0; 2], &[0; 4], DType::F32);
    }
}
