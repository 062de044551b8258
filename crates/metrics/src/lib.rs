//! Loggers, the progress bar, throughput and memory figures.
//!
//! A recipe reports three ways: a [`MetricLogger`] keeps one record a logged step, a [`Progress`] bar shows where the
//! run is, and [`notice`] says one thing that happened. The last two share stderr, so everything printed while a bar is
//! on the screen goes through this crate ([`notice`], [`suspend`]). Stdout carries what a `StdoutLogger` logs, no more.

mod component;
mod disk;
mod error;
mod logger;
mod memory;
mod meter;
mod progress;
mod screen;
mod throughput;

pub use component::{DiskLoggerConfig, METRIC_LOGGERS, MetricLoggerConfig, StdoutLoggerConfig};
pub use disk::{DiskLogger, OutputFormat};
pub use error::Error;
pub use logger::{MetricLogger, StdoutLogger};
pub use memory::{ResidentMemory, available_memory};
pub use progress::Progress;
pub use screen::{notice, suspend};
pub use throughput::{StepRate, Throughput};
