//! Blocks of bf16 tensors in strips and panels of pairs.
//!
//! Out of rows, a pair is an element of one row beside the same element of the next: terms are rows of the source. Out of
//! columns, pairs lie side by side in the source already and are transposed. What is missing to whole strips, panels and pairs
//! is 0.
//!
//! Shapes:  out of (len, width) with `len` terms: (strips or panels, ceil(len / 2), MR or NR) pairs.

use half::bf16;

use super::{MR, NR};
use crate::isa::per_isa;

per_isa! {
    /// Strips of MR rows of the left factor, which lie in the source as columns: `len` rows of `width` elements, `stride`
    /// apart.
    pub(crate) fn strips_of_columns<const FMA: bool>(
        strips: &mut [u32],
        src: &[bf16],
        stride: usize,
        size: (usize, usize),
    ) {
        pairs_of_rows::<MR>(strips, src, stride, size);
    }
}

per_isa! {
    /// Strips of MR rows of the left factor: `num_rows` rows of `len` terms, `stride` apart.
    pub(crate) fn strips_of_rows<const FMA: bool>(
        strips: &mut [u32],
        src: &[bf16],
        stride: usize,
        size: (usize, usize),
    ) {
        pairs_of_columns::<MR>(strips, src, stride, size);
    }
}

per_isa! {
    /// Panels of NR columns out of rows: `len` rows of `width` elements, `stride` apart.
    pub(crate) fn panels_of_rows<const FMA: bool>(
        panels: &mut [u32],
        src: &[bf16],
        stride: usize,
        size: (usize, usize),
    ) {
        pairs_of_rows::<NR>(panels, src, stride, size);
    }
}

per_isa! {
    /// Panels of NR columns out of columns: `num_columns` rows of the source, `stride` apart, become columns of `len` terms.
    pub(crate) fn panels_of_columns<const FMA: bool>(
        panels: &mut [u32],
        src: &[bf16],
        stride: usize,
        size: (usize, usize),
    ) {
        pairs_of_columns::<NR>(panels, src, stride, size);
    }
}

/// Two terms side by side.
#[inline(always)]
fn pair(even: bf16, odd: bf16) -> u32 {
    bytemuck::cast([even, odd])
}

/// Groups of W columns, where each pair comes out of two rows.
#[inline(always)]
fn pairs_of_rows<const W: usize>(dst: &mut [u32], src: &[bf16], stride: usize, size: (usize, usize)) {
    let (len, width) = size;
    let pairs = len.div_ceil(2);
    let zeros = [bf16::ZERO; W];
    for p in 0..pairs {
        let even = &src[2 * p * stride..][..width];
        let odd = (2 * p + 1 < len).then(|| &src[(2 * p + 1) * stride..][..width]);
        for (group, first) in (0..width).step_by(W).enumerate() {
            let dst = &mut dst[(group * pairs + p) * W..][..W];
            if let Some(even) = even[first..].first_chunk::<W>() {
                let odd = odd.and_then(|odd| odd[first..].first_chunk::<W>()).unwrap_or(&zeros);
                for i in 0..W {
                    dst[i] = pair(even[i], odd[i]);
                }
            } else {
                let of = |row: &[bf16], i: usize| row.get(first + i).copied().unwrap_or(bf16::ZERO);
                for (i, dst) in dst.iter_mut().enumerate() {
                    *dst = pair(of(even, i), odd.map_or(bf16::ZERO, |odd| of(odd, i)));
                }
            }
        }
    }
}

/// Pairs that one step of a transposition takes from each row.
const STEP: usize = 8;

/// Groups of W columns, each a row of the source.
#[inline(always)]
fn pairs_of_columns<const W: usize>(dst: &mut [u32], src: &[bf16], stride: usize, size: (usize, usize)) {
    let (len, num_columns) = size;
    let pairs = len.div_ceil(2);
    for (group, first) in (0..num_columns).step_by(W).enumerate() {
        let columns = W.min(num_columns - first);
        let group = &mut dst[group * pairs * W..][..pairs * W];
        for (step, dst) in group.chunks_mut(STEP * W).enumerate() {
            let terms = 2 * step * STEP..len.min(2 * (step + 1) * STEP);
            let mut block = [[0u32; STEP]; W];
            for (column, block) in block.iter_mut().enumerate().take(columns) {
                let src = &src[(first + column) * stride..][terms.clone()];
                if let Ok(src) = <[bf16; 2 * STEP]>::try_from(src) {
                    *block = bytemuck::cast(src);
                } else {
                    for (block, src) in block.iter_mut().zip(src.chunks(2)) {
                        *block = pair(src[0], src.get(1).copied().unwrap_or(bf16::ZERO));
                    }
                }
            }
            for (i, dst) in dst.as_chunks_mut::<W>().0.iter_mut().enumerate() {
                for j in 0..W {
                    dst[j] = block[j][i];
                }
            }
        }
    }
}
