//! `tune`: torchtune's command line, natively.
//!
//! Arguments become types in [`args`], verbs run in [`commands`], and everything that ends a run badly leaves through
//! [`exit`]: the message on stderr, one hint, an exit code (0 done, 1 the run failed, 2 bad usage, config or input).

mod args;
mod commands;
mod exit;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let outcome = match &args.command {
        args::Command::Run(run) => commands::run::run(run),
    };
    exit::code(outcome)
}
