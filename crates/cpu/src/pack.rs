//! Blocks of tensors as f32 in the orders that products read, and rows of results back into tensors.
//!
//! Numbers: bf16 is widened exactly; results are rounded once.

use crate::isa::per_isa;
use crate::numbers::Element;
use crate::tile::{MR, NR};

per_isa! {
    /// `dst = src`, widened.
    pub(crate) fn widen<const FMA: bool, T: Element>(dst: &mut [f32], src: &[T]) {
        for (dst, src) in dst.iter_mut().zip(src) {
            *dst = src.to_f32();
        }
    }
}

per_isa! {
    /// `dst = src`, or `dst += src` if `accumulate`; rounded once.
    pub(crate) fn store<const FMA: bool, T: Element>(dst: &mut [T], src: &[f32], accumulate: bool) {
        if accumulate {
            for (dst, &src) in dst.iter_mut().zip(src) {
                *dst = T::from_f32(dst.to_f32() + src);
            }
        } else {
            for (dst, &src) in dst.iter_mut().zip(src) {
                *dst = T::from_f32(src);
            }
        }
    }
}

per_isa! {
    /// Rows of `width` elements, `src_stride` apart, to rows `dst_stride` apart; widened and multiplied by `factor`.
    pub(crate) fn widen_rows<const FMA: bool, T: Element>(
        dst: &mut [f32],
        dst_stride: usize,
        src: &[T],
        src_stride: usize,
        size: (usize, usize),
        factor: f32,
    ) {
        let (num_rows, width) = size;
        for row in 0..num_rows {
            let (dst, src) = (&mut dst[row * dst_stride..][..width], &src[row * src_stride..][..width]);
            for (dst, src) in dst.iter_mut().zip(src) {
                *dst = src.to_f32() * factor;
            }
        }
    }
}

per_isa! {
    /// Panels of NR columns out of rows: `num_rows` rows of `width` elements, `stride` apart. The last panel is filled up
    /// with zeros.
    pub(crate) fn panels_of_rows<const FMA: bool, T: Element>(
        panels: &mut [f32],
        src: &[T],
        stride: usize,
        size: (usize, usize),
    ) {
        let (num_rows, width) = size;
        for row in 0..num_rows {
            let (full, rest) = src[row * stride..][..width].as_chunks::<NR>();
            for (panel, src) in full.iter().enumerate() {
                let dst = &mut panels[(panel * num_rows + row) * NR..][..NR];
                for j in 0..NR {
                    dst[j] = src[j].to_f32();
                }
            }
            if !rest.is_empty() {
                let dst = &mut panels[(full.len() * num_rows + row) * NR..][..NR];
                for (j, dst) in dst.iter_mut().enumerate() {
                    *dst = rest.get(j).map_or(0.0, |v| v.to_f32());
                }
            }
        }
    }
}

/// Terms that one step of a transposition takes from each row.
const STEP: usize = 8;

per_isa! {
    /// Panels of NR columns out of columns: `num_columns` rows of the source, `stride` apart, become columns of `len` terms.
    /// The last panel is filled up with zeros.
    pub(crate) fn panels_of_columns<const FMA: bool, T: Element>(
        panels: &mut [f32],
        src: &[T],
        stride: usize,
        size: (usize, usize),
    ) {
        let (len, num_columns) = size;
        for (panel, first) in (0..num_columns).step_by(NR).enumerate() {
            let columns = NR.min(num_columns - first);
            let panel = &mut panels[panel * len * NR..][..len * NR];
            let mut p = 0;
            while p < len {
                let step = STEP.min(len - p);
                let mut block = [[0.0f32; STEP]; NR];
                for (column, block) in block.iter_mut().enumerate().take(columns) {
                    let src = &src[(first + column) * stride + p..][..step];
                    if let Ok(src) = <&[T; STEP]>::try_from(src) {
                        for i in 0..STEP {
                            block[i] = src[i].to_f32();
                        }
                    } else {
                        for (block, src) in block.iter_mut().zip(src) {
                            *block = src.to_f32();
                        }
                    }
                }
                for (i, dst) in panel[p * NR..][..step * NR].as_chunks_mut::<NR>().0.iter_mut().enumerate() {
                    for j in 0..NR {
                        dst[j] = block[j][i];
                    }
                }
                p += step;
            }
        }
    }
}

/// Rows that one strip takes before the next strip takes the same: as many cache lines as one set holds twice over.
const STRIP_ROWS: usize = 16;
/// Elements that a row of a strip is copied with: a whole vector. The next row overwrites what exceeds MR.
const WIDE: usize = 8;

per_isa! {
    /// Strips of MR columns: out of `len` rows of `num_columns` elements, `stride` apart, strip s holds columns s MR to
    /// s MR + MR - 1, for one row after the other. The last strip is filled up with zeros.
    pub(crate) fn strips_of_columns<const FMA: bool, T: Element>(
        strips: &mut [f32],
        src: &[T],
        stride: usize,
        size: (usize, usize),
    ) {
        let (len, num_columns) = size;
        for first in (0..len).step_by(STRIP_ROWS) {
            let rows = first..(first + STRIP_ROWS).min(len);
            for (strip, column) in (0..num_columns).step_by(MR).enumerate() {
                let mut row = rows.start;
                if column + WIDE <= num_columns {
                    // Not the very last row: what follows it belongs to the next strip.
                    while row < rows.end.min(len - 1) {
                        let src = &src[row * stride + column..][..WIDE];
                        let dst = &mut strips[(strip * len + row) * MR..][..WIDE];
                        for i in 0..WIDE {
                            dst[i] = src[i].to_f32();
                        }
                        row += 1;
                    }
                }
                let columns = MR.min(num_columns - column);
                for row in row..rows.end {
                    let src = &src[row * stride + column..][..columns];
                    let dst = &mut strips[(strip * len + row) * MR..][..MR];
                    dst.fill(0.0);
                    for i in 0..columns {
                        dst[i] = src[i].to_f32();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::isa::Isa;

    fn source(len: usize) -> Vec<bf16> {
        (0..len).map(|i| bf16::from_f32(i as f32 % 251.0 + 1.0)).collect()
    }

    #[test]
    fn panels_and_strips_hold_every_element_and_zeros() {
        for isa in Isa::available() {
            for (rows, columns) in [(1, 1), (3, 16), (9, 17), (17, 40), (8, 5)] {
                let stride = columns + 2;
                let src = source(rows * stride);
                let at = |row: usize, column: usize| {
                    if row < rows && column < columns { src[row * stride + column].to_f32() } else { 0.0 }
                };
                let mut panels = vec![-1.0; columns.next_multiple_of(NR) * rows];
                panels_of_rows(isa, &mut panels, &src, stride, (rows, columns));
                for (i, &v) in panels.iter().enumerate() {
                    assert_eq!(v, at(i / NR % rows, i / NR / rows * NR + i % NR));
                }
                let mut strips = vec![-1.0; columns.next_multiple_of(MR) * rows];
                strips_of_columns(isa, &mut strips, &src, stride, (rows, columns));
                for (i, &v) in strips.iter().enumerate() {
                    assert_eq!(v, at(i / MR % rows, i / MR / rows * MR + i % MR));
                }
                let mut panels = vec![-1.0; rows.next_multiple_of(NR) * columns];
                panels_of_columns(isa, &mut panels, &src, stride, (columns, rows));
                for (i, &v) in panels.iter().enumerate() {
                    assert_eq!(v, at(i / NR / columns * NR + i % NR, i / NR % columns));
                }
            }
        }
    }

    #[test]
    fn rows_are_stored_rounded_once() {
        for isa in Isa::available() {
            let src: Vec<f32> = (0..45).map(|i| 1.0 + i as f32 / 512.0).collect();
            let mut dst = vec![bf16::ONE; 45];
            store(isa, &mut dst, &src, true);
            assert!(dst.iter().zip(&src).all(|(d, s)| d.to_f32() == bf16::from_f32(1.0 + s).to_f32()));
            store(isa, &mut dst, &src, false);
            assert!(dst.iter().zip(&src).all(|(d, s)| d.to_f32() == bf16::from_f32(*s).to_f32()));
            let mut back = vec![0.0; 45];
            widen(isa, &mut back, &dst);
            assert!(dst.iter().zip(&back).all(|(d, b)| d.to_f32() == *b));
            let mut rows = vec![0.0; 3 * 16];
            widen_rows(isa, &mut rows, 16, &dst, 15, (3, 15), 2.0);
            assert!((0..45).all(|i| rows[i / 15 * 16 + i % 15] == 2.0 * back[i]));
        }
    }
}
