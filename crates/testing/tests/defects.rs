//! The op tables must be able to fail: a sound backend with one defect at a time, each of which has to be reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cpu::{CpuBackend, CpuConfig};
use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::Quantised;
use tensor::ops::attention::AttentionDims;
use tensor::ops::dropout::Dropout;
use tensor::ops::elementwise::Columns;
use tensor::ops::fake_quantise::{FakeQuant, Scheme};
use tensor::ops::glu::Activation;
use tensor::ops::head_loss::HeadLossOut;
use tensor::ops::rms_norm::{NormWeight, RmsNorm};
use tensor::ops::rope::RopeDims;
use tensor::ops::rounding::{RandomBits, Rounding};
use tensor::ops::sgd::SgdStep;
use tensor::rng::Stream;
use tensor::{Backend, DType, Device, Error, MemoryStats, Result, Shape, Tensor};
use testing::op_table;

/// What is wrong with the backend.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Defect {
    None,
    WritesOutside,
    OneRowWrong,
    SecondCallDiffers,
    AcceptsAnything,
    WritesBeforeItRefuses,
    GivesAnotherError,
    NeverAccumulates,
    AlwaysAccumulates,
    RoundsTwice,
    RoundsTheProductOnly,
    IgnoresEps,
    IgnoresInverse,
    IgnoresDocuments,
    IgnoresWindow,
    IgnoresSoftCap,
    CapsTheLossOnly,
    IgnoresActivation,
    IgnoresNormWeight,
    IgnoresScale,
    IgnoresAdamWStep,
    IgnoresWeightDecay,
    IgnoresGradScale,
    IgnoresFirst,
    IgnoresNesterov,
    RoundsToNearest,
    IgnoresThePlace,
    SwapsMoments,
    ForgetsTheLastBlock,
    IgnoresScheme,
    SharesRanges,
    TruncatesCasts,
    ForgetsToFree,
}

/// A backend with a defect in one method.
struct Defective {
    inner: CpuBackend,
    defect: Defect,
    calls: AtomicU64,
    /// Everything allocated, for writes outside of views and for memory that is never freed.
    allocated: Mutex<Vec<Tensor>>,
}

impl Defective {
    fn new(defect: Defect) -> Self {
        let inner = CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).expect("one thread starts");
        Self { inner, defect, calls: AtomicU64::new(0), allocated: Mutex::default() }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    /// `flag`, unless this backend ignores its argument.
    fn accumulate(&self, flag: bool) -> bool {
        (flag || self.has(Defect::AlwaysAccumulates)) && !self.has(Defect::NeverAccumulates)
    }

    fn norm(&self, norm: RmsNorm) -> RmsNorm {
        match self.defect {
            Defect::IgnoresEps => RmsNorm { eps: 1e-5, ..norm },
            Defect::IgnoresNormWeight => RmsNorm { weight: NormWeight::Plain, ..norm },
            _ => norm,
        }
    }

    fn activation(&self, activation: Activation) -> Activation {
        if self.has(Defect::IgnoresActivation) { Activation::Silu } else { activation }
    }

    fn rounding(&self, rounding: Rounding) -> Rounding {
        match (self.defect, rounding) {
            (Defect::RoundsToNearest, _) => Rounding::Nearest,
            (Defect::IgnoresThePlace, Rounding::Stochastic(bits)) => {
                Rounding::Stochastic(RandomBits { start: 0, ..bits })
            }
            _ => rounding,
        }
    }

    fn temporary(&self, like: &Tensor, dtype: DType) -> Result<Tensor> {
        self.inner.alloc(like.shape(), dtype)
    }
}

/// Methods that are passed on as they are.
macro_rules! delegate {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
            self.inner.$name($($arg),*)
        })*
    };
}

impl Backend for Defective {
    delegate! {
        fn describe() -> String;
        fn device() -> Device;
        fn upload(dst: &mut Tensor, bytes: &[u8]) -> Result<()>;
        fn download(dst: &mut [u8], src: &Tensor) -> Result<()>;
        fn alloc_in_file(shape: Shape, dtype: DType, dir: &std::path::Path) -> Result<Tensor>;
        fn fill_zero(dst: &mut Tensor) -> Result<()>;
        fn trim();
        fn memory() -> MemoryStats;
        fn planner() -> Arc<dyn Backend>;
        fn flush() -> Result<()>;
        fn matmul_nn(dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()>;
        fn bias_in_place(y: &mut Tensor, b: &Tensor) -> Result<()>;
        fn dora_scale_forward(y: &mut Tensor, z: &Tensor, magnitude: &Tensor, norm: &Tensor) -> Result<()>;
        fn nf4_quantise(packed: &mut Tensor, w: &Tensor) -> Result<()>;
        fn rope_table(table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()>;
        fn attention_backward(
            dq: &mut Tensor, dk: &mut Tensor, dv: &mut Tensor, d_o: &Tensor, q: &Tensor, k: &Tensor, v: &Tensor,
            o: &Tensor, lse: &Tensor, doc_start: &Tensor, dims: &AttentionDims
        ) -> Result<()>;
        fn add_in_place(y: &mut Tensor, x: &Tensor) -> Result<()>;
        fn sum_of_squares(x: &Tensor) -> Result<f64>;
        fn read_scalar(x: &Tensor) -> Result<f32>;
    }

    fn alloc(&self, shape: Shape, dtype: DType) -> Result<Tensor> {
        let tensor = self.inner.alloc(shape, dtype)?;
        if self.has(Defect::ForgetsToFree) || self.has(Defect::WritesOutside) {
            self.allocated.lock().expect("no test panics while it holds this").push(tensor.clone());
        }
        Ok(tensor)
    }

    fn copy(&self, dst: &mut Tensor, src: &Tensor) -> Result<()> {
        if self.has(Defect::TruncatesCasts) && (dst.dtype(), src.dtype()) == (DType::Bf16, DType::F32) {
            let mut bytes = vec![0; src.len_bytes()];
            self.inner.download(&mut bytes, src)?;
            let upper: Vec<u8> = bytes.chunks(4).flat_map(|b| [b[2], b[3]]).collect();
            return self.inner.upload(dst, &upper);
        }
        self.inner.copy(dst, src)
    }

    fn matmul_nt(&self, y: &mut Tensor, x: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
        if self.has(Defect::RoundsTwice) && accumulate {
            let mut product = self.temporary(y, y.dtype())?;
            self.inner.matmul_nt(&mut product, x, w, false)?;
            return self.inner.add_in_place(y, &product);
        }
        self.inner.matmul_nt(y, x, w, self.accumulate(accumulate))
    }

    fn copy_columns(&self, dst: &mut Tensor, src: &Tensor, columns: Columns) -> Result<()> {
        let from = if self.has(Defect::IgnoresThePlace) { 0 } else { columns.from };
        self.inner.copy_columns(dst, src, Columns { from, ..columns })
    }

    fn scale_in_place(&self, x: &mut Tensor, factor: f32) -> Result<()> {
        self.inner.scale_in_place(x, if self.has(Defect::IgnoresScale) { 1.0 } else { factor })
    }

    fn dropout_in_place(&self, x: &mut Tensor, dropout: &Dropout) -> Result<()> {
        let stream = if self.has(Defect::IgnoresThePlace) { Stream::new(0, 0) } else { dropout.stream };
        self.inner.dropout_in_place(x, &Dropout { stream, ..*dropout })
    }

    fn dora_norm(&self, norm: &mut Tensor, w: &Tensor, a: &Tensor, b: &Tensor, scale: f32) -> Result<()> {
        self.inner.dora_norm(norm, w, a, b, if self.has(Defect::IgnoresScale) { 1.0 } else { scale })
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
        let dmagnitude = dmagnitude.map(|(tensor, accumulate)| (tensor, self.accumulate(accumulate)));
        self.inner.dora_scale_backward(dz, dmagnitude, dy, z, magnitude, norm)
    }

    fn nf4_dequantise(&self, w: &mut Tensor, packed: &Tensor) -> Result<()> {
        let forgets = self.has(Defect::ForgetsTheLastBlock) && w.num_elements() > 64;
        self.inner.nf4_dequantise(w, packed)?;
        let last = w.num_elements().saturating_sub(1);
        if forgets { self.inner.fill_zero(&mut w.rows(last - 8..last + 1)?) } else { Ok(()) }
    }

    fn fake_quantise_rows(&self, y: &mut Tensor, x: &Tensor) -> Result<()> {
        let (rows, width) = x.shape().rows_cols();
        if self.has(Defect::SharesRanges) && rows > 1 {
            let (mut y, x) = (y.reshape([1, rows * width])?, x.reshape([1, rows * width])?);
            return self.inner.fake_quantise_rows(&mut y, &x);
        }
        self.inner.fake_quantise_rows(y, x)
    }

    fn fake_quantise_groups(&self, y: &mut Tensor, w: &Tensor, quant: FakeQuant) -> Result<()> {
        let width = w.shape().rows_cols().1;
        let quant = match self.defect {
            Defect::IgnoresScheme => FakeQuant { scheme: Scheme::Int8Int4, ..quant },
            Defect::SharesRanges if width.is_multiple_of(quant.group_size.max(1)) && width > 0 => {
                FakeQuant { group_size: width, ..quant }
            }
            _ => quant,
        };
        self.inner.fake_quantise_groups(y, w, quant)
    }

    fn matmul_tn(&self, dw: &mut Tensor, dy: &Tensor, x: &Tensor, accumulate: bool) -> Result<()> {
        if self.has(Defect::RoundsTwice) && accumulate {
            let mut product = self.temporary(dw, dw.dtype())?;
            self.inner.matmul_tn(&mut product, dy, x, false)?;
            return self.inner.add_in_place(dw, &product);
        }
        self.inner.matmul_tn(dw, dy, x, self.accumulate(accumulate))
    }

    fn bias_backward(&self, db: &mut Tensor, dy: &Tensor, accumulate: bool) -> Result<()> {
        self.inner.bias_backward(db, dy, self.accumulate(accumulate))
    }

    fn embedding_forward(&self, y: &mut Tensor, tokens: &Tensor, w: &Tensor, scale: f32) -> Result<()> {
        self.inner.embedding_forward(y, tokens, w, if self.has(Defect::IgnoresScale) { 1.0 } else { scale })
    }

    fn embedding_backward(
        &self,
        dw: &mut Tensor,
        dy: &Tensor,
        tokens: &Tensor,
        scale: f32,
        accumulate: bool,
    ) -> Result<()> {
        let scale = if self.has(Defect::IgnoresScale) { 1.0 } else { scale };
        self.inner.embedding_backward(dw, dy, tokens, scale, self.accumulate(accumulate))
    }

    fn rms_norm_forward(&self, y: &mut Tensor, rstd: &mut Tensor, x: &Tensor, w: &Tensor, norm: RmsNorm) -> Result<()> {
        let norm = self.norm(norm);
        if self.has(Defect::RoundsTheProductOnly) && x.dtype() == DType::Bf16 {
            let [mut x32, mut w32, mut y32] =
                [self.temporary(x, DType::F32)?, self.temporary(w, DType::F32)?, self.temporary(y, DType::F32)?];
            self.inner.copy(&mut x32, x)?;
            self.inner.copy(&mut w32, w)?;
            self.inner.rms_norm_forward(&mut y32, rstd, &x32, &w32, norm)?;
            return self.inner.copy(y, &y32);
        }
        self.inner.rms_norm_forward(y, rstd, x, w, norm)
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
        self.inner.rms_norm_backward(dx, dw, dy, x, w, rstd, self.norm(norm))
    }

    fn glu_forward(&self, h: &mut Tensor, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<()> {
        self.inner.glu_forward(h, gate, up, self.activation(activation))
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
        self.inner.glu_backward(dgate, dup, dh, gate, up, self.activation(activation))
    }

    fn rope_in_place(&self, x: &mut Tensor, table: &Tensor, dims: RopeDims, inverse: bool) -> Result<()> {
        self.inner.rope_in_place(x, table, dims, inverse && !self.has(Defect::IgnoresInverse))
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
        let mut dims = *dims;
        let mut doc_start = doc_start.clone();
        match self.defect {
            Defect::IgnoresWindow => dims.window = None,
            Defect::IgnoresSoftCap => dims.soft_cap = None,
            Defect::IgnoresDocuments => {
                doc_start = self.temporary(&doc_start, DType::I32)?;
                self.inner.fill_zero(&mut doc_start)?;
            }
            _ => {}
        }
        self.inner.attention_forward(o, lse, q, k, v, &doc_start, &dims)
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
        let scale = if self.has(Defect::IgnoresScale) { 1.0 } else { scale };
        let soft_cap = soft_cap.filter(|_| !self.has(Defect::IgnoresSoftCap));
        if self.has(Defect::CapsTheLossOnly) {
            let HeadLossOut { loss, dh, dw } = out;
            self.inner.head_loss(HeadLossOut { loss, dh: None, dw: None }, h, w, labels, scale, soft_cap)?;
            let mut other = self.temporary(loss, DType::F32)?;
            return self.inner.head_loss(HeadLossOut { loss: &mut other, dh, dw }, h, w, labels, scale, None);
        }
        self.inner.head_loss(out, h, w, labels, scale, soft_cap)
    }

    fn label_log_probs_forward(
        &self,
        log_probs: &mut Tensor,
        h: &Tensor,
        w: &Tensor,
        labels: &Tensor,
        soft_cap: Option<f32>,
    ) -> Result<()> {
        let soft_cap = soft_cap.filter(|_| !self.has(Defect::IgnoresSoftCap));
        self.inner.label_log_probs_forward(log_probs, h, w, labels, soft_cap)
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
        let dw = dw.map(|(tensor, accumulate)| (tensor, self.accumulate(accumulate)));
        let soft_cap = soft_cap.filter(|_| !self.has(Defect::IgnoresSoftCap));
        if self.has(Defect::IgnoresScale) {
            let inner: &dyn Backend = &self.inner;
            let ones = inner.from_f32(d_log_probs.shape(), DType::F32, &vec![1.0; d_log_probs.num_elements()])?;
            return self.inner.label_log_probs_backward(dh, dw, &ones, h, w, labels, soft_cap);
        }
        self.inner.label_log_probs_backward(dh, dw, d_log_probs, h, w, labels, soft_cap)
    }

    fn soft_cap_in_place(&self, y: &mut Tensor, cap: f32) -> Result<()> {
        self.inner.soft_cap_in_place(y, if self.has(Defect::IgnoresSoftCap) { f32::MAX } else { cap })
    }

    fn add(&self, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        let result = self.inner.add(y, a, b);
        let is_second = self.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        let last_row = y.dims().first().copied().unwrap_or(0).saturating_sub(1);
        match (self.defect, &result) {
            (Defect::WritesOutside, Ok(())) => {
                let all = self.allocated.lock().expect("no test panics while it holds this");
                let whole = all.iter().find(|whole| whole.shares_buffer(y)).expect("every tensor is remembered");
                self.inner.fill_zero(&mut whole.rows(0..1)?)
            }
            (Defect::OneRowWrong, Ok(())) if last_row > 0 => self.inner.fill_zero(&mut y.rows(last_row..last_row + 1)?),
            (Defect::SecondCallDiffers, Ok(())) if last_row > 0 && is_second => self.inner.add(y, b, b),
            (Defect::AcceptsAnything, Err(_)) => Ok(()),
            (Defect::WritesBeforeItRefuses, Err(_)) => self.inner.fill_zero(y).and(result),
            (Defect::GivesAnotherError, Err(_)) => Err(Error::Index { op: "add", what: "", index: 0, bound: 0 }),
            _ => result,
        }
    }

    fn adamw_step(
        &self,
        param: &mut Tensor,
        exp_avg: &mut Tensor,
        exp_avg_sq: &mut Tensor,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()> {
        let mut step = *step;
        match self.defect {
            Defect::IgnoresAdamWStep => step.step = 1,
            Defect::IgnoresWeightDecay => step.weight_decay = 0.0,
            Defect::IgnoresGradScale => step.grad_scale = 1.0,
            _ => step.rounding = self.rounding(step.rounding),
        }
        self.inner.adamw_step(param, exp_avg, exp_avg_sq, grad, &step)
    }

    fn adamw8bit_step(
        &self,
        param: &mut Tensor,
        exp_avg: Quantised<'_>,
        exp_avg_sq: Quantised<'_>,
        grad: &Tensor,
        step: &AdamWStep,
    ) -> Result<()> {
        if self.has(Defect::SwapsMoments) {
            return self.inner.adamw8bit_step(param, exp_avg_sq, exp_avg, grad, step);
        }
        let rounding = self.rounding(step.rounding);
        let mut scales = exp_avg_sq.absmax.clone();
        self.inner.adamw8bit_step(param, exp_avg, exp_avg_sq, grad, &AdamWStep { rounding, ..*step })?;
        let last = scales.num_elements().saturating_sub(1);
        if self.has(Defect::ForgetsTheLastBlock) && last > 0 {
            scales = scales.rows(last..last + 1)?;
            self.inner.fill_zero(&mut scales)?;
        }
        Ok(())
    }

    fn sgd_step(
        &self,
        param: &mut Tensor,
        momentum_buffer: Option<&mut Tensor>,
        grad: &Tensor,
        step: &SgdStep,
    ) -> Result<()> {
        let mut step = *step;
        match self.defect {
            Defect::IgnoresFirst => step.first = false,
            Defect::IgnoresNesterov => step.nesterov = false,
            Defect::IgnoresWeightDecay => step.weight_decay = 0.0,
            Defect::IgnoresGradScale => step.grad_scale = 1.0,
            _ => step.rounding = self.rounding(step.rounding),
        }
        self.inner.sgd_step(param, momentum_buffer, grad, &step)
    }
}

/// What a table says about a backend with a defect; `None` = nothing.
fn report(defect: Defect, check: op_table::Check, dtype: DType) -> Option<String> {
    let backend = Defective::new(defect);
    let panic = catch_unwind(AssertUnwindSafe(|| check(&backend, dtype))).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn every_defect_is_reported() {
    let (f32, bf16) = (DType::F32, DType::Bf16);
    let defects: &[(Defect, op_table::Check, DType, &str)] = &[
        (Defect::WritesOutside, op_table::check_add, f32, "y: wrote outside of its rows, at byte -"),
        (Defect::OneRowWrong, op_table::check_add, bf16, "[129, 511]: y: nmse "),
        (Defect::SecondCallDiffers, op_table::check_add, f32, "two equal calls gave different bits"),
        (Defect::AcceptsAnything, op_table::check_add, f32, "refuses wrong Shape(\"b\"): accepted"),
        (Defect::WritesBeforeItRefuses, op_table::check_add, f32, "changed an output and failed"),
        (Defect::GivesAnotherError, op_table::check_add, f32, "expected an error about DType(\"b\"), found `index"),
        (Defect::NeverAccumulates, op_table::check_matmul_tn, f32, "accumulate true: dw: nmse "),
        (Defect::AlwaysAccumulates, op_table::check_matmul_tn, f32, "accumulate false: dw: element 0: expected "),
        (Defect::RoundsTwice, op_table::check_matmul_nt, bf16, "into bf16, accumulate true: y: nmse "),
        (Defect::NeverAccumulates, op_table::check_matmul_nt, bf16, "accumulate true: y: nmse "),
        (Defect::NeverAccumulates, op_table::check_dora_scale_backward, f32, "accumulate true: dmagnitude: nmse "),
        (Defect::IgnoresThePlace, op_table::check_copy_columns, bf16, "from: 60, to: 0 }: dst: nmse "),
        (Defect::IgnoresScale, op_table::check_scale_in_place, f32, "by 0.3: x: nmse "),
        (Defect::IgnoresScale, op_table::check_dora_norm, bf16, "scale 0.25: norm: nmse "),
        (Defect::IgnoresThePlace, op_table::check_dropout_in_place, f32, "p 0.5: x: "),
        (Defect::ForgetsTheLastBlock, op_table::check_nf4_dequantise, bf16, "65 weights: w: weight "),
        (Defect::SharesRanges, op_table::check_fake_quantise_rows, f32, "M 14 K 33: y: element "),
        (Defect::SharesRanges, op_table::check_fake_quantise_groups, bf16, "K 66, FakeQuant { scheme: Int8Int4, "),
        (
            Defect::IgnoresScheme,
            op_table::check_fake_quantise_groups,
            f32,
            "FakeQuant { scheme: Int4, group_size: 64 }: y",
        ),
        (Defect::NeverAccumulates, op_table::check_bias_backward, f32, "accumulate true: db: nmse "),
        (Defect::RoundsTwice, op_table::check_matmul_tn, bf16, "into bf16, accumulate true: dw: nmse "),
        (Defect::RoundsTheProductOnly, op_table::check_rms_norm_forward, bf16, "y: nmse "),
        (Defect::IgnoresScale, op_table::check_embedding_forward, bf16, "scale 6.928203: y: nmse "),
        (
            Defect::IgnoresScale,
            op_table::check_embedding_backward,
            f32,
            "scale 6.928203 into fp32, accumulate true: dw: nmse ",
        ),
        (Defect::NeverAccumulates, op_table::check_embedding_backward, f32, "accumulate true: dw: nmse "),
        (Defect::IgnoresEps, op_table::check_rms_norm_forward, f32, "a large eps, weight Plain: y: nmse "),
        (Defect::IgnoresNormWeight, op_table::check_rms_norm_forward, bf16, "weight FromOne: y: nmse "),
        (Defect::IgnoresNormWeight, op_table::check_rms_norm_backward, f32, "weight FromOne, dx accumulate true"),
        (Defect::IgnoresActivation, op_table::check_glu_forward, bf16, "GeluTanh, T 65 F 300: h: nmse "),
        (Defect::IgnoresActivation, op_table::check_glu_backward, f32, "GeluTanh, T 65 F 300: dgate: nmse "),
        (Defect::IgnoresInverse, op_table::check_rope_in_place, f32, "inverse true: x: nmse "),
        (Defect::IgnoresDocuments, op_table::check_attention_forward, bf16, "documents: Packed"),
        (Defect::IgnoresWindow, op_table::check_attention_forward, bf16, "window: Some(64)"),
        (Defect::IgnoresSoftCap, op_table::check_attention_forward, bf16, "soft_cap: Some(2.0)"),
        (Defect::IgnoresSoftCap, op_table::check_head_loss, f32, "cap Some(2.0), dh false, dw None: loss: nmse "),
        (Defect::CapsTheLossOnly, op_table::check_head_loss, f32, "cap Some(2.0), dh true, dw None: dh: nmse "),
        (Defect::IgnoresSoftCap, op_table::check_soft_cap_in_place, bf16, "cap 30 on values of 20: y: nmse "),
        (Defect::IgnoresScale, op_table::check_head_loss, f32, "scale 0.25"),
        (
            Defect::IgnoresSoftCap,
            op_table::check_label_log_probs_forward,
            bf16,
            "cap Some(2.0), h of 1: log_probs: nmse ",
        ),
        (
            Defect::IgnoresSoftCap,
            op_table::check_label_log_probs_backward,
            f32,
            "cap Some(2.0), dh true, dw None: dh: nmse ",
        ),
        (
            Defect::IgnoresScale,
            op_table::check_label_log_probs_backward,
            bf16,
            "scale 0.25, cap None, dh true, dw None: dh: ",
        ),
        (Defect::NeverAccumulates, op_table::check_label_log_probs_backward, f32, "dw Some((F32, true)): dw: nmse "),
        (Defect::IgnoresAdamWStep, op_table::check_adamw_step, bf16, "step: 2,"),
        (Defect::IgnoresWeightDecay, op_table::check_adamw_step, f32, "param: nmse "),
        (Defect::IgnoresGradScale, op_table::check_adamw_step, bf16, "grad_scale: 0.125"),
        (Defect::IgnoresFirst, op_table::check_sgd_step, f32, "first: true"),
        (Defect::IgnoresNesterov, op_table::check_sgd_step, bf16, "nesterov: true"),
        (Defect::IgnoresWeightDecay, op_table::check_sgd_step, bf16, "weight_decay: 0.1"),
        (Defect::IgnoresGradScale, op_table::check_sgd_step, f32, "grad_scale: 0.125"),
        (Defect::RoundsToNearest, op_table::check_adamw_step, bf16, "param: nmse "),
        (Defect::IgnoresThePlace, op_table::check_adamw_step, bf16, "param: nmse "),
        (Defect::RoundsToNearest, op_table::check_sgd_step, bf16, "param: nmse "),
        (Defect::RoundsToNearest, op_table::check_adamw8bit_step, bf16, "param: nmse "),
        (Defect::IgnoresThePlace, op_table::check_adamw8bit_step, bf16, "param: nmse "),
        (Defect::SwapsMoments, op_table::check_adamw8bit_step, f32, "refuses wrong Shape(\"exp_avg\")"),
        (Defect::SwapsMoments, op_table::check_adamw8bit_step, bf16, "exp_avg: byte "),
        (Defect::ForgetsTheLastBlock, op_table::check_adamw8bit_step, f32, "exp_avg_sq_absmax: nmse "),
        (Defect::TruncatesCasts, op_table::check_copy, f32, "into bf16: dst: "),
        (Defect::ForgetsToFree, op_table::check_memory, f32, "live bytes did not fall back"),
    ];
    for &(defect, check, dtype, expected) in defects {
        let sound = report(Defect::None, check, dtype);
        assert_eq!(sound, None, "the sound backend fails the table of {defect:?}");
        let message = report(defect, check, dtype).unwrap_or_else(|| panic!("{defect:?} in {dtype} goes unnoticed"));
        assert!(message.contains(expected), "{defect:?} in {dtype}: no `{expected}` in {message}");
    }
}
