//! Downloads and the cache against a hub on loopback, well-behaved and not.

#![expect(clippy::unwrap_used, reason = "the shared helpers of tests may fail as tests do")]

mod cache;
mod common;
mod downloads;
mod faults;
mod tokens;
