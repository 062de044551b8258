//! Gated linear unit: h = a(gate) * up, with an activation a: SiLU, or GELU by its tanh approximation.
//!
//! ```text
//! silu(x) = x / (1 + exp(-x))
//! gelu(x) = x (1 + tanh(u(x))) / 2    u(x) = sqrt(2 / pi) (x + 0.044715 x^3)
//! ```
//!
//! Shapes:  h, gate, up and their gradients: (T, F).
//! Numbers: storage f32 or bf16; computed in f32, rounded once.
//! Grads:   dgate = dh * up * a'(gate); dup = dh * a(gate); both overwritten.
//!          silu' = s + x s (1 - s) with s = sigmoid(x); gelu' = (1 + t) / 2 + x (1 - t^2) u' / 2 with t = tanh(u).
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Shazeer 2020, arXiv:2002.05202; Hendrycks & Gimpel 2016, arXiv:1606.08415.

use super::{Float, expect_dtype, expect_float, expect_shape};
use crate::{Result, Tensor};

/// What a gate goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x sigmoid(x).
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// sqrt(2 / pi), the slope of u at 0.
pub const GELU_SLOPE: f64 = 0.797_884_560_802_865_4;

/// The factor of x^3 in u.
pub const GELU_CUBE: f64 = 0.044_715;

/// Checks that all tensors have the shape and dtype of `gate`; gives the number of elements.
pub fn check(gate: &Tensor, others: &[(&'static str, &Tensor)]) -> Result<usize> {
    let dtype = expect_float("glu", "gate", gate)?;
    for (name, t) in others {
        expect_shape("glu", name, t, gate.dims())?;
        expect_dtype("glu", name, t, dtype)?;
    }
    Ok(gate.num_elements())
}

impl Activation {
    /// The activation of a gate, and its slope there.
    fn of<T: Float>(self, x: T) -> (T, T) {
        match self {
            Self::Silu => {
                let s = T::ONE / (T::ONE + (-x).exp());
                (x * s, s + x * s * (T::ONE - s))
            }
            Self::GeluTanh => {
                let [half, slope, cube, three] = [0.5, GELU_SLOPE, GELU_CUBE, 3.0].map(T::from_f64);
                let t = (slope * (x + cube * x * x * x)).tanh();
                let of_u = slope * (T::ONE + three * cube * x * x);
                (half * x * (T::ONE + t), half * (T::ONE + t) + half * x * (T::ONE - t * t) * of_u)
            }
        }
    }
}

/// Reference of the forward pass.
pub fn glu_forward<T: Float>(h: &mut [T], gate: &[T], up: &[T], activation: Activation) {
    for i in 0..h.len() {
        h[i] = activation.of(gate[i]).0 * up[i];
    }
}

/// Reference of the backward pass.
pub fn glu_backward<T: Float>(dgate: &mut [T], dup: &mut [T], dh: &[T], gate: &[T], up: &[T], activation: Activation) {
    for i in 0..dh.len() {
        let (activated, slope) = activation.of(gate[i]);
        dgate[i] = dh[i] * up[i] * slope;
        dup[i] = dh[i] * activated;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_by_hand() {
        // PyTorch's silu and gelu(approximate="tanh") of 1 and -2.
        for (activation, expected) in [
            (Activation::Silu, [0.731_058_578_630_005, -0.238_405_844_044_234]),
            (Activation::GeluTanh, [0.841_191_990_607_477, -0.045_402_305_912_225]),
        ] {
            let mut h = [0.0f64; 2];
            glu_forward(&mut h, &[1.0, -2.0], &[1.0, 1.0], activation);
            assert!(h.iter().zip(expected).all(|(h, e)| (h - e).abs() < 1e-12), "{activation:?}: {h:?}");
        }
    }
}
