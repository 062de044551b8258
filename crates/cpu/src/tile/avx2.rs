//! A tile under AVX2: twelve sums of eight lanes, two registers of b, one of a.
#![expect(unsafe_code, reason = "vector loads by pointer, in bounds by the checks of `multiply`")]

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps,
    _mm256_storeu_ps,
};

use super::{Block, Tile, UNROLL, tiles};

/// # Safety
/// AVX2 and FMA are there, and as for [`tiles`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn tiles_avx2(block: Block<'_>, c: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe { tiles::<Avx2>(block, c) }
}

struct Avx2;

impl Tile for Avx2 {
    const PANELS: usize = 1;
    const PREFETCH_FROM: usize = 200;
    type Rest = Self;

    #[inline(always)]
    fn prefetch(line: *const f32) {
        // SAFETY: fetching ahead is allowed at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const NEAR: bool>(block: &Block<'_>, a: *const f32, b: *const f32, c: *mut f32) {
        // SAFETY: promised by the caller; only `tiles_avx2` uses this tile.
        unsafe { tile_avx2::<R, NEAR>(block, a, b, c) }
    }
}

/// # Safety
/// AVX2 and FMA are there, and as for [`Tile::tile`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<const R: usize, const NEAR: bool>(
    block: &Block<'_>,
    a: *const f32,
    mut b: *const f32,
    c: *mut f32,
) {
    let b_stride = block.b.row_stride;
    // Between rows at one term, and between terms of one row; one of them is known to the compiler.
    let (row_stride, col_stride) = if NEAR { (block.a.row_stride, 1) } else { (1, block.a.col_stride) };
    let mut rows: [*const f32; R] = std::array::from_fn(|i| a.wrapping_add(i * row_stride));
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    if block.accumulate {
        for i in 0..R {
            Avx2::prefetch(c.wrapping_add(i * block.c_stride));
        }
    }
    macro_rules! add_terms {
        ($count:expr) => {
            for u in 0..$count {
                // SAFETY: one of the next terms of the tile's columns; the caller promises that they exist.
                let (b0, b1) = unsafe {
                    let b = b.add(u * b_stride);
                    (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8)))
                };
                for i in 0..R {
                    // SAFETY: the same term of row i; the caller promises that it exists.
                    let a = unsafe { _mm256_broadcast_ss(&*rows[i].add(u * col_stride)) };
                    sums[i][0] = _mm256_fmadd_ps(a, b0, sums[i][0]);
                    sums[i][1] = _mm256_fmadd_ps(a, b1, sums[i][1]);
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
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: row i of the tile; the caller promises that it exists, and c is not shared.
            unsafe {
                let c = c.add(i * block.c_stride + half * 8);
                let value = if block.accumulate { _mm256_add_ps(_mm256_loadu_ps(c), sum) } else { sum };
                _mm256_storeu_ps(c, value);
            }
        }
    }
}
