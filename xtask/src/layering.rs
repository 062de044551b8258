//! Which crate may depend on which: the map of ARCHITECTURE.md, checked against every Cargo.toml.
//!
//! Rules:   a normal or build dependency must be an edge of the table, or `config`, which anyone may use; tests may use
//!          `testing` and the backends besides. The package in `crates/x` is called `ferrotune-x`; the one people
//!          install, in `crates/cli`, is `ferrotune`.
//! Errors:  every violation is reported, with the Cargo.toml to change.

use anyhow::{Result, bail};

use crate::workspace::{Dependency, Package, Workspace};

/// A crate's folder and the folders it may use.
type Edges = (&'static str, &'static [&'static str]);

const EDGES: &[Edges] = &[
    ("cli", &["recipes", "hub", "dist", "cpu", "wgpu", "cuda"]),
    // `tokenizers`: a recipe hands it the vocabulary that `checkpoint` read from a GGUF file.
    ("recipes", &["train", "models", "optim", "checkpoint", "data", "tokenizers", "metrics", "dist", "tensor"]),
    ("train", &["optim", "dist", "checkpoint", "tensor"]),
    ("models", &["tensor"]),
    ("optim", &["tensor"]),
    ("checkpoint", &["tensor"]),
    ("data", &["tokenizers", "hub"]),
    ("tokenizers", &[]),
    ("hub", &[]),
    ("dist", &["tensor"]),
    ("metrics", &[]),
    ("cpu", &["tensor"]),
    ("wgpu", &["tensor"]),
    ("cuda", &["tensor"]),
    ("tensor", &[]),
    ("config", &[]),
    ("testing", &["tensor"]),
    ("xtask", &[]),
];

/// Allowed to every crate but `config` itself, which has no tensors and no friends.
const FOR_ANYONE: &str = "config";
/// Allowed to every crate's tests.
const FOR_TESTS: &[&str] = &["testing", "cpu", "wgpu", "cuda"];

/// Checks the workspace against the table.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let violations = violations(workspace);
    if !violations.is_empty() {
        bail!("layering violations: {}\n  {}", violations.len(), violations.join("\n  "));
    }
    Ok(())
}

fn violations(workspace: &Workspace) -> Vec<String> {
    workspace.packages.iter().flat_map(package_violations).collect()
}

fn package_violations(package: &Package) -> Vec<String> {
    let folder = package.folder();
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == folder) else {
        return vec![format!("`{folder}` is not in the table of xtask/src/layering.rs: {}", package.name)];
    };
    let mut violations = Vec::new();
    let expected_name = match folder.as_str() {
        "cli" => "ferrotune".to_owned(),
        "xtask" => folder.clone(),
        _ => format!("ferrotune-{folder}"),
    };
    if package.name != expected_name {
        violations.push(format!("package in `{folder}`: expected name `{expected_name}`, found `{}`", package.name));
    }
    for dependency in &package.dependencies {
        let Some(target) = dependency.folder() else { continue };
        if !may_use(&folder, allowed, dependency, &target) {
            let kind = dependency.kind.as_deref().unwrap_or("normal");
            violations.push(format!(
                "`{folder}` may not use `{target}`: {kind} dependency `{}` in {}",
                dependency.name,
                package.manifest_path.display()
            ));
        }
    }
    violations
}

fn may_use(folder: &str, allowed: &[&str], dependency: &Dependency, target: &str) -> bool {
    let for_tests = dependency.kind.as_deref() == Some("dev") && FOR_TESTS.contains(&target);
    let for_anyone = target == FOR_ANYONE && folder != FOR_ANYONE;
    target == folder || allowed.contains(&target) || for_anyone || for_tests
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A package in `crates/<folder>` with (folder, kind) dependencies, in cargo's own form.
    fn workspace(folder: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Workspace {
        let mut dependencies: Vec<_> = dependencies
            .iter()
            .map(|(to, kind)| json!({"name": format!("ferrotune-{to}"), "kind": kind, "path": format!("/w/crates/{to}")}))
            .collect();
        dependencies.push(json!({"name": "serde", "kind": null}));
        let manifest = format!("/w/crates/{folder}/Cargo.toml");
        let package = json!({"name": name, "manifest_path": manifest, "dependencies": dependencies, "targets": []});
        Workspace::parse(json!({ "packages": [package] }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn this_workspace_keeps_the_rules() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.packages.len() > 10, "the whole workspace is seen");
        check(&workspace).unwrap();
    }

    #[test]
    fn edges_of_the_table_pass() {
        let dependencies = [
            ("tensor", None),
            ("config", None),
            ("testing", Some("dev")),
            ("cpu", Some("dev")),
            ("tensor", Some("dev")),
        ];
        assert_eq!(violations(&workspace("models", "ferrotune-models", &dependencies)), [""; 0]);
        assert_eq!(violations(&workspace("cli", "ferrotune", &[("recipes", None)])), [""; 0]);
    }

    #[test]
    fn a_wrong_edge_is_reported_with_its_file() {
        let found = violations(&workspace("models", "ferrotune-models", &[("checkpoint", None)]));
        let expected = "`models` may not use `checkpoint`: normal dependency `ferrotune-checkpoint` in \
                        /w/crates/models/Cargo.toml";
        assert_eq!(found, [expected]);
        assert!(check(&workspace("models", "ferrotune-models", &[("checkpoint", None)])).is_err());
    }

    #[test]
    fn what_tests_may_use_the_crate_may_not() {
        for kind in [None, Some("build")] {
            let dependencies = [("testing", kind), ("cpu", kind)];
            assert_eq!(violations(&workspace("models", "ferrotune-models", &dependencies)).len(), 2, "{kind:?}");
        }
        assert_eq!(violations(&workspace("models", "ferrotune-models", &[("recipes", Some("dev"))])).len(), 1);
    }

    #[test]
    fn config_uses_nothing_of_ours() {
        assert_eq!(violations(&workspace("config", "ferrotune-config", &[("tensor", None)])).len(), 1);
    }

    #[test]
    fn unknown_crates_and_odd_names_are_reported() {
        assert_eq!(violations(&workspace("helpers", "ferrotune-helpers", &[])).len(), 1);
        let found = violations(&workspace("models", "my-models", &[]));
        assert_eq!(found, ["package in `models`: expected name `ferrotune-models`, found `my-models`"]);
    }
}
