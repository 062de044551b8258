//! Stochastic gradient descent with optional momentum.
//!
//! With g = grad_scale * grad (negated when `maximize`), plus weight_decay * p:
//!   no momentum: p -= lr * g
//!   momentum:    b = g on the first update, else momentum * b + (1 - dampening) * g;
//!                p -= lr * (g + momentum * b if nesterov, else b)
//!
//! Shapes:  param, momentum_buffer (b), grad: one shape.
//! Numbers: param and buffer have one dtype; grad that or f32; computed in f32, rounded once: the parameter as the update says, the
//!          buffer to nearest.
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Sutskever et al. 2013; order of operations and defaults as PyTorch's.

use super::rounding::Rounding;
use super::{Float, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{Result, Tensor};

/// Numbers of one update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the momentum buffer; 0 = none.
    pub momentum: f64,
    /// Part of the gradient kept out of the buffer.
    pub dampening: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Climb instead of descend.
    pub maximize: bool,
    /// Whether this is the parameter's first update, which starts the buffer.
    pub first: bool,
    /// Factor on the gradient, for clipping.
    pub grad_scale: f32,
    /// How the parameter is rounded.
    pub rounding: Rounding,
}

/// Checks an update; gives the number of elements.
pub fn check(param: &Tensor, momentum_buffer: Option<&Tensor>, grad: &Tensor) -> Result<usize> {
    let op = "sgd_step";
    let dtype = expect_float(op, "param", param)?;
    if let Some(buffer) = momentum_buffer {
        expect_shape(op, "momentum_buffer", buffer, param.dims())?;
        expect_dtype(op, "momentum_buffer", buffer, dtype)?;
    }
    expect_shape(op, "grad", grad, param.dims())?;
    expect_dtype_or_f32(op, "grad", grad, dtype)?;
    Ok(param.num_elements())
}

/// Reference of one update, before anything is rounded; without a buffer it takes no momentum.
pub fn sgd_step<T: Float>(param: &mut [T], mut momentum_buffer: Option<&mut [T]>, grad: &[T], step: &SgdStep) {
    let number = T::from_f64;
    let sign = if step.maximize { -1.0 } else { 1.0 };
    for i in 0..param.len() {
        let g = number(sign * f64::from(step.grad_scale)) * grad[i] + number(step.weight_decay) * param[i];
        let direction = match &mut momentum_buffer {
            None => g,
            Some(buffer) => {
                let kept = number(step.momentum) * buffer[i] + number(1.0 - step.dampening) * g;
                buffer[i] = if step.first { g } else { kept };
                if step.nesterov { g + number(step.momentum) * buffer[i] } else { buffer[i] }
            }
        };
        param[i] -= number(step.lr) * direction;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: SgdStep = SgdStep {
        lr: 0.5,
        momentum: 0.0,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        maximize: false,
        first: false,
        grad_scale: 1.0,
        rounding: Rounding::Nearest,
    };

    /// The parameter after two updates by gradients 2 and 4, from 8.
    fn after_two(step: SgdStep) -> f64 {
        let (mut p, mut b) = ([8.0], [f64::NAN]);
        for (first, grad) in [(true, 2.0), (false, 4.0)] {
            let buffer = (step.momentum != 0.0).then_some(&mut b[..]);
            sgd_step(&mut p, buffer, &[grad], &SgdStep { first, ..step });
        }
        p[0]
    }

    #[test]
    fn updates_by_hand() {
        let momentum = SgdStep { momentum: 0.5, ..STEP };
        // p: 8 - 1 = 7, 7 - 2 = 5.
        assert_eq!(after_two(STEP), 5.0);
        assert_eq!(after_two(SgdStep { maximize: true, ..STEP }), 11.0);
        assert_eq!(after_two(SgdStep { grad_scale: 2.0, ..STEP }), 2.0);
        // g: 2 + 0.25 * 8 = 4, p 6; 4 + 0.25 * 6 = 5.5, p 3.25.
        assert_eq!(after_two(SgdStep { weight_decay: 0.25, ..STEP }), 3.25);
        // b: 2, p 7; 0.5 * 2 + 4 = 5, p 4.5.
        assert_eq!(after_two(momentum), 4.5);
        // b: 2, p 7; 0.5 * 2 + 0.75 * 4 = 4, p 5: dampening spares the first gradient.
        assert_eq!(after_two(SgdStep { dampening: 0.25, ..momentum }), 5.0);
        // b: 2, p 8 - 0.5 * (2 + 1) = 6.5; b 5, p 6.5 - 0.5 * (4 + 2.5) = 3.25.
        assert_eq!(after_two(SgdStep { nesterov: true, ..momentum }), 3.25);
    }
}
