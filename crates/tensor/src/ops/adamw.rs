//! AdamW: Adam with decoupled weight decay.
//!
//! With g = grad_scale * grad, bias corrections c1 = 1 - beta1^step, c2 = 1 - beta2^step:
//!   p *= 1 - lr * weight_decay
//!   m  = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
//!   p -= (lr / c1) * m / (sqrt(v) / sqrt(c2) + eps)
//!
//! Shapes:  param, exp_avg (m), exp_avg_sq (v), grad: one shape.
//! Numbers: both states have the parameter's dtype, or both f32; grad the parameter's or f32; computed in f32, each stored value
//!          rounded once: the parameter as the update says, moments to nearest, after it used them unrounded.
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Loshchilov & Hutter 2019, arXiv:1711.05101; defaults and order of operations as PyTorch's.

use super::rounding::Rounding;
use super::{Float, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{Result, Tensor};

/// Numbers of one update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Which update this is, from 1.
    pub step: u64,
    /// Factor on the gradient, for clipping.
    pub grad_scale: f32,
    /// How the parameter is rounded.
    pub rounding: Rounding,
}

impl AdamWStep {
    /// The first update with PyTorch's numbers but no decay, rounded to nearest.
    pub const FIRST: Self = Self {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        step: 1,
        grad_scale: 1.0,
        rounding: Rounding::Nearest,
    };
}

/// Checks an update; gives the number of elements.
pub fn check(param: &Tensor, exp_avg: &Tensor, exp_avg_sq: &Tensor, grad: &Tensor) -> Result<usize> {
    let op = "adamw_step";
    let dtype = expect_float(op, "param", param)?;
    for (name, t) in [("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)] {
        expect_shape(op, name, t, param.dims())?;
        expect_dtype_or_f32(op, name, t, dtype)?;
    }
    expect_dtype(op, "exp_avg_sq", exp_avg_sq, exp_avg.dtype())?;
    expect_shape(op, "grad", grad, param.dims())?;
    expect_dtype_or_f32(op, "grad", grad, dtype)?;
    Ok(param.num_elements())
}

/// Reference of one update, before anything is rounded.
pub fn adamw_step<T: Float>(param: &mut [T], exp_avg: &mut [T], exp_avg_sq: &mut [T], grad: &[T], step: &AdamWStep) {
    let AdamWStep { lr, beta1, beta2, eps, weight_decay, step, grad_scale, rounding: _ } = *step;
    let [correction1, correction2] = [beta1, beta2].map(|beta| 1.0 - beta.powf(step as f64));
    let number = T::from_f64;
    for i in 0..param.len() {
        let g = number(f64::from(grad_scale)) * grad[i];
        let m = number(beta1) * exp_avg[i] + number(1.0 - beta1) * g;
        let v = number(beta2) * exp_avg_sq[i] + number(1.0 - beta2) * g * g;
        let denominator = v.sqrt() / number(correction2.sqrt()) + number(eps);
        param[i] = param[i] * number(1.0 - lr * weight_decay) - number(lr / correction1) * m / denominator;
        (exp_avg[i], exp_avg_sq[i]) = (m, v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: AdamWStep = AdamWStep { lr: 0.1, eps: 0.0, ..AdamWStep::FIRST };

    #[test]
    fn the_first_update_moves_by_the_learning_rate_against_the_gradients_sign() {
        let (mut p, mut m, mut v) = ([1.0, 1.0], [0.0; 2], [0.0; 2]);
        adamw_step(&mut p, &mut m, &mut v, &[1e-3, -50.0], &STEP);
        assert!((p[0] - 0.9f64).abs() < 1e-12 && (p[1] - 1.1).abs() < 1e-12, "{p:?}");
        assert!((m[1] + 5.0).abs() < 1e-12 && (v[1] - 2.5).abs() < 1e-12, "{m:?} {v:?}");
    }

    #[test]
    fn weight_decay_shrinks_the_parameter_and_leaves_the_moments() {
        let (mut p, mut m, mut v) = ([2.0], [0.0], [0.0]);
        let step = AdamWStep { weight_decay: 0.5, eps: 1e-8, ..STEP };
        adamw_step(&mut p, &mut m, &mut v, &[0.0], &step);
        assert_eq!((p, m, v), ([1.9f64], [0.0], [0.0]));
    }

    #[test]
    fn the_second_update_by_hand() {
        // Gradients 1, then 3 given as 6 with grad_scale 1/2. m: 0.1, 0.39; v: 0.001, 0.009999.
        let (mut p, mut m, mut v) = ([1.0], [0.0], [0.0]);
        adamw_step(&mut p, &mut m, &mut v, &[1.0], &STEP);
        adamw_step(&mut p, &mut m, &mut v, &[6.0], &AdamWStep { step: 2, grad_scale: 0.5, eps: 1.0, ..STEP });
        let expected = 0.9 - 0.1 * (0.39 / 0.19) / ((0.009999f64 / 0.001999).sqrt() + 1.0);
        assert!((p[0] - expected).abs() < 1e-12, "{p:?} {expected}");
    }
}
