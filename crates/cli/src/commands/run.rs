//! `tune run`: a recipe with a config.

use std::sync::Arc;

use config::Merged;
use cpu::{CpuBackend, CpuConfig};
use recipes::{Backend, Error, Result};

use crate::args::RunArgs;

/// More threads than any machine this runs on has cores.
const MAX_THREADS: usize = 1024;

/// Limits how many threads compute.
const THREADS_VARIABLE: &str = "FERROTUNE_NUM_THREADS";

/// Runs the recipe.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let (config, overrides) = args.config_and_overrides();
    let config = Merged::read(&config, &overrides)?;
    recipes::run(&args.recipe, &config, &open_backend)
}

/// The backend for a `device` key.
fn open_backend(device: &str) -> Result<Arc<dyn Backend>> {
    match device {
        "auto" | "cpu" => {
            let config = CpuConfig { threads: threads()?, ..CpuConfig::default() };
            let backend = CpuBackend::new(config).map_err(|e| Error::Backend { reason: e.to_string() })?;
            Ok(Arc::new(backend))
        }
        other => {
            Err(Error::NoDevice { device: other.to_owned(), available: "`auto` or `cpu` in this version".to_owned() })
        }
    }
}

/// Threads to compute with, from the environment; `None` = all cores.
fn threads() -> Result<Option<usize>> {
    let Some(text) = std::env::var_os(THREADS_VARIABLE) else { return Ok(None) };
    let text = text.to_string_lossy();
    match text.parse() {
        Ok(threads) if (1..=MAX_THREADS).contains(&threads) => Ok(Some(threads)),
        _ => Err(Error::Environment {
            variable: THREADS_VARIABLE,
            expected: "a number of threads from 1 to 1024",
            found: text.into_owned(),
        }),
    }
}
