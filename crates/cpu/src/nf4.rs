//! Weights into 4 bits and back, a block at a time.
//!
//! Unpacking makes a table of a block's sixteen values first, so that an element costs one look-up.

use std::sync::LazyLock;

use half::bf16;
use tensor::ops::nf4::{BLOCK, Layout, PackedScales, Scales, TABLE, ZERO, check, code_of, larger, table};
use tensor::{DType, Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, with_element};

/// Bytes of a block's codes.
const CODES: usize = BLOCK / 2;

/// The code of every bf16 number.
static CODES_OF_BF16: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let round = DType::Bf16.rounding();
    (0..=u16::MAX).map(|bits| code_of(bf16::from_bits(bits).to_f32(), round)).collect()
});

per_isa! {
    fn largest<const FMA: bool, T: Element>(absmax: &mut [f32], w: &[T]) {
        for (absmax, block) in absmax.iter_mut().zip(w.chunks(BLOCK)) {
            *absmax = block.iter().fold(0.0, |most, w| larger(most, w.to_f32()));
        }
    }
}

per_isa! {
    /// Blocks of codes, from block `first` on, into blocks of weights.
    fn unpack<const FMA: bool, T: Element>(w: &mut [T], codes: &[u8], scales: PackedScales<'_>, first: usize) {
        let round = T::DTYPE.rounding();
        let table = table(round);
        for ((block, w), codes) in (first..).zip(w.chunks_mut(BLOCK)).zip(codes.chunks(CODES)) {
            let scale = scales.of_block(block, round);
            let mut values = [T::ZERO; 16];
            for i in 0..16 {
                values[i] = T::from_f32(table[i] * scale);
            }
            let (pairs, last) = w.as_chunks_mut::<2>();
            for (pair, code) in pairs.iter_mut().zip(codes) {
                *pair = [values[usize::from(code & 15)], values[usize::from(code >> 4)]];
            }
            if let (Some(w), Some(code)) = (last.first_mut(), codes.last()) {
                *w = values[usize::from(code & 15)];
            }
        }
    }
}

/// The code of an f32 number.
#[inline]
fn code_of_f32(normalised: f32) -> u8 {
    let mut code = if normalised.is_nan() { usize::from(ZERO) } else { 0 };
    for next in 1..TABLE.len() {
        // Distances of NaN are no smaller than any.
        if (normalised - TABLE[next]).abs() < (normalised - TABLE[code]).abs() {
            code = next;
        }
    }
    code as u8
}

/// Codes of blocks of weights with these largest magnitudes.
fn pack<T: Element>(codes: &mut [u8], w: &[T], absmax: &[f32]) {
    for ((codes, w), &absmax) in codes.chunks_mut(CODES).zip(w.chunks(BLOCK)).zip(absmax) {
        let code = |w: &T| -> u8 {
            if absmax == 0.0 {
                return ZERO;
            }
            let normalised = T::from_f32(w.to_f32() / absmax);
            match T::as_bf16(std::slice::from_ref(&normalised)) {
                Some(normalised) => CODES_OF_BF16[usize::from(normalised[0].to_bits())],
                None => code_of_f32(normalised.to_f32()),
            }
        };
        for (byte, pair) in codes.iter_mut().zip(w.chunks(2)) {
            *byte = code(&pair[0]) | pair.get(1).map_or(0, |w| code(w) << 4);
        }
    }
}

/// Weights into 4 bits.
pub(crate) fn quantise(backend: &CpuBackend, packed: &mut Tensor, w: &Tensor) -> Result<()> {
    let layout = check("nf4_quantise", packed, w)?;
    with_element!(w.dtype(), T => {
        let w = Read::<T>::of(w)?;
        let mut absmax = Temp::new(&backend.pool, layout.num_blocks)?;
        let per_task = backend.crew.rows_per_task(layout.num_blocks, BLOCK);
        backend.crew.run_rows(layout.num_blocks, per_task, Rows::new(&mut absmax, 1), |blocks, absmax, _| {
            largest(backend.isa, absmax, &w[elements(&blocks, layout)]);
        });
        let absmax = &*absmax;
        let mut packed = Write::<u8>::of(packed)?;
        Scales::new(absmax, T::DTYPE.rounding()).pack(&mut packed, layout);
        let codes = &mut packed[layout.codes()..];
        backend.crew.run_rows(layout.num_blocks, per_task, Rows::new(codes, CODES), |blocks, codes, _| {
            pack(codes, &w[elements(&blocks, layout)], &absmax[blocks]);
        });
    });
    Ok(())
}

/// Weights out of 4 bits.
pub(crate) fn dequantise(backend: &CpuBackend, w: &mut Tensor, packed: &Tensor) -> Result<()> {
    let layout = check("nf4_dequantise", packed, w)?;
    with_element!(w.dtype(), T => {
        let packed = Read::<u8>::of(packed)?;
        let scales = PackedScales::new(&packed, layout);
        let codes = &packed[layout.codes()..];
        let mut w = Write::<T>::of(w)?;
        let per_task = backend.crew.rows_per_task(layout.num_blocks, BLOCK);
        backend.crew.run_rows(layout.num_blocks, per_task, Rows::new(&mut w, BLOCK), |blocks, w, _| {
            unpack(backend.isa, w, &codes[blocks.start * CODES..], scales, blocks.start);
        });
    });
    Ok(())
}

/// The weights of some blocks.
fn elements(blocks: &std::ops::Range<usize>, layout: Layout) -> std::ops::Range<usize> {
    blocks.start * BLOCK..(blocks.end * BLOCK).min(layout.num_elements)
}
