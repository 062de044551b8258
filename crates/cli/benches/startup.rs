//! How long the program takes to start and answer without a model: help, `ls`, `cat`, `validate`.
//!
//! Prints the median, the least and the most of many runs, in milliseconds, process start and exit included.

#![expect(clippy::print_stdout, reason = "a bench prints its table")]

use std::process::{Command, Stdio};
use std::time::Instant;

const RUNS: usize = 50;

/// Runs once before those that count, so that the binary is in the page cache.
const WARM_UP: usize = 3;

fn main() {
    let cases: &[&[&str]] = &[
        &["--help"],
        &["--version"],
        &["run", "--help"],
        &["ls"],
        &["cat", "llama3_2/1B_full_single_device"],
        &["cat", "llama3_2/1B_full_single_device", "--resolved", "--json"],
        &["validate", "llama3_2/1B_full_single_device"],
        &["doctor"],
    ];
    println!("{:60}{:>10}{:>10}{:>10}", "tune ...", "median ms", "least", "most");
    for arguments in cases {
        let mut times: Vec<f64> = (0..WARM_UP + RUNS).map(|_| run(arguments)).skip(WARM_UP).collect();
        times.sort_by(f64::total_cmp);
        let (median, least, most) = (times[RUNS / 2], times[0], times[RUNS - 1]);
        println!("{:60}{median:>10.2}{least:>10.2}{most:>10.2}", arguments.join(" "));
    }
}

fn run(arguments: &[&str]) -> f64 {
    let start = Instant::now();
    let status = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("the program starts");
    assert!(status.code().is_some(), "{arguments:?} ended by a signal");
    start.elapsed().as_secs_f64() * 1e3
}
