//! Times the ops of a training step of SmolLM2-135M (two rows of 512 tokens), and larger ones, and prints rates.
//!
//! `cargo bench -p ferrotune-cpu --bench ops -- [group] [name=PART] [dtype=NAME] [threads=N] [runs=N] [clock=cpu] [format=tsv]`;
//! `cargo xtask bench` runs it too.
//!
//! Groups: matmul, head_matmul, attention, head_loss, elementwise, optimizer, adapters. `name=` keeps the rows that contain a text.
//! `clock=cpu` counts the time in which the calling thread had a core: with `threads=1` it shows the speed of the code
//! on a machine that others use, too.
//!
//! Columns: best and median of the runs, and the rate of the best: GFLOP/s of the products an op is made of, or GB/s of the
//! memory that it reads and writes. `format=tsv` prints name, median in ms and the rate of the median instead, for programs.
//!
//! Matrix products, attention and the head also come in the shapes of blocks of Llama 3.2 1B and Llama 3 8B; `bench/torch_ops.py`
//! times the same rows in PyTorch.
#![expect(clippy::print_stdout, reason = "prints a table")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at any error")]

mod clock;

use std::time::{Duration, Instant};

use clock::Clock;
use cpu::{CpuBackend, CpuConfig};
use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::{BLOCK, Quantised};
use tensor::ops::attention::AttentionDims;
use tensor::ops::dropout::Dropout;
use tensor::ops::glu::Activation;
use tensor::ops::head_loss::HeadLossOut;
use tensor::ops::nf4::packed_bytes;
use tensor::ops::rms_norm::{NormWeight, RmsNorm};
use tensor::ops::rope::RopeDims;
use tensor::ops::rounding::{RandomBits, Rounding};
use tensor::profile::flops;
use tensor::rng::Stream;
use tensor::{Backend, DType, Shape, Tensor};

const TOKENS: usize = 1024;
const HIDDEN: usize = 576;
const FFN: usize = 1536;
const VOCAB: usize = 49152;
const NUM_PARAMS: usize = 134_515_008;

/// (inputs, outputs) of the linear layers of a block of SmolLM2-135M, Llama 3.2 1B and Llama 3 8B.
const LAYERS: [(usize, usize); 12] = [
    (HIDDEN, HIDDEN),
    (HIDDEN, 192),
    (HIDDEN, FFN),
    (FFN, HIDDEN),
    (2048, 2048),
    (2048, 512),
    (2048, 8192),
    (8192, 2048),
    (4096, 4096),
    (4096, 1024),
    (4096, 14336),
    (14336, 4096),
];

/// After so long a row has been measured enough, however few its runs.
const ENOUGH: Duration = Duration::from_secs(8);

/// What a rate counts.
enum Work {
    Flops(f64),
    Bytes(f64),
}

/// Prints the rows of a group.
type Group = fn(&mut Bench, DType);

struct Bench {
    backend: CpuBackend,
    clock: Clock,
    filter: String,
    runs: usize,
    as_tsv: bool,
    stream: u64,
}

impl Bench {
    fn row(&self, name: &str, work: &Work, mut op: impl FnMut()) {
        if !self.wants(name) {
            return;
        }
        op();
        let mut times: Vec<Duration> = Vec::new();
        let start = Instant::now();
        // At least a tenth of a second of measurement.
        while times.is_empty()
            || (times.len() < self.runs && start.elapsed() < ENOUGH)
            || start.elapsed() < Duration::from_millis(100)
        {
            let before = self.clock.now();
            op();
            times.push(self.clock.now().saturating_sub(before));
        }
        times.sort_unstable();
        let (best, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
        let (work, unit) = match work {
            Work::Flops(flops) => (flops, "GFLOP/s"),
            Work::Bytes(bytes) => (bytes, "GB/s"),
        };
        let rate = |time: f64| work / time / 1e9;
        if self.as_tsv {
            println!("{name}\t{}\t{:.1} {unit}", median * 1e3, rate(median));
        } else {
            let (best_ms, median_ms) = (best * 1e3, median * 1e3);
            println!("{name:52} {best_ms:9.3} {median_ms:9.3} ms {:8.1} {unit:7} {:8.1}", rate(best), rate(median));
        }
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn normal(&mut self, shape: &[usize], dtype: DType) -> Tensor {
        self.stream += 1;
        let shape = Shape::new(shape);
        let mut values = vec![0.0; shape.num_elements()];
        // Repeats of a short stream: filling 49152 x 576 with fresh numbers would take longer than the benchmark.
        let len = values.len().min(1 << 16);
        Stream::new(1, self.stream).fill_normal(&mut values[..len], 0.5);
        for at in (len..values.len()).step_by(len.max(1)) {
            let end = (at + len).min(values.len());
            values.copy_within(0..end - at, at);
        }
        (&self.backend as &dyn Backend).from_f32(shape, dtype, &values).unwrap()
    }

    fn matmuls(&mut self, dtype: DType) {
        for (k, n) in LAYERS {
            let m = TOKENS;
            if !["nt", "nn", "tn"].iter().any(|layout| self.wants(&format!("matmul_{layout} {dtype} {m}x{k}x{n}"))) {
                continue;
            }
            let (x, w, dy) = (self.normal(&[m, k], dtype), self.normal(&[n, k], dtype), self.normal(&[m, n], dtype));
            let (mut y, mut dx, mut dw) = (dy.clone(), self.normal(&[m, k], dtype), self.normal(&[n, k], dtype));
            let flops = || Work::Flops(flops::matmul(m, k, n));
            let backend = &self.backend;
            let mut out = backend.alloc(y.shape(), dtype).unwrap();
            self.row(&format!("matmul_nt {dtype} {m}x{k}x{n}"), &flops(), || {
                backend.matmul_nt(&mut out, &x, &w, false).unwrap();
            });
            self.row(&format!("matmul_nn {dtype} {m}x{k}x{n}"), &flops(), || {
                backend.matmul_nn(&mut dx, &dy, &w, false).unwrap();
            });
            self.row(&format!("matmul_tn {dtype} {m}x{k}x{n} accumulate"), &flops(), || {
                backend.matmul_tn(&mut dw, &dy, &x, true).unwrap();
            });
            std::mem::swap(&mut y, &mut out);
        }
        for m in [1, 4, 8, 16] {
            for (k, n) in [(HIDDEN, FFN), (HIDDEN, VOCAB)] {
                let (x, w) = (self.normal(&[m, k], dtype), self.normal(&[n, k], dtype));
                let mut y = self.normal(&[m, n], dtype);
                let bytes = Work::Bytes((n * k * dtype.size_bytes()) as f64);
                let backend = &self.backend;
                self.row(&format!("matmul_nt {dtype} {m}x{k}x{n}"), &bytes, || {
                    backend.matmul_nt(&mut y, &x, &w, false).unwrap();
                });
            }
        }
    }

    fn head_matmul(&mut self, dtype: DType) {
        let (m, k, n) = (TOKENS, HIDDEN, VOCAB);
        let (x, w, mut y) = (self.normal(&[m, k], dtype), self.normal(&[n, k], dtype), self.normal(&[m, n], dtype));
        let flops = Work::Flops(flops::matmul(m, k, n));
        let backend = &self.backend;
        self.row(&format!("matmul_nt {dtype} {m}x{k}x{n} head"), &flops, || {
            backend.matmul_nt(&mut y, &x, &w, false).unwrap();
        });
        let (mut dx, mut dw) = (self.normal(&[m, k], dtype), self.normal(&[n, k], dtype));
        let backend = &self.backend;
        self.row(&format!("matmul_nn {dtype} {m}x{k}x{n} head"), &flops, || {
            backend.matmul_nn(&mut dx, &y, &w, false).unwrap();
        });
        self.row(&format!("matmul_tn {dtype} {m}x{k}x{n} head"), &flops, || {
            backend.matmul_tn(&mut dw, &y, &x, false).unwrap();
        });
    }

    fn attentions(&mut self, dtype: DType) {
        self.attention(dtype, (2, 512, 1), (9, 3), 64);
        for (heads, head_dim) in [((9, 3), 64), ((32, 8), 128)] {
            for (tokens, documents) in [(512, 1), (2048, 1), (8192, 1), (8192, 8)] {
                self.attention(dtype, (1, tokens, documents), heads, head_dim);
            }
        }
    }

    /// `rows`: how many, their tokens, and of how many documents of one length each is packed.
    fn attention(&mut self, dtype: DType, rows: (usize, usize, usize), heads: (usize, usize), head_dim: usize) {
        let (batch, tokens, documents) = rows;
        let (num_heads, num_kv_heads) = heads;
        let packed = if documents > 1 { format!(" {documents} documents") } else { String::new() };
        let name = format!("{dtype} {batch}x{tokens} {num_heads}/{num_kv_heads}x{head_dim}{packed}");
        let names = ["forward", "backward"].map(|pass| format!("attention_{pass} {name}"));
        if !names.iter().any(|name| self.wants(name)) {
            return;
        }
        let dims = AttentionDims {
            batch,
            tokens,
            keys: tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            query_offset: 0,
            window: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
        };
        let q_shape = [batch * tokens, num_heads * head_dim];
        let k_shape = [batch * tokens, num_kv_heads * head_dim];
        let [q, d_o, mut o, mut dq] = std::array::from_fn(|_| self.normal(&q_shape, dtype));
        let [k, v, mut dk, mut dv] = std::array::from_fn(|_| self.normal(&k_shape, dtype));
        let mut lse = self.normal(&[batch, num_heads, tokens], DType::F32);
        let backend: &dyn Backend = &self.backend;
        let len = tokens / documents;
        let doc_start: Vec<i32> = (0..batch * tokens).map(|at| (at % tokens / len * len) as i32).collect();
        let doc_start = backend.from_i32([batch, tokens], &doc_start).unwrap();
        // Two products forward and five backward, over the half of the scores that is seen.
        let num_scores = (batch * tokens * len / 2) as u64;
        let flops = |products| Work::Flops(flops::attention(products, num_scores, num_heads, head_dim));
        self.row(&names[0], &flops(flops::ATTENTION_FORWARD), || {
            backend.attention_forward(&mut o, &mut lse, &q, &k, &v, &doc_start, &dims).unwrap();
        });
        backend.attention_forward(&mut o, &mut lse, &q, &k, &v, &doc_start, &dims).unwrap();
        self.row(&names[1], &flops(flops::ATTENTION_BACKWARD), || {
            let outs = (&mut dq, &mut dk, &mut dv);
            backend.attention_backward(outs.0, outs.1, outs.2, &d_o, &q, &k, &v, &o, &lse, &doc_start, &dims).unwrap();
        });
    }

    fn head_losses(&mut self, dtype: DType) {
        for (hidden, vocab) in [(HIDDEN, VOCAB), (2048, 128_256)] {
            let names = ["loss only", "with gradients", "log-probabilities", "log-probabilities backward"]
                .map(|what| format!("head_loss {dtype} {hidden}x{vocab} {what}"));
            if names.iter().any(|name| self.wants(name)) {
                self.head_loss(dtype, hidden, vocab);
            }
        }
    }

    fn head_loss(&mut self, dtype: DType, hidden: usize, vocab: usize) {
        let name = format!("head_loss {dtype} {hidden}x{vocab}");
        let (h, w) = (self.normal(&[TOKENS, hidden], dtype), self.normal(&[vocab, hidden], dtype));
        let (mut dh, mut dw) = (self.normal(&[TOKENS, hidden], dtype), self.normal(&[vocab, hidden], dtype));
        let mut loss = self.normal(&[1], DType::F32);
        let (mut log_probs, upstream) = (self.normal(&[TOKENS], DType::F32), self.normal(&[TOKENS], DType::F32));
        let backend: &dyn Backend = &self.backend;
        let labels: Vec<i32> = (0..TOKENS as i32).map(|t| t * 31 % vocab as i32).collect();
        let labels = backend.from_i32([TOKENS], &labels).unwrap();
        let flops = |num_gradients| Work::Flops(flops::head_loss(TOKENS, hidden, vocab, num_gradients));
        self.row(&format!("{name} loss only"), &flops(0), || {
            let out = HeadLossOut { loss: &mut loss, dh: None, dw: None };
            backend.head_loss(out, &h, &w, &labels, 1e-3, None).unwrap();
        });
        self.row(&format!("{name} with gradients"), &flops(2), || {
            let out = HeadLossOut { loss: &mut loss, dh: Some(&mut dh), dw: Some((&mut dw, false)) };
            backend.head_loss(out, &h, &w, &labels, 1e-3, None).unwrap();
        });
        self.row(&format!("{name} log-probabilities"), &flops(0), || {
            backend.label_log_probs_forward(&mut log_probs, &h, &w, &labels, None).unwrap();
        });
        self.row(&format!("{name} log-probabilities backward"), &flops(2), || {
            let (dh, dw) = (Some(&mut dh), Some((&mut dw, false)));
            backend.label_log_probs_backward(dh, dw, &upstream, &h, &w, &labels, None).unwrap();
        });
    }

    fn elementwise(&mut self, dtype: DType) {
        let size = dtype.size_bytes();
        let bytes = move |elements: usize| Work::Bytes((elements * size) as f64);
        let [x, dy, mut y, mut dx] = std::array::from_fn(|_| self.normal(&[TOKENS, HIDDEN], dtype));
        let w = self.normal(&[HIDDEN], dtype);
        let mut dw = self.normal(&[HIDDEN], dtype);
        let mut rstd = self.normal(&[TOKENS], DType::F32);
        let len = TOKENS * HIDDEN;
        let backend: &dyn Backend = &self.backend;
        let norm = RmsNorm { eps: 1e-5, weight: NormWeight::Plain };
        self.row(&format!("rms_norm_forward {dtype}"), &bytes(2 * len), || {
            backend.rms_norm_forward(&mut y, &mut rstd, &x, &w, norm).unwrap();
        });
        self.row(&format!("rms_norm_backward {dtype}"), &bytes(4 * len), || {
            let (dx, dw) = (Some((&mut dx, true)), Some((&mut dw, true)));
            backend.rms_norm_backward(dx, dw, &dy, &x, &w, &rstd, norm).unwrap();
        });
        self.row(&format!("add_in_place {dtype}"), &bytes(3 * len), || backend.add_in_place(&mut y, &x).unwrap());
        let inv_freq: Vec<f32> = (0..32).map(|i| 1e5f32.powf(-(i as f32) / 32.0)).collect();
        let inv_freq = backend.from_f32([32], DType::F32, &inv_freq).unwrap();
        let positions: Vec<i32> = (0..TOKENS as i32).collect();
        let positions = backend.from_i32([TOKENS], &positions).unwrap();
        let mut table = backend.alloc(Shape::new(&[TOKENS, 64]), DType::F32).unwrap();
        self.row("rope_table", &Work::Bytes((TOKENS * 64 * 4) as f64), || {
            backend.rope_table(&mut table, &positions, &inv_freq).unwrap();
        });
        let dims = RopeDims { num_heads: 9, head_dim: 64 };
        self.row(&format!("rope_in_place {dtype}"), &bytes(2 * len), || {
            backend.rope_in_place(&mut y, &table, dims, false).unwrap();
        });

        let [gate, up, dh, mut h, mut dgate] = std::array::from_fn(|_| self.normal(&[TOKENS, FFN], dtype));
        let mut dup = self.normal(&[TOKENS, FFN], dtype);
        let backend = &self.backend;
        let len = TOKENS * FFN;
        for activation in [Activation::Silu, Activation::GeluTanh] {
            self.row(&format!("glu_forward {dtype} {activation:?}"), &bytes(3 * len), || {
                backend.glu_forward(&mut h, &gate, &up, activation).unwrap();
            });
            self.row(&format!("glu_backward {dtype} {activation:?}"), &bytes(5 * len), || {
                backend.glu_backward(&mut dgate, &mut dup, &dh, &gate, &up, activation).unwrap();
            });
        }
    }

    fn optimizer(&mut self, dtype: DType) {
        let [mut param, mut exp_avg, mut exp_avg_sq, grad] = std::array::from_fn(|_| self.normal(&[NUM_PARAMS], dtype));
        let backend = &self.backend;
        let bytes = |passes: usize| Work::Bytes((passes * NUM_PARAMS * dtype.size_bytes()) as f64);
        self.row(&format!("copy {dtype} 135M"), &bytes(2), || backend.copy(&mut exp_avg, &grad).unwrap());
        self.row(&format!("sum_of_squares {dtype} 135M"), &bytes(1), || {
            backend.sum_of_squares(&grad).unwrap();
        });
        let step = AdamWStep { lr: 1e-4, weight_decay: 0.01, step: 3, ..AdamWStep::FIRST };
        backend.fill_zero(&mut exp_avg_sq).unwrap();
        self.row(&format!("adamw_step {dtype} 135M"), &bytes(7), || {
            backend.adamw_step(&mut param, &mut exp_avg, &mut exp_avg_sq, &grad, &step).unwrap();
        });
        let bits = RandomBits { seed: 1, step: 3, unit: 0, start: 0 };
        let by_chance = AdamWStep { rounding: Rounding::Stochastic(bits), ..step };
        self.row(&format!("adamw_step {dtype} 135M by chance"), &bytes(7), || {
            backend.adamw_step(&mut param, &mut exp_avg, &mut exp_avg_sq, &grad, &by_chance).unwrap();
        });
        drop((exp_avg, exp_avg_sq));
        self.adamw8bit(dtype, &mut param, &grad, [("", step), (" by chance", by_chance)]);
    }

    /// What adapters need on a layer of 4096 x 14336, 1B's and 8B's largest.
    fn adapters(&mut self, dtype: DType) {
        const RANK: usize = 16;
        let (n, k) = (14_336, 4096);
        let names = ["nf4_dequantise", "nf4_quantise", "dora_norm", "dropout_in_place"];
        if !names.iter().any(|name| self.wants(&format!("{name} {dtype} {n}x{k}"))) {
            return;
        }
        let (mut w, a, b) =
            (self.normal(&[n, k], dtype), self.normal(&[RANK, k], dtype), self.normal(&[n, RANK], dtype));
        let backend: &dyn Backend = &self.backend;
        let mut packed = backend.alloc(Shape::from([packed_bytes(n * k)]), DType::U8).unwrap();
        let bytes = Work::Bytes((n * k * dtype.size_bytes() + packed_bytes(n * k)) as f64);
        self.row(&format!("nf4_quantise {dtype} {n}x{k}"), &bytes, || backend.nf4_quantise(&mut packed, &w).unwrap());
        let mut norm = backend.alloc(Shape::from([n]), DType::F32).unwrap();
        self.row(&format!("dora_norm {dtype} {n}x{k}"), &Work::Flops(flops::matmul(n, RANK, k)), || {
            backend.dora_norm(&mut norm, &w, &a, &b, 2.0).unwrap();
        });
        self.row(&format!("nf4_dequantise {dtype} {n}x{k}"), &bytes, || {
            backend.nf4_dequantise(&mut w, &packed).unwrap();
        });
        let bytes = Work::Bytes((2 * n * k * dtype.size_bytes()) as f64);
        let dropout = Dropout { probability: 0.05, stream: Stream::new(1, 2) };
        self.row(&format!("dropout_in_place {dtype} {n}x{k}"), &bytes, || {
            backend.dropout_in_place(&mut w, &dropout).unwrap();
        });
    }

    fn adamw8bit(&self, dtype: DType, param: &mut Tensor, grad: &Tensor, steps: [(&str, AdamWStep); 2]) {
        let backend: &dyn Backend = &self.backend;
        let zeros = |len: usize, dtype| backend.zeros(Shape::from([len]), dtype).unwrap();
        let [mut m_bytes, mut v_bytes] = std::array::from_fn(|_| zeros(NUM_PARAMS, DType::U8));
        let [mut m_absmax, mut v_absmax] = std::array::from_fn(|_| zeros(NUM_PARAMS.div_ceil(BLOCK), DType::F32));
        // Parameter and states are read and written, gradients read.
        let bytes = 3 * NUM_PARAMS * dtype.size_bytes() + 4 * NUM_PARAMS + 16 * NUM_PARAMS / BLOCK;
        for (how, step) in steps {
            self.row(&format!("adamw8bit_step {dtype} 135M{how}"), &Work::Bytes(bytes as f64), || {
                let m = Quantised { bytes: &mut m_bytes, absmax: &mut m_absmax };
                let v = Quantised { bytes: &mut v_bytes, absmax: &mut v_absmax };
                backend.adamw8bit_step(param, m, v, grad, &step).unwrap();
            });
        }
    }
}

fn main() {
    let mut config = CpuConfig::default();
    let mut group = String::new();
    let (mut filter, mut runs, mut clock) = (String::new(), 5, Clock::wall());
    let (mut only_dtype, mut as_tsv) = (None, false);
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some(("threads", n)) => config.threads = Some(n.parse().unwrap()),
            Some(("runs", n)) => runs = n.parse().unwrap(),
            Some(("clock", "cpu")) => clock = Clock::Thread,
            Some(("format", "tsv")) => as_tsv = true,
            Some(("dtype", "fp32")) => only_dtype = Some(DType::F32),
            Some(("dtype", "bf16")) => only_dtype = Some(DType::Bf16),
            Some(("name", part)) => part.clone_into(&mut filter),
            // What cargo adds.
            None if arg == "--bench" => {}
            _ => group = arg,
        }
    }
    let mut bench = Bench { backend: CpuBackend::new(config).unwrap(), clock, filter, runs, as_tsv, stream: 0 };
    if !as_tsv {
        println!("{}", bench.backend.describe());
        println!("{:52} {:>9} {:>9}    {:>8}         {:>8}", "op", "best", "median", "rate", "median");
    }
    for dtype in [DType::F32, DType::Bf16] {
        if only_dtype.is_some_and(|only| only != dtype) {
            continue;
        }
        let groups: [(&str, Group); 7] = [
            ("matmul", Bench::matmuls),
            ("head_matmul", Bench::head_matmul),
            ("attention", Bench::attentions),
            ("head_loss", Bench::head_losses),
            ("elementwise", Bench::elementwise),
            ("optimizer", Bench::optimizer),
            ("adapters", Bench::adapters),
        ];
        for (name, run) in groups {
            if group.is_empty() || group == name {
                run(&mut bench, dtype);
            }
        }
    }
}
