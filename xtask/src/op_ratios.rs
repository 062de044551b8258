//! `cargo xtask bench op_ratios --against-torchtune VENV`: our ops, alternating with the same ops in PyTorch.
//!
//! Rows are those of `crates/cpu/benches/ops.rs` that `bench/torch_ops.py` times under the same name. Each round runs one group of
//! rows with one dtype in both programs, one after the other; a figure is the median over rounds. Forward and backward of
//! attention are also added up. `--only` keeps the rows whose name contains a text; a program that runs into `--limit` has figures
//! for what it got to, and rows that the peer did not get to have no ratio.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{cargo, root};
use crate::peer::{self, PeerArgs, median};

/// The bench's name.
pub(crate) const NAME: &str = "op_ratios";

const GROUPS: [&str; 4] = ["matmul", "attention", "head_loss", "optimizer"];
const DTYPES: [&str; 2] = ["fp32", "bf16"];

/// One row as both programs saw it: milliseconds a round, and the rate of ours.
#[derive(Debug, Default)]
struct Row {
    ours: Vec<f64>,
    theirs: Vec<f64>,
    rate: String,
}

/// Runs all groups and prints a table.
pub(crate) fn run(args: &PeerArgs) -> Result<()> {
    let Some(venv) = &args.peer else { bail!("bench `{NAME}` needs `--against-torchtune VENV`") };
    let program = ops_program()?;
    println!("{}", peer::machine());
    println!("peer: {}", peer::versions(venv)?);
    println!("{:60}{:>12}{:>12}{:>8}  rate of ours", "", "ours ms", "peer ms", "ratio");
    for group in GROUPS {
        for dtype in DTYPES {
            let rows = alternate(venv, &program, group, dtype, args)?;
            print(&rows);
        }
    }
    Ok(())
}

/// The bench target as a program, built.
pub(crate) fn ops_program() -> Result<String> {
    let built =
        cargo(["bench", "--package", "ferrotune-cpu", "--bench", "ops", "--no-run", "--message-format", "json"]);
    let output = String::from_utf8(built.stdout()?)?;
    let executable = output.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "ops").then(|| message["executable"].as_str().map(str::to_owned))?
    });
    executable.context("cargo names no executable for the bench `ops`")
}

fn alternate(venv: &Path, program: &str, group: &str, dtype: &str, args: &PeerArgs) -> Result<BTreeMap<String, Row>> {
    let options = [group.to_owned(), format!("dtype={dtype}"), format!("name={}", args.only)];
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for _ in 0..args.rounds {
        for line in lines(limited(args.limit, Path::new(program)).args(&options).arg("format=tsv"))? {
            let mut parts = line.split('\t');
            let (name, time) = parts.next().zip(parts.next()).context("a row has a name and a time")?;
            let row = rows.entry(name.to_owned()).or_default();
            row.ours.push(time.parse()?);
            parts.next().unwrap_or_default().clone_into(&mut row.rate);
        }
        let python = venv.join("bin/python");
        for line in lines(limited(args.limit, &python).arg(root().join("bench/torch_ops.py")).args(&options))? {
            let (name, time) = line.split_once('\t').context("a row has a name and a time")?;
            rows.entry(name.to_owned()).or_default().theirs.push(time.parse()?);
        }
    }
    rows.retain(|_, row| !row.ours.is_empty());
    Ok(rows)
}

/// A program that is stopped after so many seconds.
pub(crate) fn limited(secs: u64, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg(secs.to_string()).arg(program);
    command
}

/// What a program prints; a program that was stopped has printed what it got to.
pub(crate) fn lines(command: &mut Command) -> Result<Vec<String>> {
    // Exit status of `timeout` (coreutils) when it had to stop the program.
    const STOPPED: i32 = 124;
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stopped = output.status.code() == Some(STOPPED);
    ensure!(output.status.success() || stopped, "{command:?} failed ({}):\n{stderr}", output.status);
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

fn print(rows: &BTreeMap<String, Row>) {
    let print = |name: &str, ours: f64, theirs: f64, rate: &str| {
        if theirs.is_nan() {
            println!("{name:60}{ours:>12.3}{:>12}{:>8}  {rate}", "-", "-");
        } else {
            println!("{name:60}{ours:>12.3}{theirs:>12.3}{:>8.2}  {rate}", theirs / ours);
        }
    };
    let figure = |times: &[f64]| if times.is_empty() { f64::NAN } else { median(times.to_vec()) };
    for (name, row) in rows {
        let (ours, theirs) = (figure(&row.ours), figure(&row.theirs));
        print(name, ours, theirs, &row.rate);
        let Some(shape) = name.strip_prefix("attention_forward ") else { continue };
        if let Some(backward) = rows.get(&format!("attention_backward {shape}")) {
            let name = format!("attention forward and backward {shape}");
            print(&name, ours + figure(&backward.ours), theirs + figure(&backward.theirs), "");
        }
    }
}
