//! `tune`: torchtune's command line, natively.
//!
//! Arguments become types in [`args`] and [`launch`], [`ranks`] finds or starts the ranks of a run, verbs run in [`commands`],
//! and everything that ends a run badly leaves through [`exit`]: the message on stderr, one hint, an exit code (0 done, 1 the
//! run failed, 2 bad usage, config or input, 130 interrupted).

mod args;
mod commands;
mod exit;
mod launch;
mod ranks;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(answer) => return exit::parsed(answer),
    };
    commands::download::show_progress();
    let outcome = match &args.command {
        Some(args::Command::Download(download)) => commands::download::run(download),
        Some(args::Command::Ls) => commands::ls::run(),
        Some(args::Command::Cp(cp)) => commands::cp::run(cp),
        Some(args::Command::Run(run)) => commands::run::run(run),
        Some(args::Command::Validate(validate)) => commands::validate::run(validate),
        Some(args::Command::Cat(cat)) => commands::cat::run(cat),
        Some(args::Command::Doctor(doctor)) => commands::doctor::run(doctor),
        Some(args::Command::Completions(completions)) => commands::completions::run(completions),
        None => commands::print(&args::Args::command().render_help().to_string()),
    };
    exit::code(outcome)
}
