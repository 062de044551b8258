//! From the config's words to files: which files hold the rows of which split, and how each is read.
//!
//! `source: json` or `text` with `data_files` names the files; `source` may also be a file, or a folder, whose files
//! then belong to the split that their names mention (`train.jsonl`, `my-test.json`), or all to `train`.
//!
//! Errors:  `Error::Hub`, `Error::Format`, `Error::NoDataFiles`, `Error::NoFile`, `Error::EmptyFolder`. Panics: never.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// How the rows of a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON array of objects, or one object a line; the first byte that is not white space tells which.
    Json,
    /// A row a line, in the column `text`.
    Text,
}

/// The value of `data_files`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataFiles {
    /// Files of the split `train`.
    Train(Vec<String>),
    /// Files of several splits, by name, in the order written.
    Splits(Vec<(String, Vec<String>)>),
}

/// The keys of a dataset section that say where rows come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceConfig {
    /// `json`, `text`, a file, or a folder.
    pub source: String,
    /// Files to read; needed with `json` and `text`.
    pub data_files: Option<DataFiles>,
    /// Folder that `data_files` are relative to; null = the working directory.
    pub data_dir: Option<String>,
    /// Which rows to take, as in [`crate::split`].
    pub split: String,
}

/// Files of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitFiles {
    /// Name of the split.
    pub name: String,
    /// Its files, in order.
    pub files: Vec<(PathBuf, Format)>,
}

/// Formats of Hugging Face datasets that this version does not read.
const OTHER_FORMATS: [&str; 7] = ["csv", "parquet", "arrow", "pandas", "xml", "webdataset", "imagefolder"];

/// Words in a file's name that put it into a split.
const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Finds the files of every split.
pub fn resolve(config: &SourceConfig) -> Result<Vec<SplitFiles>> {
    let source = config.source.as_str();
    let named_format = match source {
        "json" => Some(Format::Json),
        "text" => Some(Format::Text),
        _ if OTHER_FORMATS.contains(&source) => return Err(Error::Format { found: source.to_owned() }),
        _ => None,
    };
    let path = Path::new(source);
    let base = config.data_dir.as_ref().map(PathBuf::from);
    match (named_format, &config.data_files) {
        (Some(format), Some(files)) => listed(files, base.as_deref(), Some(format)),
        (Some(format), None) => match base {
            Some(folder) => scan(&folder, Some(format)),
            None => Err(Error::NoDataFiles { format: source.to_owned() }),
        },
        (None, files) if path.is_dir() => {
            let folder = base.map_or_else(|| path.to_owned(), |base| path.join(base));
            files.as_ref().map_or_else(|| scan(&folder, None), |files| listed(files, Some(&folder), None))
        }
        (None, Some(_)) if !looks_like_a_path(source) => Err(Error::Hub { name: source.to_owned() }),
        (None, None) if path.is_file() => {
            let file = (path.to_owned(), format_of(path)?);
            Ok(vec![SplitFiles { name: "train".to_owned(), files: vec![file] }])
        }
        (None, Some(_)) if path.is_file() => Err(Error::FileAndDataFiles { path: path.to_owned() }),
        (None, _) if looks_like_a_path(source) => Err(Error::NoFile { path: path.to_owned() }),
        (None, _) => Err(Error::Hub { name: source.to_owned() }),
    }
}

/// True for words that can only mean something on disk, so that a missing file is not taken for a name on a hub.
fn looks_like_a_path(source: &str) -> bool {
    source.starts_with(['/', '.', '~'])
        || Path::new(source)
            .extension()
            .is_some_and(|e| ["json", "jsonl", "txt", "csv", "parquet"].iter().any(|&x| e == x))
        || source.matches('/').count() > 1
}

fn listed(files: &DataFiles, base: Option<&Path>, format: Option<Format>) -> Result<Vec<SplitFiles>> {
    let resolve = |names: &Vec<String>| -> Result<Vec<(PathBuf, Format)>> {
        let one = |name: &String| {
            if name.contains("://") {
                return Err(Error::Hub { name: name.clone() });
            }
            let path = base.map_or_else(|| PathBuf::from(name), |base| base.join(name));
            if !path.is_file() {
                return Err(Error::NoFile { path });
            }
            let format = format.map_or_else(|| format_of(&path), Ok)?;
            Ok((path, format))
        };
        names.iter().map(one).collect()
    };
    match files {
        DataFiles::Train(names) => Ok(vec![SplitFiles { name: "train".to_owned(), files: resolve(names)? }]),
        DataFiles::Splits(splits) => {
            splits.iter().map(|(name, names)| Ok(SplitFiles { name: name.clone(), files: resolve(names)? })).collect()
        }
    }
}

fn format_of(path: &Path) -> Result<Format> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json" | "jsonl") => Ok(Format::Json),
        Some("txt") => Ok(Format::Text),
        _ => Err(Error::Format { found: path.display().to_string() }),
    }
}

/// The data files of a folder, by split. Only files of a known extension count; a hidden file or subfolder does not.
fn scan(folder: &Path, format: Option<Format>) -> Result<Vec<SplitFiles>> {
    let entries = std::fs::read_dir(folder).map_err(|cause| Error::Io { path: folder.to_owned(), cause })?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|cause| Error::Io { path: folder.to_owned(), cause })?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let Ok(found) = format_of(&path) else { continue };
        if path.is_file() && !hidden && format.is_none_or(|format| format == found) {
            files.push((path, found));
        }
    }
    if files.is_empty() {
        return Err(Error::EmptyFolder { path: folder.to_owned() });
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let mut splits = Vec::new();
    for (name, words) in SPLIT_WORDS {
        let files: Vec<_> = files.iter().filter(|(path, _)| mentions(path, words)).cloned().collect();
        if !files.is_empty() {
            splits.push(SplitFiles { name: name.to_owned(), files });
        }
    }
    if splits.is_empty() {
        splits.push(SplitFiles { name: "train".to_owned(), files });
    }
    Ok(splits)
}

/// True if one of the words stands by itself in the file's name.
fn mentions(path: &Path, words: &[&str]) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| words.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(source: &str, files: Option<&str>) -> SourceConfig {
        let data_files = files.map(|file| DataFiles::Train(vec![file.to_owned()]));
        SourceConfig { source: source.to_owned(), data_files, ..SourceConfig::default() }
    }

    fn error(source: &str, files: Option<&str>) -> (String, Option<String>) {
        let error = resolve(&config(source, files)).unwrap_err();
        (error.to_string(), error.hint())
    }

    #[test]
    fn names_on_a_hub_are_refused() {
        let hint = Some("give `source: json` and `data_files: <path>`".to_owned());
        for (source, files) in [("tatsu-lab/alpaca", None), ("squad", None), ("yahma/alpaca-cleaned", Some("x.json"))] {
            let expected = format!(
                "cannot read dataset `{source}`: reading datasets from a hub is not available yet in this version"
            );
            assert_eq!(error(source, files), (expected, hint.clone()));
        }
        assert!(error("json", Some("https://host/a.json")).0.starts_with("cannot read dataset `https://host/a.json`"));
    }

    #[test]
    fn formats_that_are_not_read() {
        let message = |found: &str| {
            format!(
                "cannot read dataset format of `{found}` in this version\n  expected `json` (array or one object a line), `text`, or files ending in .json, .jsonl, .txt"
            )
        };
        assert_eq!(error("csv", Some("x.csv")).0, message("csv"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        std::fs::write(&file, "a,b\n").unwrap();
        assert_eq!(error(file.to_str().unwrap(), None).0, message(file.to_str().unwrap()));
    }

    #[test]
    fn missing_things() {
        assert_eq!(error("json", None).0, "`source: json` needs `data_files`");
        assert_eq!(error("json", Some("nowhere/x.json")).0, "no dataset file `nowhere/x.json`");
        assert_eq!(error("./x.json", None).0, "no dataset file `./x.json`");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        assert_eq!(
            error(&path, None).0,
            format!("no data files in folder `{path}`\n  expected files ending in .json, .jsonl or .txt")
        );
        let file = folder.path().join("a.json");
        std::fs::write(&file, "[]").unwrap();
        assert_eq!(
            error(file.to_str().unwrap(), Some("b.json")).0,
            format!(
                "`source` is the file `{}`, and `data_files` is set too\n  expected one of the two",
                file.display()
            )
        );
    }

    #[test]
    fn a_folder_by_split() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b-train.jsonl", "a_train.json", "test.json", "restrained.json", "notes.md", ".hidden.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let splits = resolve(&config(folder.path().to_str().unwrap(), None)).unwrap();
        let names: Vec<_> = splits
            .iter()
            .map(|s| {
                (
                    s.name.as_str(),
                    s.files.iter().map(|f| f.0.file_name().unwrap().to_str().unwrap()).collect::<Vec<_>>(),
                )
            })
            .collect();
        assert_eq!(names, [("train", vec!["a_train.json", "b-train.jsonl"]), ("test", vec!["test.json"])]);
    }

    #[test]
    fn a_folder_without_split_names_is_all_train() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.jsonl"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let splits = resolve(&config(folder.path().to_str().unwrap(), None)).unwrap();
        assert_eq!(splits.len(), 1);
        assert_eq!(splits[0].files.iter().map(|f| f.1).collect::<Vec<_>>(), [Format::Json, Format::Text]);
    }

    #[test]
    fn files_by_split_relative_to_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.data"), "").unwrap();
        let splits =
            vec![("train".to_owned(), vec!["a.data".to_owned()]), ("test".to_owned(), vec!["a.data".to_owned(); 2])];
        let config = SourceConfig {
            source: "json".to_owned(),
            data_files: Some(DataFiles::Splits(splits)),
            data_dir: Some(folder.path().display().to_string()),
            split: "train".to_owned(),
        };
        let resolved = resolve(&config).unwrap();
        assert_eq!((resolved[0].files.len(), resolved[1].files.len()), (1, 2));
        assert_eq!(resolved[1].name, "test");
    }
}
