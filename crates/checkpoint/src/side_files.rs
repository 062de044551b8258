//! The files of a model's folder that are not weights, copied beside the written weights.
//!
//! Left behind: weights (safetensors, gguf, bin, pt, pth), their indexes, adapters, hidden files and folders, recipe
//! state, files over 100 MiB (with a notice), whole sub-folders that are checkpoints, and names already written.
//! Links to files are followed (download caches are made of them), links to folders are not.
//! Errors:  the file system. Panics: never. The source is only ever read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::checkpoint_dir::create_folder;
use crate::error::{Error, IoAction, Result};
use crate::folder::is_weight_file;
use crate::recipe_state::STATE_FILE;
use crate::wording::gib;
use crate::writer::{FileRecord, SummedFile};

const MAX_BYTES: u64 = 100 << 20;

/// Copies from `from` to `to`, adding each copied file to `files`; gives notices.
pub(crate) fn copy(from: &Path, to: &Path, files: &mut BTreeMap<String, FileRecord>) -> Result<Vec<String>> {
    let mut notices = Vec::new();
    copy_folder(from, to, "", files, &mut notices)?;
    Ok(notices)
}

fn copy_folder(
    from: &Path,
    to: &Path,
    prefix: &str,
    files: &mut BTreeMap<String, FileRecord>,
    notices: &mut Vec<String>,
) -> Result<()> {
    let io = |source| Error::Io { action: IoAction::Read, path: from.to_path_buf(), source };
    let mut entries = fs::read_dir(from).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type().map_err(io)?);
        // A name that is not UTF-8 cannot be recorded; no model file has one.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let relative = format!("{prefix}{name}");
        if name.starts_with('.') || files.contains_key(&relative) {
            continue;
        }
        if kind.is_dir() {
            if !path.join(STATE_FILE).exists() {
                copy_folder(&path, &to.join(&name), &format!("{relative}/"), files, notices)?;
            }
            continue;
        }
        if left_behind(&name) || !path.is_file() {
            continue;
        }
        let bytes = fs::metadata(&path).map_err(io)?.len();
        if bytes > MAX_BYTES {
            notices.push(format!("`{relative}` is not copied: {} is more than {}", gib(bytes), gib(MAX_BYTES)));
            continue;
        }
        create_folder(to)?;
        files.insert(relative, copy_file(&path, &to.join(&name))?);
    }
    Ok(())
}

fn left_behind(name: &str) -> bool {
    is_weight_file(Path::new(name))
        || name.ends_with(".index.json")
        || name == STATE_FILE
        || name.starts_with("adapter_model")
        || name == "adapter_config.json"
}

/// Copies the bytes, not the permissions: what was read-only must be deletable at its new place.
fn copy_file(from: &Path, to: &Path) -> Result<FileRecord> {
    let io = |source| Error::Io { action: IoAction::Read, path: from.to_path_buf(), source };
    let mut source = File::open(from).map_err(io)?;
    let mut target = SummedFile::create(to)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match source.read(&mut buffer).map_err(io)? {
            0 => return target.finish(),
            count => target.write(&buffer[..count])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_indexes_and_adapters_stay_behind() {
        for name in [
            "model.safetensors",
            "pytorch_model.bin",
            "a.pt",
            "consolidated.00.pth",
            "m.gguf",
            "model.safetensors.index.json",
            "pytorch_model.bin.index.json",
            "adapter_config.json",
            "adapter_model.json",
            "recipe_state.json",
        ] {
            assert!(left_behind(name), "{name}");
        }
        for name in ["tokenizer.model", "tokenizer.json", "README.md", "config.json", "original_repo_id.json"] {
            assert!(!left_behind(name), "{name}");
        }
    }
}
