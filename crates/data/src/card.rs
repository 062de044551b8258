//! The head of a dataset's `README.md`: which configs it has, and which files belong to them.
//!
//! ```text
//! ---
//! configs:
//! - config_name: main
//!   default: true
//!   data_dir: v2              # optional; paths below are relative to it
//!   data_files:               # a pattern, a list of patterns, or one entry a split
//!   - split: train
//!     path: [data/train-*, data/more.json]
//! ---
//! ```
//!
//! Errors:  `Error::Card`. Panics: never.

use config::{Node, Written};

use crate::source::DataFiles;
use crate::{Error, Result};

/// The file.
pub(crate) const CARD: &str = "README.md";

/// A config that a card names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CardConfig {
    pub name: String,
    pub is_default: bool,
    pub data_dir: Option<String>,
    pub data_files: Option<DataFiles>,
    /// What separates the cells of its CSV files.
    pub delimiter: Option<String>,
}

/// The configs that a card names, in order; none if it has no head.
pub(crate) fn configs(text: &str, place: &str) -> Result<Vec<CardConfig>> {
    let Some(head) = head(text) else { return Ok(Vec::new()) };
    let fault = |reason: String| Error::Card { place: place.to_owned(), reason };
    let written = Written::parse(CARD, head).map_err(|cause| fault(cause.to_string()))?;
    let Some(configs) = written.root().get("configs").and_then(Node::as_list) else { return Ok(Vec::new()) };
    configs
        .iter()
        .map(|config| {
            let text = |key: &str| config.get(key).and_then(scalar);
            let name = text("config_name").unwrap_or_else(|| "default".to_owned());
            let data_files = match config.get("data_files").filter(|files| !files.is_null()) {
                None => None,
                Some(files) => {
                    let read = data_files(files);
                    Some(read.ok_or_else(|| {
                        fault(format!(
                            "config `{name}`: expected patterns, or entries of `split` and `path`, in `data_files`"
                        ))
                    })?)
                }
            };
            Ok(CardConfig {
                is_default: text("default").is_some_and(|value| value.eq_ignore_ascii_case("true")),
                data_dir: text("data_dir"),
                data_files,
                delimiter: text("sep").or_else(|| text("delimiter")),
                name,
            })
        })
        .collect()
}

/// The YAML between the `---` that a text begins with and the next one.
fn head(text: &str) -> Option<&str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let body = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n"))?;
    let mut end = 0;
    for line in body.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&body[..end]);
        }
        end += line.len();
    }
    None
}

fn data_files(node: &Node) -> Option<DataFiles> {
    let splits = |entries: &mut dyn Iterator<Item = Option<(String, Vec<String>)>>| {
        let mut splits: Vec<(String, Vec<String>)> = Vec::new();
        for entry in entries {
            let (name, patterns) = entry?;
            match splits.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => known.extend(patterns),
                None => splits.push((name, patterns)),
            }
        }
        Some(DataFiles::Splits(splits))
    };
    if let Some(map) = node.as_map() {
        return splits(&mut map.iter().map(|(split, node)| Some((split.as_str().to_owned(), patterns(node)?))));
    }
    match node.as_list() {
        Some(list) if list.iter().any(|entry| entry.as_map().is_some()) => {
            splits(&mut list.iter().map(|entry| Some((scalar(entry.get("split")?)?, patterns(entry.get("path")?)?))))
        }
        _ => patterns(node).map(DataFiles::Train),
    }
}

fn patterns(node: &Node) -> Option<Vec<String>> {
    match node.as_list() {
        Some(list) => list.iter().map(scalar).collect(),
        None => scalar(node).map(|pattern| vec![pattern]),
    }
}

/// A scalar's text as it is written: a config may be called `1.0`.
fn scalar(node: &Node) -> Option<String> {
    if node.is_null() {
        return None;
    }
    node.raw().or_else(|| node.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(yaml: &str) -> CardConfig {
        configs(&format!("---\nlicense: mit\nconfigs:\n{yaml}\n---\n# Rows\n"), "here").unwrap().remove(0)
    }

    #[test]
    fn a_card_without_configs() {
        for text in ["", "# Rows", "---\nlicense: mit\n---\n", "---\nnever closed", "---\n---\n", "--- \n---\n"] {
            assert_eq!(configs(text, "here").unwrap(), [], "{text}");
        }
    }

    #[test]
    fn files_in_all_their_forms() {
        let train = |patterns: &[&str]| Some(DataFiles::Train(patterns.iter().map(|&p| p.to_owned()).collect()));
        assert_eq!(one("- config_name: a\n  data_files: x/*.json").data_files, train(&["x/*.json"]));
        assert_eq!(one("- config_name: a\n  data_files: [x, y]").data_files, train(&["x", "y"]));
        let splits = |splits: &[(&str, &[&str])]| {
            let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
            Some(DataFiles::Splits(splits.iter().map(|(name, files)| ((*name).to_owned(), owned(files))).collect()))
        };
        assert_eq!(
            one("- config_name: a\n  data_files:\n  - split: train\n    path: x\n  - split: test\n    path:\n    - y\n    - z").data_files,
            splits(&[("train", &["x"]), ("test", &["y", "z"])])
        );
        assert_eq!(one("- data_files: {train: x}").data_files, splits(&[("train", &["x"])]));
        assert_eq!(one("- config_name: a").data_files, None);
    }

    #[test]
    fn the_rest_of_a_config() {
        let config = one("- config_name: 3.0.0\n  default: true\n  data_dir: v3\n  sep: \"\\t\"");
        assert_eq!((config.name.as_str(), config.is_default, config.data_dir.as_deref()), ("3.0.0", true, Some("v3")));
        assert_eq!(config.delimiter.as_deref(), Some("\t"));
        let config = one("- data_files: x");
        assert_eq!((config.name.as_str(), config.is_default), ("default", false));
    }

    #[test]
    fn cards_that_cannot_be_read() {
        let error = |text: &str| configs(text, "folder `x`").unwrap_err().to_string();
        assert!(error("---\na: [\n---\n").starts_with("cannot read the head of `README.md` in folder `x`\n  "));
        assert_eq!(
            error("---\nconfigs:\n- config_name: a\n  data_files: [{split: train}]\n---\n"),
            "cannot read the head of `README.md` in folder `x`\n  config `a`: expected patterns, or entries of `split` and `path`, in `data_files`"
        );
    }
}
