//! The inner product of everything: c (+)= a b on blocks of f32 that fit the caches.
//!
//! Works on tiles of [`MR`] rows and [`NR`] columns of c, which stay in registers over the whole sum; AVX-512 takes two
//! neighbouring panels of b, 32 columns, at once. Rows of a lie at any stride, so packed, plain and transposed blocks all go
//! without a copy; b is read as runs of NR neighbouring columns.
//!
//! Shapes:  a: (m, k), b: (k, n), c: (m, n), n a multiple of NR.
//! Numbers: f32; fused multiply-add under AVX2, AVX-512 and NEON. The order of a sum depends on k alone.
#![expect(unsafe_code, reason = "vector loads by pointer, in bounds by the checks of `multiply`")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::isa::{Isa, Kind};

/// Rows of a tile.
pub(crate) const MR: usize = 6;
/// Columns of a tile.
pub(crate) const NR: usize = 16;

/// Terms that loops take at once, so that counting and addresses cost little beside the sums.
#[cfg(target_arch = "x86_64")]
const UNROLL: usize = 4;

/// The left factor: element (row, p) at (row / MR) * strip_stride + (row % MR) * row_stride + p * col_stride.
#[derive(Clone, Copy)]
pub(crate) struct Lhs<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) strip_stride: usize,
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

impl<'a> Lhs<'a> {
    /// Rows of `stride` elements, each with its sum's terms side by side.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, strip_stride: MR * stride, row_stride: stride, col_stride: 1 }
    }

    /// The transpose of rows of `stride` elements.
    pub(crate) fn transposed(data: &'a [f32], stride: usize) -> Self {
        Self { data, strip_stride: MR, row_stride: 1, col_stride: stride }
    }

    /// Panics: if neither terms nor rows lie side by side.
    fn terms(&self) -> Terms {
        match (self.row_stride, self.col_stride) {
            (_, 1) => Terms::Near,
            (1, _) => Terms::Far,
            _ => panic!("terms or rows of the left factor lie side by side"),
        }
    }

    /// One past the last element that a product of `m` rows and `k` terms reads.
    fn end(&self, m: usize, k: usize) -> usize {
        let last_row = |row: usize| (row / MR) * self.strip_stride + (row % MR) * self.row_stride;
        let of_last_strip = last_row(m - 1);
        let of_full_strip = if m >= MR { last_row(m - 1 - m % MR) } else { 0 };
        of_last_strip.max(of_full_strip) + (k - 1) * self.col_stride + 1
    }
}

/// The right factor: element (p, j) at (j / NR) * panel_stride + p * row_stride + j % NR.
#[derive(Clone, Copy)]
pub(crate) struct Rhs<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) panel_stride: usize,
    pub(crate) row_stride: usize,
}

impl<'a> Rhs<'a> {
    /// Rows of `stride` elements.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, panel_stride: NR, row_stride: stride }
    }

    /// Panels of NR columns, one after the other, each of `k` rows.
    pub(crate) fn panels(data: &'a [f32], k: usize) -> Self {
        Self { data, panel_stride: NR * k, row_stride: NR }
    }

    fn end(&self, n: usize, k: usize) -> usize {
        (n / NR - 1) * self.panel_stride + (k - 1) * self.row_stride + NR
    }
}

/// Where a block lies in memory, for the loops under an instruction set.
#[derive(Clone, Copy)]
struct Block<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: Lhs<'a>,
    b: Rhs<'a>,
    c_stride: usize,
    accumulate: bool,
}

/// `c (+)= a b`, where rows of c are `c_stride` apart. Panics: if a block reaches outside of its slice.
pub(crate) fn multiply(
    isa: Isa,
    (m, n, k): (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: &mut [f32],
    c_stride: usize,
    accumulate: bool,
) {
    assert!(n.is_multiple_of(NR) && n <= c_stride, "columns come in whole panels");
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * c_stride + n <= c.len(), "c lies inside of its slice");
    if k > 0 {
        assert!(a.end(m, k) <= a.data.len(), "a lies inside of its slice");
        assert!(b.end(n, k) <= b.data.len(), "b lies inside of its slice");
    }
    let block = Block { m, n, k, a, b, c_stride, accumulate };
    match isa.kind() {
        // SAFETY: bounds were checked above.
        Kind::Portable => unsafe { tiles::<portable::Portable>(block, c.as_mut_ptr()) },
        // SAFETY: as above.
        #[cfg(test)]
        Kind::EmulatedBf16 => unsafe { tiles::<portable::Portable>(block, c.as_mut_ptr()) },
        // SAFETY: bounds were checked above; an `Isa` of this kind exists only where AVX2 and FMA were detected.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { avx2::tiles_avx2(block, c.as_mut_ptr()) },
        // SAFETY: bounds were checked above; an `Isa` of these kinds exists only where AVX-512 F was detected.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 | Kind::Avx512Bf16 => unsafe { avx512::tiles_avx512(block, c.as_mut_ptr()) },
        // SAFETY: bounds were checked above.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon | Kind::NeonBf16 => unsafe { tiles::<portable::Fused>(block, c.as_mut_ptr()) },
    }
}

/// How the terms of a row of the left factor lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Terms {
    /// Side by side; rows at any stride.
    Near,
    /// At any stride; rows side by side.
    Far,
}

/// A tile's loop under an instruction set.
trait Tile {
    /// Panels that a tile covers.
    const PANELS: usize;

    /// Terms of a sum from which a strip of the left factor is worth fetching ahead: shorter ones lie in a cache already.
    const PREFETCH_FROM: usize;

    /// The tile of one panel, for those that [`Tile::PANELS`] leaves over.
    type Rest: Tile;

    /// Asks for a cache line; may do nothing.
    fn prefetch(line: *const f32);

    /// `c (+)= a b` for R rows and [`Tile::PANELS`] panels; NEAR says how the terms lie.
    ///
    /// # Safety
    /// Every element of `block` from the given starts on, for R rows and the tile's panels, lies in its slice.
    unsafe fn tile<const R: usize, const NEAR: bool>(block: &Block<'_>, a: *const f32, b: *const f32, c: *mut f32);
}

/// All tiles of a block.
///
/// # Safety
/// The block's elements lie in its slices and `c`.
#[inline(always)]
unsafe fn tiles<T: Tile>(block: Block<'_>, c: *mut f32) {
    match block.a.terms() {
        // SAFETY: promised by the caller.
        Terms::Near => unsafe { tiles_of::<T, true>(block, c) },
        // SAFETY: promised by the caller.
        Terms::Far => unsafe { tiles_of::<T, false>(block, c) },
    }
}

/// # Safety
/// As for [`tiles`]; NEAR is how the terms lie.
#[inline(always)]
unsafe fn tiles_of<T: Tile, const NEAR: bool>(block: Block<'_>, c: *mut f32) {
    let num_panels = block.n / NR;
    let in_wide_tiles = num_panels / T::PANELS * T::PANELS;
    for first_row in (0..block.m).step_by(MR) {
        for panel in (0..in_wide_tiles).step_by(T::PANELS) {
            // SAFETY: promised by the caller.
            unsafe { tile_of_rows::<T, NEAR>(&block, first_row, panel, c) };
        }
        for panel in in_wide_tiles..num_panels {
            // SAFETY: promised by the caller.
            unsafe { tile_of_rows::<T::Rest, NEAR>(&block, first_row, panel, c) };
        }
    }
}

/// The tile at a row and a panel, of as many rows as are left there.
///
/// # Safety
/// As for [`tiles_of`]; the tile's panels are some of the block's.
#[inline(always)]
unsafe fn tile_of_rows<T: Tile, const NEAR: bool>(block: &Block<'_>, first_row: usize, panel: usize, c: *mut f32) {
    if block.k >= T::PREFETCH_FROM {
        prefetch_next_strip::<T, NEAR>(block, first_row, panel);
    }
    // SAFETY: strips, panels and tiles of the block lie inside of its slices.
    unsafe {
        let a = block.a.data.as_ptr().add(first_row / MR * block.a.strip_stride);
        let b = block.b.data.as_ptr().add(panel * block.b.panel_stride);
        let c = c.add(first_row * block.c_stride + panel * NR);
        match block.m - first_row {
            1 => T::tile::<1, NEAR>(block, a, b, c),
            2 => T::tile::<2, NEAR>(block, a, b, c),
            3 => T::tile::<3, NEAR>(block, a, b, c),
            4 => T::tile::<4, NEAR>(block, a, b, c),
            5 => T::tile::<5, NEAR>(block, a, b, c),
            _ => T::tile::<MR, NEAR>(block, a, b, c),
        }
    }
}

/// Fetches the share of the strip after this one that falls to the tile's panels.
#[inline(always)]
fn prefetch_next_strip<T: Tile, const NEAR: bool>(block: &Block<'_>, first_row: usize, panel: usize) {
    /// Elements of a cache line.
    const LINE: usize = 16;
    let num_panels = block.n / NR;
    let start = block.a.data.as_ptr().wrapping_add((first_row / MR + 1) * block.a.strip_stride);
    // A run of memory for each row, or one for the strip where its terms lie in order.
    let (runs, len) = if NEAR { (MR, block.k) } else { (1, block.k * block.a.col_stride.min(MR)) };
    for run in 0..runs {
        for at in (panel * len / num_panels..(panel + T::PANELS) * len / num_panels).step_by(LINE) {
            T::prefetch(start.wrapping_add(run * block.a.row_stride + at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 17) as f32 - 8.0).collect()
    }

    #[test]
    fn products_are_exact_on_small_integers_in_every_layout() {
        for isa in Isa::available() {
            for (m, n, k) in [(1, 16, 1), (5, 16, 3), (6, 32, 7), (13, 48, 10), (24, 16, 0), (0, 16, 2), (17, 0, 2)] {
                let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
                let start = numbers(m * (n + 3), 3);
                let mut expected = start.clone();
                for i in 0..m {
                    for j in 0..n {
                        let sum: f32 = (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
                        expected[i * (n + 3) + j] += sum;
                    }
                }
                let a_transposed: Vec<f32> = (0..m * k).map(|at| a[at % m.max(1) * k + at / m.max(1)]).collect();
                let panels: Vec<f32> =
                    (0..k * n).map(|at| b[at % (NR * k) / NR * n + at / (NR * k) * NR + at % NR]).collect();
                for a in [Lhs::rows(&a, k), Lhs::transposed(&a_transposed, m)] {
                    for b in [Rhs::rows(&b, n), Rhs::panels(&panels, k)] {
                        let mut c = start.clone();
                        multiply(isa, (m, n, k), a, b, &mut c, n + 3, true);
                        assert_eq!(c, expected, "{isa} {m} {n} {k}");
                        multiply(isa, (m, n, k), a, b, &mut c, n + 3, false);
                        for at in 0..c.len() {
                            let inside = at % (n + 3) < n;
                            let value = if inside { expected[at] - start[at] } else { start[at] };
                            assert_eq!(c[at], value, "{isa} {m} {n} {k}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "a lies inside of its slice")]
    fn a_block_outside_of_its_slice_is_refused() {
        let (a, b, mut c) = ([0.0; 11], [0.0; 48], [0.0; 64]);
        multiply(Isa::detect(), (4, 16, 3), Lhs::rows(&a, 3), Rhs::rows(&b, 16), &mut c, 16, false);
    }
}
