//! Is the output folder a place to write to? Asked before any weight is read.
//!
//! Rules:   not the checkpoint folder nor inside it, links resolved as far as the path exists; not another run's,
//!          unless it is continued or replaced on purpose; writable; with room enough.
//! Errors:  one variant a rule. Panics: never.

use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use crate::checkpoint_dir::{CheckpointName, remove_folder};
use crate::error::{Error, IoAction, Result};

/// What may happen to another run's files in the output folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingRun {
    /// They are a reason to stop.
    Refuse,
    /// They are this run's own: it is resumed.
    Continue,
    /// They may be overwritten.
    Overwrite,
}

/// Checks that the output folder is none of the folders that are read, nor inside of one. Touches nothing.
pub fn check_not_inside(output_dir: &Path, checkpoint_dirs: &[&Path]) -> Result<()> {
    let output = resolved(output_dir)?;
    for checkpoint_dir in checkpoint_dirs {
        let checkpoint = resolved(checkpoint_dir)?;
        if output.starts_with(&checkpoint) {
            return Err(Error::OutputInsideCheckpoint {
                output_dir: output_dir.to_path_buf(),
                checkpoint_dir: checkpoint_dir.to_path_buf(),
                equal: output == checkpoint,
            });
        }
    }
    Ok(())
}

/// Checks the output folder against the folders that are read, and tries to write there. Leaves no trace, but several
/// processes that do so at once get into each other's way.
pub fn check_output_dir(output_dir: &Path, checkpoint_dirs: &[&Path], existing: ExistingRun) -> Result<()> {
    check_not_inside(output_dir, checkpoint_dirs)?;
    if existing == ExistingRun::Refuse {
        let found = run_files(output_dir)?;
        if !found.is_empty() {
            let found = found.iter().map(|path| relative_text(path, output_dir)).collect();
            return Err(Error::OutputHoldsRun { output_dir: output_dir.to_path_buf(), found });
        }
    }
    probe(output_dir).map_err(|source| Error::OutputUnwritable { output_dir: output_dir.to_path_buf(), source })
}

/// Deletes another run's checkpoints and logs from the output folder; gives their names.
///
/// For `overwrite_output_dir: True`: were they left there, a later resume could take them for this run's.
pub fn remove_previous_run(output_dir: &Path) -> Result<Vec<String>> {
    let found = run_files(output_dir)?;
    for path in &found {
        if path.is_dir() {
            remove_folder(path)?;
        } else {
            fs::remove_file(path).map_err(|source| Error::Io {
                action: IoAction::Remove,
                path: path.clone(),
                source,
            })?;
        }
    }
    Ok(found.iter().map(|path| relative_text(path, output_dir)).collect())
}

/// A run's traces: checkpoint folders, whole or not, and log files.
fn run_files(output_dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in children(output_dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = name.strip_prefix('.');
        let stem = hidden.and_then(|name| name.strip_suffix(".replaced").or(name.strip_suffix(".partial")));
        if path.is_dir() && CheckpointName::parse(stem.unwrap_or(&name)).is_some() {
            found.push(path);
        }
    }
    for path in children(&output_dir.join("logs"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_file() && name.starts_with("log_") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The entries of a folder, sorted; none if there is no folder.
fn children(dir: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { action: IoAction::Read, path: dir.to_path_buf(), source };
    match fs::read_dir(dir) {
        Ok(entries) => {
            let mut paths =
                entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(io)?;
            paths.sort();
            Ok(paths)
        }
        // Not a folder: making it says so in better words.
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(io(error)),
    }
}

fn relative_text(path: &Path, base: &Path) -> String {
    path.strip_prefix(base).unwrap_or(path).to_string_lossy().into_owned()
}

/// Makes the folder, writes a file there and deletes what was made: a run that ends before it trains leaves nothing.
fn probe(output_dir: &Path) -> std::io::Result<()> {
    let made: Vec<&Path> =
        output_dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
    let written = fs::create_dir_all(output_dir).and_then(|()| probe_existing(output_dir));
    for dir in made {
        // Fails where it was not made, or where somebody else has begun to use it.
        let _ = fs::remove_dir(dir);
    }
    written
}

fn probe_existing(output_dir: &Path) -> std::io::Result<()> {
    let path = output_dir.join(format!(".write_probe.{}", std::process::id()));
    let written = fs::File::create(&path).and_then(|mut file| file.write_all(b"probe"));
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// The path without links, `.` and `..`, as far as it exists; the rest by its words.
fn resolved(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|source| Error::Io {
        action: IoAction::Read,
        path: path.to_path_buf(),
        source,
    })?;
    let mut real = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                real.pop();
            }
            other => {
                real.push(other);
                if let Ok(canonical) = fs::canonicalize(&real) {
                    real = canonical;
                }
            }
        }
    }
    Ok(real)
}

/// Refuses to begin writing `needed_bytes` into `dir` where fewer are free. Where the system does not say, it is tried.
pub fn check_disk_space(dir: &Path, needed_bytes: u64) -> Result<()> {
    match free_bytes(dir) {
        Some(free_bytes) if free_bytes < needed_bytes => {
            Err(Error::DiskSpace { path: dir.to_path_buf(), needed_bytes, free_bytes })
        }
        _ => Ok(()),
    }
}

/// Bytes that this user may still write to the disk of `dir`.
#[cfg(unix)]
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes that this user may still write to the disk of `dir`.
#[cfg(not(unix))]
pub fn free_bytes(_dir: &Path) -> Option<u64> {
    None
}
