//! The vectors that the loops over pairs are written for: AVX-512 BF16, and an emulation in plain code for tests.
#![expect(unsafe_code, reason = "instructions of a processor that has them; loads by pointer")]

#[cfg(target_arch = "x86_64")]
use super::{Block, tiles};

/// Vectors of sixteen pairs and of sixteen sums.
///
/// # Safety
/// Every function may be called only where the processor has the vectors; pointers are valid for what is read or written
/// there, at any alignment of their type.
pub(super) trait Vectors {
    /// Sixteen pairs.
    type Pairs: Copy;
    /// Sixteen sums.
    type Sums: Copy;

    /// Asks for a cache line; may do nothing.
    fn prefetch(line: *const u32);

    /// Sums of nothing.
    unsafe fn zeros() -> Self::Sums;

    /// Sixteen neighbouring pairs.
    unsafe fn load(from: *const u32) -> Self::Pairs;

    /// One pair in all lanes.
    unsafe fn broadcast(from: *const u32) -> Self::Pairs;

    /// In each lane the products of both terms, added to the sum: the odd one first, each rounded to the nearest even;
    /// subnormal operands and results are 0.
    unsafe fn add_products(sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums;

    /// Sixteen neighbouring sums.
    unsafe fn load_sums(from: *const f32) -> Self::Sums;

    /// `a + b`.
    unsafe fn add(a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Puts sixteen sums side by side.
    unsafe fn store(to: *mut f32, sums: Self::Sums);
}

/// # Safety
/// AVX-512 BF16 and F are there, and as for [`tiles`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bf16,avx512f")]
pub(super) unsafe fn tiles_avx512bf16(block: Block<'_>, c: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe { tiles::<Avx512Bf16>(block, c) }
}

/// Registers of 512 bits.
#[cfg(target_arch = "x86_64")]
pub(super) struct Avx512Bf16;

#[cfg(target_arch = "x86_64")]
mod avx512bf16 {
    use std::arch::x86_64::{
        __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps,
        _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::{Avx512Bf16, Vectors};

    /// The same bits.
    #[inline(always)]
    fn pairs(bits: __m512i) -> __m512bh {
        // SAFETY: both are 512 bits of which any are valid.
        unsafe { std::mem::transmute(bits) }
    }

    // Callers promise that the instructions are there and that pointers are valid; see `Vectors`.
    impl Vectors for Avx512Bf16 {
        type Pairs = __m512bh;
        type Sums = __m512;

        #[inline(always)]
        fn prefetch(line: *const u32) {
            // SAFETY: fetching ahead is allowed at any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }

        #[inline(always)]
        unsafe fn zeros() -> __m512 {
            // SAFETY: promised by the caller.
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn load(from: *const u32) -> __m512bh {
            // SAFETY: promised by the caller.
            pairs(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn broadcast(from: *const u32) -> __m512bh {
            // SAFETY: promised by the caller.
            pairs(unsafe { _mm512_set1_epi32(*from.cast()) })
        }

        #[inline(always)]
        unsafe fn add_products(sums: __m512, a: __m512bh, b: __m512bh) -> __m512 {
            // SAFETY: promised by the caller.
            unsafe { _mm512_dpbf16_ps(sums, a, b) }
        }

        #[inline(always)]
        unsafe fn load_sums(from: *const f32) -> __m512 {
            // SAFETY: promised by the caller.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: promised by the caller.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, sums: __m512) {
            // SAFETY: promised by the caller.
            unsafe { _mm512_storeu_ps(to, sums) };
        }
    }
}

/// What the instructions do, lane by lane.
#[cfg(test)]
pub(super) struct Emulated;

#[cfg(test)]
mod emulated {
    use half::bf16;

    use super::{Emulated, Vectors};
    use crate::pairs::LANES;

    /// Subnormal numbers become 0 of their sign.
    fn flush(x: f32) -> f32 {
        if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
    }

    fn add_product(sum: f32, a: bf16, b: bf16) -> f32 {
        flush(flush(a.to_f32()).mul_add(flush(b.to_f32()), flush(sum)))
    }

    // Callers promise that pointers are valid; see `Vectors`.
    impl Vectors for Emulated {
        type Pairs = [u32; LANES];
        type Sums = [f32; LANES];

        fn prefetch(_: *const u32) {}

        unsafe fn zeros() -> [f32; LANES] {
            [0.0; LANES]
        }

        unsafe fn load(from: *const u32) -> [u32; LANES] {
            // SAFETY: promised by the caller.
            unsafe { *from.cast() }
        }

        unsafe fn broadcast(from: *const u32) -> [u32; LANES] {
            // SAFETY: promised by the caller.
            [unsafe { *from }; LANES]
        }

        unsafe fn add_products(sums: [f32; LANES], a: [u32; LANES], b: [u32; LANES]) -> [f32; LANES] {
            std::array::from_fn(|lane| {
                let [a_even, a_odd]: [bf16; 2] = bytemuck::cast(a[lane]);
                let [b_even, b_odd]: [bf16; 2] = bytemuck::cast(b[lane]);
                add_product(add_product(sums[lane], a_odd, b_odd), a_even, b_even)
            })
        }

        unsafe fn load_sums(from: *const f32) -> [f32; LANES] {
            // SAFETY: promised by the caller.
            unsafe { *from.cast() }
        }

        unsafe fn add(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
            std::array::from_fn(|lane| a[lane] + b[lane])
        }

        unsafe fn store(to: *mut f32, sums: [f32; LANES]) {
            // SAFETY: promised by the caller.
            unsafe { *to.cast() = sums };
        }
    }
}
