//! A tile as plain loops, with or without fused multiply-add.
#![expect(unsafe_code, reason = "elements by pointer, in bounds by the checks of `multiply`")]

use super::{Block, NR, Tile};

/// Separate products and sums, in whatever vectors the build targets.
pub(super) struct Portable;

impl Tile for Portable {
    const PANELS: usize = 1;
    const PREFETCH_FROM: usize = usize::MAX;
    type Rest = Self;

    #[inline(always)]
    fn prefetch(_: *const f32) {}

    #[inline(always)]
    unsafe fn tile<const R: usize, const NEAR: bool>(block: &Block<'_>, a: *const f32, b: *const f32, c: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { tile_plain::<R>(block, a, b, c, |x, y, sum| x * y + sum) }
    }
}

/// Fused multiply-add as one instruction of the build's target.
#[cfg(target_arch = "aarch64")]
pub(super) struct Fused;

#[cfg(target_arch = "aarch64")]
impl Tile for Fused {
    const PANELS: usize = 1;
    const PREFETCH_FROM: usize = usize::MAX;
    type Rest = Self;

    #[inline(always)]
    fn prefetch(_: *const f32) {}

    #[inline(always)]
    unsafe fn tile<const R: usize, const NEAR: bool>(block: &Block<'_>, a: *const f32, b: *const f32, c: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { tile_plain::<R>(block, a, b, c, f32::mul_add) }
    }
}

/// A tile as plain loops.
///
/// # Safety
/// As for [`Tile::tile`].
#[inline(always)]
unsafe fn tile_plain<const R: usize>(
    block: &Block<'_>,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    mul_add: impl Fn(f32, f32, f32) -> f32,
) {
    let mut sums = [[0.0f32; NR]; R];
    for p in 0..block.k {
        // SAFETY: term p of the tile's columns; the caller promises that they exist.
        let b: &[f32; NR] = unsafe { &*b.add(p * block.b.row_stride).cast() };
        for i in 0..R {
            // SAFETY: term p of row i; the caller promises that it exists.
            let a = unsafe { *a.add(p * block.a.col_stride + i * block.a.row_stride) };
            for j in 0..NR {
                sums[i][j] = mul_add(a, b[j], sums[i][j]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        // SAFETY: row i of the tile; the caller promises that it exists, and c is not shared.
        let c: &mut [f32; NR] = unsafe { &mut *c.add(i * block.c_stride).cast() };
        for j in 0..NR {
            c[j] = if block.accumulate { c[j] + sums[j] } else { sums[j] };
        }
    }
}
