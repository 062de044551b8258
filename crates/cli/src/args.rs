//! What can be typed: the verbs and their arguments.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands::download::DownloadArgs;
use crate::launch::LaunchArgs;

/// Fine-tune language models with torchtune's recipes and configs, without Python.
#[derive(Debug, Parser)]
#[command(name = "tune", version, max_term_width = 100, after_help = FIRST_STEPS)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const FIRST_STEPS: &str = "\
First steps:
  tune ls                                               recipes and built-in configs
  tune download <REPO> --output-dir <DIR>               get a model
  tune cp llama3_2/1B_full_single_device my_run.yaml    a config to make your own
  tune validate my_run.yaml                           find every mistake in it
  tune run full_finetune_single_device --config my_run.yaml batch_size=8";

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Download a model from the Hugging Face Hub
    Download(DownloadArgs),
    /// List recipes and built-in configs
    Ls,
    /// Copy a built-in config to a file
    Cp(CpArgs),
    /// Run a recipe with a config
    Run(Box<RunArgs>),
    /// Check a config without running it
    Validate(ValidateArgs),
    /// Print a config
    Cat(CatArgs),
    /// Show what this machine offers and what this build uses of it
    Doctor(DoctorArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

/// Arguments of `tune cp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tune cp llama3_2/1B_full_single_device my_run.yaml
  tune cp llama2/7B_full .                            writes ./7B_full.yaml")]
pub(crate) struct CpArgs {
    /// Built-in config to copy
    #[arg(value_name = "CONFIG", index = 1)]
    pub(crate) file: String,

    /// File to write, or a folder to write into; a file's name gets the ending `.yaml`
    #[arg(value_name = "DESTINATION", index = 2)]
    pub(crate) destination: PathBuf,

    /// Leave a file that is already there as it is
    #[arg(short = 'n', long, alias = "no_clobber")]
    pub(crate) no_clobber: bool,

    /// Make missing folders on the way
    #[arg(long, alias = "make_parents")]
    pub(crate) make_parents: bool,
}

/// Arguments of `tune cat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tune cat llama3_2/1B_full_single_device
  tune cat my_run.yaml optimizer.lr=1e-4 --resolved --json")]
pub(crate) struct CatArgs {
    /// Built-in config or YAML file
    #[arg(value_name = "CONFIG", index = 1)]
    pub(crate) config: String,

    /// Changes to the config: `key=value` at any depth, `~key` to remove one; `None` means null
    #[arg(value_name = "KEY=VALUE", index = 2)]
    pub(crate) overrides: Vec<String>,

    /// Sort the keys
    #[arg(long)]
    pub(crate) sort: bool,

    /// Replace every `${...}` by its value: what a recipe is given
    #[arg(long)]
    pub(crate) resolved: bool,

    /// Print one JSON object; numbers that are not finite are the strings `.inf`, `-.inf`, `.nan`
    #[arg(long, requires = "resolved")]
    pub(crate) json: bool,
}

/// Arguments of `tune validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tune validate my_run.yaml
  tune validate llama3_2/1B_full_single_device batch_size=8
  tune validate my_run.yaml --recipe generate
  tune validate llama3_1/70B_full --plan --nproc-per-node 8")]
pub(crate) struct ValidateArgs {
    /// Built-in config or YAML file
    #[arg(value_name = "CONFIG", index = 1)]
    pub(crate) config: String,

    /// Changes to the config: `key=value` at any depth, `~key` to remove one; `None` means null
    #[arg(value_name = "KEY=VALUE", index = 2)]
    pub(crate) overrides: Vec<String>,

    /// Recipe that the config is for; without it a built-in config is checked for its own recipe, a file for the recipe
    /// that its sections speak of
    #[arg(long, value_name = "RECIPE")]
    pub(crate) recipe: Option<String>,

    /// Show what memory each rank needs, by parts, without reading weights or rows
    #[arg(long)]
    pub(crate) plan: bool,

    /// With `--plan`: ranks that share the model
    #[arg(long, alias = "nproc_per_node", value_name = "N", default_value_t = 1, requires = "plan", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) nproc_per_node: u16,
}

/// Arguments of `tune run`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tune run [LAUNCH OPTIONS] <RECIPE> --config <CONFIG> [KEY=VALUE]...",
    after_help = run_help(),
    infer_long_args = true
)]
pub(crate) struct RunArgs {
    /// The recipe, `--config` with a built-in config or a YAML file, and changes to the config: `key=value` at any depth,
    /// `~key` to remove one; `None` means null
    #[arg(
        value_name = "RECIPE --config CONFIG KEY=VALUE",
        required = true,
        num_args = 1..,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        help_heading = "Arguments"
    )]
    pub(crate) words: Vec<String>,

    /// Record some steps: writes a Chrome trace and a table of ops, as `profiler.enabled=True` does
    #[arg(long, help_heading = "Launch options, before the recipe's name")]
    pub(crate) profile: bool,

    #[command(flatten, next_help_heading = "Launch options, before the recipe's name")]
    pub(crate) launch: LaunchArgs,
}

/// Recipes and examples below the options.
fn run_help() -> String {
    let available = recipes::registry::all().iter().filter(|recipe| recipe.is_available);
    let width = available.clone().map(|recipe| recipe.name.len()).max().unwrap_or(0);
    let lines: Vec<String> = available.map(|recipe| format!("  {:width$}   {}", recipe.name, recipe.summary)).collect();
    let lines = lines.join("\n");
    format!(
        "Recipes:\n{lines}\n\n`tune ls` lists all recipes with their configs.\n\n\
         Examples:\n  \
         tune run full_finetune_single_device --config llama3_2/1B_full_single_device batch_size=8\n  \
         tune run full_finetune_single_device --config my_run.yaml optimizer.lr=1e-5 clip_grad_norm=None\n  \
         tune run generate --config generate.yaml prompt.user=\"What is a haiku?\""
    )
}

/// Arguments of `tune doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `tune completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tune completions bash > ~/.local/share/bash-completion/completions/tune
  tune completions zsh > ~/.zfunc/_tune
  tune completions fish > ~/.config/fish/completions/tune.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell to print for
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
