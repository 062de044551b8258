//! Files kept between runs, in the folder and layout that other programs of the hub use.
//!
//! ```text
//! datasets--owner--name/
//!   refs/main                     the commit that `main` stood for when it was last asked for
//!   snapshots/<commit>/a/b.json   -> ../../../blobs/<hash>
//!   blobs/<hash>                  the bytes; `<hash>.part` while they arrive
//!   listings/<commit>.json        all files of that commit, also those not fetched: written by this program only
//! ```
//!
//! What another program has put there is used; of a commit without a listing, the files that are there count as all.

use std::io;
use std::path::{Path, PathBuf};

use crate::transfer::Transfer;
use crate::{Error, Hub, Listing, Repo, RepoFile, Result};

/// A repository at one commit, whose files are fetched when they are asked for.
pub struct Snapshot<'a> {
    hub: &'a Hub,
    listing: Listing,
    folder: PathBuf,
}

impl Hub {
    /// The commit that a repository's revision stands for, by the hub if it answers, else by the cache.
    pub fn snapshot(&self, repo: &Repo) -> Result<Snapshot<'_>> {
        let folder = self.settings.cache.join(repo.cache_folder());
        let with = |listing| Snapshot { hub: self, listing, folder: folder.clone() };
        if repo.is_commit()
            && let Some(listing) = stored_listing(&folder, repo, repo.revision())
        {
            return Ok(with(listing));
        }
        if let Some(variable) = self.settings.offline {
            return cached_listing(&folder, repo).map(with).ok_or_else(|| Error::NotCached {
                kind: repo.kind(),
                id: repo.id().to_owned(),
                revision: repo.revision().to_owned(),
                path: None,
                variable,
                folder: folder.clone(),
            });
        }
        match self.list_raw(repo) {
            Ok((listing, json)) => {
                write(&listing_path(&folder, listing.commit()), &json)?;
                if !repo.is_commit() {
                    write(&folder.join("refs").join(repo.revision()), listing.commit().as_bytes())?;
                }
                Ok(with(listing))
            }
            Err(error) if error.is_transient() => {
                let Some(listing) = cached_listing(&folder, repo) else { return Err(error) };
                let heading = error.to_string();
                self.progress.notice(&format!(
                    "{}; using {} `{}` as it was when last fetched (commit {})",
                    heading.lines().next().unwrap_or_default(),
                    repo.kind(),
                    repo.id(),
                    &listing.commit()[..listing.commit().len().min(7)]
                ));
                Ok(with(listing))
            }
            Err(error) => Err(error),
        }
    }
}

impl Snapshot<'_> {
    /// Its files, fetched or not.
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// The path of a file on this disk, fetched if it is not there yet.
    pub fn path(&self, path: &str) -> Result<PathBuf> {
        let repo = self.listing.repo();
        let Some(file) = self.listing.find(path) else {
            return Err(Error::FileNotFound { kind: repo.kind(), id: repo.id().to_owned(), path: path.to_owned() });
        };
        let place = file.below(&self.folder.join("snapshots").join(self.listing.commit()));
        if is_there(&place, file) {
            return Ok(place);
        }
        if let Some(variable) = self.hub.settings.offline {
            return Err(Error::NotCached {
                kind: repo.kind(),
                id: repo.id().to_owned(),
                revision: repo.revision().to_owned(),
                path: Some(path.to_owned()),
                variable,
                folder: self.folder.clone(),
            });
        }
        let transfer = |target: &Path| Transfer { hub: self.hub, listing: &self.listing, file, target }.run();
        let Some(digest) = file.digest.as_ref().filter(|_| cfg!(unix)) else {
            transfer(&place)?;
            return Ok(place);
        };
        let blob = self.folder.join("blobs").join(digest.hex());
        if !is_there(&blob, file) {
            transfer(&blob)?;
        }
        link(&place, path, digest.hex()).map_err(|cause| Error::write(&place, None, cause))?;
        Ok(place)
    }
}

/// Whether the cache holds a file. Its bytes were checked before it got this name.
fn is_there(path: &Path, file: &RepoFile) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    metadata.is_file() && file.size.is_none_or(|size| size == metadata.len())
}

/// Makes a place in a snapshot stand for a blob.
#[cfg(unix)]
fn link(place: &Path, path: &str, blob: &str) -> io::Result<()> {
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(place) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let up = "../".repeat(path.matches('/').count() + 2);
    match std::os::unix::fs::symlink(format!("{up}blobs/{blob}"), place) {
        // Another process was faster.
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Never called: blobs are only used where links exist.
#[cfg(not(unix))]
fn link(_: &Path, _: &str, _: &str) -> io::Result<()> {
    Ok(())
}

fn listing_path(folder: &Path, commit: &str) -> PathBuf {
    folder.join("listings").join(format!("{commit}.json"))
}

fn stored_listing(folder: &Path, repo: &Repo, commit: &str) -> Option<Listing> {
    let json = std::fs::read(listing_path(folder, commit)).ok()?;
    Listing::parse(repo, &json).ok().filter(|listing| listing.commit() == commit)
}

/// What the cache knows of a revision.
fn cached_listing(folder: &Path, repo: &Repo) -> Option<Listing> {
    let commit = if repo.is_commit() {
        repo.revision().to_owned()
    } else {
        let text = std::fs::read_to_string(folder.join("refs").join(repo.revision())).ok()?;
        let commit = text.trim().to_owned();
        (!commit.is_empty() && commit.bytes().all(|b| b.is_ascii_alphanumeric())).then_some(commit)?
    };
    if let Some(listing) = stored_listing(folder, repo, &commit) {
        return Some(listing);
    }
    let mut paths = Vec::new();
    collect(&folder.join("snapshots").join(&commit), "", &mut paths).ok()?;
    (!paths.is_empty()).then(|| Listing::of_paths(repo, &commit, paths))
}

/// Paths of all files below a folder. Links to files count, links to folders do not.
fn collect(folder: &Path, prefix: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{path}/"), paths)?;
        } else if entry.path().is_file() {
            paths.push(path);
        }
    }
    Ok(())
}

/// Writes a small file whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let folder = path.parent().expect("every path here is below the cache");
    let temporary = folder.join(format!(".{}.{}", std::process::id(), path.file_name().unwrap_or_default().display()));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&temporary, bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|cause| Error::write(path, None, cause))
}
