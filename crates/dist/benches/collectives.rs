//! Times all_gather and reduce_scatter of 64 MiB between two ranks, and prints rates.
//!
//! `cargo bench -p ferrotune-dist --bench collectives -- [threads] [mpi] [runs=N]`; `mpi` needs `--features mpi`, and starts
//! this program again through `mpirun`.
//!
//! Columns: best and median time of the runs, and the rate of the best: bytes of the full tensor by time, as other libraries
//! count too.
#![expect(clippy::print_stdout, reason = "prints a table")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at any error")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu::{CpuBackend, CpuConfig};
use dist::{Communicator, Result};
use tensor::{Backend, DType};

const NUM_RANKS: usize = 2;
const FULL_BYTES: usize = 64 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    let num_runs = words.iter().find_map(|word| word.strip_prefix("runs=")?.parse().ok()).unwrap_or(10);
    #[cfg(feature = "mpi")]
    if has("rank") {
        let ranks = dist::mpi::start().unwrap();
        return time("mpi", &ranks, num_runs).unwrap();
    }
    let all = !has("threads") && !has("mpi");
    if all || has("threads") {
        dist::run_threads(NUM_RANKS, |ranks| time("threads", &ranks, num_runs)).unwrap();
    }
    if all || has("mpi") {
        start_mpi(num_runs);
    }
}

#[cfg(feature = "mpi")]
fn start_mpi(num_runs: usize) {
    // Harmless where nobody is root.
    let root = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    let mut mpirun = std::process::Command::new("mpirun");
    mpirun.args(["-n", &NUM_RANKS.to_string()]).arg(std::env::current_exe().unwrap());
    let status = mpirun.args(["rank", &format!("runs={num_runs}")]).envs(root).status().unwrap();
    assert!(status.success(), "`mpirun` failed ({status})");
}

#[cfg(not(feature = "mpi"))]
fn start_mpi(_: usize) {
    println!("mpi      not timed: built without the feature `mpi`");
}

fn time(engine: &str, ranks: &Communicator, num_runs: usize) -> Result<()> {
    let backend: Arc<dyn Backend> =
        Arc::new(CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap());
    for dtype in [DType::F32, DType::Bf16] {
        let len = FULL_BYTES / dtype.size_bytes();
        let mut full = backend.zeros([len].into(), dtype)?;
        let mut shard = backend.zeros([len / NUM_RANKS].into(), dtype)?;
        let mut times = Vec::new();
        for _ in 0..num_runs {
            ranks.barrier().wait()?;
            let start = Instant::now();
            full = ranks.all_gather(&backend, full, &shard).wait()?;
            times.push(start.elapsed());
        }
        print("all_gather", engine, ranks, dtype, times);
        let mut times = Vec::new();
        for _ in 0..num_runs {
            ranks.barrier().wait()?;
            let start = Instant::now();
            let reduced = ranks.reduce_scatter(&backend, shard, full, false).wait()?;
            (shard, full) = (reduced.shard, reduced.full);
            times.push(start.elapsed());
        }
        print("reduce_scatter", engine, ranks, dtype, times);
    }
    Ok(())
}

fn print(name: &str, engine: &str, ranks: &Communicator, dtype: DType, mut times: Vec<Duration>) {
    times.sort();
    if ranks.rank() == 0 {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (best, median) = (ms(times[0]), ms(times[times.len() / 2]));
        let rate = FULL_BYTES as f64 / best / 1e6;
        println!("{engine:<8} {name:<15} {dtype:<5} {best:>7.1} ms {median:>7.1} ms {rate:>6.2} GB/s");
    }
}
