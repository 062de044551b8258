//! The vectors that the loops over pairs are written for: AVX-512 BF16, NEON with `bfdot`, and an emulation of the first in plain
//! code for tests.
#![expect(unsafe_code, reason = "instructions of a processor that has them; loads by pointer")]

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::{Block, tiles};

/// Vectors of sixteen pairs and of sixteen sums.
///
/// # Safety
/// Every function may be called only where the processor has the vectors; pointers are valid for what is read or written
/// there, at any alignment of their type.
pub(super) trait Vectors {
    /// Rows of a tile, at most [`MR`](super::MR).
    const ROWS: usize;
    /// Vectors of columns of a tile, 1 or 2.
    const WIDTH: usize;

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

    /// In each lane the products of both terms, added to the sum, in the order and with the rounding of the processor;
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
    use crate::pairs::MR;

    /// The same bits.
    #[inline(always)]
    fn pairs(bits: __m512i) -> __m512bh {
        // SAFETY: both are 512 bits of which any are valid.
        unsafe { std::mem::transmute(bits) }
    }

    // Callers promise that the instructions are there and that pointers are valid; see `Vectors`.
    impl Vectors for Avx512Bf16 {
        const ROWS: usize = MR;
        const WIDTH: usize = 2;

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

/// # Safety
/// Products of bf16 pairs are there, and as for [`tiles`].
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn tiles_neonbf16(block: Block<'_>, c: *mut f32) {
    // SAFETY: promised by the caller.
    unsafe { tiles::<NeonBf16>(block, c) }
}

/// Four registers of 128 bits in place of one of 512.
#[cfg(target_arch = "aarch64")]
pub(super) struct NeonBf16;

#[cfg(target_arch = "aarch64")]
mod neonbf16 {
    use std::arch::aarch64::{
        float32x4_t, uint32x4_t, vaddq_f32, vdupq_n_f32, vld1q_dup_u32, vld1q_f32, vld1q_u32, vst1q_f32,
    };
    use std::arch::asm;

    use super::{NeonBf16, Vectors};

    // Callers promise that the instructions are there and that pointers are valid; see `Vectors`.
    impl Vectors for NeonBf16 {
        // 20 registers of sums, 4 of b, and room for a among the 32 that there are.
        const ROWS: usize = 5;
        const WIDTH: usize = 1;

        type Pairs = [uint32x4_t; 4];
        type Sums = [float32x4_t; 4];

        /// Nothing: strips and panels are read in order, which processors foresee.
        #[inline(always)]
        fn prefetch(_: *const u32) {}

        #[inline(always)]
        unsafe fn zeros() -> [float32x4_t; 4] {
            // SAFETY: every 64-bit Arm processor has NEON.
            [unsafe { vdupq_n_f32(0.0) }; 4]
        }

        #[inline(always)]
        unsafe fn load(from: *const u32) -> [uint32x4_t; 4] {
            // SAFETY: promised by the caller.
            unsafe { [vld1q_u32(from), vld1q_u32(from.add(4)), vld1q_u32(from.add(8)), vld1q_u32(from.add(12))] }
        }

        #[inline(always)]
        unsafe fn broadcast(from: *const u32) -> [uint32x4_t; 4] {
            // SAFETY: promised by the caller.
            [unsafe { vld1q_dup_u32(from) }; 4]
        }

        #[inline(always)]
        unsafe fn add_products(mut sums: [float32x4_t; 4], a: [uint32x4_t; 4], b: [uint32x4_t; 4]) -> [float32x4_t; 4] {
            for i in 0..4 {
                // SAFETY: the caller promises the instruction; it reads and writes the named registers alone.
                unsafe {
                    asm!(
                        "bfdot {sums:v}.4s, {a:v}.8h, {b:v}.8h",
                        sums = inout(vreg) sums[i],
                        a = in(vreg) a[i],
                        b = in(vreg) b[i],
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
            }
            sums
        }

        #[inline(always)]
        unsafe fn load_sums(from: *const f32) -> [float32x4_t; 4] {
            // SAFETY: promised by the caller.
            unsafe { [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))] }
        }

        #[inline(always)]
        unsafe fn add(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            // SAFETY: every 64-bit Arm processor has NEON.
            unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]), vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3])] }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, sums: [float32x4_t; 4]) {
            for (i, sums) in sums.into_iter().enumerate() {
                // SAFETY: promised by the caller.
                unsafe { vst1q_f32(to.add(4 * i), sums) };
            }
        }
    }
}

/// What AVX-512 BF16 does, lane by lane.
#[cfg(test)]
pub(super) struct Emulated;

#[cfg(test)]
mod emulated {
    use half::bf16;

    use super::{Emulated, Vectors};
    use crate::pairs::{LANES, MR};

    /// Subnormal numbers become 0 of their sign.
    fn flush(x: f32) -> f32 {
        if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
    }

    fn add_product(sum: f32, a: bf16, b: bf16) -> f32 {
        flush(flush(a.to_f32()).mul_add(flush(b.to_f32()), flush(sum)))
    }

    // Callers promise that pointers are valid; see `Vectors`.
    impl Vectors for Emulated {
        const ROWS: usize = MR;
        const WIDTH: usize = 2;

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
