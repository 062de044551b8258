//! Gated activation: h = silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
//!
//! Numbers: computed in f32, rounded once.

use tensor::ops::swiglu::check;
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, sigmoid, with_element};

per_isa! {
    fn forward_slice<const FMA: bool, T: Element>(h: &mut [T], gate: &[T], up: &[T]) {
        for (h, (gate, up)) in h.iter_mut().zip(gate.iter().zip(up)) {
            let gate = gate.to_f32();
            *h = T::from_f32(gate * sigmoid::<FMA>(gate) * up.to_f32());
        }
    }
}

per_isa! {
    fn backward_slice<const FMA: bool, T: Element>(dgate: &mut [T], dup: &mut [T], dh: &[T], gate: &[T], up: &[T]) {
        for (((dgate, dup), dh), (gate, up)) in dgate.iter_mut().zip(dup).zip(dh).zip(gate.iter().zip(up)) {
            let (dh, gate, up) = (dh.to_f32(), gate.to_f32(), up.to_f32());
            let s = sigmoid::<FMA>(gate);
            *dgate = T::from_f32(dh * up * (s + gate * s * (1.0 - s)));
            *dup = T::from_f32(dh * gate * s);
        }
    }
}

/// `h = silu(gate) * up`.
pub(crate) fn forward(backend: &CpuBackend, h: &mut Tensor, gate: &Tensor, up: &Tensor) -> Result<()> {
    let len = check(gate, &[("up", up), ("h", h)])?;
    with_element!(gate.dtype(), T => {
        let (gate, up) = (Read::<T>::of(gate)?, Read::<T>::of(up)?);
        let mut h = Write::<T>::of(h)?;
        backend.crew.run_elements(len, Rows::new(&mut h, 1), |part, h| {
            forward_slice(backend.isa, h, &gate[part.clone()], &up[part]);
        });
    });
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
) -> Result<()> {
    let len = check(gate, &[("up", up), ("dh", dh), ("dgate", dgate), ("dup", dup)])?;
    with_element!(gate.dtype(), T => {
        let (dh, gate, up) = (Read::<T>::of(dh)?, Read::<T>::of(gate)?, Read::<T>::of(up)?);
        let (mut dgate, mut dup) = (Write::<T>::of(dgate)?, Write::<T>::of(dup)?);
        let outputs = (Rows::new(&mut dgate, 1), Rows::new(&mut dup, 1));
        backend.crew.run_elements(len, outputs, |part, (dgate, dup)| {
            backward_slice(backend.isa, dgate, dup, &dh[part.clone()], &gate[part.clone()], &up[part]);
        });
    });
    Ok(())
}
