//! Adapters on disk: the one that a run starts from, and what is written beside the one that it trains.

use std::path::{Path, PathBuf};

use checkpoint::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterConfig, OpenAdapter, TorchtuneRows, WeightSource};
use models::families::Family;
use models::{Decoder, DecoderConfig, LoraConfig, LoraModule};
use serde_json::Value;

use crate::console::Console;
use crate::{Error, Result};

/// Opens the adapter at `path`, a file or its folder, and checks that it is the one that the model is built for.
pub(crate) fn open_adapter(path: &Path, lora: &LoraConfig, model: &Decoder, console: Console) -> Result<WeightSource> {
    let file = if path.is_dir() { path.join(ADAPTER_FILE) } else { path.to_path_buf() };
    if file.extension().is_none_or(|ending| ending != "safetensors") {
        return Err(Error::AdapterFile { path: file });
    }
    let DecoderConfig { family, head_dim, .. } = *model.config();
    let interleaved = matches!(family, Family::Llama | Family::Mistral | Family::Gemma | Family::Gemma2);
    let OpenAdapter { tensors, config, notice } =
        checkpoint::open_adapter(&file, TorchtuneRows { head_dim, interleaved })?;
    if let Some(text) = notice {
        console.notice(&text);
    }
    train::check_adapter(model.layout(), &tensors).map_err(|source| Error::AdapterShape { source })?;
    if let Some(found) = config {
        check_same(&found, lora, &file.with_file_name(ADAPTER_CONFIG_FILE))?;
    }
    Ok(tensors)
}

/// `Error::OtherAdapter` unless an adapter computes what the config says; names and shapes of its tensors are another matter.
pub(crate) fn check_same(found: &AdapterConfig, lora: &LoraConfig, path: &Path) -> Result<()> {
    let (wanted, scale) = (f64::from(lora.scale()), found.scale());
    if (wanted - scale).abs() <= 1e-6 * wanted.abs() {
        return Ok(());
    }
    let told = |alpha: f64, rank: usize, value: f64| format!("{alpha} / {rank} = {value}");
    Err(Error::OtherAdapter {
        path: path.to_path_buf(),
        wanted: told(lora.alpha, lora.rank, wanted),
        found: told(found.alpha, found.rank, scale),
    })
}

/// What is written beside an adapter.
pub(crate) fn config_of(lora: &LoraConfig) -> AdapterConfig {
    let name = |module: &LoraModule| module.name().to_owned();
    AdapterConfig {
        rank: lora.rank,
        alpha: lora.alpha,
        dropout: lora.dropout,
        target_modules: lora.modules.iter().map(name).collect(),
        use_dora: lora.use_dora,
        by_torchtune: false,
    }
}

/// What the model of a folder is called: the repository that it was downloaded from, else the folder.
pub(crate) fn base_name(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("original_repo_id.json")).unwrap_or_default();
    let repo = serde_json::from_str::<Value>(&text).ok();
    match repo.as_ref().and_then(|repo| repo.get("repo_id")?.as_str()) {
        Some(repo) => repo.to_owned(),
        None => std::fs::canonicalize(dir).unwrap_or_else(|_| PathBuf::from(dir)).display().to_string(),
    }
}
