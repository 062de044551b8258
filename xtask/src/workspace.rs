//! The workspace's packages and their dependencies on one another, as `cargo metadata` tells them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cargo::cargo;

/// What `cargo metadata --no-deps` prints, as far as it is needed here.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    pub(crate) packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// One line of a package's dependency tables.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` = normal, otherwise `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// The folder, when it is a package of this workspace.
    pub(crate) path: Option<PathBuf>,
}

/// Something cargo builds from a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    /// Features without which it is not built.
    #[serde(default, rename = "required-features")]
    pub(crate) required_features: Vec<String>,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        Self::parse(&cargo(["metadata", "--format-version", "1", "--no-deps"]).stdout()?)
    }

    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).context("cannot read what `cargo metadata` printed")
    }
}

impl Package {
    /// The folder the package lies in, by which the layering rules name it.
    pub(crate) fn folder(&self) -> String {
        let folder = self.manifest_path.parent().and_then(|dir| dir.file_name());
        folder.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
}

impl Dependency {
    /// The folder of a dependency within the workspace.
    pub(crate) fn folder(&self) -> Option<String> {
        Some(self.path.as_ref()?.file_name()?.to_string_lossy().into_owned())
    }
}
