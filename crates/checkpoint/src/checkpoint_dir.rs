//! Writes a checkpoint folder so that it is either complete under its name or not there at all.
//!
//! Protocol: everything is written into `.NAME.partial` beside the final place, each file synced; `recipe_state.json`
//!           with sizes and checksums comes last; the folder is synced and renamed to `NAME`. A folder already there is
//!           renamed to `.NAME.replaced` first and deleted after. A writer that is dropped or fails deletes its partial
//!           folder; one that is killed leaves it behind, never mistaken for a checkpoint, deleted by the next writer
//!           of that name. Killed between the two renames, the old checkpoint lives on as `.NAME.replaced`, which
//!           `resume` finds.
//! Errors:   the file system; not enough room; a file written twice. The old checkpoint survives every one. Panics: never.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::error::{Error, IoAction, Result};
use crate::output_dir::check_disk_space;
use crate::recipe_state::{Checkpoint, OPTIMIZER_FILE, RecipeState, SCHEMA_VERSION, STATE_FILE, StateFile};
use crate::side_files;
use crate::writer::{self, FileRecord, MAX_SHARD_BYTES, TensorSink, TensorSpec};

/// The name of a checkpoint folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointName {
    /// `epoch_N`: after epoch N, counted from 0.
    Epoch(u64),
    /// `step_N`: after optimizer step N.
    Step(u64),
}

impl CheckpointName {
    /// The name a folder has, if it is one.
    pub fn parse(name: &str) -> Option<Self> {
        let (prefix, number) = name.split_once('_')?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        match prefix {
            "epoch" => number.parse().ok().map(Self::Epoch),
            "step" => number.parse().ok().map(Self::Step),
            _ => None,
        }
    }

    pub(crate) fn partial(self) -> String {
        format!(".{self}.partial")
    }

    pub(crate) fn replaced(self) -> String {
        format!(".{self}.replaced")
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch(number) => write!(f, "epoch_{number}"),
            Self::Step(number) => write!(f, "step_{number}"),
        }
    }
}

/// A checkpoint being written.
#[derive(Debug)]
pub struct CheckpointDir {
    output_dir: PathBuf,
    name: CheckpointName,
    files: BTreeMap<String, FileRecord>,
    committed: bool,
}

impl CheckpointDir {
    /// Starts a checkpoint in `output_dir`, which is made if need be and must have room for `needed_bytes`.
    pub fn begin(output_dir: &Path, name: CheckpointName, needed_bytes: u64) -> Result<Self> {
        create_folder(output_dir)?;
        let writer = Self { output_dir: output_dir.to_path_buf(), name, files: BTreeMap::new(), committed: false };
        let (partial, replaced, place) = (writer.partial(), writer.replaced(), writer.place());
        remove_folder(&partial)?;
        if replaced.exists() {
            // Killed while replacing: either the new one is in place, or the old one goes back there.
            if place.exists() {
                remove_folder(&replaced)?;
            } else {
                rename(&replaced, &place)?;
            }
        }
        check_disk_space(output_dir, needed_bytes)?;
        create_folder(&partial)?;
        Ok(writer)
    }

    fn partial(&self) -> PathBuf {
        self.output_dir.join(self.name.partial())
    }

    fn replaced(&self) -> PathBuf {
        self.output_dir.join(self.name.replaced())
    }

    fn place(&self) -> PathBuf {
        self.output_dir.join(self.name.to_string())
    }

    /// Writes the model's weights: `model.safetensors`, or shards of at most 5 GB and an index.
    pub fn write_weights<E: From<Error>>(
        &mut self,
        specs: &[TensorSpec],
        fill: &mut dyn FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let written = writer::write_model(&self.partial(), specs, MAX_SHARD_BYTES, fill)?;
        self.files.extend(written);
        Ok(())
    }

    /// Writes the optimizer's state.
    pub fn write_optimizer<E: From<Error>>(
        &mut self,
        specs: &[TensorSpec],
        fill: &mut dyn FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.write_tensors(OPTIMIZER_FILE, specs, fill)
    }

    /// Writes tensors into one file of that name.
    pub fn write_tensors<E: From<Error>>(
        &mut self,
        file: &str,
        specs: &[TensorSpec],
        fill: &mut dyn FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.new_file(file)?;
        let record = writer::write_safetensors(&path, specs, fill)?;
        self.files.insert(file.into(), record);
        Ok(())
    }

    /// Writes a small file.
    pub fn write_file(&mut self, file: &str, bytes: &[u8]) -> Result<()> {
        let record = writer::write_bytes(&self.new_file(file)?, bytes)?;
        self.files.insert(file.into(), record);
        Ok(())
    }

    /// Writes `config.json`.
    pub fn write_config(&mut self, config: &Map<String, Json>) -> Result<()> {
        let text = serde_json::to_string_pretty(config).expect("a JSON object always becomes text");
        self.write_file("config.json", format!("{text}\n").as_bytes())
    }

    fn new_file(&self, file: &str) -> Result<PathBuf> {
        if self.files.contains_key(file) || file == STATE_FILE {
            return Err(Error::FileTwice { file: file.into() });
        }
        Ok(self.partial().join(file))
    }

    /// Copies the other files of the model's folder: tokenizer, generation settings, licence, sub-folders.
    ///
    /// Weights, indexes, adapters, hidden files and files over 100 MiB stay behind, and so does everything already
    /// written here. Gives a notice for each file that is too large.
    pub fn copy_side_files(&mut self, from: &Path) -> Result<Vec<String>> {
        side_files::copy(from, &self.partial(), &mut self.files)
    }

    /// Completes the checkpoint and gives it its name.
    pub fn commit(mut self, state: &RecipeState) -> Result<Checkpoint> {
        let (partial, replaced, place) = (self.partial(), self.replaced(), self.place());
        let sealed = StateFile { schema_version: SCHEMA_VERSION, state: state.clone(), files: self.files.clone() };
        let path = partial.join(STATE_FILE);
        let text = serde_json::to_vec_pretty(&sealed).map_err(|source| Error::Json { path: path.clone(), source })?;
        self.sync_folders()?;
        writer::write_bytes(&path, &text)?;
        sync_folder(&partial)?;
        let replacing = place.exists();
        if replacing {
            rename(&place, &replaced)?;
        }
        if let Err(error) = rename(&partial, &place) {
            if replacing {
                rename(&replaced, &place)?;
            }
            return Err(error);
        }
        self.committed = true;
        sync_folder(&self.output_dir)?;
        if replacing {
            remove_folder(&replaced)?;
        }
        Checkpoint::open(&place)
    }

    /// Brings the entries of all sub-folders to the disk.
    fn sync_folders(&self) -> Result<()> {
        let folders: BTreeSet<&Path> = self.files.keys().flat_map(|file| Path::new(file).ancestors().skip(1)).collect();
        folders.into_iter().try_for_each(|folder| sync_folder(&self.partial().join(folder)))
    }
}

impl Drop for CheckpointDir {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing to tell anyone at this point: the next writer of this name tries again.
            let _ = fs::remove_dir_all(self.partial());
        }
    }
}

pub(crate) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|source| Error::Io {
        action: IoAction::CreateFolder,
        path: path.to_path_buf(),
        source,
    })
}

/// Deletes a folder; one that is not there is fine.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Io { action: IoAction::Remove, path: path.to_path_buf(), source }),
        Ok(()) => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|source| Error::Io { action: IoAction::Rename, path: from.to_path_buf(), source })
}

/// Brings a folder's entries to the disk, where the system can.
fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(unix) {
        fs::File::open(path).and_then(|folder| folder.sync_all()).map_err(|source| Error::Io {
            action: IoAction::Write,
            path: path.to_path_buf(),
            source,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_as_they_print() {
        for name in [CheckpointName::Epoch(0), CheckpointName::Step(1200)] {
            assert_eq!(CheckpointName::parse(&name.to_string()), Some(name));
        }
        for other in ["epoch_", "epoch_-1", "epoch_+1", "step_1x", "logs", "my_epoch_1", ".epoch_1.partial"] {
            assert_eq!(CheckpointName::parse(other), None, "{other}");
        }
    }
}
