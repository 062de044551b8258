//! `tune completions`: what a shell needs to complete verbs, options, and the names of recipes and configs.

use clap::CommandFactory;
use clap::builder::PossibleValuesParser;
use recipes::registry;

use crate::args::{Args, CompletionsArgs};
use crate::exit::Result;

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut with_names(Args::command()), "tune", &mut script);
    super::print(&String::from_utf8_lossy(&script))
}

/// The command line with the names that arguments may be, which shells then offer.
fn with_names(command: clap::Command) -> clap::Command {
    let configs = || registry::all().iter().flat_map(|recipe| recipe.configs).map(|config| config.name);
    let recipes = || registry::all().iter().map(|recipe| recipe.name);
    command
        .mut_subcommand("cp", |cp| cp.mut_arg("file", |a| a.value_parser(PossibleValuesParser::new(configs()))))
        .mut_subcommand("cat", |cat| cat.mut_arg("config", |a| a.value_parser(PossibleValuesParser::new(configs()))))
        .mut_subcommand("validate", |validate| {
            validate
                .mut_arg("config", |a| a.value_parser(PossibleValuesParser::new(configs())))
                .mut_arg("recipe", |a| a.value_parser(PossibleValuesParser::new(recipes())))
        })
        .mut_subcommand("run", |run| {
            run.mut_arg("words", |a| a.value_parser(PossibleValuesParser::new(recipes().chain(configs()))))
        })
}
