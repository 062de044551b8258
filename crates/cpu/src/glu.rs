//! Gated linear unit: h = a(gate) * up. Both activations are x sigmoid(z(x)): SiLU with z = x, and GELU's tanh approximation,
//! x (1 + tanh(u)) / 2, with z = 2 u.
//!
//! Numbers: computed in f32, rounded once.

use tensor::ops::glu::{Activation, GELU_CUBE, GELU_SLOPE, check};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, mul_add, sigmoid, with_element};

/// An activation x sigmoid(z(x)).
trait Gate: Send + Sync {
    /// z of a gate, and its slope there.
    fn argument<const FMA: bool>(x: f32) -> (f32, f32);
}

struct Silu;

impl Gate for Silu {
    #[inline(always)]
    fn argument<const FMA: bool>(x: f32) -> (f32, f32) {
        (x, 1.0)
    }
}

struct GeluTanh;

impl Gate for GeluTanh {
    #[inline(always)]
    fn argument<const FMA: bool>(x: f32) -> (f32, f32) {
        const SLOPE: f32 = (2.0 * GELU_SLOPE) as f32;
        const CUBE: f32 = GELU_CUBE as f32;
        // The sigmoid is 0 or 1 there, and cubes stay finite. NaN fails both comparisons and passes.
        let x = if x < -11.0 { -11.0 } else { x };
        let x = if x > 11.0 { 11.0 } else { x };
        let x2 = x * x;
        (SLOPE * x * mul_add::<FMA>(CUBE, x2, 1.0), SLOPE * mul_add::<FMA>(3.0 * CUBE, x2, 1.0))
    }
}

/// Runs an expression with `$A` standing for the activation.
macro_rules! with_activation {
    ($activation:expr, $A:ident => $body:expr) => {
        match $activation {
            Activation::Silu => {
                type $A = Silu;
                $body
            }
            Activation::GeluTanh => {
                type $A = GeluTanh;
                $body
            }
        }
    };
}

per_isa! {
    fn forward_slice<const FMA: bool, T: Element, A: Gate>(h: &mut [T], gate: &[T], up: &[T]) {
        for (h, (gate, up)) in h.iter_mut().zip(gate.iter().zip(up)) {
            let gate = gate.to_f32();
            let (z, _) = A::argument::<FMA>(gate);
            *h = T::from_f32(gate * sigmoid::<FMA>(z) * up.to_f32());
        }
    }
}

per_isa! {
    fn backward_slice<const FMA: bool, T: Element, A: Gate>(
        dgate: &mut [T],
        dup: &mut [T],
        dh: &[T],
        gate: &[T],
        up: &[T],
    ) {
        for (((dgate, dup), dh), (gate, up)) in dgate.iter_mut().zip(dup).zip(dh).zip(gate.iter().zip(up)) {
            let (dh, gate, up) = (dh.to_f32(), gate.to_f32(), up.to_f32());
            let (z, slope) = A::argument::<FMA>(gate);
            let s = sigmoid::<FMA>(z);
            *dgate = T::from_f32(dh * up * (s + gate * s * (1.0 - s) * slope));
            *dup = T::from_f32(dh * gate * s);
        }
    }
}

/// `h = a(gate) * up`.
pub(crate) fn forward(
    backend: &CpuBackend,
    h: &mut Tensor,
    gate: &Tensor,
    up: &Tensor,
    activation: Activation,
) -> Result<()> {
    let len = check(gate, &[("up", up), ("h", h)])?;
    with_element!(gate.dtype(), T => with_activation!(activation, A => {
        let (gate, up) = (Read::<T>::of(gate)?, Read::<T>::of(up)?);
        let mut h = Write::<T>::of(h)?;
        backend.crew.run_elements(len, Rows::new(&mut h, 1), |part, h| {
            forward_slice::<T, A>(backend.isa, h, &gate[part.clone()], &up[part]);
        });
    }));
    Ok(())
}

/// Backward pass; overwrites `dgate` and `dup`.
pub(crate) fn backward(
    backend: &CpuBackend,
    dgate: &mut Tensor,
    dup: &mut Tensor,
    dh: &Tensor,
    gate: &Tensor,
    up: &Tensor,
    activation: Activation,
) -> Result<()> {
    let len = check(gate, &[("up", up), ("dh", dh), ("dgate", dgate), ("dup", dup)])?;
    with_element!(gate.dtype(), T => with_activation!(activation, A => {
        let (dh, gate, up) = (Read::<T>::of(dh)?, Read::<T>::of(gate)?, Read::<T>::of(up)?);
        let (mut dgate, mut dup) = (Write::<T>::of(dgate)?, Write::<T>::of(dup)?);
        let outputs = (Rows::new(&mut dgate, 1), Rows::new(&mut dup, 1));
        backend.crew.run_elements(len, outputs, |part, (dgate, dup)| {
            backward_slice::<T, A>(backend.isa, dgate, dup, &dh[part.clone()], &gate[part.clone()], &up[part]);
        });
    }));
    Ok(())
}
