//! `tune run`: a recipe with a config.

use clap::CommandFactory;
use config::Written;
use recipes::registry::{self, Recipe};

use crate::args::{Args, RunArgs};
use crate::exit::{Failure, Result};
use crate::{launch, ranks};

/// Runs the recipe.
pub(crate) fn run(args: &RunArgs) -> Result {
    let Some(words) = parse(&args.words)? else {
        let mut command = Args::command();
        let help = command.find_subcommand_mut("run").map(|run| run.render_help().to_string());
        return super::print(&help.unwrap_or_default());
    };
    let recipe = find_recipe(words.recipe)?;
    let launch = args.launch.launch(recipe)?;
    let Some(config) = words.config else {
        return Err(Failure::usage(format!(
            "no config given for recipe `{}`, expected `--config <CONFIG>`",
            recipe.name
        ))
        .hint(super::first_configs(recipe)));
    };
    let (written, _) = super::open_config(config, Some(recipe))?;
    let mut written = written.with_overrides(&words.overrides)?;
    if args.profile {
        written = with_profiler(&written, recipe)?;
    }
    let config = super::resolve(&written, |_| recipe)?;
    for notice in &launch.notices {
        recipes::notice(&format!("notice: {notice}"));
    }
    let launch = recipes::Launch { open_backend: &ranks::open_backend, ranks: ranks::ranks(&launch, recipe)? };
    end_on_interrupt(recipe, &launch.ranks);
    Ok(recipes::run(recipe, &config, &launch)?)
}

/// The config with its profiler switched on; one that has none gets one that suits a short run.
fn with_profiler(written: &Written, recipe: &Recipe) -> Result<Written> {
    const SHORT: &[&str] = &[
        "profiler=null",
        "profiler._component_=torchtune.training.setup_torch_profiler",
        "profiler.enabled=True",
        "profiler.wait_steps=1",
        "profiler.warmup_steps=1",
        "profiler.active_steps=3",
    ];
    if !recipes::is_profiled(recipe) {
        return Err(Failure::usage(format!(
            "cannot use `--profile`\n  recipe `{}` has nothing to profile in this version",
            recipe.name
        ))
        .hint("leave it out"));
    }
    let changes = match written.root().get("profiler") {
        Some(section) if !section.is_absent() => &["profiler.enabled=True"],
        Some(_) => SHORT,
        None => &SHORT[1..],
    };
    Ok(written.with_overrides(changes)?)
}

/// Lets Ctrl-C end all ranks with a line; the first of several processes says it.
#[expect(
    clippy::exit,
    reason = "ranks compute or wait for each other, so the thread that is told of the signal ends them"
)]
fn end_on_interrupt(recipe: &Recipe, ranks: &recipes::Ranks) {
    let trains = recipe.name.contains("finetune");
    let speaks = match ranks {
        recipes::Ranks::Threads(_) => true,
        recipes::Ranks::Processes { world, .. } => world.rank() == 0,
    };
    // Without a handler the program ends all the same, and says nothing.
    let _ = ctrlc::set_handler(move || {
        if speaks {
            let kept = if trains { ": checkpoints saved so far are whole" } else { "" };
            recipes::notice(&format!("interrupted{kept}"));
        }
        std::process::exit(i32::from(crate::exit::INTERRUPTED));
    });
}

/// What stands behind the launch options.
#[derive(Debug, Clone, PartialEq)]
struct Words<'a> {
    recipe: &'a str,
    config: Option<&'a str>,
    overrides: Vec<&'a str>,
}

/// Takes the words apart; `None` where they ask for help. `--config` may stand anywhere.
fn parse(words: &[String]) -> Result<Option<Words<'_>>> {
    let (mut recipe, mut config, mut overrides) = (None, None, Vec::new());
    let mut rest = words.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        match (word, word.strip_prefix("--config=")) {
            ("-h" | "--help", _) => return Ok(None),
            (_, Some(name)) => set_config(&mut config, name)?,
            ("--config", _) => match rest.next() {
                Some(name) => set_config(&mut config, name)?,
                None => return Err(Failure::usage("no config behind `--config`, expected `--config <CONFIG>`")),
            },
            (flag, _) if flag == "--profile" || (flag.starts_with("--") && launch::is_launch_option(flag)) => {
                return Err(Failure::usage(format!("unexpected launch option `{flag}` behind the recipe's name"))
                    .hint(format!("write it in front: `tune run {flag} ... {}`", recipe.unwrap_or("<RECIPE>"))));
            }
            (flag, _) if recipe.is_none() && flag.starts_with('-') => {
                return Err(Failure::usage(format!("unknown option `{flag}` before the recipe's name"))
                    .hint("`tune run --help` lists the options"));
            }
            (name, _) if recipe.is_none() => recipe = Some(name),
            (change, _) => overrides.push(change),
        }
    }
    match recipe {
        Some(recipe) => Ok(Some(Words { recipe, config, overrides })),
        None => Err(Failure::usage("no recipe given, expected `tune run <RECIPE> --config <CONFIG>`")
            .hint("`tune ls` lists the recipes")),
    }
}

/// Takes the config's name, which may be given once.
fn set_config<'a>(config: &mut Option<&'a str>, name: &'a str) -> Result {
    match config.replace(name) {
        None => Ok(()),
        Some(first) => Err(Failure::usage(format!("two configs given, `{first}` and `{name}`, expected one"))
            .hint("put what differs into changes: `key=value`")),
    }
}

/// The recipe of that name; says why a Python file cannot be one.
pub(crate) fn find_recipe(name: &str) -> Result<&'static Recipe> {
    if let Some(recipe) = registry::find(name) {
        return Ok(recipe);
    }
    let available: Vec<String> =
        registry::all().iter().filter(|r| r.is_available).map(|r| format!("`{}`", r.name)).collect();
    let stem = name.strip_suffix(".py").unwrap_or(name);
    let base = stem.rsplit(['/', '\\']).next().unwrap_or(stem);
    let is_python = stem != name || std::path::Path::new(name).exists();
    let meant = config::nearest(stem, registry::all().iter().map(|r| r.name))
        .or_else(|| registry::find(base).filter(|_| is_python).map(|r| r.name));
    let failure = if is_python {
        Failure::usage(format!(
            "recipe `{name}` is a file\n  recipes are part of this program, it runs no Python; available: {}",
            available.join(", ")
        ))
    } else {
        Failure::usage(format!("unknown recipe `{name}`\n  available: {}", available.join(", ")))
    };
    Err(match meant {
        Some(meant) if is_python => failure.hint(format!("`{meant}` is built in")),
        Some(meant) => failure.hint(format!("did you mean `{meant}`?")),
        None => failure.hint("`tune ls` lists the recipes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_config_may_stand_anywhere() {
        let expected = Words { recipe: "generate", config: Some("c.yaml"), overrides: vec!["a=1", "~b"] };
        for text in [
            "generate --config c.yaml a=1 ~b",
            "generate a=1 --config=c.yaml ~b",
            "generate a=1 ~b --config c.yaml",
            "--config c.yaml generate a=1 ~b",
        ] {
            assert_eq!(parse(&words(text)).expect("well formed"), Some(expected.clone()), "{text}");
        }
    }

    #[test]
    fn help_is_given_behind_a_recipe_too() {
        assert_eq!(parse(&words("generate --help")).expect("well formed"), None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in [
            "generate --config",
            "generate --config a --config=b",
            "--nope generate",
            "generate --nproc_per_node 2 --config c.yaml",
            "full_finetune_single_device --config c.yaml --profile",
        ] {
            assert!(parse(&words(text)).is_err(), "{text}");
        }
    }
}
