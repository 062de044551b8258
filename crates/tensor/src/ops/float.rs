//! The numbers that references compute with: f32 or f64.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// A floating-point type that a naive reference can run in.
///
/// Gradient checks run references in f64, where finite differences are sharp; f32 shows what a plain loop makes of the
/// same formula.
pub trait Float:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Sum
    + Send
    + Sync
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Below every number.
    const NEG_INFINITY: Self;

    /// The nearest value to `x`.
    fn from_f64(x: f64) -> Self;
    /// The value in f64, exactly.
    fn to_f64(self) -> f64;
    /// e to the power of the value.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine of an angle in radians.
    fn sin(self) -> Self;
    /// Cosine of an angle in radians.
    fn cos(self) -> Self;
    /// The larger of two values; the other one if one is NaN.
    fn max(self, other: Self) -> Self;
}

macro_rules! impl_float {
    ($float:ident) => {
        impl Float for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $float::NEG_INFINITY;

            fn from_f64(x: f64) -> Self {
                x as $float
            }
            fn to_f64(self) -> f64 {
                self.into()
            }
            fn exp(self) -> Self {
                $float::exp(self)
            }
            fn ln(self) -> Self {
                $float::ln(self)
            }
            fn sqrt(self) -> Self {
                $float::sqrt(self)
            }
            fn tanh(self) -> Self {
                $float::tanh(self)
            }
            fn sin(self) -> Self {
                $float::sin(self)
            }
            fn cos(self) -> Self {
                $float::cos(self)
            }
            fn max(self, other: Self) -> Self {
                $float::max(self, other)
            }
        }
    };
}

impl_float!(f32);
impl_float!(f64);

/// The sum of products of two rows of one length.
pub(crate) fn dot<T: Float>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

/// `y += factor * x`, row by row.
pub(crate) fn add_scaled<T: Float>(y: &mut [T], factor: T, x: &[T]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}
