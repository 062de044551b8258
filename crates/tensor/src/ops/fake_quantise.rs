//! Fake quantisation: numbers become the nearest ones that a few bits can hold, in the dtype that they came in, so that a model in
//! training meets the errors of the quantised one.
//!
//! ```text
//! rows, 8 bits:              lo = min(x, 0), hi = max(x, 0);  s = max((hi - lo) / 255, 2^-23);  a = -128 - lo / s, b = 127 - hi / s
//!                            z = a if -128 + lo / s + 127 + hi / s > 0, else b, rounded within -128..127
//!                            y = (clamp(round(x / s) + z, -128, 127) - z) s
//! groups, 4 bits around 0:   s = max(max |w| / 7.5, 2^-23);  y = clamp(round(w / s), -8, 7) s
//! groups, 4 bits from b on:  s = max((max w - min w) / 15, 10^-6), b = min w + 8 s, both then in bf16;  m = b - 8 s in bf16
//!                            y = (clamp(round((w - m) / s), 0, 15) - 8) s + b
//! ```
//!
//! Shapes:  x, y: (M, K), a row is quantised by itself; w, y: (N, K), and G elements of a row are, where G divides K.
//! Numbers: storage f32 or bf16. Rows, and groups around 0: s and z are rounded to the dtype step by step, x / s is x * (1 / s) in
//!          f32, and so is the rest; y is rounded once. Groups with an offset: every step is rounded to the dtype. Ties go to even.
//!          A row or group with a number that is not finite becomes NaN.
//! Grads:   straight through: the gradient of an input is that of its output. The reference masks it by whether codes are in range,
//!          but looks at codes that have been clamped, so nothing is masked; here neither.
//! Errors:  `Error::Shape` if the shapes differ or groups do not divide rows, `Error::DType`.
//! Source:  Jacob et al. 2018, arXiv:1712.05877, section 3; the formulas of torchao 0.9, whose bits these are.
//! Checked: `cpu/tests/golden.rs`.

use super::{expect_2d, expect_dtype, expect_float, expect_shape};
use crate::{DType, Error, Result, Tensor};

/// What is quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Activations in 8 bits by rows, weights in 4 bits around 0.
    Int8Int4,
    /// Weights alone, in 4 bits with an offset.
    Int4,
}

/// How a linear layer is quantised for show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FakeQuant {
    /// What is quantised.
    pub scheme: Scheme,
    /// G: weights of a row that share a scale; at least 2.
    pub group_size: usize,
}

impl FakeQuant {
    /// Whether inputs of layers are quantised too.
    pub const fn rounds_inputs(self) -> bool {
        matches!(self.scheme, Scheme::Int8Int4)
    }
}

/// Checks rows: (M, K).
pub fn check_rows(y: &Tensor, x: &Tensor) -> Result<(usize, usize)> {
    let op = "fake_quantise_rows";
    let (rows, width) = expect_2d(op, "x", x)?;
    let dtype = expect_float(op, "x", x)?;
    expect_shape(op, "y", y, &[rows, width])?;
    expect_dtype(op, "y", y, dtype)?;
    Ok((rows, width))
}

/// Checks groups: (N, K).
pub fn check_groups(y: &Tensor, w: &Tensor, quant: FakeQuant) -> Result<(usize, usize)> {
    let op = "fake_quantise_groups";
    let (rows, width) = expect_2d(op, "w", w)?;
    let dtype = expect_float(op, "w", w)?;
    let size = quant.group_size;
    if size < 2 || width % size != 0 {
        let expected = format!("two dimensions, the second a multiple of the group size {size}");
        return Err(Error::Shape { op, name: "w", expected, found: w.shape() });
    }
    expect_shape(op, "y", y, &[rows, width])?;
    expect_dtype(op, "y", y, dtype)?;
    Ok((rows, width))
}

/// The larger of a scale and a bound; NaN stays.
fn at_least(least: f32, scale: f32) -> f32 {
    if scale < least { least } else { scale }
}

/// How a row is held in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowCode {
    /// The step from one code to the next.
    pub scale: f32,
    /// What numbers are multiplied by.
    pub inverse: f32,
    /// The code of 0.
    pub zero: f32,
}

impl RowCode {
    /// The code of numbers from `lo` to `hi`, with 0 between them; NaN if a number is not finite.
    #[inline]
    pub fn new(lo: f32, hi: f32, round: impl Fn(f32) -> f32) -> Self {
        let scale = at_least(f32::EPSILON, round(round(hi - lo) / 255.0));
        let (low, high) = (round(lo / scale), round(hi / scale));
        let low_end_errs_less = round(round(-128.0 + low) + round(127.0 + high)) > 0.0;
        let zero = if low_end_errs_less { round(-128.0 - low) } else { round(127.0 - high) };
        Self { scale, inverse: 1.0 / scale, zero: zero.clamp(-128.0, 127.0).round_ties_even() }
    }
}

/// The largest magnitude of a group to its scale around 0.
#[inline]
pub fn symmetric_scale(absmax: f32, round: impl Fn(f32) -> f32) -> f32 {
    at_least(f32::EPSILON, round(absmax / 7.5))
}

/// How a group is held in 4 bits with an offset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OffsetCode {
    /// The step from one code to the next.
    pub scale: f32,
    /// What the code 8 stands for.
    pub middle: f32,
    /// What the code 0 stands for, as it is subtracted.
    pub low: f32,
}

impl OffsetCode {
    /// The code of numbers from `lo` to `hi`; NaN if a number is not finite.
    #[inline]
    pub fn new(lo: f32, hi: f32, round: impl Fn(f32) -> f32) -> Self {
        let bf16 = DType::Bf16.rounding();
        let scale = at_least(round(1e-6), round(round(hi - lo) / 15.0));
        let middle = bf16(round(lo + round(scale * 8.0)));
        let scale = bf16(scale);
        Self { scale, middle, low: bf16(middle - bf16(scale * 8.0)) }
    }
}

/// The least and the largest of some numbers; NaN if one is not finite.
fn range(x: &[f32]) -> (f32, f32) {
    if x.iter().any(|x| !x.is_finite()) {
        return (f32::NAN, f32::NAN);
    }
    (x.iter().copied().fold(f32::INFINITY, f32::min), x.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

/// The nearest integer, 0 without a sign.
fn nearest(x: f32) -> f32 {
    x.round_ties_even() + 0.0
}

/// Reference of rows.
pub fn fake_quantise_rows(y: &mut [f32], x: &[f32], width: usize, round: fn(f32) -> f32) {
    let width = width.max(1);
    for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
        let (lo, hi) = range(x);
        let including_zero = |end: f32, of: f32| if end.is_nan() { end } else { of };
        let code = RowCode::new(including_zero(lo, lo.min(0.0)), including_zero(hi, hi.max(0.0)), round);
        for (y, x) in y.iter_mut().zip(x) {
            let q = (nearest(x * code.inverse) + code.zero).clamp(-128.0, 127.0);
            *y = round((q - code.zero) * code.scale);
        }
    }
}

/// Reference of groups.
pub fn fake_quantise_groups(y: &mut [f32], w: &[f32], quant: FakeQuant, round: fn(f32) -> f32) {
    for (y, w) in y.chunks_exact_mut(quant.group_size).zip(w.chunks_exact(quant.group_size)) {
        let (lo, hi) = range(w);
        match quant.scheme {
            Scheme::Int8Int4 => {
                let scale = symmetric_scale(if hi < -lo { -lo } else { hi }, round);
                for (y, w) in y.iter_mut().zip(w) {
                    *y = round(nearest(w * (1.0 / scale)).clamp(-8.0, 7.0) * scale);
                }
            }
            Scheme::Int4 => {
                let OffsetCode { scale, middle, low } = OffsetCode::new(lo, hi, round);
                for (y, w) in y.iter_mut().zip(w) {
                    let q = nearest(round(round(w - low) / scale)).clamp(0.0, 15.0);
                    *y = round(round((q - 8.0) * scale) + middle);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AROUND_ZERO: FakeQuant = FakeQuant { scheme: Scheme::Int8Int4, group_size: 4 };
    const WITH_OFFSET: FakeQuant = FakeQuant { scheme: Scheme::Int4, group_size: 4 };

    fn groups(w: &[f32], quant: FakeQuant) -> Vec<f32> {
        let mut y = vec![0.0; w.len()];
        fake_quantise_groups(&mut y, w, quant, DType::F32.rounding());
        y
    }

    fn row(x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        fake_quantise_rows(&mut y, x, x.len(), DType::F32.rounding());
        y
    }

    #[test]
    fn groups_around_zero_reach_from_minus_eight_to_seven_steps() {
        // A step of 1; half steps go to even, and 7.5 is out of reach.
        assert_eq!(groups(&[7.5, -7.5, 0.5, 1.5], AROUND_ZERO), [7.0, -8.0, 0.0, 2.0]);
        assert_eq!(groups(&[0.0, -0.0, 0.0, 0.0], AROUND_ZERO), [0.0; 4]);
        assert!(groups(&[-0.1, 7.5, 0.0, 0.0], AROUND_ZERO)[0].is_sign_positive());
    }

    #[test]
    fn groups_with_an_offset_hold_both_ends() {
        assert_eq!(groups(&[1.0, 16.0, 2.4, 8.5], WITH_OFFSET), [1.0, 16.0, 2.0, 9.0]);
    }

    #[test]
    fn rows_hold_zero_and_reach_to_both_ends() {
        assert_eq!(row(&[0.0, 255.0, 1.4, 126.5]), [0.0, 255.0, 1.0, 126.0]);
        assert_eq!(row(&[-255.0, -3.6]), [-255.0, -4.0]);
        assert_eq!(row(&[5.0]), [5.0]);
        assert_eq!(row(&[0.0, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn what_is_not_finite_spoils_its_row_or_group_alone() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(row(&[1.0, bad, 2.0]).iter().all(|y| y.is_nan()), "{bad}");
            for quant in [AROUND_ZERO, WITH_OFFSET] {
                let y = groups(&[1.0, bad, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0], quant);
                assert!(y[..4].iter().all(|y| y.is_nan()) && y[4..].iter().all(|y| y.is_finite()), "{bad}: {y:?}");
            }
        }
    }
}
