//! Times the ops of a training step of SmolLM2-135M (two rows of 512 tokens) and prints rates.
//!
//! `cargo bench -p ferrotune-cpu --bench ops -- [group] [name=PART] [threads=N] [runs=N] [clock=cpu]`; `cargo xtask bench` runs it too.
//!
//! Groups: matmul, head_matmul, attention, head_loss, elementwise, optimizer. `name=` keeps the rows that contain a text.
//! `clock=cpu` counts the time in which the calling thread had a core: with `threads=1` it shows the speed of the code
//! on a machine that others use, too.
//!
//! Columns: best and median of the runs, and the rate of the best: GFLOP/s of the products an op is made of, or GB/s of the
//! memory that it reads and writes.
#![expect(clippy::print_stdout, reason = "prints a table")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at any error")]

mod clock;

use std::time::{Duration, Instant};

use clock::Clock;
use cpu::{CpuBackend, CpuConfig};
use tensor::ops::adamw::AdamWStep;
use tensor::ops::attention::AttentionDims;
use tensor::ops::head_loss::HeadLossOut;
use tensor::ops::rope::RopeDims;
use tensor::rng::Stream;
use tensor::{Backend, DType, Shape, Tensor};

const TOKENS: usize = 1024;
const HIDDEN: usize = 576;
const FFN: usize = 1536;
const VOCAB: usize = 49152;
const NUM_PARAMS: usize = 134_515_008;

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
    stream: u64,
}

impl Bench {
    fn row(&self, name: &str, work: &Work, mut op: impl FnMut()) {
        if !name.contains(&self.filter) {
            return;
        }
        op();
        let mut times: Vec<Duration> = Vec::new();
        let start = Instant::now();
        // At least a tenth of a second of measurement.
        while times.len() < self.runs || start.elapsed() < Duration::from_millis(100) {
            let before = self.clock.now();
            op();
            times.push(self.clock.now().saturating_sub(before));
        }
        times.sort_unstable();
        let (best, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
        let rate = match work {
            Work::Flops(flops) => format!("{:8.1} GFLOP/s {:8.1}", flops / best / 1e9, flops / median / 1e9),
            Work::Bytes(bytes) => format!("{:8.1} GB/s    {:8.1}", bytes / best / 1e9, bytes / median / 1e9),
        };
        println!("{name:44} {:9.3} {:9.3} ms {rate}", best * 1e3, median * 1e3);
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
        for (m, k, n) in [(TOKENS, HIDDEN, HIDDEN), (TOKENS, HIDDEN, 192), (TOKENS, HIDDEN, FFN), (TOKENS, FFN, HIDDEN)]
        {
            let (x, w, dy) = (self.normal(&[m, k], dtype), self.normal(&[n, k], dtype), self.normal(&[m, n], dtype));
            let (mut y, mut dx, mut dw) = (dy.clone(), self.normal(&[m, k], dtype), self.normal(&[n, k], dtype));
            let flops = || Work::Flops(2.0 * (m * k * n) as f64);
            let backend = &self.backend;
            let mut out = backend.alloc(y.shape(), dtype).unwrap();
            self.row(&format!("matmul_nt {dtype} {m}x{k}x{n}"), &flops(), || {
                backend.matmul_nt(&mut out, &x, &w).unwrap();
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
                    backend.matmul_nt(&mut y, &x, &w).unwrap();
                });
            }
        }
    }

    fn head_matmul(&mut self, dtype: DType) {
        let (m, k, n) = (TOKENS, HIDDEN, VOCAB);
        let (x, w, mut y) = (self.normal(&[m, k], dtype), self.normal(&[n, k], dtype), self.normal(&[m, n], dtype));
        let flops = Work::Flops(2.0 * (m * k * n) as f64);
        let backend = &self.backend;
        self.row(&format!("matmul_nt {dtype} {m}x{k}x{n} head"), &flops, || backend.matmul_nt(&mut y, &x, &w).unwrap());
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
        self.attention(dtype, 2, 512, (9, 3), 64);
        self.attention(dtype, 1, 2048, (9, 3), 64);
        self.attention(dtype, 1, 2048, (32, 8), 128);
    }

    fn attention(&mut self, dtype: DType, batch: usize, tokens: usize, heads: (usize, usize), head_dim: usize) {
        let (num_heads, num_kv_heads) = heads;
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
        let doc_start = backend.from_i32([batch, tokens], &vec![0; batch * tokens]).unwrap();
        // Two products forward and five backward, over the half of the scores that is seen.
        let flops = |products: usize| Work::Flops((products * batch * num_heads * tokens * tokens * head_dim) as f64);
        let name = format!("{dtype} {batch}x{tokens} {num_heads}/{num_kv_heads}x{head_dim}");
        self.row(&format!("attention_forward {name}"), &flops(2), || {
            backend.attention_forward(&mut o, &mut lse, &q, &k, &v, &doc_start, &dims).unwrap();
        });
        backend.attention_forward(&mut o, &mut lse, &q, &k, &v, &doc_start, &dims).unwrap();
        self.row(&format!("attention_backward {name}"), &flops(5), || {
            let outs = (&mut dq, &mut dk, &mut dv);
            backend.attention_backward(outs.0, outs.1, outs.2, &d_o, &q, &k, &v, &o, &lse, &doc_start, &dims).unwrap();
        });
    }

    fn head_loss(&mut self, dtype: DType) {
        let (h, w) = (self.normal(&[TOKENS, HIDDEN], dtype), self.normal(&[VOCAB, HIDDEN], dtype));
        let (mut dh, mut dw) = (self.normal(&[TOKENS, HIDDEN], dtype), self.normal(&[VOCAB, HIDDEN], dtype));
        let mut loss = self.normal(&[1], DType::F32);
        let backend: &dyn Backend = &self.backend;
        let labels: Vec<i32> = (0..TOKENS as i32).map(|t| t * 31 % VOCAB as i32).collect();
        let labels = backend.from_i32([TOKENS], &labels).unwrap();
        let flops = |products: f64| Work::Flops(2.0 * products * (TOKENS * HIDDEN * VOCAB) as f64);
        self.row(&format!("head_loss {dtype} loss only"), &flops(1.0), || {
            let out = HeadLossOut { loss: &mut loss, dh: None, dw: None };
            backend.head_loss(out, &h, &w, &labels, 1e-3).unwrap();
        });
        self.row(&format!("head_loss {dtype} with gradients"), &flops(3.0), || {
            let out = HeadLossOut { loss: &mut loss, dh: Some(&mut dh), dw: Some((&mut dw, false)) };
            backend.head_loss(out, &h, &w, &labels, 1e-3).unwrap();
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
        self.row(&format!("rms_norm_forward {dtype}"), &bytes(2 * len), || {
            backend.rms_norm_forward(&mut y, &mut rstd, &x, &w, 1e-5).unwrap();
        });
        self.row(&format!("rms_norm_backward {dtype}"), &bytes(4 * len), || {
            let (dx, dw) = (Some((&mut dx, true)), Some((&mut dw, true)));
            backend.rms_norm_backward(dx, dw, &dy, &x, &w, &rstd).unwrap();
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
        self.row(&format!("swiglu_forward {dtype}"), &bytes(3 * len), || {
            backend.swiglu_forward(&mut h, &gate, &up).unwrap();
        });
        self.row(&format!("swiglu_backward {dtype}"), &bytes(5 * len), || {
            backend.swiglu_backward(&mut dgate, &mut dup, &dh, &gate, &up).unwrap();
        });
    }

    fn optimizer(&mut self, dtype: DType) {
        let [mut param, mut exp_avg, mut exp_avg_sq, grad] = std::array::from_fn(|_| self.normal(&[NUM_PARAMS], dtype));
        let backend = &self.backend;
        let bytes = |passes: usize| Work::Bytes((passes * NUM_PARAMS * dtype.size_bytes()) as f64);
        self.row(&format!("copy {dtype} 135M"), &bytes(2), || backend.copy(&mut exp_avg, &grad).unwrap());
        self.row(&format!("sum_of_squares {dtype} 135M"), &bytes(1), || {
            backend.sum_of_squares(&grad).unwrap();
        });
        let step =
            AdamWStep { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step: 3, grad_scale: 1.0 };
        backend.fill_zero(&mut exp_avg_sq).unwrap();
        self.row(&format!("adamw_step {dtype} 135M"), &bytes(7), || {
            backend.adamw_step(&mut param, &mut exp_avg, &mut exp_avg_sq, &grad, &step).unwrap();
        });
    }
}

fn main() {
    let mut config = CpuConfig::default();
    let mut group = String::new();
    let (mut filter, mut runs, mut clock) = (String::new(), 5, Clock::wall());
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some(("threads", n)) => config.threads = Some(n.parse().unwrap()),
            Some(("runs", n)) => runs = n.parse().unwrap(),
            Some(("clock", "cpu")) => clock = Clock::Thread,
            Some(("name", part)) => part.clone_into(&mut filter),
            // What cargo adds.
            None if arg == "--bench" => {}
            _ => group = arg,
        }
    }
    let mut bench = Bench { backend: CpuBackend::new(config).unwrap(), clock, filter, runs, stream: 0 };
    println!("{}", bench.backend.describe());
    println!("{:44} {:>9} {:>9}    {:>8}         {:>8}", "op", "best", "median", "rate", "median");
    for dtype in [DType::F32, DType::Bf16] {
        let groups: [(&str, Group); 6] = [
            ("matmul", Bench::matmuls),
            ("head_matmul", Bench::head_matmul),
            ("attention", Bench::attentions),
            ("head_loss", Bench::head_loss),
            ("elementwise", Bench::elementwise),
            ("optimizer", Bench::optimizer),
        ];
        for (name, run) in groups {
            if group.is_empty() || group == name {
                run(&mut bench, dtype);
            }
        }
    }
}
