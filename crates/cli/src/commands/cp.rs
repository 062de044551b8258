//! `tune cp`: a built-in config to a file, byte for byte.

use std::path::{Path, PathBuf};

use recipes::registry;

use crate::args::CpArgs;
use crate::exit::{Failure, Result};

/// Copies the config.
pub(crate) fn run(args: &CpArgs) -> Result {
    if let Some(recipe) = registry::find(&args.file) {
        return Err(Failure::usage(format!(
            "recipe `{}` is part of this program, there is no file to copy\n  expected the name of a config",
            recipe.name
        ))
        .hint(super::first_configs(recipe)));
    }
    let Some((_, config)) = registry::find_config(&args.file) else {
        let failure = Failure::usage(format!("no built-in config `{}`", args.file));
        return Err(match super::nearest_config(&args.file) {
            Some(meant) => failure.hint(format!("did you mean `{meant}`?")),
            None => failure.hint("`tune ls` lists the built-in configs"),
        });
    };
    let path = target(config.name, &args.destination);
    if args.no_clobber && path.exists() {
        let absolute = std::path::absolute(&path).unwrap_or(path);
        return super::print(&format!("`{}` is there already and is left as it is\n", absolute.display()));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        if let Some(file) = parent.ancestors().find(|path| path.exists() && !path.is_dir()) {
            return Err(Failure::usage(format!("`{}` is a file\n  expected a folder to copy into", file.display())));
        }
        if !args.make_parents {
            return Err(Failure::usage(format!("no folder `{}` to copy into", parent.display()))
                .hint("`--make-parents` makes it"));
        }
        std::fs::create_dir_all(parent)
            .map_err(|source| Failure::Write { path: parent.display().to_string(), source })?;
    }
    std::fs::write(&path, config.text).map_err(|source| Failure::Write { path: path.display().to_string(), source })?;
    super::print(&format!("Copied config `{}` to `{}`\n", config.name, path.display()))
}

/// Where a config goes: into a folder under its own name, or to a file whose ending is made `.yaml`.
fn target(name: &str, destination: &Path) -> PathBuf {
    let ends_with_slash = destination.to_string_lossy().ends_with(std::path::is_separator);
    if destination.is_dir() || ends_with_slash {
        let base = name.rsplit('/').next().unwrap_or(name);
        return destination.join(format!("{base}.yaml"));
    }
    destination.with_extension("yaml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_the_ending_of_a_config() {
        for (given, path) in [
            ("foo", "foo.yaml"),
            ("foo.yaml", "foo.yaml"),
            ("foo.txt", "foo.yaml"),
            ("./foo", "./foo.yaml"),
            (".", "./7B_full.yaml"),
            ("not/there/", "not/there/7B_full.yaml"),
        ] {
            assert_eq!(target("llama2/7B_full", Path::new(given)), Path::new(path), "{given}");
        }
    }
}
