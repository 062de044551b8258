//! A folder of weights: which files to read, and a source over them.
//!
//! Order:   files named in the config; else those of `model.safetensors.index.json`; else `model.safetensors`; else the
//!          only `.gguf` file. What an index does not name is never read.
//! Errors:  every file that is named and not there, before any is opened; folders of pickles; indexes that do not fit
//!          their files; weights quantised by another program. Panics: never.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::error::{Error, IndexMention, IoAction, Result};
use crate::recipe_state::OPTIMIZER_FILE;
use crate::source::{WeightSource, file_name};
use crate::wording::counted;

/// The index of a sharded model.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// A model in one file.
pub const MODEL_FILE: &str = "model.safetensors";

/// Which files of a folder hold the weights.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CheckpointFiles {
    /// What the folder itself says.
    #[default]
    Found,
    /// These names.
    Listed(Vec<String>),
    /// `{filename_format, max_filename}`: one name for each number from 1 to `max_filename`.
    Numbered {
        /// A name with two `{}`: the number, and the highest number.
        filename_format: String,
        /// The highest number, with the leading zeros that all numbers get.
        max_filename: String,
    },
}

impl CheckpointFiles {
    /// The names written out, sorted; `None` for what the folder says.
    pub fn names(&self) -> Result<Option<Vec<String>>> {
        match self {
            Self::Found => Ok(None),
            Self::Listed(names) if names.is_empty() => Err(Error::NoFilesListed),
            Self::Listed(names) => {
                let sorted: BTreeSet<&String> = names.iter().collect();
                Ok(Some(sorted.into_iter().cloned().collect()))
            }
            Self::Numbered { filename_format, max_filename } => numbered(filename_format, max_filename).map(Some),
        }
    }
}

fn numbered(format: &str, max: &str) -> Result<Vec<String>> {
    let parts: Vec<&str> = format.split("{}").collect();
    let [before, between, after] = parts[..] else {
        return Err(Error::FilenameFormat { format: format.into(), found: parts.len() - 1 });
    };
    let digits = !max.is_empty() && max.bytes().all(|byte| byte.is_ascii_digit());
    let count = max.parse::<u32>().ok().filter(|count| digits && (1..=99_999).contains(count));
    let Some(count) = count else { return Err(Error::MaxFilename { found: max.into() }) };
    let width = max.len();
    Ok((1..=count).map(|number| format!("{before}{number:0width$}{between}{max}{after}")).collect())
}

impl WeightSource {
    /// Opens the weights of folder `dir`.
    pub fn open_folder(dir: &Path, files: &CheckpointFiles) -> Result<Self> {
        if !dir.is_dir() {
            return Err(Error::NotAFolder { section: "checkpointer", path: dir.to_path_buf() });
        }
        let listing = list(dir)?;
        let source = match files.names()? {
            Some(names) => open_listed(dir, &names, &listing)?,
            None if listing.contains(INDEX_FILE) => open_indexed(dir, &listing)?,
            None if listing.contains(MODEL_FILE) => open_listed(dir, &[MODEL_FILE.into()], &listing)?,
            None => open_only_gguf(dir, &listing)?,
        };
        source.refuse_quantised()
    }

    /// The model's configuration: the GGUF file's own, else the folder's `config.json`, if it has one.
    pub fn config(&self) -> Result<Option<Map<String, Json>>> {
        match self.gguf() {
            Some(contents) => Ok(Some(contents.config.clone())),
            None if self.path().is_dir() => read_config_json(self.path()),
            None => Ok(None),
        }
    }
}

/// The `config.json` of folder `dir`; `None` if it has none.
pub fn read_config_json(dir: &Path) -> Result<Option<Map<String, Json>>> {
    let path = dir.join("config.json");
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|source| Error::Json { path, source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { action: IoAction::Read, path, source }),
    }
}

/// The names of the files in `dir`, links to files among them.
fn list(dir: &Path) -> Result<BTreeSet<String>> {
    let io = |source| Error::Io { action: IoAction::Read, path: dir.to_path_buf(), source };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        if entry.path().is_file() {
            names.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn has_extension(name: &str, extensions: &[&str]) -> bool {
    Path::new(name).extension().is_some_and(|found| extensions.iter().any(|wanted| found.eq_ignore_ascii_case(wanted)))
}

fn open_listed(dir: &Path, names: &[String], listing: &BTreeSet<String>) -> Result<WeightSource> {
    let absent: Vec<&String> = names.iter().filter(|name| !dir.join(name).is_file()).collect();
    if let Some(first) = absent.first() {
        let pickles = pickles(listing);
        if !pickles.is_empty() && !listing.iter().any(|name| has_extension(name, &["safetensors", "gguf"])) {
            return Err(Error::OnlyPickle { dir: dir.to_path_buf(), files: pickles });
        }
        return Err(Error::MissingFile {
            file: (*first).clone(),
            dir: dir.to_path_buf(),
            mention: mention(dir, listing, first),
            others: absent.len() - 1,
        });
    }
    if let Some(gguf) = names.iter().find(|name| has_extension(name, &["gguf"])) {
        if names.len() > 1 {
            return Err(Error::GgufNotAlone { file: gguf.clone(), count: names.len() });
        }
        return WeightSource::open_gguf(&dir.join(gguf));
    }
    if let Some(other) = names.iter().find(|name| !has_extension(name, &["safetensors"])) {
        return Err(Error::FileKind { file: other.clone(), dir: dir.to_path_buf() });
    }
    let mut source = WeightSource::empty(dir);
    for name in names {
        source.add_safetensors(&dir.join(name))?;
    }
    Ok(source)
}

/// What the folder's index, if it has a readable one, says of a file that is not there.
fn mention(dir: &Path, listing: &BTreeSet<String>, file: &str) -> Option<IndexMention> {
    if !listing.contains(INDEX_FILE) {
        return None;
    }
    Index::read(dir).ok()?.mention(file)
}

fn pickles(listing: &BTreeSet<String>) -> Vec<String> {
    listing.iter().filter(|name| has_extension(name, &["bin", "pt", "pth"])).cloned().collect()
}

fn open_only_gguf(dir: &Path, listing: &BTreeSet<String>) -> Result<WeightSource> {
    let of = |extension: &str| -> Vec<String> {
        listing.iter().filter(|name| has_extension(name, &[extension])).cloned().collect()
    };
    let (safetensors, gguf) = (of("safetensors"), of("gguf"));
    if let ([], [only]) = (&safetensors[..], &gguf[..]) {
        let mut source = WeightSource::open_gguf(&dir.join(only))?;
        source.notice(format!("weights, configuration and vocabulary come from `{only}`"));
        return Ok(source);
    }
    let pickles = pickles(listing);
    let candidates: Vec<String> = safetensors.into_iter().chain(gguf).collect();
    if candidates.is_empty() && !pickles.is_empty() {
        return Err(Error::OnlyPickle { dir: dir.to_path_buf(), files: pickles });
    }
    Err(Error::NoWeights { dir: dir.to_path_buf(), candidates })
}

/// `model.safetensors.index.json`: which file holds which tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: Map<String, Json>,
}

impl Index {
    fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(INDEX_FILE);
        let bytes =
            std::fs::read(&path).map_err(|source| Error::Io { action: IoAction::Read, path: path.clone(), source })?;
        let index: Self =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.clone(), source })?;
        for file in index.weight_map.values() {
            let plain = file.as_str().filter(|name| {
                let mut parts = Path::new(name).components();
                matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none()
            });
            if plain.is_none() {
                return Err(Error::IndexFileName { index: path, file: file.to_string() });
            }
        }
        Ok(index)
    }

    /// Tensors and the files that hold them.
    fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.weight_map.iter().filter_map(|(tensor, file)| Some((tensor.as_str(), file.as_str()?)))
    }

    fn mention(&self, file: &str) -> Option<IndexMention> {
        let mut tensors = self.entries().filter(|(_, named)| *named == file).map(|(tensor, _)| tensor);
        let first = tensors.next()?.to_owned();
        Some(IndexMention { index: INDEX_FILE.into(), tensors: 1 + tensors.count(), first })
    }
}

fn open_indexed(dir: &Path, listing: &BTreeSet<String>) -> Result<WeightSource> {
    let index = Index::read(dir)?;
    let files: BTreeSet<&str> = index.entries().map(|(_, file)| file).collect();
    let absent: Vec<&str> = files.iter().copied().filter(|file| !listing.contains(*file)).collect();
    if let Some(first) = absent.first() {
        let pickles = pickles(listing);
        if absent.len() == files.len() && !pickles.is_empty() {
            return Err(Error::OnlyPickle { dir: dir.to_path_buf(), files: pickles });
        }
        return Err(Error::MissingFile {
            file: (*first).into(),
            dir: dir.to_path_buf(),
            mention: index.mention(first),
            others: absent.len() - 1,
        });
    }
    let mut source = WeightSource::empty(dir);
    for file in &files {
        source.add_safetensors(&dir.join(file))?;
    }
    check_index(&mut source, &index, dir)?;
    let stray = |name: &&String| {
        let other_purpose = *name == OPTIMIZER_FILE || name.starts_with("adapter_model");
        has_extension(name, &["safetensors"]) && !files.contains(name.as_str()) && !other_purpose
    };
    for stray in listing.iter().filter(stray) {
        source.notice(format!("`{stray}` is ignored: `{INDEX_FILE}` does not name it"));
    }
    Ok(source)
}

/// The index and its files must agree on where each tensor is; what only a file knows is worth a notice.
fn check_index(source: &mut WeightSource, index: &Index, dir: &Path) -> Result<()> {
    let named: HashMap<&str, &str> = index.entries().collect();
    for (tensor, file) in index.entries() {
        let held = source.get(tensor).is_some_and(|found| source.file_of(found) == file);
        if !held {
            return Err(Error::IndexTensor { tensor: tensor.into(), file: dir.join(file), index: INDEX_FILE.into() });
        }
    }
    let left_out: Vec<&str> = source.names().filter(|name| !named.contains_key(name)).collect();
    if let Some(first) = left_out.first() {
        let text = format!(
            "`{INDEX_FILE}` leaves out {} of its files, the first is `{first}`; they are read all the same",
            counted(left_out.len(), "tensor")
        );
        source.notice(text);
    }
    Ok(())
}

/// Whether `path` names weights by its ending, and which kind.
pub(crate) fn is_weight_file(path: &Path) -> bool {
    has_extension(&file_name(path), &["safetensors", "gguf", "bin", "pt", "pth"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_names_are_padded_like_the_highest() {
        let files = CheckpointFiles::Numbered {
            filename_format: "model-{}-of-{}.safetensors".into(),
            max_filename: "00002".into(),
        };
        assert_eq!(
            files.names().unwrap().unwrap(),
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        );
    }

    #[test]
    fn a_format_needs_two_placeholders_and_a_maximum_digits() {
        let names = |format: &str, max: &str| {
            let files = CheckpointFiles::Numbered { filename_format: format.into(), max_filename: max.into() };
            files.names().unwrap_err().to_string()
        };
        assert_eq!(
            names("model-{}.safetensors", "2"),
            "bad `checkpoint_files.filename_format`: `model-{}.safetensors`\n  expected exactly two placeholders `{}`, \
             found 1"
        );
        for bad in ["", "0", "x", "+2", "1000000"] {
            assert!(names("{}{}", bad).contains(&format!("found `{bad}`")));
        }
    }

    #[test]
    fn listed_names_are_read_in_sorted_order_once() {
        let files = CheckpointFiles::Listed(vec!["b".into(), "a".into(), "b".into()]);
        assert_eq!(files.names().unwrap().unwrap(), ["a", "b"]);
        assert!(matches!(CheckpointFiles::Listed(Vec::new()).names(), Err(Error::NoFilesListed)));
    }
}
