//! The backend: a crew of workers, a pool of memory, an instruction set.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::Quantised;
use tensor::ops::attention::AttentionDims;
use tensor::ops::dropout::Dropout;
use tensor::ops::elementwise::Columns;
use tensor::ops::fake_quantise::FakeQuant;
use tensor::ops::glu::Activation;
use tensor::ops::head_loss::HeadLossOut;
use tensor::ops::rms_norm::RmsNorm;
use tensor::ops::rope::RopeDims;
use tensor::ops::sgd::SgdStep;
use tensor::{Backend, DType, Device, MemoryStats, Result, Shape, Tensor};

use crate::buffer::{DEVICE, HostBuffer, Read, Write};
use crate::crew::Crew;
use crate::plan::PlanBackend;
use crate::pool::Pool;
use crate::{Error, Isa, os};
use crate::{
    adamw, adamw8bit, attention, bias, dora, dropout, elementwise, embedding, fake_quantise, glu, head_loss,
    label_log_probs, matmul, nf4, rms_norm, rope, sgd,
};

/// How a backend runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuConfig {
    /// Threads that compute, the calling one counted; `None` or 0 = one for each core that the process may use.
    pub threads: Option<usize>,
    /// Which of the cores that the process may use comes first, where several backends share them.
    pub first_core: usize,
    /// The instruction set; `None` = what the environment variable [`Isa::VARIABLE`] names, else the best there is.
    pub isa: Option<Isa>,
}

/// A backend on the CPU, with threads and memory of its own.
pub struct CpuBackend {
    pub(crate) crew: Crew,
    pub(crate) pool: Pool,
    pub(crate) isa: Isa,
    /// Reused list of positions, for ops that sort or drop tokens.
    pub(crate) order: Mutex<Vec<u32>>,
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CpuBackend").field(&self.describe()).finish()
    }
}

impl CpuBackend {
    /// Starts the threads. Fails on an instruction set that is unknown or not there, and if the system gives no threads.
    pub fn new(config: CpuConfig) -> Result<Self, Error> {
        let isa = config.isa.map_or_else(Isa::from_env, Ok)?;
        let num_threads = config.threads.filter(|&n| n > 0).unwrap_or_else(os::num_cores);
        let (pool, order) = (Pool::default(), Mutex::default());
        Ok(Self { crew: Crew::new(num_threads, config.first_core)?, pool, isa, order })
    }

    /// The instruction set that it computes with.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that compute, the calling one counted.
    pub fn num_threads(&self) -> usize {
        self.crew.num_threads()
    }
}

/// `Error::Shape` unless a tensor has as many bytes as the host has.
fn check_bytes(op: &'static str, tensor: &Tensor, len_bytes: usize) -> Result<()> {
    if tensor.len_bytes() == len_bytes {
        return Ok(());
    }
    let (name, expected) = ("tensor", format!("{len_bytes} bytes"));
    Err(tensor::Error::Shape { op, name, expected, found: tensor.shape() })
}

/// `Error::OutOfMemory` if no machine has that many.
fn num_bytes(shape: Shape, dtype: DType) -> Result<usize> {
    let elements = shape.dims().iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    let bytes = elements.and_then(|n| n.checked_mul(dtype.size_bytes()));
    bytes.ok_or(tensor::Error::OutOfMemory { device: DEVICE, bytes: usize::MAX })
}

impl Backend for CpuBackend {
    fn describe(&self) -> String {
        match self.num_threads() {
            1 => format!("cpu ({}, 1 thread)", self.isa),
            n => format!("cpu ({}, {n} threads)", self.isa),
        }
    }

    fn device(&self) -> Device {
        DEVICE
    }

    fn alloc(&self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let bytes = num_bytes(shape, dtype)?;
        Ok(Tensor::from_buffer(Arc::new(HostBuffer::new(&self.pool, bytes)?), 0, shape, dtype))
    }

    fn alloc_in_file(&self, shape: Shape, dtype: DType, dir: &Path) -> Result<Tensor> {
        let bytes = num_bytes(shape, dtype)?;
        Ok(Tensor::from_buffer(Arc::new(HostBuffer::in_file(&self.pool, bytes, dir)?), 0, shape, dtype))
    }

    fn upload(&self, dst: &mut Tensor, bytes: &[u8]) -> Result<()> {
        check_bytes("upload", dst, bytes.len())?;
        Write::<u8>::of(dst)?.copy_from_slice(bytes);
        Ok(())
    }

    fn download(&self, dst: &mut [u8], src: &Tensor) -> Result<()> {
        check_bytes("download", src, dst.len())?;
        dst.copy_from_slice(&Read::<u8>::of(src)?);
        Ok(())
    }

    fn copy(&self, dst: &mut Tensor, src: &Tensor) -> Result<()> {
        elementwise::copy(self, dst, src)
    }

    fn fill_zero(&self, dst: &mut Tensor) -> Result<()> {
        elementwise::fill_zero(self, dst)
    }

    fn trim(&self) {
        self.pool.trim();
    }

    fn memory(&self) -> MemoryStats {
        MemoryStats { scratch_bytes: self.crew.scratch_bytes(), ..self.pool.stats() }
    }

    fn planner(&self) -> Arc<dyn Backend> {
        Arc::new(PlanBackend::new(self.num_threads(), self.isa))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn matmul_nt(&self, y: &mut Tensor, x: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
        matmul::nt(self, y, x, w, accumulate)
    }

    fn matmul_nn(&self, dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
        matmul::nn(self, dx, dy, w, accumulate)
    }

    fn matmul_tn(&self, dw: &mut Tensor, dy: &Tensor, x: &Tensor, accumulate: bool) -> Result<()> {
        matmul::tn(self, dw, dy, x, accumulate)
    }

    fn bias_in_place(&self, y: &mut Tensor, b: &Tensor) -> Result<()> {
        bias::in_place(self, y, b)
    }

    fn bias_backward(&self, db: &mut Tensor, dy: &Tensor, accumulate: bool) -> Result<()> {
        bias::backward(self, db, dy, accumulate)
    }

    fn dropout_in_place(&self, x: &mut Tensor, dropout: &Dropout) -> Result<()> {
        dropout::in_place(self, x, dropout)
    }

    fn dora_norm(&self, norm: &mut Tensor, w: &Tensor, a: &Tensor, b: &Tensor, scale: f32) -> Result<()> {
        dora::norm(self, norm, w, a, b, scale)
    }

    fn dora_scale_forward(&self, y: &mut Tensor, z: &Tensor, magnitude: &Tensor, norm: &Tensor) -> Result<()> {
        dora::scale_forward(self, y, z, magnitude, norm)
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
        dora::scale_backward(self, dz, dmagnitude, dy, z, magnitude, norm)
    }

    fn nf4_quantise(&self, packed: &mut Tensor, w: &Tensor) -> Result<()> {
        nf4::quantise(self, packed, w)
    }

    fn nf4_dequantise(&self, w: &mut Tensor, packed: &Tensor) -> Result<()> {
        nf4::dequantise(self, w, packed)
    }

    fn fake_quantise_rows(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        fake_quantise::of_rows(self, y, x)
    }

    fn fake_quantise_groups(&self, y: &mut Tensor, w: &Tensor, quant: FakeQuant) -> Result<()> {
        fake_quantise::of_groups(self, y, w, quant)
    }

    fn embedding_forward(&self, y: &mut Tensor, tokens: &Tensor, w: &Tensor, scale: f32) -> Result<()> {
        embedding::forward(self, y, tokens, w, scale)
    }

    fn embedding_backward(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        tokens: &Tensor,
        scale: f32,
        accumulate: bool,
    ) -> Result<()> {
        embedding::backward(self, dw, dy, tokens, scale, accumulate)
    }

    fn rms_norm_forward(&self, y: &mut Tensor, rstd: &mut Tensor, x: &Tensor, w: &Tensor, norm: RmsNorm) -> Result<()> {
        rms_norm::forward(self, y, rstd, x, w, norm)
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
        rms_norm::backward(self, dx, dw, dy, x, w, rstd, norm)
    }

    fn rope_table(&self, table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()> {
        rope::table(self, table, positions, inv_freq)
    }

    fn rope_in_place(&self, x: &mut Tensor, table: &Tensor, dims: RopeDims, inverse: bool) -> Result<()> {
        rope::in_place(self, x, table, dims, inverse)
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
        attention::forward(self, o, lse, q, k, v, doc_start, dims)
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
        attention::backward(self, dq, dk, dv, d_o, q, k, v, o, lse, doc_start, dims)
    }

    fn glu_forward(&self, h: &mut Tensor, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<()> {
        glu::forward(self, h, gate, up, activation)
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
        glu::backward(self, dgate, dup, dh, gate, up, activation)
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
        head_loss::head_loss(self, out, h, w, labels, scale, soft_cap)
    }

    fn label_log_probs_forward(
        &self,
        log_probs: &mut Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        soft_cap: Option<f32>,
    ) -> Result<()> {
        label_log_probs::forward(self, log_probs, h, w, labels, soft_cap)
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
        label_log_probs::backward(self, dh, dw, d_log_probs, h, w, labels, soft_cap)
    }

    fn add(&self, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        elementwise::add(self, y, a, b)
    }

    fn copy_columns(&self, dst: &mut Tensor, src: &Tensor, columns: Columns) -> Result<()> {
        elementwise::copy_columns(self, dst, src, columns)
    }

    fn scale_in_place(&self, x: &mut Tensor, factor: f32) -> Result<()> {
        elementwise::scale_in_place(self, x, factor)
    }

    fn add_in_place(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        elementwise::add_in_place(self, y, x)
    }

    fn soft_cap_in_place(&self, y: &mut Tensor, cap: f32) -> Result<()> {
        elementwise::soft_cap_in_place(self, y, cap)
    }

    fn adamw_step(
        &self,
        param: &mut Tensor,
        exp_avg: &mut Tensor,
        exp_avg_sq: &mut Tensor,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()> {
        adamw::step(self, param, exp_avg, exp_avg_sq, grad, step)
    }

    fn adamw8bit_step(
        &self,
        param: &mut Tensor,
        exp_avg: Quantised<'_>,
        exp_avg_sq: Quantised<'_>,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()> {
        adamw8bit::step(self, param, exp_avg, exp_avg_sq, grad, step)
    }

    fn sgd_step(
        &self,
        param: &mut Tensor,
        momentum_buffer: Option<&mut Tensor>,
        grad: &Tensor,
        step: &SgdStep,
    ) -> Result<()> {
        sgd::step(self, param, momentum_buffer, grad, step)
    }

    fn sum_of_squares(&self, x: &Tensor) -> Result<f64> {
        elementwise::sum_of_squares(self, x)
    }

    fn read_scalar(&self, x: &Tensor) -> Result<f32> {
        let op = "read_scalar";
        if x.num_elements() != 1 {
            return Err(tensor::Error::Shape { op, name: "x", expected: "one element".to_owned(), found: x.shape() });
        }
        if x.dtype() != DType::F32 {
            return Err(tensor::Error::DType { op, name: "x", expected: DType::F32.name(), found: x.dtype() });
        }
        Ok(Read::<f32>::of(x)?[0])
    }
}
