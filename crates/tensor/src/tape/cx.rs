//! The context that model code runs in.

use std::collections::HashMap;
use std::sync::Arc;

use super::ops::{
    AddOp, AttentionOp, BiasOp, EmbeddingOp, HeadLossOp, LinearOp, LinearSplitOp, RmsNormOp, RopeOp, SwigluOp,
    norm_rows,
};
use super::{Backward, BackwardOp, NodeId, ParamId, ParamView, Phase, Tape, UnitHost, UnitId, find_param};
use crate::ops::attention::AttentionDims;
use crate::ops::head_loss::HeadLossOut;
use crate::ops::rope::RopeDims;
use crate::{Backend, DType, Result, Shape, Tensor};

/// A value in model code: a tensor, and the node that its gradient belongs to when one is wanted.
#[derive(Debug, Clone)]
pub struct Var {
    tensor: Tensor,
    node: Option<NodeId>,
}

impl Var {
    /// A value that no gradient flows to.
    pub fn constant(tensor: Tensor) -> Self {
        Self { tensor, node: None }
    }

    /// The value.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

/// Runs ops on a backend with the parameters of a host, recording them when gradients are wanted.
pub struct Cx<'a> {
    backend: &'a dyn Backend,
    host: &'a mut dyn UnitHost,
    tape: Option<Tape>,
    /// Whether this pass has a backward; a recomputed unit's first run records nothing although this is true.
    training: bool,
    next_node: u32,
    params: Arc<[ParamView]>,
}

impl<'a> Cx<'a> {
    /// A context that records, for a training pass.
    pub fn training(backend: &'a dyn Backend, host: &'a mut dyn UnitHost) -> Self {
        Self { backend, host, tape: Some(Tape::default()), training: true, next_node: 0, params: Arc::new([]) }
    }

    /// A context that records nothing.
    pub fn inference(backend: &'a dyn Backend, host: &'a mut dyn UnitHost) -> Self {
        Self { backend, host, tape: None, training: false, next_node: 0, params: Arc::new([]) }
    }

    /// The backend that ops run on.
    pub fn backend(&self) -> &'a dyn Backend {
        self.backend
    }

    /// Runs a unit: its parameters are made available, `forward` runs with them, and they are given back.
    ///
    /// `forward` may run a second time during backward, so it must be a function of its inputs alone. Units do not nest.
    pub fn unit(
        &mut self,
        unit: UnitId,
        inputs: &[Var],
        forward: impl Fn(&mut Cx<'_>, &[Var]) -> Result<Var> + 'static,
    ) -> Result<Var> {
        let _span = self.backend.span(|| format!("unit {} forward", unit.0));
        let phase = if self.training { Phase::Forward } else { Phase::Inference };
        let params = self.host.enter(unit, phase)?;
        let needs_backward =
            self.training && (inputs.iter().any(|v| v.node.is_some()) || params.iter().any(|p| p.trainable));
        let recompute = needs_backward && self.host.recomputes(unit);

        let unit_tape = (needs_backward && !recompute).then(Tape::default);
        let outer_tape = std::mem::replace(&mut self.tape, unit_tape);
        self.params = params;
        let output = forward(self, inputs)?;
        self.params = Arc::new([]);
        let unit_tape = std::mem::replace(&mut self.tape, outer_tape);
        self.host.leave(unit, phase)?;
        if !needs_backward {
            return Ok(Var::constant(output.tensor));
        }

        let (output, body) = if let Some(tape) = unit_tape {
            (output, UnitBody::Kept(tape))
        } else {
            let node = self.new_node();
            let body = UnitBody::Recomputed { inputs: inputs.to_vec(), output: node, forward: Box::new(forward) };
            (Var { node: Some(node), ..output }, body)
        };
        self.tape.as_mut().expect("a training context records units").push(UnitOp { unit, body });
        Ok(output)
    }

    /// Walks everything recorded, from the end; gradients of parameters have gone to the host when this returns.
    pub fn backward(self) -> Result<()> {
        let Self { backend, host, tape, next_node, .. } = self;
        let mut bw = Backward { backend, host, grads: HashMap::new(), next_node, params: Arc::new([]) };
        bw.run(tape.unwrap_or_default())
    }

    /// `y = x w^T`: a linear layer without bias. x (M, K), w (N, K), y (M, N).
    pub fn linear(&mut self, x: &Var, w: ParamId) -> Result<Var> {
        let weight = self.param(w)?;
        let shape = Shape::from([x.tensor.shape().rows_cols().0, weight.tensor.shape().rows_cols().0]);
        let mut y = self.backend.alloc(shape, x.tensor.dtype())?;
        self.backend.matmul_nt(&mut y, &x.tensor, &weight.tensor)?;
        let wanted = x.node.is_some() || weight.trainable;
        Ok(self.record(y, wanted, |y| LinearOp { x: x.tensor.clone(), dx: x.node, w, y }))
    }

    /// Some linear layers on one input whose weights lie one after the other in `w` (N, K): as many rows of it for each as `sizes`
    /// says. Panics: if they are not all of its rows.
    pub fn linear_split<const N: usize>(&mut self, x: &Var, w: ParamId, sizes: [usize; N]) -> Result<[Var; N]> {
        let weight = self.param(w)?;
        assert_eq!(
            sizes.iter().sum::<usize>(),
            weight.tensor.shape().rows_cols().0,
            "the weight is cut into all of its rows"
        );
        let records = self.tape.is_some() && (x.node.is_some() || weight.trainable);
        let (mut start, mut outputs, mut parts) = (0, Vec::with_capacity(N), Vec::new());
        for size in sizes {
            let rows = start..start + size;
            start = rows.end;
            let mut y = self.backend.alloc(Shape::from([x.tensor.shape().rows_cols().0, size]), x.tensor.dtype())?;
            self.backend.matmul_nt(&mut y, &x.tensor, &weight.tensor.rows(rows.clone())?)?;
            let node = records.then(|| self.new_node());
            parts.extend(node.map(|node| (rows, node)));
            outputs.push(Var { tensor: y, node });
        }
        if let (true, Some(tape)) = (records, self.tape.as_mut()) {
            tape.push(LinearSplitOp { x: x.tensor.clone(), dx: x.node, w, parts });
        }
        Ok(outputs.try_into().expect("one for each size"))
    }

    /// `y + b` for every row of y (M, N), with b (N); takes the memory of `y`, which nothing else may need.
    pub fn bias(&mut self, y: Var, b: ParamId) -> Result<Var> {
        let bias = self.param(b)?;
        let Var { mut tensor, node } = y;
        self.backend.bias_in_place(&mut tensor, &bias.tensor)?;
        let wanted = node.is_some() || bias.trainable;
        Ok(self.record(tensor, wanted, |y| BiasOp { dx: node, b, y }))
    }

    /// Like [`Cx::linear`] with an f32 result and no gradient: logits to look at.
    pub fn logits(&mut self, x: &Var, w: ParamId) -> Result<Tensor> {
        let weight = self.param(w)?;
        let shape = Shape::from([x.tensor.shape().rows_cols().0, weight.tensor.shape().rows_cols().0]);
        let mut y = self.backend.alloc(shape, DType::F32)?;
        self.backend.matmul_nt(&mut y, &x.tensor, &weight.tensor)?;
        Ok(y)
    }

    /// Rows of the embedding `w` (V, D) for the token ids (T): (T, D).
    pub fn embedding(&mut self, tokens: &Tensor, w: ParamId) -> Result<Var> {
        let weight = self.param(w)?;
        let shape = Shape::from([tokens.num_elements(), weight.tensor.shape().rows_cols().1]);
        let mut y = self.backend.alloc(shape, weight.tensor.dtype())?;
        self.backend.embedding_forward(&mut y, tokens, &weight.tensor)?;
        Ok(self.record(y, weight.trainable, |y| EmbeddingOp { tokens: tokens.clone(), w, y }))
    }

    /// Root-mean-square norm with weight `w` (D) over each D elements of the last dimension: over whole rows, or over heads that lie
    /// side by side.
    pub fn rms_norm(&mut self, x: &Var, w: ParamId, eps: f32) -> Result<Var> {
        let weight = self.param(w)?;
        let (shape, dtype) = (x.tensor.shape(), x.tensor.dtype());
        let rows = norm_rows(shape, weight.tensor.num_elements());
        let x_rows = x.tensor.reshape(rows)?;
        let mut y = self.backend.alloc(rows, dtype)?;
        let mut rstd = self.backend.alloc(Shape::from([rows.rows_cols().0]), DType::F32)?;
        self.backend.rms_norm_forward(&mut y, &mut rstd, &x_rows, &weight.tensor, eps)?;
        let wanted = x.node.is_some() || weight.trainable;
        Ok(self.record(y.reshape(shape)?, wanted, |y| RmsNormOp { x: x.tensor.clone(), dx: x.node, rstd, w, y }))
    }

    /// Rotates the heads of `x` by the angles in `table`; takes the memory of `x`, which nothing else may need.
    pub fn rope(&mut self, x: Var, table: &Tensor, dims: RopeDims) -> Result<Var> {
        let Var { mut tensor, node } = x;
        self.backend.rope_in_place(&mut tensor, table, dims, false)?;
        Ok(self.record(tensor, node.is_some(), |y| RopeOp { table: table.clone(), dims, dx: node, y }))
    }

    /// Causal attention within documents.
    pub fn attention(&mut self, q: &Var, k: &Var, v: &Var, doc_start: &Tensor, dims: &AttentionDims) -> Result<Var> {
        let mut o = self.backend.alloc(q.tensor.shape(), q.tensor.dtype())?;
        let mut lse = self.backend.alloc(Shape::from([dims.batch, dims.num_heads, dims.tokens]), DType::F32)?;
        self.backend.attention_forward(&mut o, &mut lse, &q.tensor, &k.tensor, &v.tensor, doc_start, dims)?;
        let wanted = q.node.is_some() || k.node.is_some() || v.node.is_some();
        let saved_o = o.clone();
        Ok(self.record(o, wanted, |y| AttentionOp {
            inputs: [q.clone(), k.clone(), v.clone()].map(|v| (v.tensor, v.node)),
            o: saved_o,
            lse,
            doc_start: doc_start.clone(),
            dims: *dims,
            y,
        }))
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&mut self, gate: &Var, up: &Var) -> Result<Var> {
        let mut h = self.backend.alloc(gate.tensor.shape(), gate.tensor.dtype())?;
        self.backend.swiglu_forward(&mut h, &gate.tensor, &up.tensor)?;
        let wanted = gate.node.is_some() || up.node.is_some();
        Ok(self.record(h, wanted, |y| SwigluOp {
            gate: gate.tensor.clone(),
            dgate: gate.node,
            up: up.tensor.clone(),
            dup: up.node,
            y,
        }))
    }

    /// `a + b`.
    pub fn add(&mut self, a: &Var, b: &Var) -> Result<Var> {
        let mut y = self.backend.alloc(a.tensor.shape(), a.tensor.dtype())?;
        self.backend.add(&mut y, &a.tensor, &b.tensor)?;
        Ok(self.record(y, a.node.is_some() || b.node.is_some(), |y| AddOp { da: a.node, db: b.node, y }))
    }

    /// The scaled cross entropy of the head `w` on `h`, as an f32 tensor of one element.
    ///
    /// A training context computes the gradients in the same pass, so `scale` must be final: the loss is never multiplied
    /// afterwards.
    pub fn head_loss(&mut self, h: &Var, w: ParamId, labels: &Tensor, scale: f32) -> Result<Var> {
        let weight = self.param(w)?;
        let mut loss = self.backend.zeros(Shape::from([1]), DType::F32)?;
        let recording = self.tape.is_some();
        let mut dh = match h.node {
            Some(_) if recording => Some(self.backend.alloc(h.tensor.shape(), h.tensor.dtype())?),
            _ => None,
        };
        let mut dw = if recording && weight.trainable { Some(self.host.gradient(w)?) } else { None };
        let out = HeadLossOut {
            loss: &mut loss,
            dh: dh.as_mut(),
            dw: dw.as_mut().map(|target| (&mut target.tensor, target.accumulate)),
        };
        self.backend.head_loss(out, &h.tensor, &weight.tensor, labels, scale)?;
        if let (Some(dh), Some(node), Some(tape)) = (dh, h.node, self.tape.as_mut()) {
            tape.push(HeadLossOp { dh, node });
        }
        Ok(Var::constant(loss))
    }

    /// A parameter of the running unit.
    fn param(&self, id: ParamId) -> Result<ParamView> {
        find_param(&self.params, id)
    }

    /// Wraps an op's output; pushes the op when its gradient is wanted and this context records.
    fn record<O: BackwardOp + 'static>(&mut self, y: Tensor, wanted: bool, op: impl FnOnce(NodeId) -> O) -> Var {
        if !wanted || self.tape.is_none() {
            return Var::constant(y);
        }
        let node = self.new_node();
        self.tape.as_mut().expect("checked above").push(op(node));
        Var { tensor: y, node: Some(node) }
    }

    fn new_node(&mut self) -> NodeId {
        let node = NodeId(self.next_node);
        self.next_node += 1;
        node
    }
}

/// A unit that ran forward.
struct UnitOp {
    unit: UnitId,
    body: UnitBody,
}

/// A unit's forward code, kept to run it again.
type Forward = Box<dyn Fn(&mut Cx<'_>, &[Var]) -> Result<Var>>;

/// How a unit's backward pass knows what its forward pass computed.
enum UnitBody {
    /// It was remembered.
    Kept(Tape),
    /// It is computed again from the unit's inputs.
    Recomputed { inputs: Vec<Var>, output: NodeId, forward: Forward },
}

impl BackwardOp for UnitOp {
    fn backward(self: Box<Self>, bw: &mut Backward<'_>) -> Result<()> {
        let _span = bw.backend.span(|| format!("unit {} backward", self.unit.0));
        bw.params = bw.host.enter(self.unit, Phase::Backward)?;
        let tape = match self.body {
            UnitBody::Kept(tape) => tape,
            UnitBody::Recomputed { inputs, output, forward } => {
                let mut cx = Cx {
                    backend: bw.backend,
                    host: &mut *bw.host,
                    tape: Some(Tape::default()),
                    training: true,
                    next_node: bw.next_node,
                    params: Arc::clone(&bw.params),
                };
                let recompute = bw.backend.span(|| "recompute");
                let again = forward(&mut cx, &inputs)?;
                drop(recompute);
                bw.next_node = cx.next_node;
                let tape = cx.tape.take().unwrap_or_default();
                if let (Some(grad), Some(node)) = (bw.take(output), again.node) {
                    bw.add_node(node, grad)?;
                }
                tape
            }
        };
        bw.run(tape)?;
        bw.params = Arc::new([]);
        bw.host.leave(self.unit, Phase::Backward)
    }
}

impl std::fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cx").field("training", &self.training).finish_non_exhaustive()
    }
}
