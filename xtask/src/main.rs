//! Project chores: `cargo xtask check | test | bless | bench | configs | docs | fuzz | first-run-tokenizer | ci`. The same
//! commands are all that CI runs.
//!
//! Every step runs even if an earlier one failed; the last lines say what failed and how long each step took.
//! Exit code: 0 if every step passed, 1 otherwise, 2 for wrong arguments.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

mod bench;
mod cargo;
mod configs;
mod first_run;
mod fuzz;
mod layering;
mod mpi;
mod op_ratios;
mod peer;
mod ranks;
mod smollm2;
mod sources;
mod step_rate;
mod steps;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::cargo::cargo;
use crate::steps::Steps;
use crate::workspace::Workspace;

/// How long CI looks for configs that the parser cannot bear.
const FUZZ_SECONDS: u64 = 60;

/// Project chores of ferrotune.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, layering, source rules, clippy and docs; warnings are errors
    Check,
    /// Every test and doc test (with arguments: only what `cargo nextest run` makes of them)
    Test(TestArgs),
    /// Rewrite the snapshots from what the program prints, then look at `git diff`
    Bless {
        /// Arguments for `cargo nextest run`, such as `-p ferrotune`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        nextest: Vec<String>,
    },
    /// Build the release binary and run the benches
    Bench(bench::BenchArgs),
    /// Write `docs/configuration.md` from the types that check configs
    Docs,
    /// Write the config files of `configs/` from their table
    Configs {
        /// Write nothing; fail if a file is not as it would be written
        #[arg(long)]
        check: bool,
    },
    /// Build the fuzz target of the config crate and run it for a while
    Fuzz(fuzz::FuzzArgs),
    /// Train the tokenizer of `examples/first_run` on its rows
    FirstRunTokenizer,
    /// What CI runs: check, test, a minute of fuzzing, licences and sources of dependencies
    Ci {
        /// Run the slow tests (`#[ignore = "slow: ..."]`) too
        #[arg(long)]
        slow: bool,
    },
}

#[derive(Args)]
struct TestArgs {
    /// Run the slow tests (`#[ignore = "slow: ..."]`) and nothing else
    #[arg(long)]
    slow: bool,
    /// Arguments for `cargo nextest run`, such as `-p ferrotune-cpu`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    nextest: Vec<String>,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let mut steps = Steps::default();
    match command {
        Command::Check => check(&mut steps),
        Command::Test(args) => test(&mut steps, &args),
        Command::Bless { nextest } => bless(&mut steps, &nextest),
        Command::Bench(args) => return bench::run(&args),
        Command::Docs => return docs(),
        Command::Configs { check } => return configs::run(check),
        Command::Fuzz(args) => return fuzz::run(&args),
        Command::FirstRunTokenizer => return first_run::train_tokenizer(),
        Command::Ci { slow } => {
            check(&mut steps);
            test(&mut steps, &TestArgs { slow: false, nextest: Vec::new() });
            if slow {
                test(&mut steps, &TestArgs { slow: true, nextest: Vec::new() });
            }
            steps.run("fuzz", || fuzz::run(&fuzz::FuzzArgs { seconds: FUZZ_SECONDS }));
            // The advisory database is left out: it cannot be reached from everywhere.
            steps.run("deny", || cargo(["deny", "check", "bans", "licenses", "sources"]).run());
        }
    }
    steps.finish()
}

fn check(steps: &mut Steps) {
    steps.run("fmt", || cargo(["fmt", "--all", "--check"]).run());
    steps.run("layering", || layering::check(&Workspace::load()?));
    steps.run("sources", sources::check);
    steps.run("configs", || configs::run(true));
    steps.run("clippy", || cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run());
    steps.run("docs", || cargo(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").run());
    mpi::check(steps);
}

fn test(steps: &mut Steps, args: &TestArgs) {
    let model = smollm2::locate();
    let nextest = |args: &[&str]| {
        let command = cargo(["nextest", "run"]).args(args);
        match &model {
            Some(path) => command.env(smollm2::VARIABLE, &path.display().to_string()),
            None => command,
        }
    };
    if args.slow {
        let slow = ["--workspace", "--profile", "slow", "--run-ignored", "only", "--no-tests", "pass"];
        steps.run("slow tests", || nextest(&slow).args(&args.nextest).run());
    } else if args.nextest.is_empty() {
        steps.run("tests", || nextest(&["--workspace", "--no-fail-fast"]).run());
        steps.run("doc tests", || cargo(["test", "--workspace", "--doc", "--quiet"]).run());
        mpi::test(steps);
    } else {
        steps.run("tests", || nextest(&[]).args(&args.nextest).run());
    }
}

fn bless(steps: &mut Steps, nextest: &[String]) {
    let scope: &[&str] = if nextest.is_empty() { &["--workspace"] } else { &[] };
    steps.run("bless", || {
        cargo(["nextest", "run", "--no-fail-fast"])
            .args(scope)
            .args(nextest)
            .env("INSTA_UPDATE", "always")
            .env("TRYCMD", "overwrite")
            .run()
    });
}

fn docs() -> Result<()> {
    let page =
        cargo(["run", "--quiet", "--package", "ferrotune-recipes", "--example", "configuration_page"]).stdout()?;
    let folder = cargo::root().join("docs");
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join("configuration.md"), page)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_well_formed() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["cargo xtask", "test", "--slow", "-p", "ferrotune-cpu"]).unwrap();
        let Command::Test(args) = cli.command else { panic!("`test` is the test command") };
        assert!(args.slow);
        assert_eq!(args.nextest, ["-p", "ferrotune-cpu"]);
    }
}
