//! Element types and the arithmetic that kernels share: conversions, exponential, sums in lanes.
//!
//! Everything here is branch-free and inlined, so that loops over it become vector code under any instruction set.
//!
//! Numbers: bf16 is widened exactly and rounded to nearest, ties to even, NaN kept. `exp` is within 2 units in the last
//!          place between -87.3 and 88.3; soon below it is 0, soon above it is infinite.

use half::bf16;

/// An element type that floating-point tensors are stored in.
pub(crate) trait Element: bytemuck::Pod + Send + Sync {
    /// 0.
    const ZERO: Self;
    /// Its name.
    const DTYPE: tensor::DType;
    /// The value, exactly.
    fn to_f32(self) -> f32;
    /// The nearest value to `x`.
    fn from_f32(x: f32) -> Self;
    /// One of the two values around `x`, up or down by the upper 16 bits of `random`; see [`tensor::ops::rounding`].
    fn from_f32_by_chance(x: f32, random: u32) -> Self;
    /// The same slice, if elements are f32.
    fn as_f32(slice: &[Self]) -> Option<&[f32]>;
    /// The same slice, if elements are bf16.
    fn as_bf16(slice: &[Self]) -> Option<&[bf16]>;
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const DTYPE: tensor::DType = tensor::DType::F32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn from_f32_by_chance(x: f32, _: u32) -> Self {
        x
    }

    #[inline(always)]
    fn as_f32(slice: &[Self]) -> Option<&[f32]> {
        Some(slice)
    }

    #[inline(always)]
    fn as_bf16(_: &[Self]) -> Option<&[bf16]> {
        None
    }
}

impl Element for bf16 {
    const ZERO: Self = Self::ZERO;
    const DTYPE: tensor::DType = tensor::DType::Bf16;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // A NaN keeps its upper half and becomes quiet; rounding could carry it into infinity.
        let nan = (bits >> 16) | 0x40;
        Self::from_bits(if x.is_nan() { nan } else { rounded } as u16)
    }

    #[inline(always)]
    fn from_f32_by_chance(x: f32, random: u32) -> Self {
        let bits = x.to_bits();
        // Infinity has zeros where bits are added, so it stays.
        let rounded = bits.wrapping_add(random >> 16) >> 16;
        let nan = (bits >> 16) | 0x40;
        Self::from_bits(if x.is_nan() { nan } else { rounded } as u16)
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn as_bf16(slice: &[Self]) -> Option<&[bf16]> {
        Some(slice)
    }
}

/// Runs an expression with `$T` standing for the element type that a checked dtype names.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            tensor::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            tensor::DType::I32 | tensor::DType::U8 => unreachable!("the op's check admits floating-point tensors only"),
        }
    };
}
pub(crate) use with_element;

/// `a * b + c`, fused where that is one instruction.
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Lanes of sums that run over a slice; enough for four vectors of 256 bits, whose additions overlap.
pub(crate) const LANES: usize = 32;

/// The sum of all lanes, in a fixed order of halves. Their number is a power of two.
#[inline(always)]
pub(crate) fn sum_lanes<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut width = N / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of products of two slices of one length.
#[inline(always)]
pub(crate) fn dot<const FMA: bool, A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] = mul_add::<FMA>(a[i].to_f32(), b[i].to_f32(), lanes[i]);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] = mul_add::<FMA>(a.to_f32(), b.to_f32(), lanes[i]);
    }
    sum_lanes(lanes)
}

/// The sum of products of three slices of one length.
#[inline(always)]
pub(crate) fn dot3<const FMA: bool, T: Element>(a: &[T], b: &[T], c: &[T]) -> f32 {
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (c_chunks, c_rest) = c.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for ((a, b), c) in a_chunks.iter().zip(b_chunks).zip(c_chunks) {
        for i in 0..LANES {
            lanes[i] = mul_add::<FMA>(a[i].to_f32() * b[i].to_f32(), c[i].to_f32(), lanes[i]);
        }
    }
    for (i, ((a, b), c)) in a_rest.iter().zip(b_rest).zip(c_rest).enumerate() {
        lanes[i] = mul_add::<FMA>(a.to_f32() * b.to_f32(), c.to_f32(), lanes[i]);
    }
    sum_lanes(lanes)
}

/// The largest value of a slice, NaN left out; negative infinity if it is empty.
#[inline(always)]
pub(crate) fn max_of(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max })
}

/// e to the power of `x`.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // The logarithm of 2 in two parts, the first short enough that its product with an integer up to 128 is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Of the polynomial nearest to e^r on |r| <= ln(2) / 2 that is 1 at 0, in the largest relative error: 2e-9.
    const COEFFICIENTS: [f32; 6] = [0.008_374_196, 0.041_668_005, 0.166_664_3, 0.499_999_94, 1.0, 1.0];
    // At these borders the power of two is 0 and infinity. NaN fails both comparisons and passes.
    let x = if x < -88.0 { -88.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -LN2_LOW, mul_add::<FMA>(n, -LN2_HIGH, x));
    let mut p = 0.001_384_360_7;
    for coefficient in COEFFICIENTS {
        p = mul_add::<FMA>(p, r, coefficient);
    }
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

/// Hyperbolic tangent, within 4 units in the last place of 1.
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    // By the exponential small values would lose their relative accuracy; their Taylor series is short.
    let x2 = x * x;
    let mut series = 62.0 / 2835.0;
    for coefficient in [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        series = mul_add::<FMA>(series, x2, coefficient);
    }
    let by_exp = 1.0 - 2.0 / (exp::<FMA>(2.0 * x) + 1.0);
    if x.abs() < 0.25 { x * series } else { by_exp }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(found: f32, exact: f64) -> f64 {
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        (f64::from(found) - exact).abs() / ulp
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for i in 0..2_000_000 {
            let x = -87.2 + 175.4 * (i as f32 / 2e6);
            let exact = f64::from(x).exp();
            assert!(ulps(exp::<false>(x), exact) < 2.0, "exp({x}) = {}, not {exact}", exp::<false>(x));
            assert!(ulps(exp::<true>(x), exact) < 2.0, "exp({x}) = {}, not {exact}", exp::<true>(x));
        }
    }

    #[test]
    fn exp_has_the_right_limits() {
        for (x, y) in [
            (0.0, 1.0),
            (-0.0, 1.0),
            (f32::NEG_INFINITY, 0.0),
            (-1e30, 0.0),
            (-90.0, 0.0),
            (f32::INFINITY, f32::INFINITY),
            (1e30, f32::INFINITY),
        ] {
            assert_eq!(exp::<false>(x), y, "exp({x})");
            assert_eq!(exp::<true>(x), y, "exp({x})");
        }
        assert!(exp::<false>(f32::NAN).is_nan() && exp::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_and_tanh_are_accurate() {
        for i in 0..200_000 {
            let x = -100.0 + i as f32 * 1e-3;
            let exact = 1.0 / (1.0 + f64::from(-x).exp());
            assert!((f64::from(sigmoid::<true>(x)) - exact).abs() < 3e-7, "sigmoid({x})");
            let exact = f64::from(x).tanh();
            assert!((f64::from(tanh::<true>(x)) - exact).abs() < 4e-7, "tanh({x})");
            let small = x * 0.003;
            let exact = f64::from(small).tanh();
            assert!((f64::from(tanh::<false>(small)) - exact).abs() <= 1.5e-6 * exact.abs(), "tanh({small})");
        }
    }

    #[test]
    fn bf16_rounds_as_the_half_crate_does() {
        let special = [0.0, -0.0, 1.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45];
        let patterns = (0..=u32::MAX).step_by(65_521 / 3).map(f32::from_bits);
        let ties = (0..1000u32).map(|i| f32::from_bits(0x3f80_8000 + (i << 15)));
        for x in special.into_iter().chain(patterns).chain(ties) {
            let (ours, theirs) = (<bf16 as Element>::from_f32(x), bf16::from_f32(x));
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{x:e}");
            assert!(x.is_nan() || Element::to_f32(ours) == theirs.to_f32(), "{x:e}");
        }
        for bits in 0..=u16::MAX {
            let x = Element::to_f32(bf16::from_bits(bits));
            assert!(x.is_nan() || <bf16 as Element>::from_f32(x).to_bits() == bits);
        }
    }

    #[test]
    fn sums_and_maxima_see_every_element() {
        for len in [0, 1, 31, 32, 33, 100] {
            let x: Vec<f32> = (0..len).map(|i| i as f32 + 1.0).collect();
            let expected: f32 = x.iter().map(|v| v * v).sum();
            assert_eq!(dot::<false, f32, f32>(&x, &x), expected);
            assert_eq!(dot3::<false, f32>(&x, &vec![1.0; len], &x), expected);
            for at in 0..len {
                let mut y = vec![-2.0; len];
                y[at] = -1.0;
                assert_eq!(max_of(&y), -1.0);
            }
        }
        assert_eq!(max_of(&[]), f32::NEG_INFINITY);
        assert_eq!(max_of(&[f32::NAN, 1.0]), 1.0);
    }
}
