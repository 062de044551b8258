//! Files mapped into memory, read-only: the one place of this crate that needs `unsafe`.
//!
//! Errors: `Error::Io` if the file cannot be opened or mapped. Panics: never.
//! A mapping keeps its inode: files replaced by rename stay readable through it. Nothing in this crate ever writes in
//! place, so a mapping made here is not changed from here.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, IoAction, Result};

/// A file mapped read-only; dereferences to its bytes.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped everywhere.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the file at `path`.
    #[expect(unsafe_code, reason = "mapping a file is unsafe by nature: another process may change it")]
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: IoAction::Read, path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        let map = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the mapping is private to this struct and only ever read as plain bytes, every value of which is
            // valid; every offset into it is checked against its length. This program replaces files by rename and
            // never truncates or rewrites one in place, so the pages stay backed while the mapping lives.
            Some(unsafe { Mmap::map(&file) }.map_err(io)?)
        };
        Ok(Self { path: path.to_path_buf(), map })
    }

    /// The path the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
    }

    #[test]
    fn a_folder_or_nothing_is_an_error_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().to_path_buf(), dir.path().join("absent")] {
            let message = MappedFile::open(&path).unwrap_err().to_string();
            assert!(message.contains(&*path.to_string_lossy()), "{message}");
        }
    }
}
