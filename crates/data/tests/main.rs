//! Integration tests of rows, packing, order and whole datasets.

#![expect(clippy::unwrap_used, reason = "the shared helpers of tests may fail as tests do")]

mod builders;
mod bytes;
mod conformance;
mod datasets;
mod hub;
mod loader;
mod packing;
mod parquet;
mod randperm;
