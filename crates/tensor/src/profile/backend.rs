//! A backend around another one that tells a recorder about every op.
//!
//! Every call is passed on as it is, so results have the same bits. While nothing is recorded a call costs one look at a flag.
//! While recording, the clock is read right before and right after the inner call; what is needed to count work (the visible part
//! of attention, the labels that are not masked) is read before that, outside of the op's time. An op is taken to be over when its
//! call returns: a device that only queues work would need a `flush` before each reading of the clock.
//!
//! `alloc` is an op of its own in time; its bytes are counted where something is first written to the buffer.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use super::{OpWork, Recorder, flops, now_ns};
use crate::ops::adamw::AdamWStep;
use crate::ops::adamw8bit::Quantised;
use crate::ops::attention::AttentionDims;
use crate::ops::dropout::Dropout;
use crate::ops::elementwise::Columns;
use crate::ops::fake_quantise::FakeQuant;
use crate::ops::glu::Activation;
use crate::ops::head_loss::HeadLossOut;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::RopeDims;
use crate::ops::sgd::SgdStep;
use crate::{Backend, DType, Device, MemoryStats, Result, Shape, Tensor};

/// Passes everything on to another backend and records it.
pub struct RecordingBackend {
    inner: Arc<dyn Backend>,
    recorder: Arc<Recorder>,
}

impl std::fmt::Debug for RecordingBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecordingBackend({})", self.inner.describe())
    }
}

/// An op that is running.
struct Call {
    name: &'static str,
    work: OpWork,
    /// Bytes that the pool had given out before.
    taken_bytes: u64,
    start_ns: u64,
}

impl RecordingBackend {
    /// A backend that computes on `inner` and tells `recorder` about it.
    pub fn new(inner: Arc<dyn Backend>, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder }
    }

    /// Begins an op, if it is to be recorded.
    fn begin(&self, name: &'static str, work: impl FnOnce() -> OpWork) -> Option<Call> {
        if !self.recorder.is_active() {
            return None;
        }
        let work = work();
        let taken_bytes = self.inner.memory().taken_bytes;
        Some(Call { name, work, taken_bytes, start_ns: now_ns() })
    }

    /// Begins an op that is no product.
    fn begin_plain(&self, name: &'static str, main: &[&Tensor], reads: &[&Tensor], writes: &[&Tensor]) -> Option<Call> {
        self.begin(name, || self.work(main, reads, writes, 0.0))
    }

    /// What an op does that reads and writes these tensors; the shapes of the `main` ones tell its calls apart.
    fn work(&self, main: &[&Tensor], reads: &[&Tensor], writes: &[&Tensor], flops: f64) -> OpWork {
        let bytes = |tensors: &[&Tensor]| tensors.iter().map(|t| t.len_bytes() as u64).sum::<u64>();
        let shapes = if self.recorder.options().shapes { main.iter().map(|t| t.shape()).collect() } else { Vec::new() };
        OpWork {
            shapes,
            dtype: main.first().map_or(DType::F32, |t| t.dtype()),
            flops,
            bytes: bytes(reads) + bytes(writes),
            allocated_bytes: self.recorder.first_written(writes),
        }
    }

    /// Ends an op, whatever came of it.
    fn end<T>(&self, call: Option<Call>, outcome: Result<T>) -> Result<T> {
        if let Some(Call { name, mut work, taken_bytes, start_ns }) = call {
            let end_ns = now_ns();
            let stats = self.inner.memory();
            work.allocated_bytes += stats.taken_bytes.saturating_sub(taken_bytes);
            self.recorder.push(Cow::Borrowed(name), start_ns, end_ns, Some(work));
            self.sample(stats);
        }
        outcome
    }

    fn sample(&self, stats: MemoryStats) {
        if self.recorder.options().memory {
            self.recorder.push_memory(stats);
        }
    }

    /// An allocation, by `make`.
    fn allocate(&self, name: &'static str, make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        if !self.recorder.is_active() {
            return make();
        }
        let start_ns = now_ns();
        let made = make();
        let end_ns = now_ns();
        if let Ok(tensor) = &made {
            let work = OpWork { shapes: Vec::new(), dtype: tensor.dtype(), flops: 0.0, bytes: 0, allocated_bytes: 0 };
            self.recorder.push(Cow::Borrowed(name), start_ns, end_ns, Some(work));
            self.recorder.allocated(tensor);
            self.sample(self.inner.memory());
        }
        made
    }

    /// The elements of an i32 tensor; none if they cannot be read, which the op itself then says.
    fn ints(&self, x: &Tensor) -> Vec<i32> {
        let mut values = vec![0; x.num_elements()];
        let read = self.inner.download(bytemuck::cast_slice_mut(&mut values), x);
        if read.is_ok() { values } else { Vec::new() }
    }

    fn head_flops(&self, labels: &Tensor, h: &Tensor, w: &Tensor, num_gradients: usize) -> f64 {
        let ((_, dim), (vocab, _)) = (sizes(h), sizes(w));
        flops::head_loss(flops::num_unmasked(&self.ints(labels)), dim, vocab, num_gradients)
    }

    fn attention_flops(&self, products: usize, doc_start: &Tensor, dims: &AttentionDims) -> f64 {
        let num_scores = flops::visible_scores(&self.ints(doc_start), dims);
        flops::attention(products, num_scores, dims.num_heads, dims.head_dim)
    }
}

/// Rows and columns of a matrix.
fn sizes(x: &Tensor) -> (usize, usize) {
    x.shape().rows_cols()
}

/// Operands that are read, and the output too where it is added to.
fn with_output<'a>(reads: &[&'a Tensor], output: &'a Tensor, accumulate: bool) -> Vec<&'a Tensor> {
    reads.iter().copied().chain(accumulate.then_some(output)).collect()
}

impl Backend for RecordingBackend {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn device(&self) -> Device {
        self.inner.device()
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        Some(&self.recorder)
    }

    fn alloc(&self, shape: Shape, dtype: DType) -> Result<Tensor> {
        self.allocate("alloc", || self.inner.alloc(shape, dtype))
    }

    fn alloc_in_file(&self, shape: Shape, dtype: DType, dir: &Path) -> Result<Tensor> {
        self.allocate("alloc_in_file", || self.inner.alloc_in_file(shape, dtype, dir))
    }

    fn upload(&self, dst: &mut Tensor, bytes: &[u8]) -> Result<()> {
        let call = self.begin_plain("upload", &[dst], &[], &[dst]);
        self.end(call, self.inner.upload(dst, bytes))
    }

    fn download(&self, dst: &mut [u8], src: &Tensor) -> Result<()> {
        let call = self.begin_plain("download", &[src], &[src], &[]);
        self.end(call, self.inner.download(dst, src))
    }

    fn copy(&self, dst: &mut Tensor, src: &Tensor) -> Result<()> {
        let call = self.begin_plain("copy", &[src], &[src], &[dst]);
        self.end(call, self.inner.copy(dst, src))
    }

    fn fill_zero(&self, dst: &mut Tensor) -> Result<()> {
        let call = self.begin_plain("fill_zero", &[dst], &[], &[dst]);
        self.end(call, self.inner.fill_zero(dst))
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn memory(&self) -> MemoryStats {
        self.inner.memory()
    }

    fn planner(&self) -> Arc<dyn Backend> {
        self.inner.planner()
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn matmul_nt(&self, y: &mut Tensor, x: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
        let call = self.begin("matmul_nt", || {
            let ((m, k), (n, _)) = (sizes(x), sizes(w));
            let reads = with_output(&[x, w], y, accumulate);
            self.work(&[x, w], &reads, &[y], flops::matmul(m, k, n))
        });
        self.end(call, self.inner.matmul_nt(y, x, w, accumulate))
    }

    fn matmul_nn(&self, dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
        let call = self.begin("matmul_nn", || {
            let ((m, n), (_, k)) = (sizes(dy), sizes(w));
            let reads = with_output(&[dy, w], dx, accumulate);
            self.work(&[dy, w], &reads, &[dx], flops::matmul(m, n, k))
        });
        self.end(call, self.inner.matmul_nn(dx, dy, w, accumulate))
    }

    fn matmul_tn(&self, dw: &mut Tensor, dy: &Tensor, x: &Tensor, accumulate: bool) -> Result<()> {
        let call = self.begin("matmul_tn", || {
            let ((m, n), (_, k)) = (sizes(dy), sizes(x));
            let reads = with_output(&[dy, x], dw, accumulate);
            self.work(&[dy, x], &reads, &[dw], flops::matmul(n, m, k))
        });
        self.end(call, self.inner.matmul_tn(dw, dy, x, accumulate))
    }

    fn bias_in_place(&self, y: &mut Tensor, b: &Tensor) -> Result<()> {
        let call = self.begin_plain("bias_in_place", &[y], &[y, b], &[y]);
        self.end(call, self.inner.bias_in_place(y, b))
    }

    fn bias_backward(&self, db: &mut Tensor, dy: &Tensor, accumulate: bool) -> Result<()> {
        let call = self.begin("bias_backward", || {
            let reads = with_output(&[dy], db, accumulate);
            self.work(&[dy], &reads, &[db], 0.0)
        });
        self.end(call, self.inner.bias_backward(db, dy, accumulate))
    }

    fn dropout_in_place(&self, x: &mut Tensor, dropout: &Dropout) -> Result<()> {
        let call = self.begin_plain("dropout_in_place", &[x], &[x], &[x]);
        self.end(call, self.inner.dropout_in_place(x, dropout))
    }

    fn dora_norm(&self, norm: &mut Tensor, w: &Tensor, a: &Tensor, b: &Tensor, scale: f32) -> Result<()> {
        let call = self.begin("dora_norm", || {
            let ((n, k), (rank, _)) = (sizes(w), sizes(a));
            self.work(&[w, a, b], &[w, a, b], &[norm], flops::matmul(n, rank, k))
        });
        self.end(call, self.inner.dora_norm(norm, w, a, b, scale))
    }

    fn dora_scale_forward(&self, y: &mut Tensor, z: &Tensor, magnitude: &Tensor, norm: &Tensor) -> Result<()> {
        let call = self.begin_plain("dora_scale_forward", &[z], &[z, magnitude, norm], &[y]);
        self.end(call, self.inner.dora_scale_forward(y, z, magnitude, norm))
    }

    fn dora_scale_backward(
        &self,
        dz: &mut Tensor,
        dmagnitude: Option<(&mut Tensor, bool)>,
        dy: &Tensor,
        z: &Tensor,
        magnitude: &Tensor,
        norm: &Tensor,
    ) -> Result<()> {
        let call = self.begin("dora_scale_backward", || match &dmagnitude {
            None => self.work(&[dy], &[dy, magnitude, norm], &[dz], 0.0),
            Some((dmagnitude, accumulate)) => {
                let reads = with_output(&[dy, z, magnitude, norm], dmagnitude, *accumulate);
                self.work(&[dy], &reads, &[dz, dmagnitude], 0.0)
            }
        });
        self.end(call, self.inner.dora_scale_backward(dz, dmagnitude, dy, z, magnitude, norm))
    }

    fn nf4_quantise(&self, packed: &mut Tensor, w: &Tensor) -> Result<()> {
        let call = self.begin_plain("nf4_quantise", &[w], &[w], &[packed]);
        self.end(call, self.inner.nf4_quantise(packed, w))
    }

    fn nf4_dequantise(&self, w: &mut Tensor, packed: &Tensor) -> Result<()> {
        let call = self.begin_plain("nf4_dequantise", &[w], &[packed], &[w]);
        self.end(call, self.inner.nf4_dequantise(w, packed))
    }

    fn fake_quantise_rows(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        let call = self.begin_plain("fake_quantise_rows", &[x], &[x], &[y]);
        self.end(call, self.inner.fake_quantise_rows(y, x))
    }

    fn fake_quantise_groups(&self, y: &mut Tensor, w: &Tensor, quant: FakeQuant) -> Result<()> {
        let call = self.begin_plain("fake_quantise_groups", &[w], &[w], &[y]);
        self.end(call, self.inner.fake_quantise_groups(y, w, quant))
    }

    fn embedding_forward(&self, y: &mut Tensor, tokens: &Tensor, w: &Tensor, scale: f32) -> Result<()> {
        // Of `w` it reads as many rows as it writes.
        let call = self.begin_plain("embedding_forward", &[w, tokens], &[tokens, y], &[y]);
        self.end(call, self.inner.embedding_forward(y, tokens, w, scale))
    }

    fn embedding_backward(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        tokens: &Tensor,
        scale: f32,
        accumulate: bool,
    ) -> Result<()> {
        let call = self.begin("embedding_backward", || {
            let mut done = self.work(&[dw, dy], &[dy, tokens], &[dw], 0.0);
            // Rows of `dw` are read and written once a token; all of it is written only where it is zeroed.
            let rows = (dy.num_elements() * dw.dtype().size_bytes()) as u64;
            let zeroed = if accumulate { dw.len_bytes() as u64 } else { 0 };
            done.bytes = done.bytes - zeroed + 2 * rows;
            done
        });
        self.end(call, self.inner.embedding_backward(dw, dy, tokens, scale, accumulate))
    }

    fn rms_norm_forward(&self, y: &mut Tensor, rstd: &mut Tensor, x: &Tensor, w: &Tensor, norm: RmsNorm) -> Result<()> {
        let call = self.begin_plain("rms_norm_forward", &[x], &[x, w], &[y, rstd]);
        self.end(call, self.inner.rms_norm_forward(y, rstd, x, w, norm))
    }

    fn rms_norm_backward(
        &self,
        dx: Option<(&mut Tensor, bool)>,
        dw: Option<(&mut Tensor, bool)>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        norm: RmsNorm,
    ) -> Result<()> {
        let call = self.begin("rms_norm_backward", || {
            let outputs = [dx.as_ref(), dw.as_ref()].into_iter().flatten();
            let writes: Vec<&Tensor> = outputs.clone().map(|(output, _)| &**output).collect();
            let added_to = outputs.filter(|(_, accumulate)| *accumulate).map(|(output, _)| &**output);
            let reads: Vec<&Tensor> = [dy, x, w, rstd].into_iter().chain(added_to).collect();
            self.work(&[x], &reads, &writes, 0.0)
        });
        self.end(call, self.inner.rms_norm_backward(dx, dw, dy, x, w, rstd, norm))
    }

    fn rope_table(&self, table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()> {
        let call = self.begin_plain("rope_table", &[table], &[positions, inv_freq], &[table]);
        self.end(call, self.inner.rope_table(table, positions, inv_freq))
    }

    fn rope_in_place(&self, x: &mut Tensor, table: &Tensor, dims: RopeDims, inverse: bool) -> Result<()> {
        let call = self.begin_plain("rope_in_place", &[x], &[x, table], &[x]);
        self.end(call, self.inner.rope_in_place(x, table, dims, inverse))
    }

    fn attention_forward(
        &self,
        o: &mut Tensor,
        lse: &mut Tensor,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        doc_start: &Tensor,
        dims: &AttentionDims,
    ) -> Result<()> {
        let call = self.begin("attention_forward", || {
            let flops = self.attention_flops(flops::ATTENTION_FORWARD, doc_start, dims);
            self.work(&[q, k], &[q, k, v, doc_start], &[o, lse], flops)
        });
        self.end(call, self.inner.attention_forward(o, lse, q, k, v, doc_start, dims))
    }

    fn attention_backward(
        &self,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
        d_o: &Tensor,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        lse: &Tensor,
        doc_start: &Tensor,
        dims: &AttentionDims,
    ) -> Result<()> {
        let call = self.begin("attention_backward", || {
            let flops = self.attention_flops(flops::ATTENTION_BACKWARD, doc_start, dims);
            let reads = [d_o, q, k, v, o, lse, doc_start];
            self.work(&[q, k], &reads, &[dq, dk, dv], flops)
        });
        self.end(call, self.inner.attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, doc_start, dims))
    }

    fn glu_forward(&self, h: &mut Tensor, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<()> {
        let call = self.begin_plain("glu_forward", &[gate], &[gate, up], &[h]);
        self.end(call, self.inner.glu_forward(h, gate, up, activation))
    }

    fn glu_backward(
        &self,
        dgate: &mut Tensor,
        dup: &mut Tensor,
        dh: &Tensor,
        gate: &Tensor,
        up: &Tensor,
        activation: Activation,
    ) -> Result<()> {
        let call = self.begin_plain("glu_backward", &[gate], &[dh, gate, up], &[dgate, dup]);
        self.end(call, self.inner.glu_backward(dgate, dup, dh, gate, up, activation))
    }

    fn head_loss(
        &self,
        out: HeadLossOut<'_>,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        scale: f32,
        soft_cap: Option<f32>,
    ) -> Result<()> {
        let call = self.begin("head_loss", || {
            let HeadLossOut { loss, dh, dw } = &out;
            let gradients = [dh.as_deref(), dw.as_ref().map(|(dw, _)| &**dw)];
            let gradients: Vec<&Tensor> = gradients.into_iter().flatten().collect();
            let flops = self.head_flops(labels, h, w, gradients.len());
            let added_to = dw.as_ref().filter(|(_, accumulate)| *accumulate).map(|(dw, _)| &**dw);
            let reads: Vec<&Tensor> = [h, w, labels, loss].into_iter().chain(added_to).collect();
            let writes: Vec<&Tensor> = gradients.into_iter().chain([&**loss]).collect();
            self.work(&[h, w], &reads, &writes, flops)
        });
        self.end(call, self.inner.head_loss(out, h, w, labels, scale, soft_cap))
    }

    fn label_log_probs_forward(
        &self,
        log_probs: &mut Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        soft_cap: Option<f32>,
    ) -> Result<()> {
        let call = self.begin("label_log_probs_forward", || {
            let flops = self.head_flops(labels, h, w, 0);
            self.work(&[h, w], &[h, w, labels], &[log_probs], flops)
        });
        self.end(call, self.inner.label_log_probs_forward(log_probs, h, w, labels, soft_cap))
    }

    fn label_log_probs_backward(
        &self,
        dh: Option<&mut Tensor>,
        dw: Option<(&mut Tensor, bool)>,
        d_log_probs: &Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        soft_cap: Option<f32>,
    ) -> Result<()> {
        let call = self.begin("label_log_probs_backward", || {
            let gradients = [dh.as_deref(), dw.as_ref().map(|(dw, _)| &**dw)];
            let gradients: Vec<&Tensor> = gradients.into_iter().flatten().collect();
            let added_to = dw.as_ref().filter(|(_, accumulate)| *accumulate).map(|(dw, _)| &**dw);
            let reads: Vec<&Tensor> = [d_log_probs, h, w, labels].into_iter().chain(added_to).collect();
            self.work(&[h, w], &reads, &gradients, self.head_flops(labels, h, w, gradients.len()))
        });
        self.end(call, self.inner.label_log_probs_backward(dh, dw, d_log_probs, h, w, labels, soft_cap))
    }

    fn add(&self, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        let call = self.begin_plain("add", &[a], &[a, b], &[y]);
        self.end(call, self.inner.add(y, a, b))
    }

    fn copy_columns(&self, dst: &mut Tensor, src: &Tensor, columns: Columns) -> Result<()> {
        // The narrower one is what passes.
        let part: &Tensor = if dst.num_elements() < src.num_elements() { dst } else { src };
        let call = self.begin_plain("copy_columns", &[src], &[part], &[part]);
        self.end(call, self.inner.copy_columns(dst, src, columns))
    }

    fn scale_in_place(&self, x: &mut Tensor, factor: f32) -> Result<()> {
        let call = self.begin_plain("scale_in_place", &[x], &[x], &[x]);
        self.end(call, self.inner.scale_in_place(x, factor))
    }

    fn add_in_place(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        let call = self.begin_plain("add_in_place", &[x], &[y, x], &[y]);
        self.end(call, self.inner.add_in_place(y, x))
    }

    fn soft_cap_in_place(&self, y: &mut Tensor, cap: f32) -> Result<()> {
        let call = self.begin_plain("soft_cap_in_place", &[y], &[y], &[y]);
        self.end(call, self.inner.soft_cap_in_place(y, cap))
    }

    fn adamw_step(
        &self,
        param: &mut Tensor,
        exp_avg: &mut Tensor,
        exp_avg_sq: &mut Tensor,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()> {
        let state = [&*param, exp_avg, exp_avg_sq];
        let call = self.begin("adamw_step", || {
            let reads: Vec<&Tensor> = state.into_iter().chain([grad]).collect();
            self.work(&state[..1], &reads, &state, 0.0)
        });
        self.end(call, self.inner.adamw_step(param, exp_avg, exp_avg_sq, grad, step))
    }

    fn adamw8bit_step(
        &self,
        param: &mut Tensor,
        exp_avg: Quantised<'_>,
        exp_avg_sq: Quantised<'_>,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()> {
        let call = self.begin("adamw8bit_step", || {
            let state = [&*param, exp_avg.bytes, exp_avg.absmax, exp_avg_sq.bytes, exp_avg_sq.absmax];
            let reads: Vec<&Tensor> = state.into_iter().chain([grad]).collect();
            self.work(&state[..1], &reads, &state, 0.0)
        });
        self.end(call, self.inner.adamw8bit_step(param, exp_avg, exp_avg_sq, grad, step))
    }

    fn sgd_step(
        &self,
        param: &mut Tensor,
        momentum_buffer: Option<&mut Tensor>,
        grad: &Tensor,
        step: &SgdStep,
    ) -> Result<()> {
        let call = self.begin("sgd_step", || {
            let state: Vec<&Tensor> = [&*param].into_iter().chain(momentum_buffer.as_deref()).collect();
            let reads: Vec<&Tensor> = state.iter().copied().chain([grad]).collect();
            self.work(&state[..1], &reads, &state, 0.0)
        });
        self.end(call, self.inner.sgd_step(param, momentum_buffer, grad, step))
    }

    fn sum_of_squares(&self, x: &Tensor) -> Result<f64> {
        let call = self.begin_plain("sum_of_squares", &[x], &[x], &[]);
        self.end(call, self.inner.sum_of_squares(x))
    }

    fn read_scalar(&self, x: &Tensor) -> Result<f32> {
        let call = self.begin_plain("read_scalar", &[x], &[x], &[]);
        self.end(call, self.inner.read_scalar(x))
    }
}
