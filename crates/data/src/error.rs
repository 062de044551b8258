//! Everything that can be wrong with a dataset; all of it is found before training starts.

use std::io;
use std::path::PathBuf;

use crate::row::{quoted, shortened};
use crate::rows::Place;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A problem with a dataset, its files or its configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is wrong with the rows of one section of the config.
    #[error("{source}\n  in section `{key}`")]
    Section {
        /// The section's key, `dataset` or `dataset[1]`.
        key: String,
        /// What is wrong.
        source: Box<Error>,
    },
    /// The operating system refused.
    #[error("cannot read `{}`", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A file named in the config does not exist.
    #[error("no dataset file `{}`", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// A folder or repository without a file that could hold rows.
    #[error(
        "no data files in {place}\n  expected files ending in .json, .jsonl, .csv, .tsv, .parquet or .txt, found {}",
        some_of(others)
    )]
    NoDataFilesIn {
        /// The folder or repository.
        place: String,
        /// The files it has instead.
        others: Vec<String>,
        /// Whether it is a repository.
        is_repo: bool,
    },
    /// A pattern without a file.
    #[error("no file in {place} matches `{pattern}`")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The folder or repository.
        place: String,
    },
    /// A dataset without the config asked for.
    #[error("no config `{name}` in {place}\n  expected {}", one_of(found))]
    UnknownConfig {
        /// The name asked for.
        name: String,
        /// The folder or repository.
        place: String,
        /// The configs there are.
        found: Vec<String>,
    },
    /// A dataset of which a part has to be named.
    #[error("{place} has several configs, and none is the default\n  expected `name` to be {}", one_of(found))]
    ConfigNeeded {
        /// The folder or repository.
        place: String,
        /// The configs there are.
        found: Vec<String>,
    },
    /// The head of a dataset's card makes no sense.
    #[error("cannot read the head of `README.md` in {place}\n  {reason}")]
    Card {
        /// The folder or repository.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A dataset on a hub.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// A file somewhere on the web.
    #[error("cannot read `{address}`: files are read from this disk, or from a dataset repository of a hub")]
    Address {
        /// Its address.
        address: String,
    },
    /// A file format without a reader.
    #[error(
        "cannot read dataset format of `{found}` in this version\n  expected `json` (array or one object a line), `csv`, {}`text`, or files ending in .json, .jsonl, .csv, .tsv, {}.txt",
        if cfg!(feature = "parquet") { "`parquet`, " } else { "" },
        if cfg!(feature = "parquet") { ".parquet, " } else { "" }
    )]
    Format {
        /// Format or file.
        found: String,
    },
    /// `source: json` without files.
    #[error("`source: {format}` needs `data_files`")]
    NoDataFiles {
        /// The format named as source.
        format: String,
    },
    /// Both a file as source and `data_files`.
    #[error("`source` is the file `{}`, and `data_files` is set too\n  expected one of the two", path.display())]
    FileAndDataFiles {
        /// The file.
        path: PathBuf,
    },
    /// A split string outside the grammar.
    #[error(
        "cannot read `split: {split}`\n  expected parts like `train`, `train[:1000]`, `train[95%:]` or `train[-10:]`, joined by `+`, found `{part}`"
    )]
    Split {
        /// The whole string.
        split: String,
        /// The part that could not be read.
        part: String,
    },
    /// A split that no file belongs to.
    #[error("no split `{name}` for `split: {split}`\n  expected one of {}", quoted(found.iter().map(String::as_str)))]
    UnknownSplit {
        /// The whole split string.
        split: String,
        /// The name in it.
        name: String,
        /// Names there are.
        found: Vec<String>,
    },
    /// A selection without rows.
    #[error("no rows in {}\n  `split: {split}` takes 0 of {rows} rows", quoted(files.iter().map(|f| f.to_str().unwrap_or("?"))))]
    NoRows {
        /// Files read.
        files: Vec<PathBuf>,
        /// Rows in them.
        rows: usize,
        /// The split string.
        split: String,
    },
    /// Rows were read, but none gave a token.
    #[error("no tokens in `{}`: all {rows} rows are blank, or cut to nothing by `max_seq_len`", file.display())]
    NoTokens {
        /// File of the first row.
        file: PathBuf,
        /// Rows read.
        rows: usize,
    },
    /// A JSON array that is not closed.
    #[error("`{}` ends inside its JSON array\n  expected `]` after row {rows}, found the end of the file", path.display())]
    Unclosed {
        /// The file.
        path: PathBuf,
        /// Rows begun before the end.
        rows: usize,
    },
    /// Something follows the JSON array of a file.
    #[error("unexpected text in `{}`, line {line}\n  expected the end of the file after the JSON array, found `{found}`", path.display())]
    AfterArray {
        /// The file.
        path: PathBuf,
        /// Line of the text.
        line: u64,
        /// Its first character.
        found: char,
    },
    /// A Parquet file that cannot be read.
    #[error("cannot read `{}` as Parquet\n  {reason}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        reason: String,
    },
    /// A separator of cells that is none.
    #[error("cannot separate cells by `delimiter: {found}`\n  expected one ASCII character, or `\\t` for a tab")]
    Separator {
        /// The text.
        found: String,
    },
    /// A column's name that stands twice in a header.
    #[error("column `{column}` stands twice in the first line of `{}`", path.display())]
    ColumnTwice {
        /// The file.
        path: PathBuf,
        /// The name.
        column: String,
    },
    /// A cell in quotes that does not end.
    #[error("`{}` ends inside a quoted cell of the record that begins at line {line}\n  expected a closing `\"`, found the end of the file", path.display())]
    UnclosedQuote {
        /// The file.
        path: PathBuf,
        /// First line of the record.
        line: u64,
    },
    /// A record with more cells than there are columns.
    #[error(
        "bad record in {place}: more cells than columns\n  expected at most {expected}, found {found}, the first too many is `{}`",
        shortened(cell)
    )]
    ExtraCells {
        /// The record.
        place: Place,
        /// Columns there are.
        expected: usize,
        /// Cells there are.
        found: usize,
        /// The first cell without a column.
        cell: String,
    },
    /// A record with bytes that are not UTF-8.
    #[error(
        "bad record in {place}: not UTF-8\n  expected valid UTF-8, found byte 0x{byte:02x} at position {position} of the record"
    )]
    NotUtf8 {
        /// The record.
        place: Place,
        /// The first byte that cannot be read.
        byte: u8,
        /// Its position, from 1.
        position: usize,
    },
    /// A record that is not JSON.
    #[error("bad record in {place}: not valid JSON\n  {reason} at line {line}, column {column} of the record")]
    Json {
        /// The record.
        place: Place,
        /// What the parser says.
        reason: String,
        /// Line in the record, from 1.
        line: usize,
        /// Column in that line.
        column: usize,
    },
    /// A record that is JSON, but no object.
    #[error("bad record in {place}\n  expected a JSON object, found {found}")]
    NotAnObject {
        /// The record.
        place: Place,
        /// What it is, in words.
        found: String,
    },
    /// A record without a column that the dataset builder reads.
    #[error(
        "bad record in {place}: no column `{column}`\n  found columns {} in {row}",
        quoted(found.iter().map(String::as_str))
    )]
    MissingColumn {
        /// The record.
        place: Place,
        /// The column asked for.
        column: String,
        /// The columns there are.
        found: Vec<String>,
        /// The record, shortened.
        row: String,
    },
    /// A field of a record that does not hold what it should.
    #[error("bad record in {place}: field `{field}`\n  expected {expected}, found {found}")]
    Field {
        /// The record.
        place: Place,
        /// The field, as in `messages[2].role`.
        field: String,
        /// What belongs there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The tokenizer refused a record.
    #[error("bad record in {place}: cannot be tokenised")]
    Tokenize {
        /// The record.
        place: Place,
        /// Why.
        #[source]
        cause: tokenizers::Error,
    },
    /// A `column_map` without a column that the builder needs.
    #[error("`column_map` has no key `{key}`\n  expected keys {}, found {}", quoted(expected.iter().copied()), quoted(found.iter().map(String::as_str)))]
    ColumnMap {
        /// The missing key.
        key: &'static str,
        /// Keys the builder needs.
        expected: &'static [&'static str],
        /// Keys there are.
        found: Vec<String>,
    },
    /// `packed: True` without a row length.
    #[error("`packed: True` needs `tokenizer.max_seq_len`, the length of a pack")]
    PackedWithoutLength,
    /// A document that does not fit a pack and may not be split.
    #[error("sample {row} is too long to pack: expected at most max_seq_len = {max_seq_len} tokens, found {len}")]
    SampleTooLong {
        /// Number of the sample, from 1.
        row: usize,
        /// Its length in tokens.
        len: usize,
        /// The pack's.
        max_seq_len: usize,
    },
    /// A list of datasets that are not packed alike.
    #[error("`dataset[{index}]` cannot be joined to `dataset[0]`: expected {}, found {}", packing(*first), packing(*found))]
    MixedPacking {
        /// Which dataset of the list differs.
        index: usize,
        /// Packing of the first.
        first: Option<usize>,
        /// Packing of that one.
        found: Option<usize>,
    },
    /// Too few rows for a single step.
    #[error(
        "too few rows for one optimizer step\n  expected at least {} = ranks {num_replicas} * batch_size {batch_size} * gradient_accumulation_steps {gradient_accumulation_steps}, found {found}",
        num_replicas.saturating_mul(*batch_size).saturating_mul(*gradient_accumulation_steps)
    )]
    TooFewRows {
        /// Rows, or packs, of the dataset.
        found: usize,
        /// Ranks that share them.
        num_replicas: usize,
        /// Rows of a micro-batch.
        batch_size: usize,
        /// Micro-batches of a step.
        gradient_accumulation_steps: usize,
    },
    /// A size that must be at least 1.
    #[error("`{key}`: expected an integer >= 1, found `0`")]
    Zero {
        /// The config key.
        key: &'static str,
    },
}

fn packing(max_seq_len: Option<usize>) -> String {
    max_seq_len.map_or("`packed: False`".to_owned(), |len| format!("`packed: True` with max_seq_len = {len}"))
}

/// Names that a list is long enough for.
const NAMES_SHOWN: usize = 5;

/// The first names of a list, and how many more there are.
fn some_of(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_owned(),
        len if len <= NAMES_SHOWN => quoted(names.iter().map(String::as_str)),
        len => format!("{} and {} more", quoted(names[..NAMES_SHOWN].iter().map(String::as_str)), len - NAMES_SHOWN),
    }
}

fn is_script(path: &str) -> bool {
    std::path::Path::new(path).extension().is_some_and(|extension| extension == "py")
}

fn one_of(names: &[String]) -> String {
    if names.is_empty() {
        "no `name`: it has no configs".to_owned()
    } else {
        format!("one of {}", quoted(names.iter().map(String::as_str)))
    }
}

impl Error {
    /// The same error with the key of the section that it is about.
    pub(crate) fn within(self, key: &str) -> Self {
        Self::Section { key: key.to_owned(), source: Box::new(self) }
    }

    /// 1 where a hub or the way to it failed, else 2: a dataset is input.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Section { source, .. } => source.exit_code(),
            Self::Hub(error) => error.exit_code(),
            _ => 2,
        }
    }

    /// One action that may help.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Section { key, source } => {
                return source.hint().map(|hint| hint.replace("`dataset.", &format!("`{key}.")));
            }
            Self::Hub(error) => return error.hint(),
            Self::NoDataFilesIn { others, is_repo: true, .. } if others.iter().any(|path| is_script(path)) => {
                "try `revision: refs/convert/parquet`, where a hub keeps its own conversion of datasets that come as a script"
            }
            Self::NoDataFilesIn { others, .. } if !others.is_empty() => {
                "unpack or convert the rows, and give the files as `source: json` and `data_files: <path>`"
            }
            Self::Address { .. } => {
                "give the id of the repository as `source`, and the file's path in it as `data_files`"
            }
            Self::ConfigNeeded { found, .. } if !found.is_empty() => {
                return Some(format!("set `dataset.name={}`", found[0]));
            }
            Self::ExtraCells { .. } => {
                "put cells that hold the separator in quotes, or name another one as `delimiter`"
            }
            Self::Format { .. } => "convert the rows to JSON, one object a line, and give `source: json`",
            Self::NoDataFiles { .. } => "add `data_files: <path>`, or give the file or its folder as `source`",
            Self::FileAndDataFiles { .. } => "give `source: json` beside `data_files`, or remove `data_files`",
            Self::NoFile { .. } => {
                "check `dataset.data_files`; paths are relative to `dataset.data_dir`, or to the working directory"
            }
            Self::NoRows { rows: 0, .. } => "give files with at least one row",
            Self::Unclosed { .. } => "the file looks cut off; fetch or write it again",
            Self::MissingColumn { .. } => {
                "name the file's columns in `dataset.column_map`, or with the builder's own key (`dataset.column`, `dataset.conversation_column`)"
            }
            Self::PackedWithoutLength => "set `tokenizer.max_seq_len=<tokens>`, or `dataset.packed=False`",
            Self::SampleTooLong { .. } => "set `dataset.split_across_pack=True` or raise `tokenizer.max_seq_len`",
            Self::MixedPacking { .. } => "set `packed` alike in every dataset of the list",
            Self::Tokenize { cause, .. } => return cause.hint(),
            Self::TooFewRows { num_replicas: 2.., .. } => {
                "lower `batch_size` or `gradient_accumulation_steps`, start fewer ranks, or add rows"
            }
            Self::TooFewRows { .. } => "lower `batch_size` or `gradient_accumulation_steps`, or add rows",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_system_keeps_its_cause() {
        let cause = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Error::Io { path: "data/train.jsonl".into(), cause };
        assert_eq!(error.to_string(), "cannot read `data/train.jsonl`");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "permission denied");
        assert_eq!(error.hint(), None);
    }

    #[test]
    fn hints_name_the_section() {
        let error = Error::NoFile { path: "a.json".into() }.within("dataset[1]");
        assert_eq!(error.to_string(), "no dataset file `a.json`\n  in section `dataset[1]`");
        let hint = error.hint().unwrap();
        assert!(hint.contains("`dataset[1].data_files`") && !hint.contains("`dataset."), "{hint}");
    }

    #[test]
    fn hints_name_one_action() {
        let path = PathBuf::from("a.json");
        let hint = |error: Error| error.hint().unwrap();
        assert_eq!(
            hint(Error::Unclosed { path: path.clone(), rows: 1 }),
            "the file looks cut off; fetch or write it again"
        );
        assert_eq!(
            hint(Error::Format { found: "csv".to_owned() }),
            "convert the rows to JSON, one object a line, and give `source: json`"
        );
        assert_eq!(
            hint(Error::NoDataFiles { format: "json".to_owned() }),
            "add `data_files: <path>`, or give the file or its folder as `source`"
        );
        assert_eq!(
            hint(Error::FileAndDataFiles { path }),
            "give `source: json` beside `data_files`, or remove `data_files`"
        );
    }
}
