//! The whole of `pairs` against plain sums, in every build by emulation, and with the instruction where there is one.

use half::bf16;
use tensor::rng::Stream;

use super::vectors::{Emulated, Vectors};
use super::*;

fn isas() -> Vec<Isa> {
    let mut isas: Vec<Isa> = Isa::available().into_iter().filter(|isa| isa.multiplies_pairs()).collect();
    isas.push(Isa::EMULATED_BF16);
    isas
}

/// Small integers, so that sums are exact.
fn integers(len: usize, seed: usize) -> Vec<bf16> {
    (0..len).map(|i| bf16::from_f32(((i * 7919 + seed * 104_729) % 17) as f32 - 8.0)).collect()
}

fn add_products<V: Vectors<Pairs = P, Sums = S>, P, S>(sums: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
    let mut out = [0.0; 16];
    // SAFETY: callers give vectors that the processor has; arrays hold sixteen elements.
    unsafe {
        V::store(
            out.as_mut_ptr(),
            V::add_products(V::load_sums(sums.as_ptr()), V::load(a.as_ptr()), V::load(b.as_ptr())),
        );
    }
    out
}

fn emulated(sum: f32, a: [bf16; 2], b: [bf16; 2]) -> f32 {
    let out = add_products::<Emulated, _, _>(&[sum; 16], &[bytemuck::cast(a); 16], &[bytemuck::cast(b); 16]);
    assert!(out.iter().all(|x| x.to_bits() == out[0].to_bits()));
    out[0]
}

#[test]
fn the_emulation_adds_the_odd_product_first_and_rounds_twice() {
    let of = bf16::from_f32;
    let [zero, one, tiny, large] = [of(0.0), of(1.0), of(2f32.powi(-24)), of(2f32.powi(24))];
    assert_eq!(emulated(0.5, [of(2.0), of(3.0)], [of(5.0), of(7.0)]), 31.5);
    // 2^24 swallows a 1 that is added to it; two together would show.
    assert_eq!(emulated(0.0, [one, large], [one, one]), 2f32.powi(24));
    assert_eq!(emulated(1.0, [large, one], [one, one]), 2f32.powi(24) + 2.0);
    // A half of the last place goes to the even neighbour.
    assert_eq!(emulated(1.0, [tiny, zero], [one, zero]), 1.0);
    assert_eq!(emulated(1.0 + f32::EPSILON, [tiny, zero], [one, zero]), 1.0 + 2.0 * f32::EPSILON);
    // The product itself is not rounded: as an f32 it would be infinite.
    let max = of(2f32.powi(127));
    assert_eq!(emulated(-f32::MAX, [zero, max], [zero, of(2.0)]), 2f32.powi(104));
}

#[test]
fn the_emulation_counts_subnormal_numbers_as_zero() {
    let [zero, one] = [bf16::ZERO, bf16::ONE];
    let subnormal = bf16::from_bits(0x0040);
    assert_eq!(emulated(0.0, [subnormal, zero], [bf16::from_f32(1e30), zero]), 0.0);
    assert_eq!(emulated(1e-40, [zero, zero], [zero, zero]), 0.0);
    let least = bf16::from_f32(f32::MIN_POSITIVE);
    assert_eq!(emulated(0.0, [least, zero], [one, zero]), f32::MIN_POSITIVE);
    assert_eq!(emulated(0.0, [least, zero], [bf16::from_f32(0.5), zero]), 0.0);
    assert!(emulated(-0.0, [least, zero], [bf16::from_f32(-0.5), zero]).is_sign_negative());
    assert!(emulated(f32::NAN, [one, one], [one, one]).is_nan());
    assert!(emulated(0.0, [bf16::INFINITY, one], [zero, one]).is_nan());
}

/// Any bits: every kind of number occurs.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_instruction_does_what_its_emulation_does() {
    if Isa::from_name("avx512bf16").is_err() {
        eprintln!("skipped: this processor has no AVX-512 BF16");
        return;
    }
    #[target_feature(enable = "avx512bf16,avx512f")]
    fn instruction(sums: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
        add_products::<vectors::Avx512Bf16, _, _>(sums, a, b)
    }
    // SAFETY: the instruction set was detected.
    compare(|sums, a, b| unsafe { instruction(sums, a, b) }, add_products::<Emulated, _, _>);
}

/// What `bfdot` is defined to do: both products, exact unless they leave the range, are added, then their sum to the sum before;
/// each addition is rounded to odd, and subnormal operands and results are 0.
#[cfg(target_arch = "aarch64")]
mod bfdot {
    use half::bf16;

    fn flush(x: f32) -> f32 {
        if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
    }

    /// The neighbour towards 0, or `x` itself if its last bit is 1: what rounding to odd makes of a sum that was rounded to `x` from
    /// `x + error`.
    fn to_odd(x: f64, error: f64) -> f64 {
        if error == 0.0 || x.to_bits() & 1 == 1 {
            return x;
        }
        let away = (error > 0.0) == (x > 0.0);
        f64::from_bits(if away { x.to_bits() + 1 } else { x.to_bits() - 1 })
    }

    fn add(a: f32, b: f32) -> f32 {
        let (a, b) = (f64::from(flush(a)), f64::from(flush(b)));
        let sum = a + b;
        if sum == 0.0 || !sum.is_finite() {
            return sum as f32;
        }
        // What the addition in f64 lost, exactly (Knuth's two-sum).
        let of_b = sum - a;
        let odd = to_odd(sum, (a - (sum - of_b)) + (b - of_b));
        // The bits that f32 has not, gathered in the last one that it has.
        const DROPPED: u64 = (1 << 29) - 1;
        let bits = odd.to_bits();
        let sticky = if bits & DROPPED == 0 { 0 } else { 1 << 29 };
        let rounded = f64::from_bits(bits & !DROPPED | sticky);
        if rounded.abs() > f64::from(f32::MAX) { f32::INFINITY.copysign(rounded as f32) } else { flush(rounded as f32) }
    }

    fn multiply(a: bf16, b: bf16) -> f32 {
        flush(flush(a.to_f32()) * flush(b.to_f32()))
    }

    pub(super) fn emulated(sums: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
        std::array::from_fn(|lane| {
            let [a_even, a_odd]: [bf16; 2] = bytemuck::cast(a[lane]);
            let [b_even, b_odd]: [bf16; 2] = bytemuck::cast(b[lane]);
            add(sums[lane], add(multiply(a_even, b_even), multiply(a_odd, b_odd)))
        })
    }
}

/// Any bits: every kind of number occurs.
#[cfg(target_arch = "aarch64")]
#[test]
fn the_instruction_does_what_its_emulation_does() {
    if Isa::from_name("neonbf16").is_err() {
        eprintln!("skipped: this processor has no products of bf16 pairs");
        return;
    }
    #[target_feature(enable = "bf16")]
    fn instruction(sums: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
        add_products::<vectors::NeonBf16, _, _>(sums, a, b)
    }
    // SAFETY: the instruction set was detected.
    compare(|sums, a, b| unsafe { instruction(sums, a, b) }, bfdot::emulated);
}

/// Compares an instruction with its emulation on any bits; half of the rounds near 1, where sums and products meet.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn compare(
    instruction: impl Fn(&[f32; 16], &[u32; 16], &[u32; 16]) -> [f32; 16],
    emulated: impl Fn(&[f32; 16], &[u32; 16], &[u32; 16]) -> [f32; 16],
) {
    let stream = Stream::new(5, 6);
    for round in 0..200_000u64 {
        let words = |part: u64| {
            let four = |i: usize| stream.words(round * 12 + part * 4 + i as u64);
            let all: [[u32; 4]; 4] = std::array::from_fn(four);
            bytemuck::cast::<_, [u32; 16]>(all)
        };
        let (a, b) = (words(0), words(1));
        let near = |bits: u32| if round % 2 == 0 { bits } else { bits & 0x81ff_81ff | 0x3e00_3e00 };
        let (sums, a, b) = (words(2).map(near).map(f32::from_bits), a.map(near), b.map(near));
        let (found, expected) = (instruction(&sums, &a, &b), emulated(&sums, &a, &b));
        for lane in 0..16 {
            let same =
                found[lane].to_bits() == expected[lane].to_bits() || found[lane].is_nan() && expected[lane].is_nan();
            assert!(
                same,
                "{:e} + {:08x} * {:08x}: {:e}, not {:e}",
                sums[lane], a[lane], b[lane], found[lane], expected[lane]
            );
        }
    }
}

/// Whether a packed factor holds `at(term, i)` in groups of W, and zeros elsewhere.
fn check_packed<const W: usize>(packed: &[u32], (len, width): (usize, usize), at: impl Fn(usize, usize) -> bf16) {
    let pairs = len.div_ceil(2);
    assert_eq!(packed.len(), pairs * width.next_multiple_of(W));
    for (index, &pair) in packed.iter().enumerate() {
        let (p, i) = (index / W % pairs, index / W / pairs * W + index % W);
        let of = |term: usize| if term < len && i < width { at(term, i) } else { bf16::ZERO };
        assert_eq!(bytemuck::cast::<_, [bf16; 2]>(pair), [of(2 * p), of(2 * p + 1)], "pair {p} of {i}");
    }
}

#[test]
fn strips_and_panels_hold_every_pair_and_zeros() {
    let mut isas = isas();
    isas.extend(Isa::available());
    for isa in isas {
        for len in [1usize, 2, 7, 16, 17, 33, 40] {
            for width in [1usize, 13, 14, 15, 28, 31, 32, 33, 70] {
                let stride = len.max(width) + 3;
                let src: Vec<bf16> =
                    (0..stride * len.max(width)).map(|i| bf16::from_f32((i % 251) as f32 + 1.0)).collect();
                let mut strips = vec![u32::MAX; len.div_ceil(2) * width.next_multiple_of(MR)];
                strips_of_columns(isa, &mut strips, &src, stride, (len, width));
                check_packed::<MR>(&strips, (len, width), |term, i| src[term * stride + i]);
                strips_of_rows(isa, &mut strips, &src, stride, (len, width));
                check_packed::<MR>(&strips, (len, width), |term, i| src[i * stride + term]);
                let mut panels = vec![u32::MAX; len.div_ceil(2) * width.next_multiple_of(NR)];
                panels_of_rows(isa, &mut panels, &src, stride, (len, width));
                check_packed::<NR>(&panels, (len, width), |term, i| src[term * stride + i]);
                panels_of_columns(isa, &mut panels, &src, stride, (len, width));
                check_packed::<NR>(&panels, (len, width), |term, i| src[i * stride + term]);
            }
        }
    }
}

#[test]
fn products_are_exact_on_small_integers() {
    for isa in isas() {
        for m in [0, 1, 2, 13, 14, 15, 27, 28, 31, 33] {
            for (n, k) in [(16, 1), (16, 2), (32, 3), (48, 0), (48, 20), (64, 37), (0, 2)] {
                let (a, b) = (integers(m * k, 1), integers(k * n, 2));
                let pairs = k.div_ceil(2);
                let mut strips = vec![0; pairs * m.next_multiple_of(MR)];
                strips_of_rows(isa, &mut strips, &a, k, (k, m));
                let mut panels = vec![0; pairs * n.next_multiple_of(NR)];
                panels_of_rows(isa, &mut panels, &b, n, (k, n));
                let (a_packed, b_packed) =
                    (Packed { data: &strips, stride: pairs * MR }, Packed { data: &panels, stride: pairs * NR });
                let stride = n + 3;
                let start: Vec<f32> = (0..m * stride).map(|i| (i % 23) as f32).collect();
                let product = |at: usize| -> f32 {
                    (0..k).map(|p| a[at / stride * k + p].to_f32() * b[p * n + at % stride].to_f32()).sum()
                };
                for accumulate in [false, true] {
                    let mut c = start.clone();
                    multiply(isa, (m, n, pairs), a_packed, b_packed, &mut c, stride, accumulate);
                    for at in 0..c.len() {
                        let before = if accumulate || at % stride >= n { start[at] } else { 0.0 };
                        let expected = before + if at % stride < n { product(at) } else { 0.0 };
                        assert_eq!(c[at], expected, "{isa} {m} {n} {k} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "b lies inside of its slice")]
fn a_block_outside_of_its_slice_is_refused() {
    let (a, b, mut c) = ([0; 3 * MR], [0; 3 * NR - 1], [0.0; 64]);
    let (a, b) = (Packed { data: &a, stride: 3 * MR }, Packed { data: &b, stride: 3 * NR });
    multiply(Isa::EMULATED_BF16, (4, 16, 3), a, b, &mut c, 16, false);
}
