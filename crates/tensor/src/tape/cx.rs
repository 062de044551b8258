//! The context that model code runs in.

use std::collections::HashMap;
use std::sync::Arc;

use super::ops::{
    AddOp, AttentionOp, BiasOp, DoraOp, EmbeddingOp, GluOp, HeadLossOp, LabelLogProbsOp, LinearOp, LinearSplitOp,
    LoraOp, RmsNormOp, RopeOp, add_low_rank_gradient, drop_out, norm_rows,
};
use super::{
    AdapterSpec, Backward, BackwardOp, NodeId, ParamId, ParamView, Phase, Tape, UnitHost, UnitId, as_multiplied,
    find_param,
};
use crate::ops::attention::AttentionDims;
use crate::ops::dropout::Dropout;
use crate::ops::elementwise::Columns;
use crate::ops::fake_quantise::FakeQuant;
use crate::ops::glu::Activation;
use crate::ops::head_loss::HeadLossOut;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::RopeDims;
use crate::rng::{Stream, philox};
use crate::{Backend, DType, Result, Shape, Tensor};

/// Bytes of logits that are made at once to be looked at.
const LOGITS_BYTES: usize = 32 << 20;

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
    draws: Draws,
    /// Whether adapters change what their layers give.
    adapts: bool,
    /// Whether layers that are to be quantised for show are.
    quantises: bool,
}

/// What names the random numbers of a pass: no two passes of a run may have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassKey {
    /// The seed of the run.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
    /// The micro-batch of the step.
    pub micro_batch: u32,
    /// The rank that runs it.
    pub rank: u32,
}

/// Counts the random streams that a unit takes. A unit that runs again takes the same ones.
#[derive(Debug, Clone, Copy, Default)]
struct Draws {
    key: PassKey,
    unit: u32,
    next: u32,
}

impl Draws {
    fn of_unit(self, unit: UnitId) -> Self {
        Self { unit: unit.0, next: 0, ..self }
    }

    fn stream(&mut self) -> Stream {
        let PassKey { seed, step, micro_batch, rank } = self.key;
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let [low, high] = halves(step);
        let words = philox([low, high, micro_batch, rank], halves(seed));
        let stream = u64::from(self.unit) << 32 | u64::from(self.next);
        self.next += 1;
        Stream::new(u64::from(words[1]) << 32 | u64::from(words[0]), stream)
    }
}

impl<'a> Cx<'a> {
    /// A context that records, for a training pass.
    pub fn training(backend: &'a dyn Backend, host: &'a mut dyn UnitHost) -> Self {
        Self { tape: Some(Tape::default()), training: true, ..Self::inference(backend, host) }
    }

    /// A context that records nothing.
    pub fn inference(backend: &'a dyn Backend, host: &'a mut dyn UnitHost) -> Self {
        let (params, draws): (Arc<[ParamView]>, _) = (Arc::new([]), Draws::default());
        Self { backend, host, tape: None, training: false, next_node: 0, params, draws, adapts: true, quantises: true }
    }

    /// Draws what is random in this pass by that key; without one every pass draws the same.
    #[must_use]
    pub fn keyed(mut self, key: PassKey) -> Self {
        self.draws.key = key;
        self
    }

    /// Runs the model as it is without its adapters.
    #[must_use]
    pub fn without_adapters(mut self) -> Self {
        self.adapts = false;
        self
    }

    /// Runs the model with full numbers in the layers that are quantised for show.
    #[must_use]
    pub fn without_fake_quant(mut self) -> Self {
        self.quantises = false;
        self
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
        self.draws = self.draws.of_unit(unit);
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
        self.walk(HashMap::new())
    }

    /// [`Cx::backward`] of a pass that ends in `y` rather than in a loss: `dy` is the gradient of `y`.
    pub fn backward_from(self, y: &Var, dy: Tensor) -> Result<()> {
        self.walk(y.node.map(|node| (node, dy)).into_iter().collect())
    }

    fn walk(self, grads: HashMap<NodeId, Tensor>) -> Result<()> {
        let Self { backend, host, tape, next_node, draws, adapts, quantises, .. } = self;
        let mut bw =
            Backward { backend, host, grads, next_node, params: Arc::new([]), key: draws.key, adapts, quantises };
        bw.run(tape.unwrap_or_default())
    }

    /// `y = x w^T`: a linear layer without bias. x (M, K), w (N, K), y (M, N).
    pub fn linear(&mut self, x: &Var, w: ParamId) -> Result<Var> {
        let [y] = self.linears(x, [w])?;
        Ok(y)
    }

    /// Several linear layers on one input; where they round it, it is rounded once.
    pub fn linears<const N: usize>(&mut self, x: &Var, weights: [ParamId; N]) -> Result<[Var; N]> {
        let (mut rounded, mut outputs) = (None, Vec::with_capacity(N));
        for w in weights {
            let input = match &mut rounded {
                _ if !self.rounds_inputs(w)? => x,
                Some(rounded) => rounded,
                none => none.insert(self.layer_input(x, w)?),
            };
            outputs.push(self.product(input, w)?);
        }
        Ok(outputs.try_into().expect("one for each weight"))
    }

    /// `x w^T`, of an input that is rounded where it has to be.
    fn product(&mut self, x: &Var, w: ParamId) -> Result<Var> {
        let weight = self.weight(w)?;
        let shape = Shape::from([x.tensor.shape().rows_cols().0, weight.tensor.shape().rows_cols().0]);
        let mut y = self.backend.alloc(shape, x.tensor.dtype())?;
        self.backend.matmul_nt(&mut y, &x.tensor, &weight.tensor, false)?;
        let wanted = x.node.is_some() || weight.trainable;
        // A weight that is not trained wants no more than the shape of its input.
        let kept = weight.trainable.then(|| x.tensor.clone());
        let (shape, dtype) = (x.tensor.shape(), x.tensor.dtype());
        Ok(self.record(y, wanted, |y| LinearOp { x: kept, shape, dtype, dx: x.node, w, y }))
    }

    /// What a linear layer gives, `y` (M, N), with the change of its adapter; `x` (M, K) is the layer's input. Takes the memory of `y`,
    /// which nothing else may need.
    pub fn adapt(&mut self, y: Var, x: &Var, adapter: &AdapterSpec) -> Result<Var> {
        if !self.adapts {
            return Ok(y);
        }
        let (a, b) = (self.param(adapter.a)?, self.param(adapter.b)?);
        let dropout = self.dropout(adapter);
        let dropped = drop_out(self.backend, &x.tensor, dropout.as_ref())?;
        let low = low_rank(self.backend, &dropped, &a.tensor, adapter.scale)?;
        drop(dropped);
        let Var { mut tensor, node } = y;
        self.backend.matmul_nt(&mut tensor, &low, &b.tensor, true)?;
        let wanted = node.is_some() || x.node.is_some() || a.trainable || b.trainable;
        let (x, dx) = (x.tensor.clone(), x.node);
        let (id_a, id_b, scale) = (adapter.a, adapter.b, adapter.scale);
        let y = self.record(tensor, wanted, |y| LoraOp { x, dx, low, dropout, a: id_a, b: id_b, scale, base: node, y });
        match adapter.magnitude {
            None => Ok(y),
            Some(magnitude) => self.bring_to_length(&y, adapter, magnitude),
        }
    }

    /// DoRA: every column of `z` (M, N) times magnitude / length of the weight's row.
    fn bring_to_length(&mut self, z: &Var, adapter: &AdapterSpec, magnitude: ParamId) -> Result<Var> {
        let (weight, a, b) = (self.param(adapter.weight)?, self.param(adapter.a)?, self.param(adapter.b)?);
        let mut norm = self.backend.alloc(Shape::from([adapter.rows.len()]), DType::F32)?;
        let weight = weight.tensor.rows(adapter.rows.clone())?;
        self.backend.dora_norm(&mut norm, &weight, &a.tensor, &b.tensor, adapter.scale)?;
        let length = self.param(magnitude)?;
        let mut y = self.backend.alloc(z.tensor.shape(), z.tensor.dtype())?;
        self.backend.dora_scale_forward(&mut y, &z.tensor, &length.tensor, &norm)?;
        let wanted = z.node.is_some() || length.trainable;
        Ok(self.record(y, wanted, |y| DoraOp { z: z.tensor.clone(), dz: z.node, norm, magnitude, y }))
    }

    /// Some linear layers on one input whose weights lie one after the other in `w` (N, K): as many rows of it for each as `sizes`
    /// says. Panics: if they are not all of its rows.
    pub fn linear_split<const N: usize>(&mut self, x: &Var, w: ParamId, sizes: [usize; N]) -> Result<[Var; N]> {
        let (x, weight) = (&self.layer_input(x, w)?, self.weight(w)?);
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
            self.backend.matmul_nt(&mut y, &x.tensor, &weight.tensor.rows(rows.clone())?, false)?;
            let node = records.then(|| self.new_node());
            parts.extend(node.map(|node| (rows, node)));
            outputs.push(Var { tensor: y, node });
        }
        if let (true, Some(tape)) = (records, self.tape.as_mut()) {
            let kept = weight.trainable.then(|| x.tensor.clone());
            tape.push(LinearSplitOp {
                x: kept,
                shape: x.tensor.shape(),
                dtype: x.tensor.dtype(),
                dx: x.node,
                w,
                parts,
            });
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

    /// Like [`Cx::linear`] with an f32 result and no gradient: logits to look at, soft-capped where a cap is given.
    pub fn logits(&mut self, x: &Var, w: ParamId, soft_cap: Option<f32>) -> Result<Tensor> {
        let (x, weight) = (self.layer_input(x, w)?, self.weight(w)?);
        let shape = Shape::from([x.tensor.shape().rows_cols().0, weight.tensor.shape().rows_cols().0]);
        let mut y = self.backend.alloc(shape, DType::F32)?;
        self.backend.matmul_nt(&mut y, &x.tensor, &weight.tensor, false)?;
        if let Some(cap) = soft_cap {
            self.backend.soft_cap_in_place(&mut y, cap)?;
        }
        Ok(y)
    }

    /// Rows of the embedding `w` (V, D) for the token ids (T), times `scale` rounded to the embedding's dtype: (T, D).
    pub fn embedding(&mut self, tokens: &Tensor, w: ParamId, scale: f32) -> Result<Var> {
        let weight = self.param(w)?;
        let scale = weight.tensor.dtype().rounding()(scale);
        let shape = Shape::from([tokens.num_elements(), weight.tensor.shape().rows_cols().1]);
        let mut y = self.backend.alloc(shape, weight.tensor.dtype())?;
        self.backend.embedding_forward(&mut y, tokens, &weight.tensor, scale)?;
        Ok(self.record(y, weight.trainable, |y| EmbeddingOp { tokens: tokens.clone(), scale, w, y }))
    }

    /// Root-mean-square norm with weight `w` (D) over each D elements of the last dimension: over whole rows, or over heads that lie
    /// side by side.
    pub fn rms_norm(&mut self, x: &Var, w: ParamId, norm: RmsNorm) -> Result<Var> {
        let weight = self.param(w)?;
        let (shape, dtype) = (x.tensor.shape(), x.tensor.dtype());
        let rows = norm_rows(shape, weight.tensor.num_elements());
        let x_rows = x.tensor.reshape(rows)?;
        let mut y = self.backend.alloc(rows, dtype)?;
        let mut rstd = self.backend.alloc(Shape::from([rows.rows_cols().0]), DType::F32)?;
        self.backend.rms_norm_forward(&mut y, &mut rstd, &x_rows, &weight.tensor, norm)?;
        let wanted = x.node.is_some() || weight.trainable;
        Ok(self.record(y.reshape(shape)?, wanted, |y| RmsNormOp { x: x.tensor.clone(), dx: x.node, rstd, w, norm, y }))
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

    /// `activation(gate) * up`.
    pub fn glu(&mut self, gate: &Var, up: &Var, activation: Activation) -> Result<Var> {
        let mut h = self.backend.alloc(gate.tensor.shape(), gate.tensor.dtype())?;
        self.backend.glu_forward(&mut h, &gate.tensor, &up.tensor, activation)?;
        let wanted = gate.node.is_some() || up.node.is_some();
        Ok(self.record(h, wanted, |y| GluOp {
            gate: gate.tensor.clone(),
            dgate: gate.node,
            up: up.tensor.clone(),
            dup: up.node,
            activation,
            y,
        }))
    }

    /// `a + b`.
    pub fn add(&mut self, a: &Var, b: &Var) -> Result<Var> {
        let mut y = self.backend.alloc(a.tensor.shape(), a.tensor.dtype())?;
        self.backend.add(&mut y, &a.tensor, &b.tensor)?;
        Ok(self.record(y, a.node.is_some() || b.node.is_some(), |y| AddOp { da: a.node, db: b.node, y }))
    }

    /// The scaled cross entropy of the head `w` on `h`, its logits soft-capped where a cap is given, as an f32 tensor of one element.
    ///
    /// A training context computes the gradients in the same pass, so `scale` must be final: the loss is never multiplied
    /// afterwards.
    pub fn head_loss(
        &mut self,
        h: &Var,
        w: ParamId,
        labels: &Tensor,
        scale: f32,
        soft_cap: Option<f32>,
    ) -> Result<Var> {
        let (h, weight) = (self.layer_input(h, w)?, self.weight(w)?);
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
        self.backend.head_loss(out, &h.tensor, &weight.tensor, labels, scale, soft_cap)?;
        if let (Some(dh), Some(node), Some(tape)) = (dh, h.node, self.tape.as_mut()) {
            tape.push(HeadLossOp { dh, node });
        }
        Ok(Var::constant(loss))
    }

    /// [`Cx::head_loss`] of a head with an adapter.
    ///
    /// Logits are `(h | low) (w | b)^T` with `low = scale drop(h) a^T`: one product over joined columns. The joined head and its gradient
    /// live as long as this call.
    pub fn head_loss_adapted(
        &mut self,
        h: &Var,
        adapter: &AdapterSpec,
        labels: &Tensor,
        scale: f32,
        soft_cap: Option<f32>,
    ) -> Result<Var> {
        if !self.adapts {
            return self.head_loss(h, adapter.weight, labels, scale, soft_cap);
        }
        let backend = self.backend;
        let [w, a, b] = [self.weight(adapter.weight)?, self.param(adapter.a)?, self.param(adapter.b)?];
        let dropout = self.dropout(adapter);
        let dropped = drop_out(backend, &h.tensor, dropout.as_ref())?;
        let low = low_rank(backend, &dropped, &a.tensor, adapter.scale)?;
        let input = self.layer_input(h, adapter.weight)?;
        let (joined_h, joined_w) = (join(backend, &input.tensor, &low)?, join(backend, &w.tensor, &b.tensor)?);
        drop((input, w));
        drop(low);
        let mut loss = backend.zeros(Shape::from([1]), DType::F32)?;
        if self.tape.is_none() {
            let out = HeadLossOut { loss: &mut loss, dh: None, dw: None };
            backend.head_loss(out, &joined_h, &joined_w, labels, scale, soft_cap)?;
            return Ok(Var::constant(loss));
        }
        let mut db = self.host.gradient(adapter.b)?;
        let mut djoined_h = backend.alloc(joined_h.shape(), joined_h.dtype())?;
        let mut djoined_w = backend.alloc(joined_w.shape(), db.tensor.dtype())?;
        let out = HeadLossOut { loss: &mut loss, dh: Some(&mut djoined_h), dw: Some((&mut djoined_w, false)) };
        backend.head_loss(out, &joined_h, &joined_w, labels, scale, soft_cap)?;
        drop((joined_h, joined_w));

        let (dim, rank) = (h.tensor.shape().rows_cols().1, b.tensor.shape().rows_cols().1);
        let right = Columns { count: rank, from: dim, to: 0 };
        if db.accumulate {
            let mut part = backend.alloc(db.tensor.shape(), db.tensor.dtype())?;
            backend.copy_columns(&mut part, &djoined_w, right)?;
            backend.add_in_place(&mut db.tensor, &part)?;
        } else {
            backend.copy_columns(&mut db.tensor, &djoined_w, right)?;
        }
        drop(djoined_w);
        let mut dlow = backend.alloc(Shape::from([h.tensor.shape().rows_cols().0, rank]), djoined_h.dtype())?;
        backend.copy_columns(&mut dlow, &djoined_h, right)?;
        backend.scale_in_place(&mut dlow, adapter.scale)?;
        let mut da = self.host.gradient(adapter.a)?;
        backend.matmul_tn(&mut da.tensor, &dlow, &dropped, da.accumulate)?;
        if let (Some(node), Some(tape)) = (h.node, self.tape.as_mut()) {
            let mut dh = backend.alloc(h.tensor.shape(), h.tensor.dtype())?;
            backend.copy_columns(&mut dh, &djoined_h, Columns { count: dim, from: 0, to: 0 })?;
            add_low_rank_gradient(backend, &mut dh, &dlow, &a.tensor, dropout.as_ref())?;
            tape.push(HeadLossOp { dh, node });
        }
        Ok(Var::constant(loss))
    }

    /// [`Cx::logits`] of a head with an adapter.
    pub fn logits_adapted(&mut self, h: &Var, adapter: &AdapterSpec, soft_cap: Option<f32>) -> Result<Tensor> {
        if !self.adapts {
            return self.logits(h, adapter.weight, soft_cap);
        }
        let [w, a, b] = [self.weight(adapter.weight)?, self.param(adapter.a)?, self.param(adapter.b)?];
        let shape = Shape::from([h.tensor.shape().rows_cols().0, w.tensor.shape().rows_cols().0]);
        let low = low_rank(self.backend, &h.tensor, &a.tensor, adapter.scale)?;
        let mut y = self.backend.alloc(shape, DType::F32)?;
        let input = self.layer_input(h, adapter.weight)?;
        self.backend.matmul_nt(&mut y, &input.tensor, &w.tensor, false)?;
        self.backend.matmul_nt(&mut y, &low, &b.tensor, true)?;
        if let Some(cap) = soft_cap {
            self.backend.soft_cap_in_place(&mut y, cap)?;
        }
        Ok(y)
    }

    /// What is dropped of an adapter's inputs, in training.
    fn dropout(&mut self, adapter: &AdapterSpec) -> Option<Dropout> {
        (self.training && adapter.dropout > 0.0)
            .then(|| Dropout { probability: adapter.dropout, stream: self.draws.stream() })
    }

    /// Log-probabilities of labels under the head `w` on `h` (T, D), its logits soft-capped where a cap is given: (T) f32, 0 for masked
    /// labels. What each of them counts for is said afterwards, to [`Cx::backward_from`].
    pub fn label_log_probs(&mut self, h: &Var, w: ParamId, labels: &Tensor, soft_cap: Option<f32>) -> Result<Var> {
        let (h, weight) = (self.layer_input(h, w)?, self.weight(w)?);
        let mut y = self.backend.alloc(Shape::from([labels.num_elements()]), DType::F32)?;
        self.backend.label_log_probs_forward(&mut y, &h.tensor, &weight.tensor, labels, soft_cap)?;
        let wanted = h.node.is_some() || weight.trainable;
        Ok(self.record(y, wanted, |y| LabelLogProbsOp {
            h: h.tensor.clone(),
            dh: h.node,
            w,
            labels: labels.clone(),
            soft_cap,
            y,
        }))
    }

    /// The mean of all logits that the head `w` (V, D) gives for each of `parts` equal parts of the rows of `h`: (parts) f32, to look at.
    pub fn mean_logits(&mut self, h: &Var, w: ParamId, parts: usize, soft_cap: Option<f32>) -> Result<Tensor> {
        let (h, weight) = (self.layer_input(h, w)?, self.weight(w)?.tensor);
        let ((rows, dim), (vocab, _)) = (h.tensor.shape().rows_cols(), weight.shape().rows_cols());
        let per_part = rows / parts.max(1);
        let part = |index: usize| h.tensor.rows(index * per_part..(index + 1) * per_part);
        let mut means = self.backend.alloc(Shape::from([parts, 1]), DType::F32)?;
        match soft_cap {
            // The sum of w h^T is the sum of the rows of w times the sum of the rows of h.
            None => {
                let mut sum_of_w = self.backend.alloc(Shape::from([1, dim]), DType::F32)?;
                self.backend.bias_backward(&mut sum_of_w.reshape([dim])?, &weight, false)?;
                let mut sums = self.backend.alloc(Shape::from([parts, dim]), DType::F32)?;
                for index in 0..parts {
                    let mut sum = sums.rows(index..index + 1)?.reshape([dim])?;
                    self.backend.bias_backward(&mut sum, &part(index)?, false)?;
                }
                // Means of rows, so that no sum grows with their number.
                self.backend.scale_in_place(&mut sums, 1.0 / per_part as f32)?;
                self.backend.scale_in_place(&mut sum_of_w, 1.0 / vocab as f32)?;
                self.backend.matmul_nt(&mut means, &sums, &sum_of_w, false)?;
            }
            Some(cap) => {
                let most = (LOGITS_BYTES / size_of::<f32>() / vocab.max(1)).clamp(1, per_part.max(1));
                for index in 0..parts {
                    let mut sums = self.backend.zeros(Shape::from([vocab]), DType::F32)?;
                    let part = part(index)?;
                    for first in (0..per_part).step_by(most) {
                        let some = part.rows(first..(first + most).min(per_part))?;
                        let mut logits =
                            self.backend.alloc(Shape::from([some.shape().rows_cols().0, vocab]), DType::F32)?;
                        self.backend.matmul_nt(&mut logits, &some, &weight, false)?;
                        self.backend.soft_cap_in_place(&mut logits, cap)?;
                        self.backend.bias_backward(&mut sums, &logits, true)?;
                    }
                    let mut sum = means.rows(index..index + 1)?.reshape([1])?;
                    self.backend.bias_backward(&mut sum, &sums.reshape([vocab, 1])?, false)?;
                }
                self.backend.scale_in_place(&mut means, 1.0 / (vocab as f32 * per_part as f32))?;
            }
        }
        means.reshape([parts])
    }

    /// A parameter of the running unit.
    fn param(&self, id: ParamId) -> Result<ParamView> {
        find_param(&self.params, id)
    }

    /// A weight as products see it.
    fn weight(&self, id: ParamId) -> Result<ParamView> {
        as_multiplied(self.backend, self.param(id)?, self.quantises)
    }

    /// Whether the layer of a weight rounds its inputs.
    fn rounds_inputs(&self, w: ParamId) -> Result<bool> {
        Ok(self.quantises && self.param(w)?.fake_quant.is_some_and(FakeQuant::rounds_inputs))
    }

    /// `x` (M, K) as the layer of a weight takes it: rounded, if that is quantised for show. Gradients pass straight through.
    fn layer_input(&self, x: &Var, w: ParamId) -> Result<Var> {
        if !self.rounds_inputs(w)? {
            return Ok(x.clone());
        }
        let mut tensor = self.backend.alloc(x.tensor.shape(), x.tensor.dtype())?;
        self.backend.fake_quantise_rows(&mut tensor, &x.tensor)?;
        Ok(Var { tensor, node: x.node })
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

/// `scale x a^T`: what is left of x (M, K) in the rank of a (R, K).
fn low_rank(backend: &dyn Backend, x: &Tensor, a: &Tensor, scale: f32) -> Result<Tensor> {
    let shape = Shape::from([x.shape().rows_cols().0, a.shape().rows_cols().0]);
    let mut low = backend.alloc(shape, x.dtype())?;
    backend.matmul_nt(&mut low, x, a, false)?;
    backend.scale_in_place(&mut low, scale)?;
    Ok(low)
}

/// Two matrices of as many rows, side by side.
fn join(backend: &dyn Backend, left: &Tensor, right: &Tensor) -> Result<Tensor> {
    let ((rows, first), (_, second)) = (left.shape().rows_cols(), right.shape().rows_cols());
    let mut joined = backend.alloc(Shape::from([rows, first + second]), left.dtype())?;
    backend.copy_columns(&mut joined, left, Columns { count: first, from: 0, to: 0 })?;
    backend.copy_columns(&mut joined, right, Columns { count: second, from: 0, to: first })?;
    Ok(joined)
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
                    draws: Draws { key: bw.key, ..Draws::default() }.of_unit(self.unit),
                    adapts: bw.adapts,
                    quantises: bw.quantises,
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
