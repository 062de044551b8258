//! `cargo xtask bench`: builds the release binary, then runs the workspace's bench targets one after another.
//!
//! A kernel's bench is a bench target of its crate (`crates/cpu/benches/matmul.rs`, `[[bench]] harness = false`); it is
//! found by itself, nothing is listed here. Each prints its own table, times and rates measured in that run. One that requires
//! features, because it compares with other crates, runs only if a filter is given. What compares programs comes last: ops and whole
//! training steps beside a peer ([`op_ratios`], [`peer`]), threads and ranks beside one another ([`step_rate`], [`ranks`]).

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::cargo;
use crate::workspace::Workspace;
use crate::{op_ratios, peer, ranks, step_rate};

/// What to run.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Run only benches whose `<crate>/<bench>` name contains this
    filter: Option<String>,
    /// Print the names and run nothing
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    peer: peer::PeerArgs,
}

/// A bench that runs programs, beside a peer or itself.
struct Comparison {
    name: &'static str,
    run: fn(&peer::PeerArgs) -> Result<()>,
    /// The argument without which it cannot run, and whether it is given.
    needs: &'static str,
    is_given: fn(&peer::PeerArgs) -> bool,
}

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        name: op_ratios::NAME,
        run: op_ratios::run,
        needs: "--against-torchtune",
        is_given: |a| a.peer.is_some(),
    },
    Comparison { name: peer::NAME, run: peer::run, needs: "--rows", is_given: |a| a.rows.is_some() },
    Comparison { name: step_rate::NAME, run: step_rate::run, needs: "--rows", is_given: |a| a.rows.is_some() },
    Comparison { name: ranks::NAME, run: ranks::run, needs: "--rows", is_given: |a| a.rows.is_some() },
];

/// One bench target.
#[derive(Debug, PartialEq)]
struct Bench {
    package: String,
    target: String,
    name: String,
    features: Vec<String>,
}

/// Runs, or lists, the benches.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let filter = args.filter.as_deref().unwrap_or("");
    let mut benches: Vec<Bench> =
        benches(&Workspace::load()?).into_iter().filter(|bench| bench.name.contains(filter)).collect();
    if args.list {
        for bench in &benches {
            println!("{}{}", bench.name, if bench.features.is_empty() { "" } else { " (needs a filter)" });
        }
        for Comparison { name, needs, .. } in COMPARISONS {
            println!("{name} (needs {needs})");
        }
        return Ok(());
    }
    benches.retain(|bench| bench.features.is_empty() || args.filter.is_some());
    let is_chosen = |c: &&Comparison| c.name.contains(filter) && ((c.is_given)(&args.peer) || filter == c.name);
    let comparisons: Vec<_> = COMPARISONS.iter().filter(is_chosen).collect();
    if benches.is_empty() && comparisons.is_empty() {
        bail!("no bench named like `{filter}`; `cargo xtask bench --list` prints all names");
    }
    cargo(["build", "--release", "--package", "ferrotune"]).run()?;
    for bench in &benches {
        println!("== {}", bench.name);
        let features = bench.features.join(",");
        cargo(["bench", "--package", &bench.package, "--bench", &bench.target, "--features", &features]).run()?;
    }
    for comparison in comparisons {
        println!("== {}", comparison.name);
        (comparison.run)(&args.peer)?;
    }
    Ok(())
}

fn benches(workspace: &Workspace) -> Vec<Bench> {
    let mut benches = Vec::new();
    for package in &workspace.packages {
        for target in package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "bench")) {
            let name = format!("{}/{}", package.folder(), target.name);
            let (package, target, features) =
                (package.name.clone(), target.name.clone(), target.required_features.clone());
            benches.push(Bench { package, target, name, features });
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
            {"name": "peers", "kind": ["bench"], "required-features": ["peers"]},
            {"name": "matmul", "kind": ["bench"]}, {"name": "bench", "kind": ["test"]}]}]}"#;
        let found = benches(&Workspace::parse(metadata).unwrap());
        let names: Vec<&str> = found.iter().map(|bench| bench.name.as_str()).collect();
        assert_eq!(names, ["cpu/matmul", "cpu/norm", "cpu/peers"]);
        assert_eq!(found[0].package, "ferrotune-cpu");
        assert_eq!((found[0].features.len(), found[2].features.as_slice()), (0, ["peers".to_owned()].as_slice()));
    }
}
