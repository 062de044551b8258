//! Where the conformance pack is, and which of its cases are not built yet.
//!
//! The pack is the folder `CONFORMANCE_DIR`, or `../shared/conformance` beside the workspace. Tests enumerate what they find
//! in it. Cases of a kind that is not built yet are skipped and listed in `testdata/conformance_pending.txt`, one
//! `area/case` a line, `#` begins a comment; [`Cases`] holds tests to that list in both directions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The pack's folder; `None`, and a line that says so, where it is absent.
#[expect(clippy::print_stderr, reason = "a skipped test says that it was skipped")]
pub fn conformance_dir() -> Option<PathBuf> {
    let dir = match std::env::var_os("CONFORMANCE_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => workspace_root()?.join("../shared/conformance"),
    };
    if !dir.is_dir() {
        eprintln!("skipped: no conformance pack at `{}`", dir.display());
        return None;
    }
    Some(dir)
}

/// The workspace of the crate under test: the nearest folder upwards whose `Cargo.toml` has a `[workspace]`.
pub fn workspace_root() -> Option<PathBuf> {
    let start = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).or_else(|| std::env::current_dir().ok())?;
    let is_root = |dir: &&Path| {
        std::fs::read_to_string(dir.join("Cargo.toml"))
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
    };
    start.ancestors().find(is_root).map(Path::to_owned)
}

/// Whether `testdata/conformance_pending.txt` lists `area/case`.
pub fn pending(area: &str, case: &str) -> bool {
    listed(&pending_text(), area).contains(case)
}

/// The list's text; empty where there is no list.
fn pending_text() -> String {
    workspace_root()
        .and_then(|root| std::fs::read_to_string(root.join("testdata/conformance_pending.txt")).ok())
        .unwrap_or_default()
}

/// The cases of `area` that a list names.
fn listed(text: &str, area: &str) -> BTreeSet<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter_map(|line| line.strip_prefix(area)?.strip_prefix('/'))
        .map(str::to_owned)
        .collect()
}

/// The cases of one area as a test meets them: each one runs or is skipped, and the list must say the same.
///
/// ```no_run
/// let mut cases = testing::conformance::Cases::new("models");
/// for family in ["llama2", "llama3"] {
///     // ... build it and compare, or, if it cannot be built yet: cases.skipped(family)
///     cases.ran(family);
/// }
/// cases.finish();
/// ```
#[derive(Debug)]
#[must_use = "`finish` compares with the list"]
pub struct Cases {
    area: String,
    listed: BTreeSet<String>,
    ran: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

impl Cases {
    /// The cases of `area`, compared with the committed list.
    pub fn new(area: &str) -> Self {
        Self::with_list(area, &pending_text())
    }

    fn with_list(area: &str, text: &str) -> Self {
        let (area, listed) = (area.to_owned(), listed(text, area));
        Self { area, listed, ran: BTreeSet::new(), skipped: BTreeSet::new() }
    }

    /// This case could run.
    pub fn ran(&mut self, case: &str) {
        self.ran.insert(case.to_owned());
    }

    /// This case is of a kind that is not built yet.
    pub fn skipped(&mut self, case: &str) {
        self.skipped.insert(case.to_owned());
    }

    /// Panics: if no case was met, a skipped case is not listed, or a listed case could run. A listed case that this pack
    /// does not hold is fine.
    #[track_caller]
    pub fn finish(self) {
        let names = |cases: Vec<&String>| {
            let names: Vec<String> = cases.into_iter().map(|case| format!("{}/{case}", self.area)).collect();
            names.join("\n  ")
        };
        let unlisted: Vec<&String> = self.skipped.difference(&self.listed).collect();
        let stale: Vec<&String> = self.ran.intersection(&self.listed).collect();
        assert!(unlisted.is_empty(), "skipped, but not in conformance_pending.txt:\n  {}", names(unlisted));
        assert!(stale.is_empty(), "in conformance_pending.txt, but could run:\n  {}", names(stale));
        assert!(!self.ran.is_empty() || !self.skipped.is_empty(), "no case of `{}` in the conformance pack", self.area);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# families\nmodels/gemma2   # soft caps\n\nmodels/qwen2\nmodels2/llama3\npeft/models/llama3\n";

    #[test]
    fn the_list_is_read_by_area() {
        assert_eq!(listed(LIST, "models"), BTreeSet::from(["gemma2".to_owned(), "qwen2".to_owned()]));
        assert_eq!(listed(LIST, "peft"), BTreeSet::from(["models/llama3".to_owned()]));
        assert!(listed(LIST, "data").is_empty());
    }

    #[test]
    fn listed_skips_and_unlisted_runs_pass() {
        let mut cases = Cases::with_list("models", LIST);
        cases.ran("llama3");
        cases.skipped("gemma2");
        cases.finish();
    }

    #[test]
    #[should_panic(expected = "skipped, but not in conformance_pending.txt:\n  models/phi3")]
    fn an_unlisted_skip_fails() {
        let mut cases = Cases::with_list("models", LIST);
        cases.skipped("gemma2");
        cases.skipped("phi3");
        cases.finish();
    }

    #[test]
    #[should_panic(expected = "in conformance_pending.txt, but could run:\n  models/gemma2")]
    fn a_listed_case_that_runs_fails() {
        let mut cases = Cases::with_list("models", LIST);
        cases.ran("gemma2");
        cases.finish();
    }

    #[test]
    #[should_panic(expected = "no case of `models`")]
    fn an_empty_area_fails() {
        Cases::with_list("models", LIST).finish();
    }

    #[test]
    fn the_workspace_is_found_from_this_crate() {
        let root = workspace_root().expect("tests run inside the workspace");
        assert!(root.join("crates/testing/src/conformance.rs").is_file());
    }
}
