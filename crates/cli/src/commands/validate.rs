//! `tune validate`: every problem of a config, without weights or data.

use recipes::registry::Recipe;

use crate::args::ValidateArgs;
use crate::exit::Result;

/// Checks the config.
pub(crate) fn run(args: &ValidateArgs) -> Result {
    let asked = args.recipe.as_deref().map(super::run::find_recipe).transpose()?;
    let (written, own) = super::open_config(&args.config, asked)?;
    let config = written.with_overrides(&args.overrides)?.resolve()?;
    let recipe: &Recipe = match asked.or(own) {
        Some(recipe) => recipe,
        None => {
            let guessed = recipes::guess_recipe(&config);
            recipes::notice(&format!(
                "notice: checked as a config of recipe `{}`; `--recipe` names another",
                guessed.name
            ));
            guessed
        }
    };
    for notice in recipes::check(recipe, &config).finish()? {
        recipes::notice(&format!("notice: {notice}"));
    }
    super::print(&format!("`{}` is a valid config of recipe `{}`\n", args.config, recipe.name))
}
