//! The op tables must be able to fail: a sound backend with one defect at a time, each of which has to be reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cpu::{CpuBackend, CpuConfig};
use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::Quantised;
use tensor::ops::attention::AttentionDims;
use tensor::ops::head_loss::HeadLossOut;
use tensor::ops::rope::RopeDims;
use tensor::ops::rounding::{RandomBits, Rounding};
use tensor::ops::sgd::SgdStep;
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
        fn matmul_nt(y: &mut Tensor, x: &Tensor, w: &Tensor) -> Result<()>;
        fn matmul_nn(dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()>;
        fn bias_in_place(y: &mut Tensor, b: &Tensor) -> Result<()>;
        fn embedding_forward(y: &mut Tensor, tokens: &Tensor, w: &Tensor) -> Result<()>;
        fn embedding_backward(dw: &mut Tensor, dy: &Tensor, tokens: &Tensor, accumulate: bool) -> Result<()>;
        fn rms_norm_backward(
            dx: Option<(&mut Tensor, bool)>, dw: Option<(&mut Tensor, bool)>,
            dy: &Tensor, x: &Tensor, w: &Tensor, rstd: &Tensor
        ) -> Result<()>;
        fn rope_table(table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()>;
        fn attention_backward(
            dq: &mut Tensor, dk: &mut Tensor, dv: &mut Tensor, d_o: &Tensor, q: &Tensor, k: &Tensor, v: &Tensor,
            o: &Tensor, lse: &Tensor, doc_start: &Tensor, dims: &AttentionDims
        ) -> Result<()>;
        fn swiglu_forward(h: &mut Tensor, gate: &Tensor, up: &Tensor) -> Result<()>;
        fn swiglu_backward(
            dgate: &mut Tensor, dup: &mut Tensor, dh: &Tensor, gate: &Tensor, up: &Tensor
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

    fn rms_norm_forward(&self, y: &mut Tensor, rstd: &mut Tensor, x: &Tensor, w: &Tensor, eps: f32) -> Result<()> {
        let eps = if self.has(Defect::IgnoresEps) { 1e-5 } else { eps };
        if self.has(Defect::RoundsTheProductOnly) && x.dtype() == DType::Bf16 {
            let [mut x32, mut w32, mut y32] =
                [self.temporary(x, DType::F32)?, self.temporary(w, DType::F32)?, self.temporary(y, DType::F32)?];
            self.inner.copy(&mut x32, x)?;
            self.inner.copy(&mut w32, w)?;
            self.inner.rms_norm_forward(&mut y32, rstd, &x32, &w32, eps)?;
            return self.inner.copy(y, &y32);
        }
        self.inner.rms_norm_forward(y, rstd, x, w, eps)
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

    fn head_loss(&self, out: HeadLossOut<'_>, h: &Tensor, w: &Tensor, labels: &Tensor, scale: f32) -> Result<()> {
        self.inner.head_loss(out, h, w, labels, if self.has(Defect::IgnoresScale) { 1.0 } else { scale })
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
        (Defect::NeverAccumulates, op_table::check_bias_backward, f32, "accumulate true: db: nmse "),
        (Defect::RoundsTwice, op_table::check_matmul_tn, bf16, "into bf16, accumulate true: dw: nmse "),
        (Defect::RoundsTheProductOnly, op_table::check_rms_norm_forward, bf16, "y: nmse "),
        (Defect::IgnoresEps, op_table::check_rms_norm_forward, f32, "a large eps: y: nmse "),
        (Defect::IgnoresInverse, op_table::check_rope_in_place, f32, "inverse true: x: nmse "),
        (Defect::IgnoresDocuments, op_table::check_attention_forward, bf16, "documents: Packed"),
        (Defect::IgnoresWindow, op_table::check_attention_forward, bf16, "window: Some(64)"),
        (Defect::IgnoresSoftCap, op_table::check_attention_forward, bf16, "soft_cap: Some(2.0)"),
        (Defect::IgnoresScale, op_table::check_head_loss, f32, "scale 0.25"),
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
