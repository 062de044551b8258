//! `cargo xtask bench smollm2`: whole training steps of `tune`, alternating with the same config in torchtune.
//!
//! Needs the real model (see [`smollm2`]) and `--rows`, alpaca rows as JSON; `--against-torchtune`, a virtual environment with
//! torchtune, is optional. Both programs read one config, `bench/smollm2_full.yaml`, in
//! one folder, `target/bench/smollm2`. Each round runs every program once; the figure of a run is the median tokens per second
//! of its steps from the third on, the figure of a program the median over rounds. A run that is stopped at `--limit` before
//! its third step ends has no figure, only a bound: three steps take longer than the limit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::{cargo, root};
use crate::smollm2;

/// Where the model, the rows and the peer are.
#[derive(clap::Args)]
pub(crate) struct PeerArgs {
    /// Alpaca rows as JSON; the benches `smollm2`, `step_rate` and `ranks` run where they are given
    #[arg(long, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,
    /// Virtual environment with torchtune, to alternate with
    #[arg(long = "against-torchtune", value_name = "VENV")]
    pub(crate) peer: Option<PathBuf>,
    /// Run only the rows of the table whose name contains this: `fp32`, `checkpointing`
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) only: String,
    /// How often each program runs
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Optimizer steps of a run; the first two do not count
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..))]
    pub(crate) steps: u64,
    /// Seconds after which a run is stopped; one that shows no step that counts is only bounded, as `< tokens/s`
    #[arg(long, default_value_t = 1800)]
    pub(crate) limit: u64,
}

/// The bench's name.
pub(crate) const NAME: &str = "smollm2";

/// Steps that do not count: they fill caches and pools.
pub(crate) const UNCOUNTED_STEPS: usize = 2;

/// For making the model folder, which takes seconds.
const PREPARE_LIMIT_SECS: u64 = 600;

/// Tokens of a step at most: two packs of 512.
pub(crate) const TOKENS_PER_STEP: f64 = 1024.0;

/// What is run: a name and the overrides that make it.
const VARIANTS: &[(&str, &[&str])] = &[
    ("fp32", &["dtype=fp32"]),
    ("fp32, activation checkpointing", &["dtype=fp32", "enable_activation_checkpointing=True"]),
    (
        "fp32, unpacked, batch 4, answers",
        &["dtype=fp32", "dataset.packed=False", "dataset.train_on_input=False", "batch_size=4"],
    ),
    ("bf16", &["dtype=bf16"]),
    ("bf16, activation checkpointing", &["dtype=bf16", "enable_activation_checkpointing=True"]),
    // Answers alone are learnt: masked tokens cost no head. Both programs see the same rows, so the ratio of tokens is that of rows.
    (
        "bf16, unpacked, batch 4, answers",
        &["dtype=bf16", "dataset.packed=False", "dataset.train_on_input=False", "batch_size=4"],
    ),
];

/// Runs all variants and prints a table.
pub(crate) fn run(args: &PeerArgs) -> Result<()> {
    let Some(rows) = &args.rows else { bail!("bench `{NAME}` needs `--rows FILE`") };
    let Some(gguf) = smollm2::locate() else { bail!("bench `{NAME}` needs the real model") };
    let dir = root().join("target/bench/smollm2");
    let tune = root().join("target/release/tune");
    cargo(["build", "--release", "--bin", "tune"]).run()?;
    prepare(&dir, &tune, &gguf, rows)?;
    let peer = args.peer.as_ref().map(|venv| venv.join("bin/tune"));
    println!("{}", machine());
    if let Some(venv) = &args.peer {
        println!("peer: {}", versions(venv)?);
    }
    println!(
        "{:34}{:>14}{:>14}{:>8}{:>10}{:>10}{:>8}{:>12}{:>12}{:>8}",
        "", "tokens/s", "peer's", "ratio", "GiB", "peer's", "ratio", "1st step s", "peer's", "ratio"
    );
    for (name, overrides) in VARIANTS.iter().filter(|(name, _)| name.contains(&args.only)) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            ours.push(one_run(&dir, &tune, overrides, args)?);
            if let Some(peer) = &peer {
                theirs.push(one_run(&dir, peer, overrides, args)?);
            }
        }
        print_row(name, &ours, &theirs);
    }
    Ok(())
}

/// What one run showed.
#[derive(Clone, Copy)]
struct Shown {
    tokens_per_second: f64,
    /// The run was stopped before a step counted: it is slower than `tokens_per_second`.
    is_bound: bool,
    peak_gib: f64,
    /// From the start of the process to the end of its first optimizer step; NaN if none ended.
    first_step_secs: f64,
}

fn print_row(name: &str, ours: &[Shown], theirs: &[Shown]) {
    let of = |runs: &[Shown], figure: fn(&Shown) -> f64| {
        if runs.is_empty() { f64::NAN } else { median(runs.iter().map(figure).collect()) }
    };
    let (speed, their_speed) = (of(ours, |r| r.tokens_per_second), of(theirs, |r| r.tokens_per_second));
    let (memory, their_memory) = (of(ours, |r| r.peak_gib), of(theirs, |r| r.peak_gib));
    let (begin, their_begin) = (of(ours, |r| r.first_step_secs), of(theirs, |r| r.first_step_secs));
    let is_bound = theirs.iter().any(|r| r.is_bound);
    let (below, above) = if is_bound { ("< ", "> ") } else { ("", "") };
    println!(
        "{name:34}{speed:>14.1}{:>14}{:>8}{memory:>10.2}{their_memory:>10.2}{:>8.2}{begin:>12.2}{their_begin:>12.2}{:>8.2}",
        format!("{below}{their_speed:.1}"),
        format!("{above}{:.2}", speed / their_speed),
        memory / their_memory,
        begin / their_begin,
    );
}

/// Makes the model folder and the rows once: `tune` reads the GGUF file and saves it without having learnt anything.
pub(crate) fn prepare(dir: &Path, tune: &Path, gguf: &Path, rows: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::copy(rows, dir.join("rows.json")).with_context(|| format!("cannot read `{}`", rows.display()))?;
    std::fs::copy(root().join("bench/smollm2_full.yaml"), dir.join("config.yaml"))?;
    let ckpt = dir.join("ckpt");
    if ckpt.join("merges.txt").is_file() {
        return Ok(());
    }
    let (folder, file) = (gguf.parent().unwrap_or(Path::new(".")), gguf.file_name().context("a file name")?);
    let overrides = [
        format!("checkpointer.checkpoint_dir={}", folder.canonicalize()?.display()),
        format!("checkpointer.checkpoint_files=[{}]", file.to_string_lossy()),
        "tokenizer=ferrotune.tokenizers.auto".to_owned(),
        "tokenizer.path=null".to_owned(),
        "model=ferrotune.models.auto".to_owned(),
        "optimizer=torch.optim.SGD".to_owned(),
        "optimizer.lr=0".to_owned(),
        "max_steps_per_epoch=1".to_owned(),
        "overwrite_output_dir=True".to_owned(),
    ];
    let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    let ended = start(dir, tune, &Line { overrides: &overrides, ..Line::default() }, PREPARE_LIMIT_SECS)?;
    ensure!(!ended.stopped, "making the model folder took over {PREPARE_LIMIT_SECS} s");
    if ckpt.exists() {
        std::fs::remove_dir_all(&ckpt)?;
    }
    std::fs::rename(dir.join("out/epoch_0"), &ckpt)?;
    write_vocab_and_merges(&ckpt)
}

/// The peer's tokenizer wants `vocab.json` and `merges.txt`, which `tokenizer.json` holds.
fn write_vocab_and_merges(ckpt: &Path) -> Result<()> {
    let json: Value = serde_json::from_slice(&std::fs::read(ckpt.join("tokenizer.json"))?)?;
    let model = &json["model"];
    std::fs::write(ckpt.join("vocab.json"), model["vocab"].to_string())?;
    let merges = model["merges"].as_array().context("`tokenizer.json` has merges")?;
    let mut text = "#version: 0.2\n".to_owned();
    for merge in merges {
        match merge.as_array().map(Vec::as_slice) {
            Some([left, right]) => {
                let (left, right) = (left.as_str().unwrap_or_default(), right.as_str().unwrap_or_default());
                text.extend([left, " ", right, "\n"]);
            }
            _ => text.extend([merge.as_str().unwrap_or_default(), "\n"]),
        }
    }
    std::fs::write(ckpt.join("merges.txt"), text)?;
    Ok(())
}

/// Runs a program once; its log says how fast it was, the system how much memory it took.
fn one_run(dir: &Path, program: &Path, overrides: &[&str], args: &PeerArgs) -> Result<Shown> {
    let steps = format!("max_steps_per_epoch={}", args.steps);
    let overrides: Vec<&str> = overrides.iter().copied().chain([steps.as_str()]).collect();
    let (run, steps) = timed(dir, program, &Line { overrides: &overrides, ..Line::default() }, args.limit)?;
    let first_step_secs = steps.first().map_or(f64::NAN, Duration::as_secs_f64);
    let (rates, peak_gib) = (logged_rates(dir)?, run.peak_gib);
    if rates.is_empty() {
        ensure!(run.stopped, "`{}` logs no tokens_per_second_per_gpu", program.display());
        let tokens = (UNCOUNTED_STEPS + 1) as f64 * TOKENS_PER_STEP;
        let tokens_per_second = tokens / args.limit as f64;
        return Ok(Shown { tokens_per_second, is_bound: true, peak_gib, first_step_secs });
    }
    Ok(Shown { tokens_per_second: median(rates), is_bound: false, peak_gib, first_step_secs })
}

/// Runs a program, and looks when the lines of its log appear: how long each took from the start of the process.
pub(crate) fn timed(dir: &Path, program: &Path, line: &Line<'_>, limit: u64) -> Result<(Ended, Vec<Duration>)> {
    remove_output(dir)?;
    let is_over = AtomicBool::new(false);
    let (run, steps) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| line_times(dir, &is_over));
        let run = start(dir, program, line, limit);
        is_over.store(true, Ordering::Relaxed);
        (run, watch.join().expect("it only looks at a file"))
    });
    Ok((run?, steps))
}

fn line_times(dir: &Path, is_over: &AtomicBool) -> Vec<Duration> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let num_lines = logged_text(dir).map_or(0, |text| text.matches('\n').count());
        times.resize(num_lines.max(times.len()), begin.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    times
}

/// Removes what an earlier run left.
pub(crate) fn remove_output(dir: &Path) -> Result<()> {
    let out = dir.join("out");
    if out.exists() {
        std::fs::remove_dir_all(&out)?;
    }
    Ok(())
}

/// Tokens per second and rank of the steps that count, as the last run in `dir` logged them.
pub(crate) fn logged_rates(dir: &Path) -> Result<Vec<f64>> {
    let text = logged_text(dir)?;
    let rate = |line: &str| line.split_once("tokens_per_second_per_gpu:")?.1.split_whitespace().next()?.parse().ok();
    Ok(text.lines().skip(UNCOUNTED_STEPS).filter_map(rate).collect())
}

/// The log of the last run in `dir`; empty if there is none.
fn logged_text(dir: &Path) -> Result<String> {
    let log = std::fs::read_dir(dir.join("out/logs")).ok().and_then(|mut files| files.next()).transpose()?;
    Ok(log.map(|log| std::fs::read_to_string(log.path())).transpose()?.unwrap_or_default())
}

/// What is typed after `tune run`, and the environment it is typed in.
pub(crate) struct Line<'a> {
    pub(crate) launch: &'a [&'a str],
    pub(crate) recipe: &'a str,
    pub(crate) overrides: &'a [&'a str],
    pub(crate) env: &'a [(&'a str, &'a str)],
}

impl Default for Line<'_> {
    fn default() -> Self {
        Self { launch: &[], recipe: "full_finetune_single_device", overrides: &[], env: &[] }
    }
}

/// How a program ended.
pub(crate) struct Ended {
    /// It ran into the limit.
    pub(crate) stopped: bool,
    /// Peak of resident memory; NaN where GNU time is not installed.
    peak_gib: f64,
    /// What it said.
    pub(crate) stderr: String,
}

/// Runs the recipe in `dir` for at most `limit` seconds, under GNU time where there is one.
pub(crate) fn start(dir: &Path, program: &Path, line: &Line<'_>, limit: u64) -> Result<Ended> {
    // Exit status of `timeout` (coreutils) when it had to stop the program.
    const STOPPED: i32 = 124;
    let time = Path::new("/usr/bin/time");
    let mut command = if time.exists() {
        let mut command = Command::new(time);
        command.args(["-f", "%M", "-o"]).arg(dir.join("peak_kib")).arg("timeout");
        command
    } else {
        Command::new("timeout")
    };
    command.arg(limit.to_string()).arg(program).current_dir(dir).envs(line.env.iter().copied());
    command.arg("run").args(line.launch).args([line.recipe, "--config", "config.yaml"]).args(line.overrides);
    let output = command.output().with_context(|| format!("cannot start `{}`", program.display()))?;
    let stopped = output.status.code() == Some(STOPPED);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() || stopped, "`{}` failed ({}):\n{stderr}", program.display(), output.status);
    // GNU time writes a line about the status before the figure.
    let peak = std::fs::read_to_string(dir.join("peak_kib")).unwrap_or_default();
    let peak = peak.lines().last().unwrap_or_default().trim();
    Ok(Ended { stopped, peak_gib: peak.parse::<f64>().unwrap_or(f64::NAN) / f64::from(1 << 20), stderr })
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

pub(crate) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    let isa = instruction_set().unwrap_or_else(|| "unknown instructions".to_owned());
    format!("machine: {}, {cores} cores, {isa}, load {load}", name.map_or("unknown processor", |(_, name)| name.trim()))
}

/// The instruction set that the built program runs its kernels with.
fn instruction_set() -> Option<String> {
    let output = Command::new(root().join("target/release/tune")).args(["doctor", "--json"]).output().ok()?;
    let shown: Value = serde_json::from_slice(&output.stdout).ok()?;
    shown["cpu"]["instruction_set"].as_str().map(str::to_owned)
}

pub(crate) fn versions(venv: &Path) -> Result<String> {
    let code = "import torch, torchtune; print('torchtune', torchtune.__version__, 'torch', torch.__version__)";
    let output = Command::new(venv.join("bin/python")).args(["-c", code]).output().context("cannot start the peer")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
