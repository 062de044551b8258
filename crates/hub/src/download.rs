//! A whole repository into a folder.

use std::path::{Path, PathBuf};

use crate::digest::is_complete;
use crate::pattern::Pattern;
use crate::transfer::Transfer;
use crate::{Error, Hub, Listing, RepoFile, Result};

impl Hub {
    /// Downloads all files of a listing that no pattern of `ignore` matches into `folder`, and gives their paths. A file
    /// that is there already, with the right size and hash, is kept.
    pub fn download(&self, listing: &Listing, ignore: &[Pattern], folder: &Path) -> Result<Vec<PathBuf>> {
        let is_left = |file: &&RepoFile| !ignore.iter().any(|pattern| pattern.matches_name(&file.path));
        let files: Vec<&RepoFile> = listing.files().iter().filter(is_left).collect();
        if files.is_empty() {
            let (repo, num_files) = (listing.repo(), listing.files().len());
            return Err(Error::NothingLeft { kind: repo.kind(), id: repo.id().to_owned(), num_files });
        }
        let mut paths = Vec::with_capacity(files.len());
        for file in files {
            let target = file.below(folder);
            let read = |cause| Error::Read { path: target.clone(), cause };
            if is_complete(&target, file.size, file.digest.as_ref()).map_err(read)? {
                self.progress.begin(&file.path, file.size, file.size.unwrap_or(0));
                self.progress.end(false);
            } else {
                Transfer { hub: self, listing, file, target: &target }.run()?;
            }
            paths.push(target);
        }
        Ok(paths)
    }
}
