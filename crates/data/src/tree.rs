//! The files that a dataset may be made of: a folder on this disk, or a repository of a hub.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use hub::Snapshot;

use crate::{Error, Result};

/// Deepest folder that is looked into.
const MAX_DEPTH: usize = 16;

/// Files by their paths, parts separated by `/`.
pub(crate) struct Tree<'a> {
    place: TreePlace<'a>,
    paths: Vec<String>,
}

enum TreePlace<'a> {
    Folder(PathBuf),
    Repo(Snapshot<'a>),
}

impl<'a> Tree<'a> {
    /// The files below a folder, but for hidden ones.
    pub fn folder(folder: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        collect(folder, "", 0, &mut paths)?;
        paths.sort();
        Ok(Self { place: TreePlace::Folder(folder.to_owned()), paths })
    }

    /// The files of a repository; none is fetched yet.
    pub fn repo(snapshot: Snapshot<'a>) -> Self {
        let paths = snapshot.listing().files().iter().map(|file| file.path.clone()).collect();
        Self { place: TreePlace::Repo(snapshot), paths }
    }

    /// The paths, sorted.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// True for the repositories in which a hub keeps datasets converted to Parquet: folders are configs there.
    pub fn is_conversion(&self) -> bool {
        matches!(&self.place, TreePlace::Repo(snapshot) if snapshot.listing().repo().revision() == CONVERSION)
    }

    /// A file's path on this disk, fetched if need be.
    pub fn local(&self, path: &str) -> Result<PathBuf> {
        match &self.place {
            TreePlace::Folder(folder) => Ok(folder.join(path)),
            TreePlace::Repo(snapshot) => Ok(snapshot.path(path)?),
        }
    }

    /// What messages call it.
    pub fn name(&self) -> String {
        match &self.place {
            TreePlace::Folder(folder) => format!("folder `{}`", folder.display()),
            TreePlace::Repo(snapshot) => format!("dataset repository `{}`", snapshot.listing().repo().id()),
        }
    }

    /// True for a repository.
    pub fn is_repo(&self) -> bool {
        matches!(self.place, TreePlace::Repo(_))
    }
}

/// The revision in which hubs keep datasets converted to Parquet.
pub(crate) const CONVERSION: &str = "refs/convert/parquet";

fn collect(folder: &Path, prefix: &str, depth: usize, paths: &mut Vec<String>) -> Result<()> {
    let io = |cause| Error::Io { path: folder.to_owned(), cause };
    let entries: Vec<DirEntry> = std::fs::read_dir(folder).and_then(Iterator::collect).map_err(io)?;
    for entry in entries {
        // A name that is not UTF-8 can stand in no config.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        // A link to a folder may lead back up: only links to files are followed.
        if entry.file_type().map_err(io)?.is_dir() {
            if depth < MAX_DEPTH {
                collect(&entry.path(), &format!("{path}/"), depth + 1, paths)?;
            }
        } else if entry.path().is_file() {
            paths.push(path);
        }
    }
    Ok(())
}
