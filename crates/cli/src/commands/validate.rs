//! `tune validate`: every problem of a config, without weights or data.

use config::Merged;

use crate::args::ValidateArgs;
use crate::exit::{Failure, Result};

/// Checks the config.
pub(crate) fn run(args: &ValidateArgs) -> Result {
    let asked = args.recipe.as_deref().map(super::run::find_recipe).transpose()?;
    let (written, own) = super::open_config(&args.config, asked)?;
    let recipe_of = |config: &Merged| asked.or(own).unwrap_or_else(|| recipes::guess_recipe(config));
    let config = super::resolve(&written.with_overrides(&args.overrides)?, recipe_of)?;
    let recipe = recipe_of(&config);
    if asked.or(own).is_none() {
        recipes::notice(&format!("notice: checked as a config of recipe `{}`; `--recipe` names another", recipe.name));
    }
    for notice in recipes::check(recipe, &config).finish()? {
        recipes::notice(&format!("notice: {notice}"));
    }
    if args.plan {
        if args.nproc_per_node > 1 && !recipe.supports_distributed {
            let option = format!("--nproc-per-node {}", args.nproc_per_node);
            return Err(Failure::usage(format!(
                "cannot use `{option}`\n  recipe `{}` runs on one device",
                recipe.name
            ))
            .hint("`--recipe full_finetune_distributed` plans for several ranks"));
        }
        let ranks = recipes::Ranks::Threads(usize::from(args.nproc_per_node));
        let launch = recipes::Launch { open_backend: &crate::ranks::open_backend, ranks };
        super::print(&recipes::plan(recipe, &config, &launch)?.to_string())?;
    }
    super::print(&format!("`{}` is a valid config of recipe `{}`\n", args.config, recipe.name))
}
