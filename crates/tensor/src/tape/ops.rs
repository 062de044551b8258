//! Backward passes of the ops that [`Cx`](super::Cx) records: what each keeps, and what it does with its gradient.

use std::ops::Range;

use super::{Backward, BackwardOp, NodeId, ParamId};
use crate::ops::attention::AttentionDims;
use crate::ops::dropout::Dropout;
use crate::ops::glu::Activation;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::RopeDims;
use crate::{Backend, DType, Result, Shape, Tensor};

/// `y = x w^T`.
pub(super) struct LinearOp {
    /// Its input, if the weight is trained.
    pub(super) x: Option<Tensor>,
    /// Of the input.
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) dx: Option<NodeId>,
    pub(super) w: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for LinearOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        if let Some(x) = &self.x {
            let mut target = bw.host.gradient(self.w)?;
            bw.backend.matmul_tn(&mut target.tensor, &dy, x, target.accumulate)?;
        }
        let Some(node) = self.dx else { return Ok(()) };
        let weight = bw.weight(self.w)?;
        bw.write_node(node, self.shape, self.dtype, |backend, dx, accumulate| {
            backend.matmul_nn(dx, &dy, &weight.tensor, accumulate)
        })
    }
}

/// `y = x w^T` for some rows of w, several times.
pub(super) struct LinearSplitOp {
    /// Its input, if the weight is trained.
    pub(super) x: Option<Tensor>,
    /// Of the input.
    pub(super) shape: Shape,
    pub(super) dtype: DType,
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
        if let Some(x) = &self.x {
            let target = bw.host.gradient(self.w)?;
            for (rows, dy) in &parts {
                let mut dw = target.tensor.rows(rows.clone())?;
                match dy {
                    Some(dy) => bw.backend.matmul_tn(&mut dw, dy, x, target.accumulate)?,
                    None if target.accumulate => {}
                    None => bw.backend.fill_zero(&mut dw)?,
                }
            }
        }
        if let Some(node) = self.dx {
            let weight = bw.weight(self.w)?;
            for (rows, dy) in parts {
                let Some(dy) = dy else { continue };
                let weight = weight.tensor.rows(rows)?;
                bw.write_node(node, self.shape, self.dtype, |backend, dx, accumulate| {
                    backend.matmul_nn(dx, &dy, &weight, accumulate)
                })?;
            }
        }
        Ok(())
    }
}

/// `y = base + scale * drop(x) A^T B^T`.
pub(super) struct LoraOp {
    /// The layer's input.
    pub(super) x: Tensor,
    pub(super) dx: Option<NodeId>,
    /// (M, R): scale * drop(x) A^T.
    pub(super) low: Tensor,
    pub(super) dropout: Option<Dropout>,
    pub(super) a: ParamId,
    pub(super) b: ParamId,
    pub(super) scale: f32,
    /// What the layer gives by itself.
    pub(super) base: Option<NodeId>,
    pub(super) y: NodeId,
}

impl BackwardOp for LoraOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let (a, b) = (bw.param(self.a)?, bw.param(self.b)?);
        if b.trainable {
            let mut target = bw.host.gradient(self.b)?;
            bw.backend.matmul_tn(&mut target.tensor, &dy, &self.low, target.accumulate)?;
        }
        // low = scale * drop(x) A^T
        let mut dlow = bw.backend.alloc(self.low.shape(), self.low.dtype())?;
        bw.backend.matmul_nn(&mut dlow, &dy, &b.tensor, false)?;
        bw.backend.scale_in_place(&mut dlow, self.scale)?;
        if a.trainable {
            let mut target = bw.host.gradient(self.a)?;
            let dropped = drop_out(bw.backend, &self.x, self.dropout.as_ref())?;
            bw.backend.matmul_tn(&mut target.tensor, &dlow, &dropped, target.accumulate)?;
        }
        match (self.dx, &self.dropout) {
            (None, _) => {}
            (Some(node), None) => {
                bw.write_node(node, self.x.shape(), self.x.dtype(), |backend, dx, accumulate| {
                    backend.matmul_nn(dx, &dlow, &a.tensor, accumulate)
                })?;
            }
            (Some(node), Some(dropout)) => {
                let mut dx = bw.backend.alloc(self.x.shape(), self.x.dtype())?;
                bw.backend.matmul_nn(&mut dx, &dlow, &a.tensor, false)?;
                bw.backend.dropout_in_place(&mut dx, dropout)?;
                bw.add_node(node, dx)?;
            }
        }
        match self.base {
            None => Ok(()),
            Some(node) => bw.add_node(node, dy),
        }
    }
}

/// Adds to `dx` what an adapter's inputs passed on: `dlow a`, dropped as they were.
pub(super) fn add_low_rank_gradient(
    backend: &dyn Backend,
    dx: &mut Tensor,
    dlow: &Tensor,
    a: &Tensor,
    dropout: Option<&Dropout>,
) -> Result<()> {
    let Some(dropout) = dropout else { return backend.matmul_nn(dx, dlow, a, true) };
    let mut part = backend.alloc(dx.shape(), dx.dtype())?;
    backend.matmul_nn(&mut part, dlow, a, false)?;
    backend.dropout_in_place(&mut part, dropout)?;
    backend.add_in_place(dx, &part)
}

/// `x`, or a copy of it with some elements dropped.
pub(super) fn drop_out(backend: &dyn Backend, x: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
    let Some(dropout) = dropout else { return Ok(x.clone()) };
    let mut dropped = backend.alloc(x.shape(), x.dtype())?;
    backend.copy(&mut dropped, x)?;
    backend.dropout_in_place(&mut dropped, dropout)?;
    Ok(dropped)
}

/// `y = z * magnitude / norm` column by column; the norm counts as a constant.
pub(super) struct DoraOp {
    pub(super) z: Tensor,
    pub(super) dz: Option<NodeId>,
    pub(super) norm: Tensor,
    pub(super) magnitude: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for DoraOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let magnitude = bw.param(self.magnitude)?;
        let mut target = if magnitude.trainable { Some(bw.host.gradient(self.magnitude)?) } else { None };
        let dmagnitude = target.as_mut().map(|t| (&mut t.tensor, t.accumulate));
        let mut dz = bw.backend.alloc(self.z.shape(), self.z.dtype())?;
        bw.backend.dora_scale_backward(&mut dz, dmagnitude, &dy, &self.z, &magnitude.tensor, &self.norm)?;
        match self.dz {
            None => Ok(()),
            Some(node) => bw.add_node(node, dz),
        }
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

/// `y[t] = scale w[tokens[t]]`.
pub(super) struct EmbeddingOp {
    pub(super) tokens: Tensor,
    pub(super) scale: f32,
    pub(super) w: ParamId,
    pub(super) y: NodeId,
}

impl BackwardOp for EmbeddingOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let mut target = bw.host.gradient(self.w)?;
        bw.backend.embedding_backward(&mut target.tensor, &dy, &self.tokens, self.scale, target.accumulate)
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
    pub(super) norm: RmsNorm,
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
            None => bw.backend.rms_norm_backward(None, dw, &dy, &x, &weight.tensor, &self.rstd, self.norm),
            Some(node) => bw.write_node(node, self.x.shape(), self.x.dtype(), |backend, dx, accumulate| {
                let dx = Some((&mut dx.reshape(rows)?, accumulate));
                backend.rms_norm_backward(dx, dw, &dy, &x, &weight.tensor, &self.rstd, self.norm)
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

/// Gated linear unit.
pub(super) struct GluOp {
    pub(super) gate: Tensor,
    pub(super) dgate: Option<NodeId>,
    pub(super) up: Tensor,
    pub(super) dup: Option<NodeId>,
    pub(super) activation: Activation,
    pub(super) y: NodeId,
}

impl BackwardOp for GluOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dh) = bw.take(self.y) else { return Ok(()) };
        let mut dgate = bw.backend.alloc(self.gate.shape(), self.gate.dtype())?;
        let mut dup = bw.backend.alloc(self.up.shape(), self.up.dtype())?;
        bw.backend.glu_backward(&mut dgate, &mut dup, &dh, &self.gate, &self.up, self.activation)?;
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

/// Log-probabilities of labels.
pub(super) struct LabelLogProbsOp {
    pub(super) h: Tensor,
    pub(super) dh: Option<NodeId>,
    pub(super) w: ParamId,
    pub(super) labels: Tensor,
    pub(super) soft_cap: Option<f32>,
    pub(super) y: NodeId,
}

impl BackwardOp for LabelLogProbsOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = bw.take(self.y) else { return Ok(()) };
        let weight = bw.weight(self.w)?;
        let mut target = if weight.trainable { Some(bw.host.gradient(self.w)?) } else { None };
        let dw = target.as_mut().map(|t| (&mut t.tensor, t.accumulate));
        let mut dh = self.dh.map(|_| bw.backend.alloc(self.h.shape(), self.h.dtype())).transpose()?;
        bw.backend.label_log_probs_backward(
            dh.as_mut(),
            dw,
            &dy,
            &self.h,
            &weight.tensor,
            &self.labels,
            self.soft_cap,
        )?;
        match (self.dh, dh) {
            (Some(node), Some(dh)) => bw.add_node(node, dh),
            _ => Ok(()),
        }
    }
}
