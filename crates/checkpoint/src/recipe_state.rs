//! `recipe_state.json`: what a run must know to go on, and the seal that makes a folder a checkpoint.
//!
//! Layout:  one JSON object: `schema_version`, the fields of [`RecipeState`], and `files`: for every other file of the
//!          checkpoint its size and CRC-32, by its path inside the folder with `/` between parts.
//! Errors:  absent, not JSON, another version; files absent, of another size, with other bytes. Panics: never.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::error::{Error, IoAction, Result};
use crate::folder::CheckpointFiles;
use crate::peft::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterConfig};
use crate::source::WeightSource;
use crate::writer::FileRecord;

/// The file that completes a checkpoint.
pub const STATE_FILE: &str = "recipe_state.json";

/// The file of the optimizer's state.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// The version of the layout written here.
pub const SCHEMA_VERSION: u64 = 1;

/// Where the data order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SamplerPosition {
    /// The epoch whose order is being walked.
    pub epoch: u64,
    /// How many rows of it are used up, over all ranks.
    pub rows_used: u64,
}

/// The optimizer and its hyper-parameters, as the run had them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OptimizerRecord {
    /// Its component name.
    pub name: String,
    /// Its hyper-parameters by config key.
    pub hyperparameters: Map<String, Json>,
}

/// What a run must know to go on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RecipeState {
    /// Epochs completed.
    pub epochs_run: u64,
    /// Epochs of the whole run.
    pub total_epochs: u64,
    /// Optimizer steps taken, over all epochs.
    pub steps_run: u64,
    /// Optimizer steps of the whole run, if known.
    pub total_training_steps: Option<u64>,
    /// Limit of steps an epoch; `null` = no limit.
    pub max_steps_per_epoch: Option<u64>,
    /// The seed of the run's randomness.
    pub seed: u64,
    /// Where the data order stands.
    pub sampler: SamplerPosition,
    /// The optimizer; its state is in `optimizer.safetensors`.
    pub optimizer: OptimizerRecord,
    /// Whatever else the recipe wants back.
    #[serde(default)]
    pub payload: Json,
}

/// The file itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StateFile {
    pub(crate) schema_version: u64,
    #[serde(flatten)]
    pub(crate) state: RecipeState,
    pub(crate) files: BTreeMap<String, FileRecord>,
}

/// A checkpoint folder whose seal is whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    path: PathBuf,
    /// What the run must know to go on.
    pub state: RecipeState,
    files: BTreeMap<String, FileRecord>,
}

impl Checkpoint {
    /// Opens folder `path`: reads its seal and compares the sizes of all its files.
    pub fn open(path: &Path) -> Result<Self> {
        let state_path = path.join(STATE_FILE);
        let bytes = match std::fs::read(&state_path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotACheckpoint { dir: path.to_path_buf() });
            }
            Err(source) => return Err(Error::Io { action: IoAction::Read, path: state_path, source }),
        };
        #[derive(Deserialize)]
        struct Version {
            schema_version: u64,
        }
        let json = |source| Error::Json { path: state_path.clone(), source };
        // The version first: fields of another version may differ.
        let Version { schema_version } = serde_json::from_slice(&bytes).map_err(json)?;
        if schema_version != SCHEMA_VERSION {
            return Err(Error::StateVersion { path: state_path, found: schema_version, expected: SCHEMA_VERSION });
        }
        let StateFile { state, files, .. } = serde_json::from_slice(&bytes).map_err(json)?;
        let checkpoint = Self { path: path.to_path_buf(), state, files };
        checkpoint.check_sizes()?;
        Ok(checkpoint)
    }

    fn check_sizes(&self) -> Result<()> {
        for (name, record) in &self.files {
            let path = self.path.join(name);
            let found = std::fs::metadata(&path)
                .map_err(|source| Error::Io { action: IoAction::Read, path: path.clone(), source })?
                .len();
            if found != record.bytes {
                return Err(Error::DamagedSize { path, expected: record.bytes, found });
            }
        }
        Ok(())
    }

    /// Reads every file and compares its checksum: as slow as the disk.
    pub fn verify(&self) -> Result<()> {
        for (name, record) in &self.files {
            let path = self.path.join(name);
            let found = checksum(&path)?;
            if found != record.crc32 {
                return Err(Error::DamagedBytes { path, expected: record.crc32, found });
            }
        }
        Ok(())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files and what is recorded of them.
    pub fn files(&self) -> &BTreeMap<String, FileRecord> {
        &self.files
    }

    /// The model's weights.
    pub fn weights(&self) -> Result<WeightSource> {
        WeightSource::open_folder(&self.path, &CheckpointFiles::Found)
    }

    /// The adapter; `None` if the checkpoint has none.
    pub fn adapter(&self) -> Result<Option<WeightSource>> {
        if !self.files.contains_key(ADAPTER_FILE) {
            return Ok(None);
        }
        WeightSource::open_safetensors(&self.path.join(ADAPTER_FILE)).map(Some)
    }

    /// What the adapter's tensors mean; `None` if the checkpoint has no adapter.
    pub fn adapter_config(&self) -> Result<Option<AdapterConfig>> {
        AdapterConfig::read(&self.path.join(ADAPTER_CONFIG_FILE))
    }

    /// The optimizer's state; `None` if the checkpoint has none.
    pub fn optimizer(&self) -> Result<Option<WeightSource>> {
        if !self.files.contains_key(OPTIMIZER_FILE) {
            return Ok(None);
        }
        WeightSource::open_safetensors(&self.path.join(OPTIMIZER_FILE)).map(Some)
    }
}

fn checksum(path: &Path) -> Result<u32> {
    let io = |source| Error::Io { action: IoAction::Read, path: path.to_path_buf(), source };
    let mut file = std::fs::File::open(path).map_err(io)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(hasher.finalize()),
            count => hasher.update(&buffer[..count]),
        }
    }
}
