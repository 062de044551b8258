//! `cargo xtask fuzz`: builds the fuzz target of the config crate and runs it for a while.
//!
//! The target stands in `fuzz/`, a workspace of its own, and needs a C++ compiler for libFuzzer. libFuzzer keeps the inputs
//! that reach code no other did; [`RUSTFLAGS`] has the compiler count that, on stable Rust.
//!
//! First the seeds run with a printer that is wrong on purpose and must crash: a target that checks nothing finds nothing.
//!
//! Files:   under `target/fuzz`: `corpus` (inputs found, kept for the next run), `artifacts` (inputs that crashed), `log.txt`.
//! Errors:  a crash, with the input's path; a target without coverage; a wrong printer that goes unnoticed.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cargo::{cargo, root};

/// What `cargo xtask fuzz` takes.
#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// How long to run, in seconds, after the build
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
}

/// Coverage counters and compared values for libFuzzer.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0";
/// Limits of one input: seconds, MiB, bytes.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=4096"];
/// The targets' switch to the wrong printer.
const WRONG_PRINTER: &str = "FUZZ_WRONG_PRINTER";

/// Builds the target, shows that it can fail, and runs it.
pub(crate) fn run(args: &FuzzArgs) -> Result<()> {
    let target = Target { folder: root().join("target/fuzz"), binary: build()? };
    target.fails_on_a_wrong_printer()?;
    let (status, log) = target.run("artifacts", &[&format!("-max_total_time={}", args.seconds)], false)?;
    if !status.success() {
        let input = crashed_input(&log).unwrap_or_default();
        bail!("fuzzing found a failure ({status})\n{}\n  input: {input}", tail(&log));
    }
    let [start, end] = ["INITED", "DONE"].map(|word| coverage(&log, word));
    let (Some((_, seeds)), Some((inputs, all))) = (start, end) else {
        bail!("no coverage in the log: the target is built without counters\n{}", tail(&log));
    };
    eprintln!("fuzz: no failure in {inputs} inputs; edges covered by the first inputs: {seeds}, by all: {all}");
    Ok(())
}

/// The instrumented program. `--target` keeps the flags away from build scripts, which have no counters to link with.
fn build() -> Result<PathBuf> {
    let version = String::from_utf8(cargo(["-vV"]).stdout()?).context("cannot read what `cargo -vV` printed")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("`cargo -vV` names no host")?;
    cargo(["build", "--release", "--locked", "--manifest-path", "fuzz/Cargo.toml"])
        .args(["--target-dir", "target/fuzz", "--target", host])
        .env("RUSTFLAGS", RUSTFLAGS)
        .run()?;
    Ok(root().join("target/fuzz").join(host).join("release/config"))
}

struct Target {
    folder: PathBuf,
    binary: PathBuf,
}

impl Target {
    /// Runs the program on the seeds and what earlier runs found; returns how it ended and what it wrote.
    fn run(&self, artifacts: &str, flags: &[&str], wrong_printer: bool) -> Result<(ExitStatus, String)> {
        let (corpus, artifacts) = (self.folder.join("corpus"), self.folder.join(artifacts));
        for folder in [&corpus, &artifacts] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
        }
        let log = self.folder.join("log.txt");
        let file = File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
        let mut command = Command::new(&self.binary);
        command
            .args(LIMITS)
            .args(flags)
            .arg(format!("-dict={}", root().join("fuzz/config.dict").display()))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(if wrong_printer { None } else { Some(corpus) })
            .arg(root().join("fuzz/corpus/config"))
            .stdout(file.try_clone()?)
            .stderr(file);
        if wrong_printer {
            command.env(WRONG_PRINTER, "1");
        }
        let status = command.status().with_context(|| format!("cannot start `{}`", self.binary.display()))?;
        let bytes = fs::read(&log).with_context(|| format!("cannot read `{}`", log.display()))?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Runs the seeds alone, with the printer that leaves out quotes.
    fn fails_on_a_wrong_printer(&self) -> Result<()> {
        let (status, log) = self.run("wrong_printer", &["-runs=0"], true)?;
        if status.success() || crashed_input(&log).is_none() {
            bail!("the target does not notice a wrong printer ({status})\n{}", tail(&log));
        }
        Ok(())
    }
}

/// Number of inputs and of edges covered, from the line with `word`: `#12 INITED cov: 345 ft: ...`.
fn coverage(log: &str, word: &str) -> Option<(u64, u64)> {
    let line = log.lines().find(|line| line.starts_with('#') && line.split_whitespace().nth(1) == Some(word))?;
    let mut words = line.split_whitespace();
    let inputs = words.next()?.strip_prefix('#')?.parse().ok()?;
    let edges = words.skip_while(|word| *word != "cov:").nth(1)?.parse().ok()?;
    (edges > 0).then_some((inputs, edges))
}

/// Where libFuzzer wrote the input that crashed.
fn crashed_input(log: &str) -> Option<&str> {
    log.lines().find_map(|line| Some(line.split_once("Test unit written to ")?.1.trim()))
}

/// The end of a log, without the lines on progress and the inputs that libFuzzer prints.
fn tail(log: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = log.lines().filter(|line| line.len() < 400 && !line.starts_with('#')).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Loaded 1 modules   (9000 inline 8-bit counters): 9000 [0x1, 0x2)
#6\tINITED cov: 345 ft: 678 corp: 5/2994b exec/s: 0 rss: 40Mb
#900\tNEW    cov: 350 ft: 690 corp: 6/3000b lim: 4096 exec/s: 900 rss: 41Mb
#4000\tDONE   cov: 351 ft: 700 corp: 7/3100b lim: 4096 exec/s: 900 rss: 41Mb
Done 4000 runs in 4 second(s)
";

    #[test]
    fn coverage_is_read_from_the_log() {
        assert_eq!(coverage(LOG, "INITED"), Some((6, 345)));
        assert_eq!(coverage(LOG, "DONE"), Some((4000, 351)));
    }

    #[test]
    fn a_log_without_coverage_has_none() {
        for log in ["", "Done 4000 runs\n", "#6\tINITED exec/s: 0\n", "#6\tINITED cov: 0 ft: 0\n", "#x INITED cov: 5\n"]
        {
            assert_eq!(coverage(log, "INITED"), None, "{log:?}");
        }
    }

    #[test]
    fn a_crash_names_its_input() {
        let log = format!("{LOG}artifact_prefix='/t/'; Test unit written to /t/crash-0123\nBase64: YQ==\n");
        assert_eq!(crashed_input(&log), Some("/t/crash-0123"));
        assert_eq!(crashed_input(LOG), None);
    }

    #[test]
    fn a_tail_is_short() {
        let log = format!("#7\tNEW\n{}{}\n#8\tNEW", "x\n".repeat(100), "0xff,".repeat(4096));
        assert_eq!(tail(&log).lines().count(), 40);
        assert_eq!(tail(""), "");
    }
}
