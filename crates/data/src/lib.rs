//! Rows to batches: sources, messages, templates, masking, packing, collation, order.
//!
//! ```text
//! config section -> builders -> Plan -> source (folder or hub) -> Rows -> transform -> messages -> tokenizer -> Dataset (flat tokens and labels)
//! Dataset -> pack -> Dataset -> Loader (order, ranks, accumulation) -> windows of Batch
//! ```
//!
//! Everything that can be wrong with a dataset is found while the `Dataset` is built, before training starts.

pub mod builders;
mod card;
mod choose;
mod collate;
mod csv;
mod dataset;
mod error;
mod loader;
mod notices;
mod order;
pub mod packing;
#[cfg(feature = "parquet")]
mod parquet;
mod plan;
mod row;
mod row_file;
mod rows;
mod scan;
pub mod source;
pub mod split;
mod transform;
mod tree;
mod validate;

pub use builders::{
    DATASETS, DatasetConfig, DatasetList, DatasetSection, PREFERENCE_DATASETS, PreferenceDatasetConfig,
    PreferenceDatasetList,
};
pub use collate::{Batch, collate};
pub use dataset::{Dataset, IGNORE_INDEX, Sample};
pub use error::{Error, Result};
pub use loader::{Batches, Items, Loader, LoaderOptions, Windows};
pub use notices::{Count, Notices};
pub use order::{Mt19937, Sampler, randperm};
pub use plan::{Layout, Plan, PreferenceDataset, PreferencePlan};
pub use row::Row;
pub use rows::{Place, Rows};
pub use transform::{PreferenceTransform, Transform, TransformOptions};
