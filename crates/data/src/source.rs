//! From the config's words to files: which files hold the rows of which split, and how each is read.
//!
//! `source: json`, `csv`, `parquet` or `text` with `data_files` names the files; `source` may also be a file, a folder, or
//! the id of a dataset repository on a hub. Which files of a folder or repository count, and for which split, is decided in
//! `choose.rs`. Files of a repository are fetched into the hub's cache, those of the needed splits only.
//!
//! Errors:  `Error::Hub`, `Error::Format`, `Error::NoDataFiles`, `Error::NoFile`, `Error::NoMatch`, `Error::Address`, those
//!          of `choose.rs` and `card.rs`. Panics: never.

use std::path::{Path, PathBuf};

use hub::pattern::Pattern;
use hub::{Hub, Kind, Repo, Settings};

use crate::card::{self, CARD};
use crate::choose::{Chosen, choose};
use crate::split::Split;
use crate::tree::Tree;
use crate::{Error, Result};

/// How the rows of a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON array of objects, or one object a line; the first byte that is not white space tells which.
    Json,
    /// Records of cells below a line with the columns' names.
    Csv,
    /// Parquet.
    Parquet,
    /// A row a line, in the column `text`.
    Text,
}

/// The words of `source` that name a format.
const FORMATS: [(&str, Format); 4] =
    [("json", Format::Json), ("csv", Format::Csv), ("parquet", Format::Parquet), ("text", Format::Text)];

/// Formats of Hugging Face datasets that this version does not read.
const OTHER_FORMATS: [&str; 8] =
    ["arrow", "pandas", "xml", "webdataset", "imagefolder", "audiofolder", "videofolder", "spark"];

/// Endings of files that can be read.
const ENDINGS: [(&str, Format); 7] = [
    ("json", Format::Json),
    ("jsonl", Format::Json),
    ("ndjson", Format::Json),
    ("csv", Format::Csv),
    ("tsv", Format::Csv),
    ("parquet", Format::Parquet),
    ("txt", Format::Text),
];

impl Format {
    /// The format that a file's name says it has.
    pub(crate) fn of_name(path: &str) -> Option<Self> {
        let (_, ending) = path.rsplit('/').next().unwrap_or(path).rsplit_once('.')?;
        ENDINGS.iter().find(|(known, _)| *known == ending).map(|(_, format)| *format)
    }

    fn of_path(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        Self::of_name(&name).ok_or(Error::Format { found: name })
    }
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
    /// `json`, `csv`, `parquet`, `text`, a file, a folder, or the id of a repository.
    pub source: String,
    /// Config of the dataset: one that its card names, or a folder.
    pub name: Option<String>,
    /// Files to read, or patterns of them; needed with a format as source.
    pub data_files: Option<DataFiles>,
    /// Folder that `data_files` are relative to; null = the working directory, or the top of the dataset.
    pub data_dir: Option<String>,
    /// Branch, tag or commit of a repository; null = `main`.
    pub revision: Option<String>,
    /// What separates the cells of CSV files; null = `,`, or a tab in `.tsv` files.
    pub delimiter: Option<String>,
    /// Which rows to take, as in [`crate::split`].
    pub split: String,
    /// The hub; null = the one of the environment.
    pub hub: Option<Settings>,
}

impl SourceConfig {
    /// True where the source is the name of a format and nothing says which files.
    pub(crate) fn names_only_a_format(&self) -> bool {
        let is_format = FORMATS.iter().any(|(name, _)| *name == self.source);
        is_format && self.data_files.is_none() && self.data_dir.is_none()
    }
}

/// Files of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitFiles {
    /// Name of the split.
    pub name: String,
    /// Its files, in order; none if `split` does not mention it.
    pub files: Vec<(PathBuf, Format)>,
}

/// What a dataset's files come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// All splits; files of those that are mentioned.
    pub splits: Vec<SplitFiles>,
    /// What separates the cells of CSV files, where the config or the card says so.
    pub delimiter: Option<String>,
}

/// Finds the files of every split, and fetches those of the splits that `split` mentions.
pub fn resolve(config: &SourceConfig, split: &Split) -> Result<Resolved> {
    let source = config.source.as_str();
    let path = Path::new(source);
    let named_format = FORMATS.iter().find(|(name, _)| *name == source).map(|(_, format)| *format);
    if OTHER_FORMATS.contains(&source) {
        return Err(Error::Format { found: source.to_owned() });
    }
    if let Some(format) = named_format {
        return match (&config.data_files, &config.data_dir) {
            (Some(files), base) => listed(files, base.as_deref().map(Path::new), format, config),
            (None, Some(folder)) => {
                let config = SourceConfig { data_dir: None, ..config.clone() };
                in_tree(&Tree::folder(Path::new(folder))?, &config, Some(format), split)
            }
            (None, None) => Err(Error::NoDataFiles { format: source.to_owned() }),
        };
    }
    if path.is_dir() {
        return in_tree(&Tree::folder(path)?, config, None, split);
    }
    if path.is_file() {
        if config.data_files.is_some() {
            return Err(Error::FileAndDataFiles { path: path.to_owned() });
        }
        let file = (path.to_owned(), Format::of_path(path)?);
        return Ok(Resolved {
            splits: vec![SplitFiles { name: "train".to_owned(), files: vec![file] }],
            delimiter: config.delimiter.clone(),
        });
    }
    if looks_like_a_path(source) || !Repo::is_id(source) {
        return Err(Error::NoFile { path: path.to_owned() });
    }
    // `jsn` is a slip; nobody's dataset has such a name.
    let is_slip = config::nearest(source, FORMATS.iter().map(|(name, _)| *name)).is_some();
    if is_slip {
        return Err(Error::Format { found: source.to_owned() });
    }
    let repo = Repo::new(Kind::Dataset, source, config.revision.as_deref())?;
    let hub = open_hub(config)?;
    in_tree(&Tree::repo(hub.snapshot(&repo)?), config, None, split)
}

fn open_hub(config: &SourceConfig) -> Result<Hub> {
    let settings = config.hub.clone().map_or_else(Settings::from_env, Ok)?;
    Ok(Hub::new(settings)?)
}

/// The files of a folder or repository.
fn in_tree(tree: &Tree<'_>, config: &SourceConfig, format: Option<Format>, split: &Split) -> Result<Resolved> {
    let card = if config.data_files.is_none() && tree.paths().iter().any(|path| path == CARD) {
        let path = tree.local(CARD)?;
        let bytes = std::fs::read(&path).map_err(|cause| Error::Io { path, cause })?;
        card::configs(&String::from_utf8_lossy(&bytes), &tree.name())?
    } else {
        Vec::new()
    };
    let Chosen { splits, delimiter } = choose(tree, &card, config, format)?;
    // All files are looked at before the first is fetched.
    for path in splits.iter().filter(|(name, _)| split.mentions(name)).flat_map(|(_, paths)| paths) {
        if format.is_none() && Format::of_name(path).is_none() {
            return Err(Error::Format { found: path.clone() });
        }
    }
    let file = |path: &String| {
        let local = tree.local(path)?;
        Ok((local, Format::of_name(path).or(format).expect("checked above")))
    };
    let splits = splits.into_iter().map(|(name, paths)| {
        let files = if split.mentions(&name) { paths.iter().map(file).collect::<Result<_>>()? } else { Vec::new() };
        Ok(SplitFiles { name, files })
    });
    Ok(Resolved { splits: splits.collect::<Result<_>>()?, delimiter: config.delimiter.clone().or(delimiter) })
}

/// True for words that can only mean something on disk, so that a missing file is not taken for a name on a hub.
fn looks_like_a_path(source: &str) -> bool {
    source.starts_with(['/', '.', '~']) || Format::of_name(source).is_some() || source.matches('/').count() > 1
}

/// The files that `data_files` names beside a format. Patterns stand for the files that match them, in order.
fn listed(files: &DataFiles, base: Option<&Path>, format: Format, config: &SourceConfig) -> Result<Resolved> {
    let one = |name: &String| -> Result<Vec<(PathBuf, Format)>> {
        if name.contains("://") {
            return Err(Error::Address { address: name.clone() });
        }
        let path = base.map_or_else(|| PathBuf::from(name), |base| base.join(name));
        if path.is_file() {
            return Ok(vec![(path, format)]);
        }
        match path.to_str().filter(|text| Pattern::is_one(text)) {
            Some(pattern) => Ok(matching(pattern)?.into_iter().map(|path| (path, format)).collect()),
            None => Err(Error::NoFile { path }),
        }
    };
    let all = |names: &Vec<String>| -> Result<Vec<_>> {
        Ok(names.iter().map(one).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    };
    let splits = match files {
        DataFiles::Train(names) => vec![SplitFiles { name: "train".to_owned(), files: all(names)? }],
        DataFiles::Splits(splits) => {
            let each = splits.iter().map(|(name, names)| Ok(SplitFiles { name: name.clone(), files: all(names)? }));
            each.collect::<Result<_>>()?
        }
    };
    Ok(Resolved { splits, delimiter: config.delimiter.clone() })
}

/// The files on this disk that match a pattern; at least one.
fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let first = pattern.split('/').position(Pattern::is_one).unwrap_or(0);
    let folder: PathBuf = match pattern.split('/').take(first).collect::<Vec<_>>().join("/") {
        top if top.is_empty() && pattern.starts_with('/') => "/".into(),
        top if top.is_empty() => ".".into(),
        folder => folder.into(),
    };
    let none = || Error::NoMatch { pattern: pattern.to_owned(), place: format!("folder `{}`", folder.display()) };
    if !folder.is_dir() {
        return Err(none());
    }
    let below = pattern.split('/').skip(first).collect::<Vec<_>>().join("/");
    let below = Pattern::new(&below);
    let tree = Tree::folder(&folder)?;
    let found: Vec<_> =
        tree.paths().iter().filter(|path| below.matches_path(path)).map(|path| folder.join(path)).collect();
    if found.is_empty() { Err(none()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(source: &str, files: Option<&str>) -> SourceConfig {
        let data_files = files.map(|file| DataFiles::Train(vec![file.to_owned()]));
        SourceConfig { source: source.to_owned(), data_files, ..SourceConfig::default() }
    }

    fn train(config: &SourceConfig) -> Result<Vec<SplitFiles>> {
        Ok(resolve(config, &Split::parse("all").unwrap())?.splits)
    }

    fn error(source: &str, files: Option<&str>) -> (String, Option<String>) {
        let error = train(&config(source, files)).unwrap_err();
        (error.to_string(), error.hint())
    }

    #[test]
    fn addresses_are_refused() {
        let (message, hint) = error("json", Some("https://host/a.json"));
        assert_eq!(
            message,
            "cannot read `https://host/a.json`: files are read from this disk, or from a dataset repository of a hub"
        );
        assert_eq!(
            hint.unwrap(),
            "give the id of the repository as `source`, and the file's path in it as `data_files`"
        );
    }

    #[test]
    fn a_slip_in_a_format_is_not_asked_of_a_hub() {
        assert!(error("jsn", Some("x.json")).0.starts_with("cannot read dataset format of `jsn` in this version"));
        assert!(error("parqet", None).0.starts_with("cannot read dataset format of `parqet` in this version"));
    }

    #[test]
    fn formats_that_are_not_read() {
        let message = |found: &str| {
            format!(
                "cannot read dataset format of `{found}` in this version\n  expected `json` (array or one object a line), `csv`, `parquet`, `text`, or files ending in .json, .jsonl, .csv, .tsv, .parquet, .txt"
            )
        };
        assert_eq!(error("arrow", Some("x.arrow")).0, message("arrow"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.xml");
        std::fs::write(&file, "<a/>").unwrap();
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
            format!(
                "no data files in folder `{path}`\n  expected files ending in .json, .jsonl, .csv, .tsv, .parquet or .txt, found none"
            )
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
        let splits = train(&config(folder.path().to_str().unwrap(), None)).unwrap();
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
        for name in ["b.ndjson", "a.jsonl"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let splits = train(&config(folder.path().to_str().unwrap(), None)).unwrap();
        assert_eq!(splits.len(), 1);
        assert_eq!(splits[0].files.iter().map(|f| f.1).collect::<Vec<_>>(), [Format::Json; 2]);
    }

    #[test]
    fn patterns_stand_for_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("x")).unwrap();
        for name in ["b.jsonl", "a.jsonl", "a.csv", "x/c.jsonl"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = |pattern: &str| {
            let pattern = format!("{}/{pattern}", folder.path().display());
            let splits = train(&config("json", Some(&pattern))).map_err(|error| error.to_string())?;
            let names =
                splits[0].files.iter().map(|(path, _)| path.strip_prefix(folder.path()).unwrap().display().to_string());
            Ok::<_, String>(names.collect::<Vec<_>>())
        };
        assert_eq!(found("*.jsonl").unwrap(), ["a.jsonl", "b.jsonl"]);
        assert_eq!(found("**/*.jsonl").unwrap(), ["a.jsonl", "b.jsonl", "x/c.jsonl"]);
        assert_eq!(found("[b]*").unwrap(), ["b.jsonl"]);
        assert!(found("*.txt").unwrap_err().starts_with("no file in folder `"));
        assert!(found("nowhere/*.txt").unwrap_err().contains("matches `"));
    }

    #[test]
    fn files_of_splits_that_are_not_mentioned_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["train.json", "test.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let config = config(folder.path().to_str().unwrap(), None);
        let splits = resolve(&config, &Split::parse("train").unwrap()).unwrap().splits;
        let counts: Vec<_> = splits.iter().map(|split| (split.name.as_str(), split.files.len())).collect();
        assert_eq!(counts, [("train", 1), ("test", 0)]);
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
            ..SourceConfig::default()
        };
        let resolved = train(&config).unwrap();
        assert_eq!((resolved[0].files.len(), resolved[1].files.len()), (1, 2));
        assert_eq!(resolved[1].name, "test");
    }
}
