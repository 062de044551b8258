//! A tile under AVX-512: sums of sixteen lanes, two neighbouring panels at once.
//!
//! Six rows of two panels are twelve sums, enough to keep two multipliers busy; a term costs two loads of b and six of a. A
//! panel that is left over has six sums.
#![expect(unsafe_code, reason = "vector loads by pointer, in bounds by the checks of `multiply`")]

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

use super::{Block, NR, Tile, UNROLL, tiles};

/// # Safety
/// AVX-512 F is there, and as for [`tiles`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tiles_avx512(block: Block<'_>, c: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe { tiles::<Avx512<2>>(block, c) }
}

/// A tile of some panels.
struct Avx512<const PANELS: usize>;

impl<const PANELS: usize> Tile for Avx512<PANELS> {
    const PANELS: usize = PANELS;
    const PREFETCH_FROM: usize = 200;
    type Rest = Avx512<1>;

    #[inline(always)]
    fn prefetch(line: *const f32) {
        // SAFETY: fetching ahead is allowed at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const NEAR: bool>(block: &Block<'_>, a: *const f32, b: *const f32, c: *mut f32) {
        // SAFETY: promised by the caller; only `tiles_avx512` uses this tile.
        unsafe { tile_avx512::<R, PANELS, NEAR>(block, a, b, c) }
    }
}

/// # Safety
/// AVX-512 F is there, and as for [`Tile::tile`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn tile_avx512<const R: usize, const PANELS: usize, const NEAR: bool>(
    block: &Block<'_>,
    a: *const f32,
    mut b: *const f32,
    c: *mut f32,
) {
    let (b_stride, panel_stride) = (block.b.row_stride, block.b.panel_stride);
    // Between rows at one term, and between terms of one row; one of them is known to the compiler.
    let (row_stride, col_stride) = if NEAR { (block.a.row_stride, 1) } else { (1, block.a.col_stride) };
    let mut rows: [*const f32; R] = std::array::from_fn(|i| a.wrapping_add(i * row_stride));
    let mut sums = [[_mm512_setzero_ps(); PANELS]; R];
    if block.accumulate {
        for i in 0..R {
            for panel in 0..PANELS {
                Avx512::<PANELS>::prefetch(c.wrapping_add(i * block.c_stride + panel * NR));
            }
        }
    }
    macro_rules! add_terms {
        ($count:expr) => {
            for u in 0..$count {
                let mut of_b = [_mm512_setzero_ps(); PANELS];
                for panel in 0..PANELS {
                    // SAFETY: one of the next terms of the tile's columns; the caller promises that they exist.
                    of_b[panel] = unsafe { _mm512_loadu_ps(b.add(panel * panel_stride + u * b_stride)) };
                }
                for i in 0..R {
                    // SAFETY: the same term of row i; the caller promises that it exists.
                    let a = _mm512_set1_ps(unsafe { *rows[i].add(u * col_stride) });
                    for panel in 0..PANELS {
                        sums[i][panel] = _mm512_fmadd_ps(a, of_b[panel], sums[i][panel]);
                    }
                }
            }
            b = b.wrapping_add($count * b_stride);
            // Closures here would not be inlined into this instruction set.
            for row in &mut rows {
                *row = row.wrapping_add($count * col_stride);
            }
        };
    }
    for _ in 0..block.k / UNROLL {
        add_terms!(UNROLL);
    }
    for _ in 0..block.k % UNROLL {
        add_terms!(1);
    }
    for (i, sums) in sums.iter().enumerate() {
        for (panel, &sum) in sums.iter().enumerate() {
            // SAFETY: row i of the tile; the caller promises that it exists, and c is not shared.
            unsafe {
                let c = c.add(i * block.c_stride + panel * NR);
                let value = if block.accumulate { _mm512_add_ps(_mm512_loadu_ps(c), sum) } else { sum };
                _mm512_storeu_ps(c, value);
            }
        }
    }
}
