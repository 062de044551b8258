//! What can be typed.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Fine-tune language models with torchtune's recipes and configs, without Python.
#[derive(Debug, Parser)]
#[command(name = "tune", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a recipe with a config
    Run(RunArgs),
}

/// Arguments of `tune run`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tune run <RECIPE> --config <FILE> [KEY=VALUE]...",
    after_help = "\
Recipes:
  full_finetune_single_device   train every weight of a model on one device
  generate                      answer a prompt

Examples:
  tune run full_finetune_single_device --config my_run.yaml
  tune run full_finetune_single_device --config my_run.yaml optimizer.lr=1e-5 clip_grad_norm=None
  tune run generate --config generate.yaml prompt.user=\"What is a haiku?\""
)]
pub(crate) struct RunArgs {
    /// Recipe to run
    #[arg(value_name = "RECIPE")]
    pub(crate) recipe: String,

    /// YAML file with the run's config
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Changes to the config: `key=value` at any depth, `~key` to remove one; `None` means null
    #[arg(value_name = "KEY=VALUE", trailing_var_arg = true, allow_hyphen_values = true)]
    overrides: Vec<String>,
}

impl RunArgs {
    /// The config file and the changes to it. `--config` may also stand between or behind the changes. Ends the program
    /// as every wrong usage does if there is none.
    pub(crate) fn config_and_overrides(&self) -> (PathBuf, Vec<String>) {
        let mut config = self.config.clone();
        let mut overrides = Vec::with_capacity(self.overrides.len());
        let mut rest = self.overrides.iter();
        while let Some(argument) = rest.next() {
            match argument.strip_prefix("--config") {
                Some("") => config = rest.next().map(PathBuf::from).or(config),
                Some(value) if value.starts_with('=') => config = Some(PathBuf::from(&value[1..])),
                _ => overrides.push(argument.clone()),
            }
        }
        let Some(config) = config else {
            let mut command = Args::command();
            let run = command.find_subcommand_mut("run").expect("declared above");
            run.error(ErrorKind::MissingRequiredArgument, "no config given, expected `--config <FILE>`").exit()
        };
        (config, overrides)
    }
}
