//! One file from the hub to the disk: into a partial file that is gone on with, checked, and only then named.
//!
//! Partial: `<name>.part` beside the target. It is locked while it is written; a second process waits for the first and
//!          finds the target complete. It is gone on with only if a hash can tell whether the halves belong together.
//! Checked: that the disk has room for what is missing, before anything is fetched; size and hash against the listing. What
//!          does not fit is fetched once more from its first byte.
//! Left:    after a failure, the partial file, unless it is empty or the hub has no such file any more.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ureq::Body;
use ureq::http::Response;
use ureq::http::header::CONTENT_RANGE;

use crate::client::shown;
use crate::digest::{CHUNK, Hasher, is_complete};
use crate::patience::{Patience, Trouble};
use crate::refusal::Wanted;
use crate::{Error, Hub, Listing, RepoFile, Result};

type Attempt<T> = std::result::Result<T, Trouble>;

/// Times that a file may arrive whole and wrong.
const WRONG_ARRIVALS: u32 = 2;

/// A file on its way.
pub(crate) struct Transfer<'a> {
    pub hub: &'a Hub,
    pub listing: &'a Listing,
    pub file: &'a RepoFile,
    /// Its final name.
    pub target: &'a Path,
}

impl Transfer<'_> {
    /// Fetches the file; false if another process did so meanwhile.
    pub fn run(&self) -> Result<bool> {
        let progress = &*self.hub.progress;
        let outcome = self.fetch();
        match &outcome {
            Ok(fetched) => progress.end(*fetched),
            Err(error) => {
                progress.abandon();
                let part = part_path(self.target);
                let is_empty = part.metadata().is_ok_and(|metadata| metadata.len() == 0);
                if is_empty || matches!(error, Error::FileNotFound { .. }) {
                    let _ = std::fs::remove_file(part);
                }
            }
        }
        outcome
    }

    fn fetch(&self) -> Result<bool> {
        if let Some(folder) = self.target.parent() {
            std::fs::create_dir_all(folder).map_err(|cause| Error::write(folder, None, cause))?;
        }
        let mut part = Part::open(self.file, &part_path(self.target))?;
        let progress = &*self.hub.progress;
        progress.begin(&self.file.path, self.file.size, part.len);
        if is_complete(self.target, self.file.size, self.file.digest.as_ref()).unwrap_or(false) {
            // Another process has fetched it while this one waited for the lock.
            let _ = std::fs::remove_file(&part.path);
            return Ok(false);
        }
        part.check_room()?;
        let mut patience = Patience::new(self.hub.settings.first_wait);
        let (mut furthest, mut wrong) = (part.len, 0);
        while let Err(trouble) = self.attempt(&mut part) {
            if part.len > furthest {
                furthest = part.len;
                patience.renew();
            }
            if matches!(trouble.error, Error::WrongHash { .. } | Error::WrongLength { .. }) {
                wrong += u32::from(!part.is_resumed);
                if wrong == WRONG_ARRIVALS {
                    // Nothing of it is worth going on with.
                    let _ = std::fs::remove_file(&part.path);
                    return Err(trouble.error);
                }
                let heading = trouble.error.to_string();
                progress.notice(&format!("{}; fetching it again", heading.lines().next().unwrap_or_default()));
                part.restart()?;
                progress.reached(0);
            } else {
                patience.wait(trouble, progress)?;
            }
        }
        part.name(self.target)?;
        Ok(true)
    }

    /// Goes on from where the partial file ends, to the end and the check.
    fn attempt(&self, part: &mut Part<'_>) -> Attempt<()> {
        if self.file.size != Some(part.len) {
            self.receive(part)?;
        }
        part.check().map_err(Trouble::passing)
    }

    fn receive(&self, part: &mut Part<'_>) -> Attempt<()> {
        let (file, repo) = (self.file, self.listing.repo());
        let url = repo.file_url(&self.hub.settings.endpoint, self.listing.commit(), &file.path);
        let response = self.hub.get(&url, part.len, Wanted { repo, path: Some(&file.path) })?;
        if part.len > 0 && !continues_at(&response, part.len) {
            part.restart().map_err(Trouble::last)?;
            self.hub.progress.reached(0);
            if response.status() != 200 {
                let reason = "it does not go on where it was asked to".to_owned();
                return Err(Trouble::passing(Error::Dropped { url: shown(&url).to_owned(), reason }));
            }
        }
        let announced = response.body().content_length().map(|left| part.len.saturating_add(left));
        let expected = file.size.or(announced);
        if let (Some(expected), Some(found)) = (file.size, announced)
            && expected != found
        {
            return Err(Trouble::passing(Error::WrongLength { path: file.path.clone(), expected, found }));
        }
        let mut body = response.into_body().into_reader();
        let mut chunk = vec![0; CHUNK];
        loop {
            match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => part.append(&chunk[..read]).map_err(Trouble::last)?,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.hub.trouble(&url, ureq::Error::from(cause))),
            }
            self.hub.progress.reached(part.len);
            if let Some(expected) = expected.filter(|&expected| part.len > expected) {
                let (path, found) = (file.path.clone(), part.len);
                return Err(Trouble::passing(Error::WrongLength { path, expected, found }));
            }
        }
        match expected {
            Some(expected) if part.len < expected => {
                let reason = format!("it ended after {} of {expected} bytes", part.len);
                Err(Trouble::passing(Error::Dropped { url: shown(&url).to_owned(), reason }))
            }
            _ => Ok(()),
        }
    }
}

/// Whether an answer goes on exactly at a byte.
fn continues_at(response: &Response<Body>, byte: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.trim().parse::<u64>().ok());
    response.status() == 206 && first == Some(byte)
}

/// The partial file of a target.
fn part_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// A file that is not complete, locked.
struct Part<'a> {
    wanted: &'a RepoFile,
    path: PathBuf,
    file: File,
    len: u64,
    hasher: Option<Hasher>,
    /// Whether its first bytes are of an earlier run.
    is_resumed: bool,
}

impl<'a> Part<'a> {
    fn open(wanted: &'a RepoFile, path: &Path) -> Result<Self> {
        let refused = |cause| Error::write(path, wanted.size, cause);
        let file = loop {
            let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).clone();
            let file = options.open(path).map_err(refused)?;
            // Where no locks exist, one process at a time has to be enough.
            let _ = file.lock();
            // Whoever held the lock may have given this very file its final name.
            if is_at(&file, path) {
                break file;
            }
        };
        let len = file.metadata().map_err(refused)?.len();
        let hasher = wanted.digest.as_ref().zip(wanted.size).map(|(digest, size)| digest.hasher(size));
        let mut part = Self { wanted, path: path.to_owned(), file, len, hasher, is_resumed: len > 0 };
        let fits = wanted.size.is_some_and(|size| len <= size) && part.hasher.is_some();
        if len > 0 && !fits {
            part.restart()?;
        }
        if let Some(hasher) = &mut part.hasher {
            hasher.read(&mut part.file, part.len).map_err(|cause| Error::Read { path: path.to_owned(), cause })?;
        }
        Ok(part)
    }

    /// Refuses a file that is larger than the room for it.
    fn check_room(&self) -> Result<()> {
        let missing = self.wanted.size.map(|size| size.saturating_sub(self.len));
        let free = self.path.parent().and_then(free_bytes);
        match (missing, free) {
            (Some(needed), Some(left)) if needed > left => {
                Err(Error::DiskFull { path: self.path.clone(), missing, free })
            }
            _ => Ok(()),
        }
    }

    /// Throws away what is there.
    fn restart(&mut self) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|cause| Error::write(&self.path, None, cause))?;
        let (digest, size) = (self.wanted.digest.as_ref(), self.wanted.size);
        self.hasher = digest.zip(size).map(|(digest, size)| digest.hasher(size));
        (self.len, self.is_resumed) = (0, false);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let missing = self.wanted.size.map(|size| size.saturating_sub(self.len));
        self.file.write_all(bytes).map_err(|cause| {
            // What was written of these bytes is not counted, so it must not be there.
            let _ = self.file.set_len(self.len);
            Error::write(&self.path, missing, cause)
        })?;
        self.len += bytes.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }

    /// Compares what arrived with the listing.
    fn check(&self) -> Result<()> {
        let (Some(digest), Some(hasher)) = (&self.wanted.digest, &self.hasher) else { return Ok(()) };
        let found = hasher.clone().finish();
        if found == digest.hex() {
            return Ok(());
        }
        let (path, expected) = (self.wanted.path.clone(), digest.hex().to_owned());
        Err(Error::WrongHash { path, hash: digest.name(), expected, found })
    }

    /// Gives the file its final name.
    fn name(self, target: &Path) -> Result<()> {
        let synced = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, target));
        synced.map_err(|cause| Error::write(target, None, cause))
    }
}

/// Bytes that this user may still write below a folder; `None` where the system does not say.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Bytes that this user may still write below a folder, which is not asked here.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Whether an open file is the one that a path names.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: io::Result<std::fs::Metadata>| metadata.map(|m| (m.dev(), m.ino())).ok();
    identity(file.metadata()) == identity(std::fs::metadata(path))
}

/// Whether an open file is the one that a path names; elsewhere an open file cannot be renamed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
