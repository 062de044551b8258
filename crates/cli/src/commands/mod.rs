//! One file a verb, and what verbs share: finding a config by name, printing.

pub(crate) mod cat;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod download;
pub(crate) mod ls;
pub(crate) mod run;
pub(crate) mod validate;

use std::io::{ErrorKind, Write};
use std::path::Path;

use config::{Merged, Written};
use recipes::registry::{self, Recipe};

use crate::exit::{Failure, Result};

/// Writes to stdout. A reader that has gone away, as `head` does, is no failure.
pub(crate) fn print(text: &str) -> Result {
    let mut stdout = std::io::stdout().lock();
    printed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// What became of writing to stdout.
pub(crate) fn printed(outcome: std::io::Result<()>) -> Result {
    match outcome {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Write { path: "stdout".to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// The config with every `${...}` replaced. Where that is impossible, all that is wrong with the config is told: `recipe` says
/// which one it is for.
pub(crate) fn resolve(written: &Written, recipe: impl FnOnce(&Merged) -> &'static Recipe) -> Result<Merged> {
    Ok(written.resolve_or_check(|config| recipes::check(recipe(config), config))?)
}

/// The config of that name, built in (first those of `recipe`) or a file; without `recipe`, also the recipe that a built-in one
/// is for.
pub(crate) fn open_config(name: &str, recipe: Option<&Recipe>) -> Result<(Written, Option<&'static Recipe>)> {
    let built_in = match recipe {
        Some(recipe) => registry::find_config_for(recipe, name).map(|config| (None, config)),
        None => registry::find_config(name).map(|(own, config)| (Some(own), config)),
    };
    if let Some((own, config)) = built_in {
        return Ok((Written::parse(config.name, config.text)?, own));
    }
    if let Some(recipe) = registry::find(name) {
        return Err(Failure::usage(format!(
            "`{}` is a recipe, expected the name of a config or a YAML file",
            recipe.name
        ))
        .hint(first_configs(recipe)));
    }
    if Path::new(name).exists() {
        return Ok((Written::read(name)?, None));
    }
    let failure = Failure::usage(format!(
        "no config `{name}`\n  expected the name of a built-in config, or the path of a YAML file relative to the working directory"
    ));
    Err(match nearest_config(name) {
        Some(meant) => failure.hint(format!("did you mean `{meant}`?")),
        None => failure.hint("`tune ls` lists the built-in configs"),
    })
}

/// The built-in config that `name` was probably meant to be.
pub(crate) fn nearest_config(name: &str) -> Option<&'static str> {
    let stem = name.strip_suffix(".yaml").or_else(|| name.strip_suffix(".yml")).unwrap_or(name);
    let names = || registry::all().iter().flat_map(|recipe| recipe.configs).map(|config| config.name);
    // `1B_full_single_device` for `llama3_2/1B_full_single_device`.
    let by_base = || {
        let mut with_base = names().filter(|known| known.rsplit('/').next() == Some(stem));
        with_base.next().filter(|_| with_base.next().is_none())
    };
    config::nearest(stem, names()).or_else(by_base)
}

/// A few configs of a recipe, as advice.
pub(crate) fn first_configs(recipe: &Recipe) -> String {
    const SHOWN: usize = 3;
    let names: Vec<String> = recipe.configs.iter().take(SHOWN).map(|config| format!("`{}`", config.name)).collect();
    match names.len() {
        0 => "`tune ls` lists the built-in configs".to_owned(),
        _ if recipe.configs.len() > SHOWN => {
            format!("its configs are {} and others; `tune ls` lists them", names.join(", "))
        }
        _ => format!("its configs: {}", names.join(", ")),
    }
}
