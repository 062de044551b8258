//! The contract between model code and devices: a short list of coarse ops.
//!
//! Rules that hold for every op:
//! - Outputs come first, as `&mut Tensor`, then what was saved for backward, inputs, weights, numbers.
//! - All tensors live on the backend's device; shapes and dtypes are checked by the op's `check` function in [`crate::ops`]
//!   before anything is written. Outputs share no buffer with inputs, unless the op says that it works in place.
//! - Floating-point tensors of one op have one dtype (f32 or bf16) unless the op says otherwise; sums are taken in f32 and
//!   rounded once, at the store.
//! - Activation gradients overwrite unless the op takes `accumulate`; parameter gradients take `accumulate` always.
//! - Same inputs, same number of threads: same bits.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

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
use crate::profile::{Recorder, Span};
use crate::{DType, Device, Result, Shape, Tensor};

/// Memory of a backend, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// In tensors that are alive.
    pub live_bytes: usize,
    /// Kept for reuse.
    pub cached_bytes: usize,
    /// The most that was ever live.
    pub peak_live_bytes: usize,
    /// The most that was ever live or kept together.
    pub peak_held_bytes: usize,
    /// What ops work in, besides.
    pub scratch_bytes: usize,
    /// In tensors that live in files.
    pub file_bytes: usize,
    /// The most that ever was in files.
    pub peak_file_bytes: usize,
    /// All that was ever given out, files aside, whatever became of it.
    pub taken_bytes: u64,
}

/// A device that computes. Object-safe; one value a rank, shared by reference.
pub trait Backend: Send + Sync {
    /// What it is, for people: `cpu (AVX2, 2 threads)`.
    fn describe(&self) -> String;
    /// The device that its tensors live on.
    fn device(&self) -> Device;
    /// Who records what is done on it, if anybody does; see [`crate::profile`].
    fn recorder(&self) -> Option<&Arc<Recorder>> {
        None
    }

    // Memory.

    /// A tensor with undefined contents.
    fn alloc(&self, shape: Shape, dtype: DType) -> Result<Tensor>;
    /// A tensor of zeros that lives in a file without a name in the folder `dir`, and is read and written by ops like any other.
    /// The file is gone with the tensor. `Error::Host` if there is no room, or if the device cannot.
    fn alloc_in_file(&self, shape: Shape, dtype: DType, dir: &Path) -> Result<Tensor>;
    /// Copies host bytes (native byte order) into `dst`. `Error::Shape` if the lengths differ.
    fn upload(&self, dst: &mut Tensor, bytes: &[u8]) -> Result<()>;
    /// Copies `src` into host bytes. `Error::Shape` if the lengths differ.
    fn download(&self, dst: &mut [u8], src: &Tensor) -> Result<()>;
    /// `dst = src`, same shape; casts when the dtypes differ (f32 and bf16).
    fn copy(&self, dst: &mut Tensor, src: &Tensor) -> Result<()>;
    /// Fills with zeros.
    fn fill_zero(&self, dst: &mut Tensor) -> Result<()>;
    /// Gives cached memory back to the system.
    fn trim(&self);
    /// Memory in use.
    fn memory(&self) -> MemoryStats;
    /// A backend that computes nothing and counts the memory that this one would hold for the same calls: what runs on it
    /// gets a memory plan. Contents of its tensors are undefined; scalars and sums of squares read as 1.
    fn planner(&self) -> Arc<dyn Backend>;
    /// Waits for all work and reports failures that devices tell late.
    fn flush(&self) -> Result<()>;

    // Linear layers: see `ops::matmul`.

    /// `y (+)= x W^T`: y (M, N), x (M, K), w (N, K). `y` has the dtype of the inputs or is f32.
    fn matmul_nt(&self, y: &mut Tensor, x: &Tensor, w: &Tensor, accumulate: bool) -> Result<()>;
    /// `dx (+)= dy W`: dx (M, K), dy (M, N), w (N, K).
    fn matmul_nn(&self, dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()>;
    /// `dw (+)= dy^T x`: dw (N, K), dy (M, N), x (M, K). `dw` has the dtype of the inputs or is f32.
    fn matmul_tn(&self, dw: &mut Tensor, dy: &Tensor, x: &Tensor, accumulate: bool) -> Result<()>;
    /// `y[i] += b` for every row: y (M, N), b (N). See `ops::bias`.
    fn bias_in_place(&self, y: &mut Tensor, b: &Tensor) -> Result<()>;
    /// `db (+)= sum of the rows of dy`: db (N), dy (M, N). `db` has the dtype of `dy` or is f32.
    fn bias_backward(&self, db: &mut Tensor, dy: &Tensor, accumulate: bool) -> Result<()>;

    // Adapters and weights in 4 bits.

    /// Sets elements to 0 by chance and lets the others grow; see `ops::dropout`.
    fn dropout_in_place(&self, x: &mut Tensor, dropout: &Dropout) -> Result<()>;
    /// The lengths of the rows of `w + scale b a`: norm (N) f32, w (N, K), a (R, K), b (N, R). See `ops::dora`.
    fn dora_norm(&self, norm: &mut Tensor, w: &Tensor, a: &Tensor, b: &Tensor, scale: f32) -> Result<()>;
    /// `y = z * magnitude / norm` in every column: y, z (M, N), magnitude (N), norm (N) f32.
    fn dora_scale_forward(&self, y: &mut Tensor, z: &Tensor, magnitude: &Tensor, norm: &Tensor) -> Result<()>;
    /// Backward of the scaling, with the norm as a constant; overwrites `dz`. `dmagnitude`, when given with its `accumulate` flag, has
    /// the dtype of `magnitude` or is f32.
    fn dora_scale_backward(
        &self,
        dz: &mut Tensor,
        dmagnitude: Option<(&mut Tensor, bool)>,
        dy: &Tensor,
        z: &Tensor,
        magnitude: &Tensor,
        norm: &Tensor,
    ) -> Result<()>;
    /// Packs weights into 4 bits each: packed (bytes) u8, w of any shape. See `ops::nf4`.
    fn nf4_quantise(&self, packed: &mut Tensor, w: &Tensor) -> Result<()>;
    /// Unpacks them.
    fn nf4_dequantise(&self, w: &mut Tensor, packed: &Tensor) -> Result<()>;
    /// `y` is what 8 bits an element can hold of every row of `x`, both (M, K). See `ops::fake_quantise`.
    fn fake_quantise_rows(&self, y: &mut Tensor, x: &Tensor) -> Result<()>;
    /// `y` is what 4 bits a weight can hold of every group of the rows of `w`, both (N, K).
    fn fake_quantise_groups(&self, y: &mut Tensor, w: &Tensor, quant: FakeQuant) -> Result<()>;

    // Blocks of a decoder.

    /// `y[t] = scale w[tokens[t]]`: y (T, D), tokens (T) i32, w (V, D). See `ops::embedding`.
    fn embedding_forward(&self, y: &mut Tensor, tokens: &Tensor, w: &Tensor, scale: f32) -> Result<()>;
    /// `dw[tokens[t]] += scale dy[t]`, after zeroing `dw` unless `accumulate`. `dw` has the dtype of `dy` or is f32.
    fn embedding_backward(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        tokens: &Tensor,
        scale: f32,
        accumulate: bool,
    ) -> Result<()>;
    /// Root-mean-square norm; keeps `rstd` (N) f32 for backward. See `ops::rms_norm`.
    fn rms_norm_forward(&self, y: &mut Tensor, rstd: &mut Tensor, x: &Tensor, w: &Tensor, norm: RmsNorm) -> Result<()>;
    /// Backward of the norm. `dx` accumulates if `dx_accumulate`; `dw`, when given with its `accumulate` flag, has the dtype
    /// of `w` or is f32.
    fn rms_norm_backward(
        &self,
        dx: Option<(&mut Tensor, bool)>,
        dw: Option<(&mut Tensor, bool)>,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        norm: RmsNorm,
    ) -> Result<()>;
    /// Cosines and sines of rotary angles: table (T, H) f32, positions (T) i32, inv_freq (H/2) f32. See `ops::rope`.
    fn rope_table(&self, table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()>;
    /// Rotates `x` (T, N*H) in place, by minus the angles if `inverse`.
    fn rope_in_place(&self, x: &mut Tensor, table: &Tensor, dims: RopeDims, inverse: bool) -> Result<()>;
    /// Causal attention within documents; keeps the log-sum-exp `lse` (B, N, T) f32. See `ops::attention`.
    fn attention_forward(
        &self,
        o: &mut Tensor,
        lse: &mut Tensor,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        doc_start: &Tensor,
        dims: &AttentionDims,
    ) -> Result<()>;
    /// Backward of attention; overwrites `dq`, `dk`, `dv`.
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
    ) -> Result<()>;
    /// `h = activation(gate) * up`, all (T, F). See `ops::glu`.
    fn glu_forward(&self, h: &mut Tensor, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<()>;
    /// Backward of the gated linear unit; overwrites `dgate` and `dup`.
    fn glu_backward(
        &self,
        dgate: &mut Tensor,
        dup: &mut Tensor,
        dh: &Tensor,
        gate: &Tensor,
        up: &Tensor,
        activation: Activation,
    ) -> Result<()>;
    /// Output head and cross entropy in chunks of tokens, with a soft cap on logits where one is given; see `ops::head_loss`.
    fn head_loss(
        &self,
        out: HeadLossOut<'_>,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        scale: f32,
        soft_cap: Option<f32>,
    ) -> Result<()>;
    /// Log-probabilities of labels, 0 for masked ones: log_probs (T) f32. See `ops::label_log_probs`.
    fn label_log_probs_forward(
        &self,
        log_probs: &mut Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        soft_cap: Option<f32>,
    ) -> Result<()>;
    /// Backward of the log-probabilities, from an upstream for each: d_log_probs (T) f32. Overwrites `dh`; `dw`, when given with its
    /// `accumulate` flag, has the dtype of `w` or is f32.
    fn label_log_probs_backward(
        &self,
        dh: Option<&mut Tensor>,
        dw: Option<(&mut Tensor, bool)>,
        d_log_probs: &Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        soft_cap: Option<f32>,
    ) -> Result<()>;

    // Elementwise: see `ops::elementwise`.

    /// `y = a + b`, one shape.
    fn add(&self, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()>;
    /// Copies columns of `src` (M, K) to columns of `dst` (M, N), which otherwise stays as it is.
    fn copy_columns(&self, dst: &mut Tensor, src: &Tensor, columns: Columns) -> Result<()>;
    /// `x *= factor`.
    fn scale_in_place(&self, x: &mut Tensor, factor: f32) -> Result<()>;
    /// `y += x`, one shape; `y` may be f32 with a bf16 `x`.
    fn add_in_place(&self, y: &mut Tensor, x: &Tensor) -> Result<()>;
    /// `y = cap tanh(y / cap)`.
    fn soft_cap_in_place(&self, y: &mut Tensor, cap: f32) -> Result<()>;

    // Optimizers: computed in f32, rounded once, parameters as the step says (`ops::rounding`). A gradient has the parameter's dtype
    // or is f32.

    /// One AdamW update in place; see `ops::adamw`.
    fn adamw_step(
        &self,
        param: &mut Tensor,
        exp_avg: &mut Tensor,
        exp_avg_sq: &mut Tensor,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()>;
    /// One AdamW update in place, with moments in 8 bits; see `ops::adamw8bit`.
    fn adamw8bit_step(
        &self,
        param: &mut Tensor,
        exp_avg: Quantised<'_>,
        exp_avg_sq: Quantised<'_>,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()>;
    /// One SGD update in place; `momentum_buffer` is given when `step.momentum` is not 0; see `ops::sgd`.
    fn sgd_step(
        &self,
        param: &mut Tensor,
        momentum_buffer: Option<&mut Tensor>,
        grad: &Tensor,
        step: &SgdStep,
    ) -> Result<()>;
    /// The sum of the squares of all elements, in f64 over f32 partial sums. Waits for the device.
    fn sum_of_squares(&self, x: &Tensor) -> Result<f64>;
    /// The one element of an f32 tensor. Waits for the device.
    fn read_scalar(&self, x: &Tensor) -> Result<f32>;
}

impl dyn Backend + '_ {
    /// Names what runs until the span is dropped, for whoever records it; nothing happens where nobody does.
    pub fn span<N: Into<Cow<'static, str>>>(&self, name: impl FnOnce() -> N) -> Span {
        Span::begin(self.recorder(), name)
    }

    /// A tensor of zeros.
    pub fn zeros(&self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let mut t = self.alloc(shape, dtype)?;
        self.fill_zero(&mut t)?;
        Ok(t)
    }

    /// An i32 tensor with the given elements.
    pub fn from_i32(&self, shape: impl Into<Shape>, values: &[i32]) -> Result<Tensor> {
        let mut t = self.alloc(shape.into(), DType::I32)?;
        self.upload(&mut t, bytemuck::cast_slice(values))?;
        Ok(t)
    }

    /// A tensor of dtype f32 or bf16 with the given elements, rounded to nearest.
    pub fn from_f32(&self, shape: impl Into<Shape>, dtype: DType, values: &[f32]) -> Result<Tensor> {
        let mut t = self.alloc(shape.into(), dtype)?;
        match dtype {
            DType::Bf16 => {
                let rounded: Vec<half::bf16> = values.iter().map(|&v| half::bf16::from_f32(v)).collect();
                self.upload(&mut t, bytemuck::cast_slice(&rounded))?;
            }
            _ => self.upload(&mut t, bytemuck::cast_slice(values))?,
        }
        Ok(t)
    }

    /// All elements of an f32 or bf16 tensor as f32.
    pub fn to_f32(&self, x: &Tensor) -> Result<Vec<f32>> {
        match x.dtype() {
            DType::Bf16 => {
                let mut raw = vec![half::bf16::ZERO; x.num_elements()];
                self.download(bytemuck::cast_slice_mut(&mut raw), x)?;
                Ok(raw.into_iter().map(half::bf16::to_f32).collect())
            }
            DType::F32 => {
                let mut values = vec![0.0f32; x.num_elements()];
                self.download(bytemuck::cast_slice_mut(&mut values), x)?;
                Ok(values)
            }
            found => Err(crate::Error::DType { op: "to_f32", name: "x", expected: "fp32 or bf16", found }),
        }
    }
}
