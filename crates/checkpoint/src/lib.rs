//! Weights on disk: safetensors, GGUF, atomic checkpoint directories, recipe state.
//!
//! This crate knows host bytes, element types and shapes; devices and training are not its business. Reading goes
//! through one [`WeightSource`] whatever the files are; writing asks a callback for each tensor's bytes and never holds
//! more than a piece of one.
//!
//! ```text
//! folder or file ─ WeightSource ─ match_names ─ read_rows_into(dst, name, rows, dtype)
//! check_output_dir ─ CheckpointDir::begin ─ write_weights, write_optimizer, write_config, copy_side_files ─ commit
//! latest_complete ─ Checkpoint { state } ─ weights(), optimizer()
//! ```
//!
//! Inside the program weights have Hugging Face names and half-split rotary rows; GGUF's own order exists only in
//! [`gguf`].

mod checkpoint_dir;
mod config;
mod error;
mod folder;
pub mod gguf;
mod hf_config;
mod match_names;
mod mmap;
mod output_dir;
mod peft;
mod recipe_state;
mod resume;
pub mod safetensors_header;
mod side_files;
mod source;
mod stored;
mod wording;
mod writer;

pub use crate::config::{CHECKPOINTERS, Checkpointer, CheckpointerConfig, ModelType};
pub use checkpoint_dir::{CheckpointDir, CheckpointName};
pub use error::{Error, IndexMention, IoAction, NamesMismatch, Result, ShapeMismatch};
pub use folder::{CheckpointFiles, INDEX_FILE, MODEL_FILE, read_config_json};
pub use gguf::Vocabulary;
pub use hf_config::hugging_face_config;
pub use match_names::{ExpectedTensor, match_names};
pub use mmap::MappedFile;
pub use output_dir::{
    ExistingRun, check_disk_space, check_not_inside, check_output_dir, free_bytes, remove_previous_run,
};
pub use peft::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterConfig, OpenAdapter, TorchtuneRows, open_adapter};
pub use recipe_state::{
    Checkpoint, OPTIMIZER_FILE, OptimizerRecord, RecipeState, SCHEMA_VERSION, STATE_FILE, SamplerPosition,
};
pub use resume::{Latest, keep_last_checkpoints, latest_complete};
pub use source::{GgufContents, SourceTensor, WeightSource};
pub use stored::Stored;
pub use writer::{FileRecord, MAX_SHARD_BYTES, TensorSink, TensorSpec, write_model, write_safetensors};
