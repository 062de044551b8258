//! Which files of a dataset belong to which split.
//!
//! By order: the config's `data_files`; the configs of the dataset's card (`card.rs`), or the folder that `name` names; else
//! the names of files and folders:
//!
//! 1. `data/<split>-00000-of-00001*.*`: any splits, if there is one file of this form;
//! 2. words in a file's name, or in those of its folders: `train`, `training`; `validation`, `valid`, `val`, `dev`; `test`,
//!    `testing`, `eval`, `evaluation`;
//! 3. all of them are `train`.
//!
//! Where names decide, files of the most frequent format count, so that a stray list of words or requirements is no row;
//! plain text counts only where nothing else is there.
//!
//! Errors:  `Error::NoMatch`, `Error::UnknownConfig`, `Error::ConfigNeeded`, `Error::NoDataFilesIn`. Panics: never.
//! Source:  the behaviour of Hugging Face datasets.

use hub::pattern::Pattern;

use crate::card::CardConfig;
use crate::source::{DataFiles, Format, SourceConfig};
use crate::tree::Tree;
use crate::{Error, Result};

/// Words that put a file into a split.
const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Files that speak about a dataset and hold no rows.
const NO_ROWS: [&str; 6] =
    ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

/// Splits and the paths of their files.
pub(crate) type Splits = Vec<(String, Vec<String>)>;

/// The chosen files, and what separates the cells of CSV files if the card says so.
pub(crate) struct Chosen {
    pub splits: Splits,
    pub delimiter: Option<String>,
}

/// Chooses the files of a dataset; `format` leaves only files of one.
pub(crate) fn choose(
    tree: &Tree<'_>,
    card: &[CardConfig],
    config: &SourceConfig,
    format: Option<Format>,
) -> Result<Chosen> {
    let base = folder(config.data_dir.as_deref());
    let by_name = |base: &str| Ok(Chosen { splits: by_name(tree, base, format)?, delimiter: None });
    if let Some(files) = &config.data_files {
        return Ok(Chosen { splits: listed(tree, files, &base)?, delimiter: None });
    }
    // A folder asked for by itself is not what the card speaks of.
    if !card.is_empty() && (config.data_dir.is_none() || config.name.is_some()) {
        let chosen = pick(card, config.name.as_deref(), tree)?;
        let base = base + &folder(chosen.data_dir.as_deref());
        let splits = match &chosen.data_files {
            Some(files) => listed(tree, files, &base)?,
            None => self::by_name(tree, &base, format)?,
        };
        return Ok(Chosen { splits, delimiter: chosen.delimiter.clone() });
    }
    let folders = folders(tree, &base);
    match &config.name {
        Some(name) if folders.iter().any(|folder| folder == name) => by_name(&format!("{base}{name}/")),
        Some(name) if name == "default" && !tree.is_conversion() => by_name(&base),
        Some(name) => Err(Error::UnknownConfig { name: name.clone(), place: tree.name(), found: folders }),
        None if tree.is_conversion() => match folders.as_slice() {
            [only] => by_name(&format!("{base}{only}/")),
            _ => Err(Error::ConfigNeeded { place: tree.name(), found: folders }),
        },
        None => by_name(&base),
    }
}

/// A folder as the beginning of paths: empty, or with a slash at its end.
fn folder(data_dir: Option<&str>) -> String {
    let parts = data_dir.unwrap_or_default().split('/').filter(|part| !matches!(*part, "" | "."));
    parts.fold(String::new(), |path, part| path + part + "/")
}

/// The config of that name, or the one that counts without a name.
fn pick<'a>(card: &'a [CardConfig], name: Option<&str>, tree: &Tree<'_>) -> Result<&'a CardConfig> {
    let found = || card.iter().map(|config| config.name.clone()).collect();
    if let Some(name) = name {
        let known = card.iter().find(|config| config.name == name);
        return known.ok_or_else(|| Error::UnknownConfig { name: name.to_owned(), place: tree.name(), found: found() });
    }
    let default = card.iter().find(|config| config.is_default);
    match (default.or_else(|| card.iter().find(|config| config.name == "default")), card) {
        (Some(config), _) | (None, [config]) => Ok(config),
        _ => Err(Error::ConfigNeeded { place: tree.name(), found: found() }),
    }
}

/// The files that patterns below `base` name.
fn listed(tree: &Tree<'_>, files: &DataFiles, base: &str) -> Result<Splits> {
    let matching = |patterns: &[String]| -> Result<Vec<String>> {
        let mut paths: Vec<String> = Vec::new();
        for text in patterns {
            let relative = text.strip_prefix("./").unwrap_or(text);
            let pattern = Pattern::new(&format!("{base}{relative}"));
            let is_pattern = Pattern::is_one(relative);
            let found = tree.paths().iter().filter(|path| {
                pattern.matches_path(path) && (!is_pattern || holds_rows(path)) && !paths.contains(path)
            });
            let found: Vec<String> = found.cloned().collect();
            if found.is_empty() && !paths.iter().any(|path| pattern.matches_path(path)) {
                return Err(Error::NoMatch { pattern: format!("{base}{relative}"), place: tree.name() });
            }
            paths.extend(found);
        }
        Ok(paths)
    };
    match files {
        DataFiles::Train(patterns) => Ok(vec![("train".to_owned(), matching(patterns)?)]),
        DataFiles::Splits(splits) => {
            splits.iter().map(|(name, patterns)| Ok((name.clone(), matching(patterns)?))).collect()
        }
    }
}

/// Whether a file may hold rows, going by its name.
fn holds_rows(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    !NO_ROWS.contains(&name) && !path.split('/').any(|part| part.starts_with('.') || part.starts_with("__"))
}

/// The splits by the names of the files below `base`.
fn by_name(tree: &Tree<'_>, base: &str, format: Option<Format>) -> Result<Splits> {
    let below = |path: &&String| path.starts_with(base) && holds_rows(&path[base.len()..]);
    let files: Vec<(&String, Format)> = tree
        .paths()
        .iter()
        .filter(below)
        .filter_map(|path| Some((path, Format::of_name(path)?)))
        .filter(|(_, found)| format.is_none_or(|format| format == *found))
        .collect();
    if files.is_empty() {
        let others = tree.paths().iter().filter(below).cloned().collect();
        return Err(Error::NoDataFilesIn { place: tree.name(), others, is_repo: tree.is_repo() });
    }
    for rule in [shard_split, word_split] {
        let mut splits: Vec<(String, Vec<(String, Format)>)> = Vec::new();
        for &(path, format) in &files {
            let Some(split) = rule(&path[base.len()..]) else { continue };
            let file = (path.clone(), format);
            match splits.iter_mut().find(|(name, _)| name == split) {
                Some((_, files)) => files.push(file),
                None => splits.push((split.to_owned(), vec![file])),
            }
        }
        if !splits.is_empty() {
            return Ok(of_one_format(splits));
        }
    }
    let all = files.into_iter().map(|(path, format)| (path.clone(), format)).collect();
    Ok(of_one_format(vec![("train".to_owned(), all)]))
}

/// The splits with files of the most frequent format only, in the order train, validation, test, others.
fn of_one_format(splits: Vec<(String, Vec<(String, Format)>)>) -> Splits {
    let files = || splits.iter().flat_map(|(_, files)| files);
    let count = |format: Format| files().filter(|(_, found)| *found == format).count();
    // Of equals the last one wins.
    let most = [Format::Csv, Format::Json, Format::Parquet].into_iter().max_by_key(|&format| count(format));
    let format = most.filter(|&format| count(format) > 0).unwrap_or(Format::Text);
    let rank = |name: &str| SPLIT_WORDS.iter().position(|(split, _)| *split == name).unwrap_or(SPLIT_WORDS.len());
    let mut splits: Splits = splits
        .into_iter()
        .map(|(name, files)| (name, files.into_iter().filter(|file| file.1 == format).map(|file| file.0).collect()))
        .filter(|(_, files): &(String, Vec<String>)| !files.is_empty())
        .collect();
    splits.sort_by_key(|(name, _)| rank(name));
    splits
}

/// The split of `data/<split>-00000-of-00001*.*`.
fn shard_split(path: &str) -> Option<&str> {
    let name = path.strip_prefix("data/").filter(|name| !name.contains('/'))?;
    let digits = |text: &str| text.len() >= 5 && text.as_bytes()[..5].iter().all(u8::is_ascii_digit);
    // A split's name may hold `-of-` itself: the last one counts.
    let (before, after) = name.rsplit_once("-of-")?;
    let (split, shard) = before.rsplit_once('-')?;
    let is_name = split.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
    (digits(after) && shard.len() == 5 && digits(shard) && after.contains('.') && !split.is_empty() && is_name)
        .then_some(split)
}

/// The split that a word of a file's name, or of the nearest folder's, puts it into.
fn word_split(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(|part| {
        let words: Vec<&str> = part.split(|c: char| !c.is_ascii_alphabetic()).collect();
        SPLIT_WORDS.iter().find(|(_, keywords)| words.iter().any(|word| keywords.contains(word))).map(|(name, _)| *name)
    })
}

/// Names of the folders directly below `base` that hold files.
fn folders(tree: &Tree<'_>, base: &str) -> Vec<String> {
    let first = |path: &String| Some(path.strip_prefix(base)?.split_once('/')?.0.to_owned());
    let mut folders: Vec<String> = tree.paths().iter().filter(|path| holds_rows(path)).filter_map(first).collect();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits and files of a folder with these files, as `train: a b; test: c`.
    fn chosen_with(files: &[&str], card: &[CardConfig], config: &SourceConfig) -> std::result::Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let tree = Tree::folder(folder.path()).unwrap();
        match choose(&tree, card, config, None) {
            Ok(chosen) => {
                let splits = chosen.splits.iter().map(|(name, files)| format!("{name}: {}", files.join(" ")));
                Ok(splits.collect::<Vec<_>>().join("; "))
            }
            Err(error) => Err(error.to_string().replace(&format!("folder `{}`", folder.path().display()), "HERE")),
        }
    }

    fn chosen(files: &[&str]) -> String {
        chosen_with(files, &[], &SourceConfig::default()).unwrap()
    }

    #[test]
    fn shards_name_their_split() {
        let files = [
            "data/train_sft-00000-of-00002-a09b.parquet",
            "data/train_sft-00001-of-00002-cc.parquet",
            "data/test-00000-of-00001.parquet",
            "extra/train.json",
        ];
        assert_eq!(
            chosen(&files),
            "test: data/test-00000-of-00001.parquet; train_sft: data/train_sft-00000-of-00002-a09b.parquet data/train_sft-00001-of-00002-cc.parquet"
        );
    }

    #[test]
    fn words_name_splits() {
        assert_eq!(
            chosen(&["my-train.jsonl", "my_test.jsonl", "dev.jsonl", "other.jsonl"]),
            "train: my-train.jsonl; validation: dev.jsonl; test: my_test.jsonl"
        );
        assert_eq!(chosen(&["train/a.csv", "test/b.csv"]), "train: train/a.csv; test: test/b.csv");
        assert_eq!(chosen(&["train1.json", "train2.json"]), "train: train1.json train2.json");
        // The file's own name counts before its folder's; `restrained` is another word.
        assert_eq!(chosen(&["train/eval.json", "train/x.json"]), "train: train/x.json; test: train/eval.json");
        assert_eq!(chosen(&["restrained.json", "latest.json"]), "train: latest.json restrained.json");
    }

    #[test]
    fn the_most_frequent_format_counts() {
        assert_eq!(chosen(&["a.json", "b.json", "words.csv", "requirements.txt"]), "train: a.json b.json");
        assert_eq!(chosen(&["a.json", "b.csv", "c.parquet"]), "train: c.parquet");
        assert_eq!(chosen(&["a.txt", "b.txt", "c.csv"]), "train: c.csv");
        assert_eq!(chosen(&["a.txt", "b.txt"]), "train: a.txt b.txt");
        assert_eq!(
            chosen(&["README.md", "dataset_infos.json", "config.json", "__x/a.json", "b.json"]),
            "train: b.json"
        );
    }

    #[test]
    fn configured_files_and_folders() {
        let files = ["a/x.json", "a/y.json", "a/b/z.json", "x.json"];
        let config = |data_dir: Option<&str>, patterns: &[&str]| SourceConfig {
            data_dir: data_dir.map(str::to_owned),
            data_files: Some(DataFiles::Train(patterns.iter().map(|&p| p.to_owned()).collect())),
            ..SourceConfig::default()
        };
        assert_eq!(
            chosen_with(&files, &[], &config(None, &["**/*.json"])).unwrap(),
            "train: a/b/z.json a/x.json a/y.json x.json"
        );
        assert_eq!(chosen_with(&files, &[], &config(Some("./a/"), &["*.json"])).unwrap(), "train: a/x.json a/y.json");
        assert_eq!(
            chosen_with(&files, &[], &config(None, &["./a/y.json", "a/*.json"])).unwrap(),
            "train: a/y.json a/x.json"
        );
        assert_eq!(
            chosen_with(&files, &[], &config(Some("a"), &["w*.json"])).unwrap_err(),
            "no file in HERE matches `a/w*.json`"
        );
        let folder = SourceConfig { data_dir: Some("a".to_owned()), ..SourceConfig::default() };
        assert_eq!(chosen_with(&files, &[], &folder).unwrap(), "train: a/b/z.json a/x.json a/y.json");
    }

    fn card(name: &str, is_default: bool, files: Option<&str>) -> CardConfig {
        let data_files = files.map(|file| DataFiles::Train(vec![file.to_owned()]));
        CardConfig { name: name.to_owned(), is_default, data_dir: None, data_files, delimiter: None }
    }

    fn named(name: &str) -> SourceConfig {
        SourceConfig { name: Some(name.to_owned()), ..SourceConfig::default() }
    }

    #[test]
    fn the_card_s_configs() {
        let files = ["a.json", "b.json"];
        let both = [card("a", false, Some("a.json")), card("b", true, Some("b*"))];
        assert_eq!(chosen_with(&files, &both, &SourceConfig::default()).unwrap(), "train: b.json");
        assert_eq!(chosen_with(&files, &both, &named("a")).unwrap(), "train: a.json");
        assert_eq!(chosen_with(&files, &both[..1], &SourceConfig::default()).unwrap(), "train: a.json");
        assert_eq!(
            chosen_with(&files, &both, &named("c")).unwrap_err(),
            "no config `c` in HERE\n  expected one of `a`, `b`"
        );
        let neither = [card("a", false, None), card("b", false, None)];
        assert_eq!(
            chosen_with(&files, &neither, &SourceConfig::default()).unwrap_err(),
            "HERE has several configs, and none is the default\n  expected `name` to be one of `a`, `b`"
        );
        assert_eq!(chosen_with(&files, &neither, &named("a")).unwrap(), "train: a.json b.json");
        let default = [card("a", false, Some("a.json")), card("default", false, Some("b.json"))];
        assert_eq!(chosen_with(&files, &default, &SourceConfig::default()).unwrap(), "train: b.json");
    }

    #[test]
    fn a_name_without_a_card_is_a_folder() {
        let files = ["en/train.json", "de/train.json"];
        assert_eq!(chosen_with(&files, &[], &named("de")).unwrap(), "train: de/train.json");
        assert_eq!(chosen_with(&files, &[], &named("default")).unwrap(), "train: de/train.json en/train.json");
        assert_eq!(
            chosen_with(&files, &[], &named("fr")).unwrap_err(),
            "no config `fr` in HERE\n  expected one of `de`, `en`"
        );
    }

    #[test]
    fn nothing_that_can_be_read() {
        let message = |files: &[&str]| chosen_with(files, &[], &SourceConfig::default()).unwrap_err();
        let head =
            "no data files in HERE\n  expected files ending in .json, .jsonl, .csv, .tsv, .parquet or .txt, found ";
        assert_eq!(message(&[]), format!("{head}none"));
        assert_eq!(
            message(&["rows.py", "README.md", "data/a.json.gz", "data/b.json.gz", "c.arrow"]),
            format!("{head}`c.arrow`, `data/a.json.gz`, `data/b.json.gz`, `rows.py`")
        );
    }
}
