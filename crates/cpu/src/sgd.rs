//! Stochastic gradient descent with optional momentum: one pass over parameter, buffer and gradient.
//!
//! Numbers: factors are computed in f64 and rounded to f32; the update is computed in f32 and each stored value rounded once, the
//!          parameter as the step says.

use tensor::ops::rounding::Rounding;
use tensor::ops::sgd::{SgdStep, check};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::{Isa, per_isa};
use crate::numbers::{Element, with_element};
use crate::rounding::{Round, ToNearest, of_dtype};

/// The numbers of a step as the loop uses them.
#[derive(Clone, Copy)]
struct Factors {
    lr: f32,
    /// With the sign of the direction.
    grad_scale: f32,
    weight_decay: f32,
    /// Of the old buffer in the new one, 0 on the first update.
    kept: f32,
    /// Of the gradient in the new buffer, 1 on the first update.
    added: f32,
    /// Of the gradient in the direction of the step.
    of_gradient: f32,
    /// Of the buffer in the direction of the step.
    of_buffer: f32,
    /// Whether the buffer holds nothing yet.
    is_first: bool,
}

impl Factors {
    fn new(step: &SgdStep) -> Self {
        let (kept, added) = if step.first { (0.0, 1.0) } else { (step.momentum, 1.0 - step.dampening) };
        let (of_gradient, of_buffer) = if step.nesterov { (1.0, step.momentum) } else { (0.0, 1.0) };
        Self {
            lr: step.lr as f32,
            grad_scale: if step.maximize { -step.grad_scale } else { step.grad_scale },
            weight_decay: step.weight_decay as f32,
            kept: kept as f32,
            added: added as f32,
            of_gradient,
            of_buffer: of_buffer as f32,
            is_first: step.first,
        }
    }
}

per_isa! {
    fn update_plain<const FMA: bool, T: Element, G: Element, R: Round>(
        param: &mut [T],
        grad: &[G],
        f: Factors,
        round: R,
    ) {
        for (index, (p, g)) in (0u32..).zip(param.iter_mut().zip(grad)) {
            let p_wide = p.to_f32();
            let g = f.grad_scale * g.to_f32() + f.weight_decay * p_wide;
            *p = round.round(p_wide - f.lr * g, index);
        }
    }
}

per_isa! {
    fn update_with_momentum<const FMA: bool, T: Element, G: Element, R: Round>(
        param: &mut [T],
        buffer: &mut [T],
        grad: &[G],
        f: Factors,
        round: R,
    ) {
        for (index, ((p, b), g)) in (0u32..).zip(param.iter_mut().zip(buffer).zip(grad)) {
            let p_wide = p.to_f32();
            let g = f.grad_scale * g.to_f32() + f.weight_decay * p_wide;
            // What the buffer holds before the first update counts for nothing, even NaN.
            let old = if f.is_first { 0.0 } else { b.to_f32() };
            let momentum = f.kept * old + f.added * g;
            *p = round.round(p_wide - f.lr * (f.of_gradient * g + f.of_buffer * momentum), index);
            *b = T::from_f32(momentum);
        }
    }
}

/// One update in place.
pub(crate) fn step(
    backend: &CpuBackend,
    param: &mut Tensor,
    momentum_buffer: Option<&mut Tensor>,
    grad: &Tensor,
    step: &SgdStep,
) -> Result<()> {
    let len = check(param, momentum_buffer.as_deref(), grad)?;
    let (isa, f, rounding) = (backend.isa, Factors::new(step), of_dtype(step.rounding, param.dtype()));
    with_element!(param.dtype(), T => with_element!(grad.dtype(), G => {
        let grad = Read::<G>::of(grad)?;
        let mut param = Write::<T>::of(param)?;
        let mut buffer = momentum_buffer.map(Write::<T>::of).transpose()?;
        let outputs = (Rows::new(&mut param, 1), buffer.as_mut().map(|buffer| Rows::new(buffer, 1)));
        backend.crew.run_elements(len, outputs, |part, (param, buffer)| match rounding {
            Rounding::Nearest => update(isa, param, buffer, &grad[part], f, ToNearest),
            Rounding::Stochastic(bits) => {
                let mut buffer = buffer;
                for (range, bits) in bits.stretches(part.start, part.len()) {
                    let grad = &grad[part.start + range.start..part.start + range.end];
                    let buffer = buffer.as_deref_mut().map(|buffer| &mut buffer[range.clone()]);
                    update(isa, &mut param[range], buffer, grad, f, bits);
                }
            }
        });
    }));
    Ok(())
}

fn update<T: Element, G: Element, R: Round>(
    isa: Isa,
    param: &mut [T],
    buffer: Option<&mut [T]>,
    grad: &[G],
    f: Factors,
    round: R,
) {
    match buffer {
        None => update_plain(isa, param, grad, f, round),
        Some(buffer) => update_with_momentum(isa, param, buffer, grad, f, round),
    }
}
