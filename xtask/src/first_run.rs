//! `cargo xtask first-run-tokenizer`: trains the tokenizer of `examples/first_run` anew, after its rows have changed.
//!
//! The trainer is an example program of the `tokenizers` crate, so that this one stays quick to build.

use anyhow::Result;

use crate::cargo::cargo;

/// Where the trainer is.
const TRAINER: [&str; 4] = ["--package", "ferrotune-tokenizers", "--example", "train_first_run_tokenizer"];

/// Trains and writes `examples/first_run/model/tokenizer.json` and `tokenizer_config.json`.
pub(crate) fn train_tokenizer() -> Result<()> {
    cargo(["run", "--quiet"]).args(TRAINER).run()
}
