//! The program as its users meet it.

mod bad_input;
mod common;
mod curves;
mod download;
mod first_run;
mod lora;
#[cfg(feature = "mpi")]
mod mpi;
mod optimizers;
mod preference;
mod profiling;
mod qat;
mod ranks;
mod runs;
mod tiny;
#[path = "../../recipes/tests/tiny_folder.rs"]
mod tiny_folder;
mod verbs;
