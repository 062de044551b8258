//! The inner product of bf16 factors, which are never widened: c (+)= a b on blocks that fit the caches.
//!
//! Two neighbouring terms of a sum lie side by side, as a *pair*, and one instruction adds both products to a sum. Both factors are
//! packed (`pack.rs`): a in strips of [`MR`] rows, b in panels of [`NR`] columns, each pair by pair, an odd last term with a zero.
//! Tiles of c stay in registers over the whole block: with AVX-512 a strip by a panel, 28 sums of 16 lanes; with NEON 5 rows by half
//! a panel, 20 sums of 4 lanes.
//! Reading a where it lies would spare a pass, but its rows are often a power of two apart, and then fourteen of them fight
//! for eight places of the innermost cache.
//!
//! Shapes:  a: (m, 2 pairs), b: (2 pairs, n), c: (m, n), n a multiple of [`LANES`].
//! Numbers: sums in f32; factors and sums below the smallest normal number count as 0, as the instructions define it. AVX-512 adds
//!          the odd term's product, then the even one's, each sum rounded to nearest; NEON adds both products, then their sum,
//!          each time rounded to odd. The order of a sum depends on the number of terms alone.
//! Checked: `tests.rs`, in every build by an emulation of the instruction, and by the instruction where there is one.
#![expect(unsafe_code, reason = "vector loads by pointer, in bounds by the checks of `multiply`")]
#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", test)),
    expect(dead_code, reason = "products of pairs are compiled for x86-64, 64-bit Arm and for tests only")
)]

mod pack;
#[cfg(test)]
mod tests;
mod vectors;

pub(crate) use pack::{panels_of_columns, panels_of_rows, strips_of_columns, strips_of_rows};

use crate::isa::{Isa, Kind};
use vectors::Vectors;

/// Rows of a tile.
pub(crate) const MR: usize = 14;
/// Columns of a tile.
pub(crate) const NR: usize = 2 * LANES;
/// Columns of a vector of sums; a last panel of no more columns costs half.
pub(crate) const LANES: usize = 16;

/// A packed factor: pair p of row or column i at (i / W) * stride + p * W + i % W, where W is [`MR`] or [`NR`].
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub(crate) data: &'a [u32],
    pub(crate) stride: usize,
}

/// Where a block lies in memory, for the loops under an instruction set.
#[derive(Clone, Copy)]
struct Block<'a> {
    m: usize,
    n: usize,
    pairs: usize,
    a: Packed<'a>,
    b: Packed<'a>,
    c_stride: usize,
    accumulate: bool,
}

/// `c (+)= a b`, where rows of c are `c_stride` apart. Panics: if a block reaches outside of its slice, and if the
/// instruction set has no such products.
pub(crate) fn multiply(
    isa: Isa,
    (m, n, pairs): (usize, usize, usize),
    a: Packed<'_>,
    b: Packed<'_>,
    c: &mut [f32],
    c_stride: usize,
    accumulate: bool,
) {
    assert!(n.is_multiple_of(LANES) && n <= c_stride, "columns come in whole vectors");
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * c_stride + n <= c.len(), "c lies inside of its slice");
    assert!((m - 1) / MR * a.stride + pairs * MR <= a.data.len(), "a lies inside of its slice");
    assert!((n - 1) / NR * b.stride + pairs * NR <= b.data.len(), "b lies inside of its slice");
    let block = Block { m, n, pairs, a, b, c_stride, accumulate };
    match isa.kind() {
        // SAFETY: bounds were checked above; an `Isa` of this kind exists only where AVX-512 BF16 was detected.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Bf16 => unsafe { vectors::tiles_avx512bf16(block, c.as_mut_ptr()) },
        // SAFETY: bounds were checked above; an `Isa` of this kind exists only where these products were detected.
        #[cfg(target_arch = "aarch64")]
        Kind::NeonBf16 => unsafe { vectors::tiles_neonbf16(block, c.as_mut_ptr()) },
        // SAFETY: bounds were checked above.
        #[cfg(test)]
        Kind::EmulatedBf16 => unsafe { tiles::<vectors::Emulated>(block, c.as_mut_ptr()) },
        _ => unreachable!("callers ask `Isa::multiplies_pairs`"),
    }
}

/// All tiles of a block.
///
/// # Safety
/// The block's elements lie in its slices and `c`; the processor has the vectors.
#[inline(always)]
unsafe fn tiles<V: Vectors>(block: Block<'_>, c: *mut f32) {
    for first_row in (0..block.m).step_by(MR) {
        for first_column in (0..block.n).step_by(NR) {
            let strip = block.a.data.as_ptr().wrapping_add(first_row / MR * block.a.stride);
            let panel = block.b.data.as_ptr().wrapping_add(first_column / NR * block.b.stride);
            let (rows, columns) = ((block.m - first_row).min(MR), (block.n - first_column).min(NR));
            for column in (0..columns).step_by(V::WIDTH * LANES) {
                for row in (0..rows).step_by(V::ROWS) {
                    let rows = (rows - row).min(V::ROWS);
                    // SAFETY: strips, panels and tiles of the block lie inside of its slices.
                    unsafe {
                        let (a, b) = (strip.add(row), panel.add(column));
                        let c = c.add((first_row + row) * block.c_stride + first_column + column);
                        if V::WIDTH == 2 && columns - column > LANES {
                            tile_of_rows::<V, 2>(&block, rows, a, b, c);
                        } else {
                            tile_of_rows::<V, 1>(&block, rows, a, b, c);
                        }
                    }
                }
            }
        }
    }
}

/// A tile of `rows` rows, or of [`MR`] if there are more.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn tile_of_rows<V: Vectors, const H: usize>(
    block: &Block<'_>,
    rows: usize,
    a: *const u32,
    b: *const u32,
    c: *mut f32,
) {
    macro_rules! tile_of {
        ($($fewer:literal)*) => {
            match rows {
                // SAFETY: promised by the caller.
                $($fewer => unsafe { tile::<V, $fewer, H>(block, a, b, c) },)*
                // SAFETY: promised by the caller.
                _ => unsafe { tile::<V, MR, H>(block, a, b, c) },
            }
        };
    }
    tile_of!(1 2 3 4 5 6 7 8 9 10 11 12 13);
}

/// A tile of R rows and H vectors of columns.
///
/// # Safety
/// Every element of `block` from the given starts on, for R rows and H vectors, lies in its slice; the processor has the
/// vectors.
#[inline(always)]
unsafe fn tile<V: Vectors, const R: usize, const H: usize>(
    block: &Block<'_>,
    mut a: *const u32,
    mut b: *const u32,
    c: *mut f32,
) {
    /// Pairs that a strip of a is fetched ahead.
    const AHEAD: usize = 16;
    // SAFETY: the caller promises that the processor has the vectors, here and below.
    let zeros = unsafe { V::zeros() };
    let mut sums = [[zeros; H]; R];
    if block.accumulate {
        for i in 0..R {
            for half in 0..H {
                V::prefetch(c.wrapping_add(i * block.c_stride + half * LANES).cast());
            }
        }
    }
    for _ in 0..block.pairs {
        V::prefetch(a.wrapping_add(AHEAD * MR));
        // SAFETY: a panel holds NR columns of each pair.
        let of_b: [V::Pairs; H] = unsafe {
            let mut of_b = [V::load(b); H];
            for half in 1..H {
                of_b[half] = V::load(b.add(half * LANES));
            }
            of_b
        };
        for i in 0..R {
            // SAFETY: a strip holds MR rows of each pair.
            unsafe {
                let of_a = V::broadcast(a.add(i));
                for half in 0..H {
                    sums[i][half] = V::add_products(sums[i][half], of_a, of_b[half]);
                }
            }
        }
        a = a.wrapping_add(MR);
        b = b.wrapping_add(NR);
    }
    for (i, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: row i of the tile; the caller promises that it exists, and c is not shared.
            unsafe {
                let c = c.add(i * block.c_stride + half * LANES);
                V::store(c, if block.accumulate { V::add(V::load_sums(c), sum) } else { sum });
            }
        }
    }
}
