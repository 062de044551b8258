//! Reverse-mode differentiation, one unit at a time.
//!
//! Model code is forward only: it calls methods of [`Cx`], which run an op on the backend and, when the context records,
//! push what that op's backward needs onto a tape. [`Cx::backward`] consumes the tape in reverse, so saved tensors die as
//! early as they can. Without recording the same code is inference.
//!
//! A *unit* (the embedding, one block, the head) is the grain at which parameters come and go. Ops remember parameters by
//! [`ParamId`], never by tensor, so that a [`UnitHost`] may take a unit's parameters away after its forward pass and bring
//! them back for its backward pass; and it may ask for a unit to be run again in backward instead of being remembered.

mod cx;
mod ops;
mod unit;

pub use cx::{Cx, PassKey, Var};
pub use unit::{
    AdapterSpec, GradientTarget, Init, ModelLayout, ParamId, ParamKind, ParamSpec, ParamView, Phase, UnitHost, UnitId,
    UnitKind, UnitSpec,
};

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Backend, DType, Error, Result, Shape, Tensor};

/// An activation whose gradient is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(u32);

/// What one op left behind for its backward pass.
pub(crate) trait BackwardOp {
    /// Takes the gradient of its output and gives gradients to its inputs and parameters.
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()>;
}

/// Ops in the order they ran.
#[derive(Default)]
pub(crate) struct Tape {
    ops: Vec<Box<dyn BackwardOp>>,
}

impl Tape {
    pub(crate) fn push(&mut self, op: impl BackwardOp + 'static) {
        self.ops.push(Box::new(op));
    }
}

/// State of a backward pass.
pub(crate) struct Backward<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) host: &'a mut dyn UnitHost,
    grads: HashMap<NodeId, Tensor>,
    next_node: u32,
    /// The parameters of the unit that is being walked.
    params: Arc<[ParamView]>,
    /// What random numbers were drawn by.
    key: PassKey,
    /// Whether adapters changed what their layers gave.
    adapts: bool,
    /// Whether layers were quantised for show.
    quantises: bool,
}

impl Backward<'_> {
    /// Walks a tape from its end.
    fn run(&mut self, mut tape: Tape) -> Result<()> {
        while let Some(op) = tape.ops.pop() {
            op.backward(self)?;
        }
        Ok(())
    }

    /// The gradient of an op's output; `None` if nothing depended on it.
    pub(crate) fn take(&mut self, node: NodeId) -> Option<Tensor> {
        self.grads.remove(&node)
    }

    /// A parameter of the unit that is being walked.
    pub(crate) fn param(&self, id: ParamId) -> Result<ParamView> {
        find_param(&self.params, id)
    }

    /// A weight as products saw it.
    pub(crate) fn weight(&self, id: ParamId) -> Result<ParamView> {
        as_multiplied(self.backend, self.param(id)?, self.quantises)
    }

    /// Lets `write` compute into a node's gradient: the tensor, and whether it must add to what is there.
    pub(crate) fn write_node(
        &mut self,
        node: NodeId,
        shape: Shape,
        dtype: DType,
        write: impl FnOnce(&dyn Backend, &mut Tensor, bool) -> Result<()>,
    ) -> Result<()> {
        let (mut grad, accumulate) = match self.grads.remove(&node) {
            Some(grad) => (self.unique(grad)?, true),
            None => (self.backend.alloc(shape, dtype)?, false),
        };
        write(self.backend, &mut grad, accumulate)?;
        self.grads.insert(node, grad);
        Ok(())
    }

    /// Adds a finished gradient to a node's.
    pub(crate) fn add_node(&mut self, node: NodeId, grad: Tensor) -> Result<()> {
        let sum = match self.grads.remove(&node) {
            None => grad,
            Some(sum) => {
                let mut sum = self.unique(sum)?;
                self.backend.add_in_place(&mut sum, &grad)?;
                sum
            }
        };
        self.grads.insert(node, sum);
        Ok(())
    }

    /// The tensor itself if nothing else views its memory, else a copy: gradients are shared until one is written to.
    pub(crate) fn unique(&self, t: Tensor) -> Result<Tensor> {
        if t.is_unique() {
            return Ok(t);
        }
        let mut copy = self.backend.alloc(t.shape(), t.dtype())?;
        self.backend.copy(&mut copy, &t)?;
        Ok(copy)
    }
}

/// A weight as products see it: rounded, if its layer is quantised for show.
fn as_multiplied(backend: &dyn Backend, weight: ParamView, quantises: bool) -> Result<ParamView> {
    let Some(quant) = weight.fake_quant.filter(|_| quantises) else { return Ok(weight) };
    let mut tensor = backend.alloc(weight.tensor.shape(), weight.tensor.dtype())?;
    backend.fake_quantise_groups(&mut tensor, &weight.tensor, quant)?;
    Ok(ParamView { tensor, ..weight })
}

/// The view of `id` among a unit's parameters.
fn find_param(params: &[ParamView], id: ParamId) -> Result<ParamView> {
    params.iter().find(|p| p.id == id).cloned().ok_or(Error::UnknownParam { param: id })
}
