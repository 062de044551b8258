//! Steps for the feature `mpi`, which needs an MPI library to build and `mpirun` to test.

use std::process::{Command, Stdio};

use crate::cargo::cargo;
use crate::steps::Steps;

/// The crates that have the feature.
const FEATURE: [&str; 6] =
    ["--package", "ferrotune-dist", "--package", "ferrotune", "--features", "ferrotune-dist/mpi,ferrotune/mpi"];
/// The compiler shows that the headers are there.
const PROGRAMS: [&str; 2] = ["mpicc", "mpirun"];

/// Clippy and docs, of the code that other steps do not see.
pub(crate) fn check(steps: &mut Steps) {
    if is_there("mpi clippy") {
        steps.run("mpi clippy", || {
            cargo(["clippy", "--all-targets"]).args(FEATURE).args(["--", "-D", "warnings"]).run()
        });
        steps.run("mpi docs", || cargo(["doc", "--no-deps"]).args(FEATURE).env("RUSTDOCFLAGS", "-D warnings").run());
    }
}

/// The tests that start ranks through `mpirun`.
pub(crate) fn test(steps: &mut Steps) {
    if is_there("mpi tests") {
        let only = ["--no-fail-fast", "--filterset", "test(/^mpi::/)"];
        steps.run("mpi tests", || cargo(["nextest", "run"]).args(FEATURE).args(only).run());
    }
}

/// Whether a step can run; says so if it cannot.
pub(crate) fn is_there(step: &str) -> bool {
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !runs(program)).collect();
    if !missing.is_empty() {
        eprintln!("== {step}\nskipped: no `{}` on this machine", missing.join("`, `"));
    }
    missing.is_empty()
}

fn runs(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_missed() {
        assert!(runs("cargo"));
        assert!(!runs("no-such-program"));
    }
}
