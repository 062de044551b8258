//! `cargo xtask bench`: builds the release binary, then runs the workspace's bench targets one after another.
//!
//! A kernel's bench is a bench target of its crate (`crates/cpu/benches/matmul.rs`, `[[bench]] harness = false`); it is
//! found by itself, nothing is listed here. Each prints its own table, times and rates measured in that run. Whole
//! training steps, which need the `tune` binary and a peer beside it, are added to [`run`] after the targets.

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::cargo;
use crate::workspace::Workspace;

/// What to run.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Run only benches whose `<crate>/<bench>` name contains this
    filter: Option<String>,
    /// Print the names and run nothing
    #[arg(long)]
    list: bool,
}

/// One bench target.
#[derive(Debug, PartialEq)]
struct Bench {
    package: String,
    target: String,
    name: String,
}

/// Runs, or lists, the benches.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let filter = args.filter.as_deref().unwrap_or("");
    let benches: Vec<Bench> =
        benches(&Workspace::load()?).into_iter().filter(|bench| bench.name.contains(filter)).collect();
    if args.list {
        for bench in &benches {
            println!("{}", bench.name);
        }
        return Ok(());
    }
    if benches.is_empty() && filter.is_empty() {
        bail!("no crate of this workspace has a bench target");
    }
    if benches.is_empty() {
        bail!("no bench named like `{filter}`; `cargo xtask bench --list` prints all names");
    }
    cargo(["build", "--release", "--package", "ferrotune"]).run()?;
    for bench in &benches {
        println!("== {}", bench.name);
        cargo(["bench", "--package", &bench.package, "--bench", &bench.target]).run()?;
    }
    Ok(())
}

fn benches(workspace: &Workspace) -> Vec<Bench> {
    let mut benches = Vec::new();
    for package in &workspace.packages {
        for target in package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bench")) {
            let name = format!("{}/{}", package.folder(), target.name);
            benches.push(Bench { package: package.name.clone(), target: target.name.clone(), name });
        }
    }
    benches.sort_by(|a, b| a.name.cmp(&b.name));
    benches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_targets_are_found_by_kind() {
        let metadata = br#"{"packages": [{"name": "ferrotune-cpu", "manifest_path": "/w/crates/cpu/Cargo.toml",
            "dependencies": [], "targets": [{"name": "cpu", "kind": ["lib"]}, {"name": "norm", "kind": ["bench"]},
            {"name": "matmul", "kind": ["bench"]}, {"name": "bench", "kind": ["test"]}]}]}"#;
        let found = benches(&Workspace::parse(metadata).unwrap());
        let names: Vec<&str> = found.iter().map(|bench| bench.name.as_str()).collect();
        assert_eq!(names, ["cpu/matmul", "cpu/norm"]);
        assert_eq!(found[0].package, "ferrotune-cpu");
    }
}
