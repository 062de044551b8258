//! Compares the matrix products of a training step of SmolLM2-135M with the crates `gemm` (f32) and `gemmkit` (f32 and bf16).
//!
//! `cargo bench -p ferrotune-cpu --features peers --bench peers -- [name=PART] [threads=N] [runs=N] [clock=cpu]`
//!
//! One thread unless `threads=` says otherwise. Runs alternate, ours, theirs, ours, theirs, so that whatever else the machine
//! does meets both. `clock=cpu` counts the time in which the thread had a core, for one thread on a machine that others use.
//! Before a row is timed, both results are compared.
//!
//! Columns: medians, the rate of ours, and their time over ours: above 1 ours is faster.
#![expect(clippy::print_stdout, reason = "prints a table")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at any error")]

mod clock;

use std::time::{Duration, Instant};

use bytemuck::Pod;
use clock::Clock;
use cpu::{CpuBackend, CpuConfig};
use gemmkit::{MatMut, MatRef};
use half::bf16;
use tensor::rng::Stream;
use tensor::{Backend, DType, Shape, Tensor};

/// (M, K, N) of a linear layer: tokens, inputs, outputs.
const SHAPES: [(usize, usize, usize); 3] = [(1024, 576, 576), (1024, 576, 1536), (1024, 1536, 576)];

/// A row-major factor, perhaps seen as its transpose.
struct Factor<'a, T> {
    data: &'a [T],
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Factor<'a, T> {
    fn rows(data: &'a [T], width: usize) -> Self {
        Self { data, row_stride: width, col_stride: 1 }
    }

    fn transposed(data: &'a [T], width: usize) -> Self {
        Self { data, row_stride: 1, col_stride: width }
    }
}

/// `c = a b` with a: (m, k), b: (k, n), c: (m, n) in rows.
struct Product<'a, T> {
    m: usize,
    n: usize,
    k: usize,
    a: Factor<'a, T>,
    b: Factor<'a, T>,
}

/// A crate's product: into c, on so many threads.
type Peer<T> = fn(&mut [T], &Product<'_, T>, usize);

fn by_gemmkit<T: gemmkit::GemmScalar>(c: &mut [T], product: &Product<'_, T>, threads: usize, [zero, one]: [T; 2]) {
    let &Product { m, n, k, ref a, ref b } = product;
    let a = MatRef::new(a.data, m, k, a.row_stride as isize, a.col_stride as isize);
    let b = MatRef::new(b.data, k, n, b.row_stride as isize, b.col_stride as isize);
    let parallelism = if threads == 1 { gemmkit::Parallelism::Serial } else { gemmkit::Parallelism::Rayon(threads) };
    gemmkit::gemm(one, a, b, zero, MatMut::from_row_major(c, m, n), parallelism);
}

#[expect(unsafe_code, reason = "the crate takes pointers")]
fn by_gemm(c: &mut [f32], product: &Product<'_, f32>, threads: usize) {
    let &Product { m, n, k, ref a, ref b } = product;
    let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    assert_eq!((c.len(), a.data.len(), b.data.len()), (m * n, m * k, k * n));
    // SAFETY: the slices hold whole matrices of these sizes, and c is not shared.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// An element type with the crates that multiply it.
trait Number: Pod {
    const DTYPE: DType;
    const PEERS: &'static [(&'static str, Peer<Self>)];
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Number for f32 {
    const DTYPE: DType = DType::F32;
    const PEERS: &'static [(&'static str, Peer<Self>)] =
        &[("gemm", by_gemm), ("gemmkit", |c, product, threads| by_gemmkit(c, product, threads, [0.0, 1.0]))];

    fn from_f32(x: f32) -> Self {
        x
    }

    fn to_f32(self) -> f32 {
        self
    }
}

impl Number for bf16 {
    const DTYPE: DType = DType::Bf16;
    const PEERS: &'static [(&'static str, Peer<Self>)] =
        &[("gemmkit", |c, product, threads| by_gemmkit(c, product, threads, [Self::ZERO, Self::ONE]))];

    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

struct Bench {
    backend: CpuBackend,
    clock: Clock,
    filter: String,
    runs: usize,
}

impl Bench {
    fn normal<T: Number>(&self, seed: u64, shape: [usize; 2]) -> (Tensor, Vec<T>) {
        let mut values = vec![0.0; shape[0] * shape[1]];
        Stream::new(1, seed).fill_normal(&mut values, 0.5);
        let backend: &dyn Backend = &self.backend;
        let tensor = backend.from_f32(shape, T::DTYPE, &values).unwrap();
        (tensor, values.into_iter().map(T::from_f32).collect())
    }

    /// The three products of a linear layer.
    fn layer<T: Number>(&self, (m, k, n): (usize, usize, usize)) {
        let ((x, x_values), (w, w_values)) = (self.normal::<T>(1, [m, k]), self.normal::<T>(2, [n, k]));
        let (dy, dy_values) = self.normal::<T>(3, [m, n]);
        let [x_rows, w_rows, dy_rows] =
            [(&x_values, k), (&w_values, k), (&dy_values, n)].map(|(values, width)| Factor::rows(values, width));
        let (w_columns, dy_columns) = (Factor::transposed(&w_values, k), Factor::transposed(&dy_values, n));
        let shape = format!("{} {m}x{k}x{n}", T::DTYPE);
        let backend = &self.backend;
        self.row(&format!("nt {shape}"), &Product { m, n, k, a: x_rows, b: w_columns }, |y| {
            backend.matmul_nt(y, &x, &w, false).unwrap();
        });
        self.row(&format!("nn {shape}"), &Product { m, n: k, k: n, a: dy_rows, b: w_rows }, |dx| {
            backend.matmul_nn(dx, &dy, &w, false).unwrap();
        });
        let x_rows = Factor::rows(&x_values, k);
        self.row(&format!("tn {shape}"), &Product { m: n, n: k, k: m, a: dy_columns, b: x_rows }, |dw| {
            backend.matmul_tn(dw, &dy, &x, false).unwrap();
        });
    }

    /// One product, ours beside each crate's.
    fn row<T: Number>(&self, name: &str, product: &Product<'_, T>, ours: impl Fn(&mut Tensor)) {
        let (m, n) = (product.m, product.n);
        let backend: &dyn Backend = &self.backend;
        for (crate_name, theirs) in T::PEERS {
            if !format!("{name} {crate_name}").contains(&self.filter) {
                continue;
            }
            let mut c = backend.alloc(Shape::new(&[m, n]), T::DTYPE).unwrap();
            let mut their_c = vec![T::zeroed(); m * n];
            let threads = self.backend.num_threads();
            ours(&mut c);
            theirs(&mut their_c, product, threads);
            check(&backend.to_f32(&c).unwrap(), &their_c, crate_name);
            let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
            let start = Instant::now();
            while our_times.len() < self.runs || start.elapsed() < Duration::from_millis(500) {
                our_times.push(self.time(|| ours(&mut c)));
                their_times.push(self.time(|| theirs(&mut their_c, product, threads)));
            }
            let (our_time, their_time) = (median(our_times), median(their_times));
            let rate = 2.0 * (m * n * product.k) as f64 / our_time / 1e9;
            let (our_ms, their_ms, ratio) = (our_time * 1e3, their_time * 1e3, their_time / our_time);
            println!("{name:26} {crate_name:8} {our_ms:9.3} {their_ms:9.3} ms {rate:8.1} GFLOP/s {ratio:7.3}");
        }
    }

    fn time(&self, run: impl FnOnce()) -> Duration {
        let before = self.clock.now();
        run();
        self.clock.now().saturating_sub(before)
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Panics if two results differ by more than rounding to bf16 does.
fn check<T: Number>(ours: &[f32], theirs: &[T], crate_name: &str) {
    let (mut error, mut size) = (0.0, 0.0);
    for (ours, theirs) in ours.iter().zip(theirs) {
        error += f64::from(ours - theirs.to_f32()).powi(2);
        size += f64::from(*ours).powi(2);
    }
    assert!(error <= 1e-4 * size, "ours and `{crate_name}` differ: squared error {error:e} of {size:e}");
}

/// The version of a crate in the lock file.
fn version(crate_name: &str) -> &'static str {
    const LOCK: &str = include_str!("../../../Cargo.lock");
    let start = LOCK.find(&format!("name = \"{crate_name}\"\n")).unwrap();
    LOCK[start..].split('"').nth(3).unwrap()
}

fn main() {
    let (mut threads, mut runs, mut filter, mut clock) = (1, 15, String::new(), Clock::wall());
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some(("threads", n)) => threads = n.parse().unwrap(),
            Some(("runs", n)) => runs = n.parse().unwrap(),
            Some(("clock", "cpu")) => clock = Clock::Thread,
            Some(("name", part)) => part.clone_into(&mut filter),
            _ => assert_eq!(arg, "--bench", "an argument that the first lines of this file do not name"),
        }
    }
    assert!(threads == 1 || matches!(clock, Clock::Wall(_)), "`clock=cpu` sees the calling thread only");
    let config = CpuConfig { threads: Some(threads), ..CpuConfig::default() };
    let bench = Bench { backend: CpuBackend::new(config).unwrap(), clock, filter, runs };
    let versions = ["gemm", "gemmkit"].map(|name| format!("{name} {}", version(name)));
    println!("{}, {}", bench.backend.describe(), versions.join(", "));
    println!("{:26} {:8} {:>9} {:>9}    {:>8}         {:>7}", "product", "crate", "ours", "theirs", "rate", "ratio");
    for shape in SHAPES {
        bench.layer::<f32>(shape);
    }
    for shape in SHAPES {
        bench.layer::<bf16>(shape);
    }
}
