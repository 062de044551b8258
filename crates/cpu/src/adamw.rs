//! AdamW: one pass over parameter, moments and gradient.
//!
//! Numbers: factors are computed in f64 and rounded to f32; the update is computed in f32 and each stored value rounded once.

use tensor::ops::adamw::{AdamWStep, check};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, with_element};

/// The numbers of a step as the loop uses them.
#[derive(Clone, Copy)]
struct Factors {
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
    fn new(step: &AdamWStep) -> Self {
        let AdamWStep { lr, beta1, beta2, eps, weight_decay, step, grad_scale } = *step;
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
}

per_isa! {
    fn update<const FMA: bool, T: Element, G: Element>(
        param: &mut [T],
        exp_avg: &mut [T],
        exp_avg_sq: &mut [T],
        grad: &[G],
        f: Factors,
    ) {
        for (((p, m), v), g) in param.iter_mut().zip(exp_avg).zip(exp_avg_sq).zip(grad) {
            let g = f.grad_scale * g.to_f32();
            let mean = f.beta1 * m.to_f32() + f.one_minus_beta1 * g;
            let mean_sq = f.beta2 * v.to_f32() + f.one_minus_beta2 * g * g;
            let denominator = mean_sq.sqrt() / f.root_correction2 + f.eps;
            *p = T::from_f32(f.decay * p.to_f32() - f.step_size * mean / denominator);
            *m = T::from_f32(mean);
            *v = T::from_f32(mean_sq);
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
    let factors = Factors::new(step);
    with_element!(param.dtype(), T => with_element!(grad.dtype(), G => {
        let grad = Read::<G>::of(grad)?;
        let (mut param, mut exp_avg) = (Write::<T>::of(param)?, Write::<T>::of(exp_avg)?);
        let mut exp_avg_sq = Write::<T>::of(exp_avg_sq)?;
        let outputs = (Rows::new(&mut param, 1), Rows::new(&mut exp_avg, 1), Rows::new(&mut exp_avg_sq, 1));
        backend.crew.run_elements(len, outputs, |part, (param, exp_avg, exp_avg_sq)| {
            update(backend.isa, param, exp_avg, exp_avg_sq, &grad[part], factors);
        });
    }));
    Ok(())
}
