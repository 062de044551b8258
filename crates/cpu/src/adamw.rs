//! AdamW: one pass over parameter, moments and gradient.
//!
//! Numbers: factors are computed in f64 and rounded to f32; the update is computed in f32 and each stored value rounded once, the
//!          parameter as the step says.

use tensor::ops::adamw::{AdamWStep, check};
use tensor::ops::rounding::Rounding;
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, with_element};
use crate::rounding::{Round, ToNearest, of_dtype};

/// The numbers of a step as the loop uses them.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    grad_scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    decay: f32,
    step_size: f32,
    root_correction2: f32,
    eps: f32,
}

impl Factors {
    pub(crate) fn new(step: &AdamWStep) -> Self {
        let AdamWStep { lr, beta1, beta2, eps, weight_decay, step, grad_scale, rounding: _ } = *step;
        let [correction1, correction2] = [beta1, beta2].map(|beta| 1.0 - beta.powf(step as f64));
        Self {
            grad_scale,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            decay: (1.0 - lr * weight_decay) as f32,
            step_size: (lr / correction1) as f32,
            root_correction2: correction2.sqrt() as f32,
            eps: eps as f32,
        }
    }

    /// Parameter, mean and mean square after the update.
    #[inline(always)]
    pub(crate) fn update(&self, p: f32, m: f32, v: f32, g: f32) -> (f32, f32, f32) {
        let g = self.grad_scale * g;
        let mean = self.beta1 * m + self.one_minus_beta1 * g;
        let mean_sq = self.beta2 * v + self.one_minus_beta2 * g * g;
        let denominator = mean_sq.sqrt() / self.root_correction2 + self.eps;
        (self.decay * p - self.step_size * mean / denominator, mean, mean_sq)
    }
}

per_isa! {
    fn update<const FMA: bool, T: Element, S: Element, G: Element, R: Round>(
        param: &mut [T],
        exp_avg: &mut [S],
        exp_avg_sq: &mut [S],
        grad: &[G],
        f: Factors,
        round: R,
    ) {
        let elements = param.iter_mut().zip(exp_avg).zip(exp_avg_sq).zip(grad);
        for (index, (((p, m), v), g)) in (0u32..).zip(elements) {
            let (updated, mean, mean_sq) = f.update(p.to_f32(), m.to_f32(), v.to_f32(), g.to_f32());
            *p = round.round(updated, index);
            *m = S::from_f32(mean);
            *v = S::from_f32(mean_sq);
        }
    }
}

/// One update in place.
pub(crate) fn step(
    backend: &CpuBackend,
    param: &mut Tensor,
    exp_avg: &mut Tensor,
    exp_avg_sq: &mut Tensor,
    grad: &Tensor,
    step: &AdamWStep,
) -> Result<()> {
    let len = check(param, exp_avg, exp_avg_sq, grad)?;
    let (isa, f, rounding) = (backend.isa, Factors::new(step), of_dtype(step.rounding, param.dtype()));
    with_element!(param.dtype(), T => with_element!(exp_avg.dtype(), S => with_element!(grad.dtype(), G => {
        let grad = Read::<G>::of(grad)?;
        let (mut param, mut exp_avg) = (Write::<T>::of(param)?, Write::<S>::of(exp_avg)?);
        let mut exp_avg_sq = Write::<S>::of(exp_avg_sq)?;
        let outputs = (Rows::new(&mut param, 1), Rows::new(&mut exp_avg, 1), Rows::new(&mut exp_avg_sq, 1));
        backend.crew.run_elements(len, outputs, |part, (param, m, v)| match rounding {
            Rounding::Nearest => update(isa, param, m, v, &grad[part], f, ToNearest),
            Rounding::Stochastic(bits) => {
                for (range, bits) in bits.stretches(part.start, part.len()) {
                    let grad = &grad[part.start + range.start..part.start + range.end];
                    let (m, v) = (&mut m[range.clone()], &mut v[range.clone()]);
                    update(isa, &mut param[range], m, v, grad, f, bits);
                }
            }
        });
    })));
    Ok(())
}
