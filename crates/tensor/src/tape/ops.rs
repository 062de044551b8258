//! Backward passes of the ops that [`Cx`](super::Cx) records: what each keeps, and what it does with its gradient.

use std::ops::Range;

use super::{Backward, BackwardOp, NodeId, ParamId};
use crate::ops::attention::AttentionDims;
use crate::ops::rope::RopeDims;
use crate::{Result, Shape, Tensor};

/// `y = x w^T`.
pub(super) struct LinearOp {
    pub(super) x: Tensor,
    pub(super) dx: Option<NodeId>,
    pub(super) w: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for LinearOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let weight = bw.param(self.w)?;
        if weight.trainable {
            let mut target = bw.host.gradient(self.w)?;
            bw.backend.matmul_tn(&mut target.tensor, &dy, &self.x, target.accumulate)?;
        }
        match self.dx {
            None => Ok(()),
            Some(node) => bw.write_node(node, self.x.shape(), self.x.dtype(), |backend, dx, accumulate| {
                backend.matmul_nn(dx, &dy, &weight.tensor, accumulate)
            }),
        }
    }
}

/// `y = x w^T` for some rows of w, several times.
pub(super) struct LinearSplitOp {
    pub(super) x: Tensor,
    pub(super) dx: Option<NodeId>,
    pub(super) w: ParamId,
    /// Rows of the weight, all of them together, and where their output's gradient is.
    pub(super) parts: Vec<(Range<usize>, NodeId)>,
}

impl BackwardOp for LinearSplitOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let parts: Vec<_> = self.parts.into_iter().map(|(rows, node)| (rows, bw.take(node))).collect();
        if parts.iter().all(|(_, dy)| dy.is_none()) {
            return Ok(());
        }
        let weight = bw.param(self.w)?;
        if weight.trainable {
            let target = bw.host.gradient(self.w)?;
            for (rows, dy) in &parts {
                let mut dw = target.tensor.rows(rows.clone())?;
                match dy {
                    Some(dy) => bw.backend.matmul_tn(&mut dw, dy, &self.x, target.accumulate)?,
                    None if target.accumulate => {}
                    None => bw.backend.fill_zero(&mut dw)?,
                }
            }
        }
        if let Some(node) = self.dx {
            for (rows, dy) in parts {
                let Some(dy) = dy else { continue };
                let weight = weight.tensor.rows(rows)?;
                bw.write_node(node, self.x.shape(), self.x.dtype(), |backend, dx, accumulate| {
                    backend.matmul_nn(dx, &dy, &weight, accumulate)
                })?;
            }
        }
        Ok(())
    }
}

/// `y = x + b`, a bias for every row.
pub(super) struct BiasOp {
    pub(super) dx: Option<NodeId>,
    pub(super) b: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for BiasOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        if bw.param(self.b)?.trainable {
            let mut target = bw.host.gradient(self.b)?;
            bw.backend.bias_backward(&mut target.tensor, &dy, target.accumulate)?;
        }
        match self.dx {
            None => Ok(()),
            Some(node) => bw.add_node(node, dy),
        }
    }
}

/// `y[t] = w[tokens[t]]`.
pub(super) struct EmbeddingOp {
    pub(super) tokens: Tensor,
    pub(super) w: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for EmbeddingOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let mut target = bw.host.gradient(self.w)?;
        bw.backend.embedding_backward(&mut target.tensor, &dy, &self.tokens, target.accumulate)
    }
}

/// The rows that a norm over `dim` elements sees in a tensor.
pub(super) fn norm_rows(shape: Shape, dim: usize) -> Shape {
    Shape::from([shape.num_elements() / dim.max(1), dim])
}

/// Root-mean-square norm.
pub(super) struct RmsNormOp {
    pub(super) x: Tensor,
    pub(super) dx: Option<NodeId>,
    pub(super) rstd: Tensor,
    pub(super) w: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for RmsNormOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let weight = bw.param(self.w)?;
        let mut target = if weight.trainable { Some(bw.host.gradient(self.w)?) } else { None };
        let dw = target.as_mut().map(|t| (&mut t.tensor, t.accumulate));
        let rows = norm_rows(self.x.shape(), weight.tensor.num_elements());
        let (dy, x) = (dy.reshape(rows)?, self.x.reshape(rows)?);
        match self.dx {
            None => bw.backend.rms_norm_backward(None, dw, &dy, &x, &weight.tensor, &self.rstd),
            Some(node) => bw.write_node(node, self.x.shape(), self.x.dtype(), |backend, dx, accumulate| {
                let dx = Some((&mut dx.reshape(rows)?, accumulate));
                backend.rms_norm_backward(dx, dw, &dy, &x, &weight.tensor, &self.rstd)
            }),
        }
    }
}

/// Rotation in place.
pub(super) struct RopeOp {
    pub(super) table: Tensor,
    pub(super) dims: RopeDims,
    pub(super) dx: Option<NodeId>,
    pub(super) y: NodeId,
}

impl BackwardOp for RopeOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let (Some(dy), Some(node)) = (bw.take(self.y), self.dx) else {
            return Ok(());
        };
        let mut dx = bw.unique(dy)?;
        bw.backend.rope_in_place(&mut dx, &self.table, self.dims, true)?;
        bw.add_node(node, dx)
    }
}

/// Attention; `inputs` are q, k, v.
pub(super) struct AttentionOp {
    pub(super) inputs: [(Tensor, Option<NodeId>); 3],
    pub(super) o: Tensor,
    pub(super) lse: Tensor,
    pub(super) doc_start: Tensor,
    pub(super) dims: AttentionDims,
    pub(super) y: NodeId,
}

impl BackwardOp for AttentionOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(d_o) = bw.take(self.y) else { return Ok(()) };
        let [(q, dq_node), (k, dk_node), (v, dv_node)] = self.inputs;
        let mut dq = bw.backend.alloc(q.shape(), q.dtype())?;
        let mut dk = bw.backend.alloc(k.shape(), k.dtype())?;
        let mut dv = bw.backend.alloc(v.shape(), v.dtype())?;
        bw.backend.attention_backward(
            &mut dq,
            &mut dk,
            &mut dv,
            &d_o,
            &q,
            &k,
            &v,
            &self.o,
            &self.lse,
            &self.doc_start,
            &self.dims,
        )?;
        for (node, grad) in [(dq_node, dq), (dk_node, dk), (dv_node, dv)] {
            if let Some(node) = node {
                bw.add_node(node, grad)?;
            }
        }
        Ok(())
    }
}

/// Gated activation.
pub(super) struct SwigluOp {
    pub(super) gate: Tensor,
    pub(super) dgate: Option<NodeId>,
    pub(super) up: Tensor,
    pub(super) dup: Option<NodeId>,
    pub(super) y: NodeId,
}

impl BackwardOp for SwigluOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dh) = bw.take(self.y) else { return Ok(()) };
        let mut dgate = bw.backend.alloc(self.gate.shape(), self.gate.dtype())?;
        let mut dup = bw.backend.alloc(self.up.shape(), self.up.dtype())?;
        bw.backend.swiglu_backward(&mut dgate, &mut dup, &dh, &self.gate, &self.up)?;
        for (node, grad) in [(self.dgate, dgate), (self.dup, dup)] {
            if let Some(node) = node {
                bw.add_node(node, grad)?;
            }
        }
        Ok(())
    }
}

/// A sum: both inputs get the gradient itself, shared until one of them is written to.
pub(super) struct AddOp {
    pub(super) da: Option<NodeId>,
    pub(super) db: Option<NodeId>,
    pub(super) y: NodeId,
}

impl BackwardOp for AddOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        if let Some(node) = self.da {
            bw.add_node(node, dy.clone())?;
        }
        if let Some(node) = self.db {
            bw.add_node(node, dy)?;
        }
        Ok(())
    }
}

/// A head whose loss already computed the gradient of its input.
pub(super) struct HeadLossOp {
    pub(super) dh: Tensor,
    pub(super) node: NodeId,
}

impl BackwardOp for HeadLossOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        bw.add_node(self.node, self.dh)
    }
}
