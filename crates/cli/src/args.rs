//! What can be typed.

use clap::{Parser, Subcommand};

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
#[command(after_help = "\
Recipes:
  full_finetune_single_device   train every weight of a model on one device
  generate                      answer a prompt

Examples:
  tune run full_finetune_single_device --config my_run.yaml
  tune run full_finetune_single_device --config my_run.yaml epochs=2 optimizer.lr=1e-5 clip_grad_norm=None
  tune run generate --config generate.yaml prompt.user=\"What is a haiku?\"")]
pub(crate) struct RunArgs {
    /// Recipe to run
    #[arg(value_name = "RECIPE")]
    pub(crate) recipe: String,

    /// YAML file with the run's config
    #[arg(long, value_name = "FILE")]
    pub(crate) config: std::path::PathBuf,

    /// Changes to the config: `key=value` at any depth, `~key` to remove one; `None` means null
    #[arg(value_name = "KEY=VALUE", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) overrides: Vec<String>,
}
