//! `cargo xtask configs`: writes the config files of the folder `configs/` from one table.
//!
//! `--check` writes nothing and fails if a file is missing, differs from what the table says, or is not in the table.

mod header;
mod infer;
mod memory;
mod models;
mod parts;
mod rl;
mod table;
mod text;
mod train;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::table::Config;
use crate::cargo::root;

/// Writes all files, or checks that they are as they would be written.
pub(crate) fn run(check: bool) -> Result<()> {
    let folder = root().join("configs");
    let differences = differences(&folder, &files())?;
    if check {
        return report(&differences);
    }
    for difference in &differences {
        match difference {
            Difference::Missing { path, text } | Difference::Stale { path, text } => write(path, text)?,
            Difference::Extra { path } => {
                fs::remove_file(path).with_context(|| format!("cannot remove `{}`", path.display()))?;
            }
        }
    }
    eprintln!("{} of {} files changed in `{}`", differences.len(), files().len(), folder.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let parent = path.parent().expect("a file of a folder");
    fs::create_dir_all(parent).with_context(|| format!("cannot make `{}`", parent.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Every file by its name, without the ending.
fn files() -> BTreeMap<&'static str, String> {
    table::configs().iter().map(|config| (config.name, file(config))).collect()
}

/// One file.
fn file(config: &Config) -> String {
    match config.recipe {
        "ppo_full_finetune_single_device" => rl::ppo(config),
        "dev/grpo_full_finetune_distributed" => rl::grpo(config),
        "dev/async_grpo_full_finetune_distributed" => rl::async_grpo(config),
        "generate" => infer::generate(config),
        "dev/generate_v2" => infer::generate_v2(config),
        "dev/generate_v2_distributed" => infer::generate_v2_distributed(config),
        "eleuther_eval" => infer::evaluation(config),
        "quantize" => infer::quantise(config),
        _ => train::config(config),
    }
}

/// How the folder differs from the table.
#[derive(Debug, PartialEq)]
enum Difference {
    /// Not there.
    Missing { path: PathBuf, text: String },
    /// There, with another text.
    Stale { path: PathBuf, text: String },
    /// There, but not in the table.
    Extra { path: PathBuf },
}

fn differences(folder: &Path, files: &BTreeMap<&str, String>) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    let path_of = |name: &str| folder.join(format!("{name}.yaml"));
    for (name, text) in files {
        let (path, text) = (path_of(name), text.clone());
        match fs::read_to_string(&path) {
            Ok(there) if there == text => {}
            Ok(_) => found.push(Difference::Stale { path, text }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                found.push(Difference::Missing { path, text });
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", path.display())),
        }
    }
    let mut there = Vec::new();
    collect(folder, &mut there)?;
    there.retain(|path| !files.keys().any(|name| path_of(name) == *path));
    found.extend(there.into_iter().map(|path| Difference::Extra { path }));
    Ok(found)
}

/// Every file below a folder, which need not be there.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list `{}`", folder.display()))? {
        let path = entry.with_context(|| format!("cannot list `{}`", folder.display()))?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// One error for all differences.
fn report(differences: &[Difference]) -> Result<()> {
    let lines: Vec<String> = differences
        .iter()
        .map(|difference| match difference {
            Difference::Missing { path, .. } => format!("missing: {}", path.display()),
            Difference::Stale { path, .. } => format!("differs from the table: {}", path.display()),
            Difference::Extra { path } => format!("not in the table: {}", path.display()),
        })
        .collect();
    if !lines.is_empty() {
        bail!("config files to be written anew by `cargo xtask configs`: {}\n  {}", lines.len(), lines.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_as_the_table_says() {
        run(true).unwrap();
    }

    #[test]
    fn names_are_there_once() {
        let mut names: Vec<&str> = table::configs().iter().map(|config| config.name).collect();
        assert_eq!(names.len(), 198);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 198);
    }

    #[test]
    fn runs_write_to_different_folders() {
        let mut folders: BTreeMap<String, &str> = BTreeMap::new();
        for (name, text) in files() {
            let folder = text.lines().find_map(|line| line.strip_prefix("output_dir: ")).expect("every file has one");
            if folder.starts_with("/tmp/torchtune/")
                && let Some(other) = folders.insert(folder.to_owned(), name)
            {
                panic!("`{name}` and `{other}` both write to `{folder}`");
            }
        }
        assert!(folders.len() > 150, "{}", folders.len());
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let files: BTreeMap<&str, String> =
            [("a/same", "1"), ("a/stale", "2"), ("missing", "3")].map(|(name, text)| (name, text.to_owned())).into();
        let at = |name: &str| dir.path().join(name);
        for (name, text) in [("a/same.yaml", "1"), ("a/stale.yaml", "0"), ("extra.yaml", "")] {
            write(&at(name), text).unwrap();
        }
        let found = differences(dir.path(), &files).unwrap();
        assert_eq!(
            found,
            [
                Difference::Stale { path: at("a/stale.yaml"), text: "2".into() },
                Difference::Missing { path: at("missing.yaml"), text: "3".into() },
                Difference::Extra { path: at("extra.yaml") },
            ]
        );
        let message = report(&found).unwrap_err().to_string();
        assert!(
            message.contains("anew by `cargo xtask configs`: 3") && message.contains("not in the table"),
            "{message}"
        );
        assert!(report(&[]).is_ok());
    }
}
