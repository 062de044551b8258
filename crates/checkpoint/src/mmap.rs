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

    /// Lets go of the memory that holds what was read; what is read again comes from the file again.
    #[expect(unsafe_code, reason = "advice that drops pages is unsafe for mappings that are written to")]
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            // SAFETY: the mapping is read-only and backed by the file, so dropped pages come back as they were.
            // A refusal changes nothing but the memory that stays in use.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
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

    /// KiB of a mapped file that are in memory.
    #[cfg(target_os = "linux")]
    fn resident_kib(path: &Path) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = maps.split_once(&*path.to_string_lossy()).expect("mapped").1;
        let line = own.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a figure");
        line.trim().strip_suffix(" kB").unwrap().trim().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_read_is_let_go_of_and_can_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 4096) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        assert_eq!(*file, bytes[..]);
        assert_eq!(resident_kib(&path), 1024);
        file.release();
        assert_eq!(resident_kib(&path), 0);
        assert_eq!(*file, bytes[..]);
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
