//! A backend that computes nothing: it counts the memory that [`crate::CpuBackend`] would hold for the same calls.
//!
//! A training step run on it is that step's memory plan: tensors come from a pool that works as the real one does, of
//! regions that hold nothing, and each op takes the temporary memory that the real op takes. Results are undefined; sums and
//! scalars read as 1, so that a step takes the path of a healthy one.
//!
//! Checked: `recipes/tests/memory.rs` compares it with real steps.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensor::ops::adamw::{self, AdamWStep};
use tensor::ops::adamw8bit::{self, Quantised};
use tensor::ops::attention::{self, AttentionDims};
use tensor::ops::dora::{self, DoraDims};
use tensor::ops::dropout::{self, Dropout};
use tensor::ops::elementwise::Columns;
use tensor::ops::fake_quantise::{self, FakeQuant};
use tensor::ops::glu::{self, Activation};
use tensor::ops::head_loss::{self, HeadLossOut};
use tensor::ops::label_log_probs;
use tensor::ops::matmul::{self, MatmulDims};
use tensor::ops::rms_norm::{self, RmsNorm};
use tensor::ops::rope::{self, RopeDims};
use tensor::ops::sgd::{self, SgdStep};
use tensor::ops::{bias, elementwise, embedding, nf4};
use tensor::{Backend, DType, Device, MemoryStats, Result, Shape, Tensor};

use crate::attention::plan::{KEYS, Plan, ROWS as QUERY_ROWS};
use crate::buffer::{DEVICE, HostBuffer, Temp};
use crate::head_loss::{BLOCK, STATISTICS, chunk_len, transposed_len};
use crate::isa::Isa;
use crate::matmul::{FEW_TOKENS, few_tokens_shared_len, shared_len};
use crate::pool::Pool;
use crate::rms_norm::ROWS as NORM_ROWS;
use crate::tile::NR;

/// Counts memory instead of computing.
#[derive(Debug)]
pub struct PlanBackend {
    pool: Pool,
    num_threads: usize,
    isa: Isa,
    /// The largest scratch memory that an op takes on each worker, in f32 elements.
    scratch: AtomicUsize,
}

impl PlanBackend {
    /// A plan for a backend of that many threads and that instruction set.
    pub fn new(num_threads: usize, isa: Isa) -> Self {
        Self { pool: Pool::planned(), num_threads: num_threads.max(1), isa, scratch: AtomicUsize::new(0) }
    }

    fn scratch(&self, elements: usize) {
        self.scratch.fetch_max(elements, Ordering::Relaxed);
    }

    fn temp(&self, elements: usize) -> Result<Temp> {
        Temp::new(&self.pool, elements)
    }

    /// What a pass over a head takes.
    fn head(&self, (num_tokens, dim, vocab): (usize, usize, usize), wants_dh: bool, wants_dw: bool) -> Result<()> {
        let row_len = dim.next_multiple_of(NR);
        let num_shares = self.num_threads.min(vocab.div_ceil(BLOCK)).max(1);
        let most = chunk_len(num_tokens, vocab);
        // All chunks are alike but for the last one.
        for tokens in [most.min(num_tokens), num_tokens % most].into_iter().filter(|&tokens| tokens > 0) {
            let width = tokens.next_multiple_of(NR);
            self.scratch(BLOCK * (width + row_len) + NR * row_len);
            let _panels = self.temp(tokens * row_len)?;
            let _transposed = self.temp(transposed_len(width, dim))?;
            self.temp(tokens * dim)?;
            let _logits = self.temp(if wants_dh || wants_dw { vocab * width } else { 0 })?;
            let _statistics = self.temp(vocab.div_ceil(BLOCK) * STATISTICS * width)?;
            self.temp(if wants_dh { num_shares * width * row_len } else { 0 })?;
        }
        Ok(())
    }
}

impl Backend for PlanBackend {
    fn describe(&self) -> String {
        format!("memory plan ({} threads)", self.num_threads)
    }

    fn device(&self) -> Device {
        DEVICE
    }

    fn alloc(&self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let bytes = shape.num_elements() * dtype.size_bytes();
        Ok(Tensor::from_buffer(Arc::new(HostBuffer::new(&self.pool, bytes)?), 0, shape, dtype))
    }

    fn alloc_in_file(&self, shape: Shape, dtype: DType, dir: &Path) -> Result<Tensor> {
        let bytes = shape.num_elements() * dtype.size_bytes();
        Ok(Tensor::from_buffer(Arc::new(HostBuffer::in_file(&self.pool, bytes, dir)?), 0, shape, dtype))
    }

    fn upload(&self, _: &mut Tensor, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn download(&self, dst: &mut [u8], _: &Tensor) -> Result<()> {
        dst.fill(0);
        Ok(())
    }

    fn copy(&self, dst: &mut Tensor, src: &Tensor) -> Result<()> {
        elementwise::check_copy(dst, src).map(drop)
    }

    fn fill_zero(&self, _: &mut Tensor) -> Result<()> {
        Ok(())
    }

    fn trim(&self) {
        self.pool.trim();
    }

    fn memory(&self) -> MemoryStats {
        let scratch_bytes = self.scratch.load(Ordering::Relaxed) * size_of::<f32>() * self.num_threads;
        MemoryStats { scratch_bytes, ..self.pool.stats() }
    }

    fn planner(&self) -> Arc<dyn Backend> {
        Arc::new(Self::new(self.num_threads, self.isa))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn matmul_nt(&self, y: &mut Tensor, x: &Tensor, w: &Tensor, _: bool) -> Result<()> {
        let MatmulDims { m, k, .. } = matmul::check_nt(y, x, w)?;
        let few = m <= FEW_TOKENS;
        let len = if few { few_tokens_shared_len(m, k) } else { shared_len(self.isa, x.dtype(), (m, k), true) };
        self.temp(len).map(drop)
    }

    fn matmul_nn(&self, dx: &mut Tensor, dy: &Tensor, w: &Tensor, _: bool) -> Result<()> {
        let MatmulDims { m, n, .. } = matmul::check_nn(dx, dy, w)?;
        self.temp(shared_len(self.isa, dy.dtype(), (m, n), true)).map(drop)
    }

    fn matmul_tn(&self, dw: &mut Tensor, dy: &Tensor, x: &Tensor, _: bool) -> Result<()> {
        let MatmulDims { m, n, .. } = matmul::check_tn(dw, dy, x)?;
        self.temp(shared_len(self.isa, dy.dtype(), (n, m), false)).map(drop)
    }

    fn bias_in_place(&self, y: &mut Tensor, b: &Tensor) -> Result<()> {
        bias::check_in_place(y, b).map(drop)
    }

    fn bias_backward(&self, db: &mut Tensor, dy: &Tensor, _: bool) -> Result<()> {
        let (num_rows, dim) = bias::check_backward(db, dy)?;
        self.temp(num_rows.div_ceil(NORM_ROWS) * dim).map(drop)
    }

    fn dropout_in_place(&self, x: &mut Tensor, _: &Dropout) -> Result<()> {
        dropout::check_in_place(x).map(drop)
    }

    fn dora_norm(&self, norm: &mut Tensor, w: &Tensor, a: &Tensor, b: &Tensor, _: f32) -> Result<()> {
        let DoraDims { k, rank, .. } = dora::check_norm(norm, w, a, b)?;
        self.scratch(k);
        self.temp(rank * k).map(drop)
    }

    fn dora_scale_forward(&self, y: &mut Tensor, z: &Tensor, magnitude: &Tensor, norm: &Tensor) -> Result<()> {
        let (_, dim) = dora::check_scale_forward(y, z, magnitude, norm)?;
        self.temp(dim).map(drop)
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
        let dmagnitude = dmagnitude.map(|(tensor, _)| &*tensor);
        let (num_rows, dim) = dora::check_scale_backward(dz, dmagnitude, dy, z, magnitude, norm)?;
        let _factors = self.temp(dim)?;
        self.temp(if dmagnitude.is_some() { num_rows.div_ceil(NORM_ROWS) * dim } else { 0 }).map(drop)
    }

    fn nf4_quantise(&self, packed: &mut Tensor, w: &Tensor) -> Result<()> {
        let layout = nf4::check("nf4_quantise", packed, w)?;
        self.temp(layout.num_blocks).map(drop)
    }

    fn nf4_dequantise(&self, w: &mut Tensor, packed: &Tensor) -> Result<()> {
        nf4::check("nf4_dequantise", packed, w).map(drop)
    }

    fn fake_quantise_rows(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        fake_quantise::check_rows(y, x).map(drop)
    }

    fn fake_quantise_groups(&self, y: &mut Tensor, w: &Tensor, quant: FakeQuant) -> Result<()> {
        fake_quantise::check_groups(y, w, quant).map(drop)
    }

    fn embedding_forward(&self, y: &mut Tensor, tokens: &Tensor, w: &Tensor, _: f32) -> Result<()> {
        embedding::check_forward(y, tokens, w).map(drop)
    }

    fn embedding_backward(&self, dw: &mut Tensor, dy: &Tensor, tokens: &Tensor, _: f32, _: bool) -> Result<()> {
        embedding::check_backward(dw, dy, tokens).map(drop)
    }

    fn rms_norm_forward(&self, y: &mut Tensor, rstd: &mut Tensor, x: &Tensor, w: &Tensor, _: RmsNorm) -> Result<()> {
        rms_norm::check_forward(y, rstd, x, w).map(drop)
    }

    fn rms_norm_backward(
        &self,
        dx: Option<(&mut Tensor, bool)>,
        dw: Option<(&mut Tensor, bool)>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        _: RmsNorm,
    ) -> Result<()> {
        let (dx, dw) = (dx.map(|(t, _)| &*t), dw.map(|(t, _)| &*t));
        let (num_rows, dim) = rms_norm::check_backward(dx, dw, dy, x, w, rstd)?;
        self.temp(if dw.is_some() { num_rows.div_ceil(NORM_ROWS) * dim } else { 0 }).map(drop)
    }

    fn rope_table(&self, table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()> {
        rope::check_table(table, positions, inv_freq).map(drop)
    }

    fn rope_in_place(&self, x: &mut Tensor, table: &Tensor, dims: RopeDims, _: bool) -> Result<()> {
        rope::check(x, table, dims).map(drop)
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
        attention::check_forward(o, lse, q, k, v, doc_start, dims)?;
        self.scratch(2 * dims.keys * dims.head_dim + QUERY_ROWS * (2 * dims.head_dim + KEYS));
        Ok(())
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
        attention::check_forward(o, lse, q, k, v, doc_start, dims)?;
        attention::check_gradients([("dq", dq, q), ("dk", dk, k), ("dv", dv, v), ("d_o", d_o, o)])?;
        let width = dims.head_dim.next_multiple_of(NR);
        self.scratch(5 * dims.keys * width + QUERY_ROWS * (3 * width + 2 * KEYS));
        let chunks = Plan::chunks_per_row(dims, self.num_threads);
        let num_tasks = dims.batch * dims.num_kv_heads * chunks;
        self.temp(if chunks == 1 { 0 } else { num_tasks * 2 * dims.keys * width }).map(drop)
    }

    fn glu_forward(&self, h: &mut Tensor, gate: &Tensor, up: &Tensor, _: Activation) -> Result<()> {
        glu::check(gate, &[("up", up), ("h", h)]).map(drop)
    }

    fn glu_backward(
        &self,
        dgate: &mut Tensor,
        dup: &mut Tensor,
        dh: &Tensor,
        gate: &Tensor,
        up: &Tensor,
        _: Activation,
    ) -> Result<()> {
        glu::check(gate, &[("up", up), ("dh", dh), ("dgate", dgate), ("dup", dup)]).map(drop)
    }

    fn head_loss(
        &self,
        out: HeadLossOut<'_>,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        _: f32,
        _: Option<f32>,
    ) -> Result<()> {
        let sizes = head_loss::check(&out, h, w, labels)?;
        self.head(sizes, out.dh.is_some(), out.dw.is_some())
    }

    fn label_log_probs_forward(
        &self,
        log_probs: &mut Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        _: Option<f32>,
    ) -> Result<()> {
        self.head(label_log_probs::check_forward(log_probs, h, w, labels)?, false, false)
    }

    fn label_log_probs_backward(
        &self,
        dh: Option<&mut Tensor>,
        dw: Option<(&mut Tensor, bool)>,
        d_log_probs: &Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        _: Option<f32>,
    ) -> Result<()> {
        let gradients = (dh.as_deref(), dw.as_ref().map(|(dw, _)| &**dw));
        let sizes = label_log_probs::check_backward(gradients.0, gradients.1, d_log_probs, h, w, labels)?;
        self.head(sizes, dh.is_some(), dw.is_some())
    }

    fn add(&self, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        elementwise::check_add(y, a, b).map(drop)
    }

    fn copy_columns(&self, dst: &mut Tensor, src: &Tensor, columns: Columns) -> Result<()> {
        elementwise::check_copy_columns(dst, src, columns).map(drop)
    }

    fn scale_in_place(&self, x: &mut Tensor, _: f32) -> Result<()> {
        elementwise::check_scale_in_place(x).map(drop)
    }

    fn add_in_place(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        elementwise::check_add_in_place(y, x).map(drop)
    }

    fn soft_cap_in_place(&self, y: &mut Tensor, _: f32) -> Result<()> {
        elementwise::check_soft_cap_in_place(y).map(drop)
    }

    fn adamw_step(
        &self,
        param: &mut Tensor,
        exp_avg: &mut Tensor,
        exp_avg_sq: &mut Tensor,
        grad: &Tensor,
        _: &AdamWStep,
    ) -> Result<()> {
        adamw::check(param, exp_avg, exp_avg_sq, grad).map(drop)
    }

    fn adamw8bit_step(
        &self,
        param: &mut Tensor,
        exp_avg: Quantised<'_>,
        exp_avg_sq: Quantised<'_>,
        grad: &Tensor,
        _: &AdamWStep,
    ) -> Result<()> {
        adamw8bit::check(param, &exp_avg, &exp_avg_sq, grad).map(drop)
    }

    fn sgd_step(
        &self,
        param: &mut Tensor,
        momentum_buffer: Option<&mut Tensor>,
        grad: &Tensor,
        _: &SgdStep,
    ) -> Result<()> {
        sgd::check(param, momentum_buffer.as_deref(), grad).map(drop)
    }

    fn sum_of_squares(&self, _: &Tensor) -> Result<f64> {
        Ok(1.0)
    }

    fn read_scalar(&self, _: &Tensor) -> Result<f32> {
        Ok(1.0)
    }
}
