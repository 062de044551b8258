//! Everything that can be wrong with a dataset; all of it is found before training starts.

use std::io;
use std::path::PathBuf;

use crate::row::quoted;
use crate::rows::Place;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A problem with a dataset, its files or its configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    /// A folder without a file that could hold rows.
    #[error("no data files in folder `{}`\n  expected files ending in .json, .jsonl or .txt", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A dataset that would have to be downloaded.
    #[error("cannot read dataset `{name}`: reading datasets from a hub is not available yet in this version")]
    Hub {
        /// The name given.
        name: String,
    },
    /// A file format without a reader.
    #[error(
        "cannot read dataset format of `{found}` in this version\n  expected `json` (array or one object a line), `text`, or files ending in .json, .jsonl, .txt"
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

impl Error {
    /// One action that may help.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Hub { .. } => "give `source: json` and `data_files: <path>`",
            Self::Format { .. } => "convert the rows to JSON, one object a line, and give `source: json`",
            Self::NoDataFiles { .. } => "add `data_files: <path>`, or give the file or its folder as `source`",
            Self::FileAndDataFiles { .. } => "give `source: json` beside `data_files`, or remove `data_files`",
            Self::NoFile { .. } => {
                "check `dataset.data_files`; paths are relative to `dataset.data_dir`, or to the working directory"
            }
            Self::NoRows { rows: 0, .. } => "give files with at least one row",
            Self::Unclosed { .. } => "the file looks cut off; fetch or write it again",
            Self::MissingColumn { .. } => {
                "name the columns of the file with `column_map`, or with the builder's own key (`column`, `conversation_column`)"
            }
            Self::PackedWithoutLength => "set `tokenizer.max_seq_len=<tokens>`, or `dataset.packed=False`",
            Self::SampleTooLong { .. } => "set `split_across_pack=True` or raise `tokenizer.max_seq_len`",
            Self::MixedPacking { .. } => "set `packed` alike in every dataset of the list",
            Self::Tokenize { cause, .. } => return cause.hint(),
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
