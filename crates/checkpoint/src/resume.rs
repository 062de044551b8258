//! Finds the checkpoint to go on from, and forgets old ones.
//!
//! Newest:  most optimizer steps, then most epochs, by `recipe_state.json`, not by folder name or time.
//! Errors:  only a folder that cannot be listed or deleted; a checkpoint that is damaged or incomplete is passed over
//!          with a notice. Panics: never.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoint_dir::{CheckpointName, remove_folder};
use crate::error::{Error, IoAction, Result};
use crate::recipe_state::{Checkpoint, STATE_FILE};

/// What a search for checkpoints found.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    /// The newest checkpoint that is whole, if any is.
    pub checkpoint: Option<Checkpoint>,
    /// Newer or unreadable ones that were passed over, and why.
    pub notices: Vec<String>,
}

impl Latest {
    /// The checkpoint, or the error that there is none, with the reasons.
    pub fn required(self, output_dir: &Path) -> Result<(Checkpoint, Vec<String>)> {
        match self.checkpoint {
            Some(checkpoint) => Ok((checkpoint, self.notices)),
            None => Err(Error::NothingToResume { output_dir: output_dir.to_path_buf(), skipped: self.notices }),
        }
    }
}

/// The newest whole checkpoint in `output_dir`: sizes of all are compared, checksums of the one that is chosen.
///
/// A folder that is not there holds no checkpoint.
pub fn latest_complete(output_dir: &Path) -> Result<Latest> {
    let mut notices = Vec::new();
    let mut candidates = Vec::new();
    for (name, path) in checkpoint_folders(output_dir)? {
        match Checkpoint::open(&path) {
            Ok(checkpoint) => {
                candidates.push((checkpoint.state.steps_run, checkpoint.state.epochs_run, name, checkpoint));
            }
            Err(error) => notices.push(passed_over(name, &error)),
        }
    }
    candidates.sort_by_key(|(steps, epochs, name, _)| (*steps, *epochs, *name));
    while let Some((_, _, name, checkpoint)) = candidates.pop() {
        match checkpoint.verify() {
            Ok(()) => return Ok(Latest { checkpoint: Some(checkpoint), notices }),
            Err(error) => notices.push(passed_over(name, &error)),
        }
    }
    Ok(Latest { checkpoint: None, notices })
}

fn passed_over(name: CheckpointName, error: &Error) -> String {
    use std::error::Error as _;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    let reason = error.to_string().replace("\n  ", ", ");
    format!("checkpoint `{name}` is passed over: {reason}{cause}")
}

/// Checkpoint folders by name. One that was being replaced when the writer died counts under its name.
fn checkpoint_folders(output_dir: &Path) -> Result<Vec<(CheckpointName, PathBuf)>> {
    let io = |source| Error::Io { action: IoAction::Read, path: output_dir.to_path_buf(), source };
    let entries = match fs::read_dir(output_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io)?;
        let file_name = entry.file_name();
        let Some(text) = file_name.to_str() else { continue };
        let replaced = text.strip_prefix('.').and_then(|rest| rest.strip_suffix(".replaced"));
        let Some(name) = CheckpointName::parse(replaced.unwrap_or(text)) else { continue };
        let superseded = replaced.is_some() && output_dir.join(name.to_string()).exists();
        if entry.path().is_dir() && !superseded {
            folders.push((name, entry.path()));
        }
    }
    folders.sort();
    Ok(folders)
}

/// Deletes the oldest checkpoints of the kind of `written` (epochs or steps) until `keep` of that kind are left.
///
/// `written` itself is never deleted. Gives the names deleted. Folders without a seal are not counted and not touched.
pub fn keep_last_checkpoints(output_dir: &Path, keep: usize, written: CheckpointName) -> Result<Vec<CheckpointName>> {
    let same_kind = |name: &CheckpointName| std::mem::discriminant(name) == std::mem::discriminant(&written);
    let mut folders: Vec<(CheckpointName, PathBuf)> = checkpoint_folders(output_dir)?
        .into_iter()
        .filter(|(name, path)| same_kind(name) && path.join(STATE_FILE).is_file())
        .collect();
    let surplus = folders.len().saturating_sub(keep.max(1));
    folders.retain(|(name, _)| *name != written);
    let mut removed = Vec::new();
    for (name, path) in folders.into_iter().take(surplus) {
        // Without its seal a half deleted folder is no checkpoint.
        let seal = path.join(STATE_FILE);
        fs::remove_file(&seal).map_err(|source| Error::Io { action: IoAction::Remove, path: seal, source })?;
        remove_folder(&path)?;
        removed.push(name);
    }
    Ok(removed)
}
