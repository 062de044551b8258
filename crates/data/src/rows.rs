//! The rows that a dataset section selects, read one at a time.
//!
//! Errors:  those of finding the files (`source.rs`) and of reading them (`row_file.rs`); `Error::NoRows` if the split takes
//!          none. Panics: never.
//! Checked: unit tests here; `tests/rows.rs`.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::row::Row;
use crate::row_file::RowFile;
use crate::source::{SourceConfig, resolve};
use crate::split::Split;
use crate::{Error, Result};

/// Column of a text file's rows.
pub const TEXT_COLUMN: &str = "text";

/// Where a row stands, as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<Path>,
    /// Line on which the row begins, from 1; 0 where a file has no lines.
    pub line: u64,
    /// Number of the row in an array or table, from 1; `None` where a row is a line.
    pub row: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            Some(row) if self.line == 0 => write!(f, "`{}`, row {row}", self.file.display()),
            Some(row) => write!(f, "`{}`, row {row} (line {})", self.file.display(), self.line),
            None => write!(f, "`{}`, line {}", self.file.display(), self.line),
        }
    }
}

/// The rows that a dataset section selects.
#[derive(Debug)]
pub struct Rows {
    files: Vec<RowFile>,
    /// Index of a file and a range of its rows, in order.
    selected: Vec<(usize, Range<usize>)>,
}

impl Rows {
    /// Finds the rows that a dataset section means; at least one.
    pub fn open(config: &SourceConfig) -> Result<Self> {
        let split = Split::parse(&config.split)?;
        let resolved = resolve(config, &split)?;
        let (mut files, mut firsts, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for part in resolved.splits {
            firsts.push(files.len());
            let mut rows = 0;
            for (path, format) in part.files {
                let file = RowFile::open(&path, format, resolved.delimiter.as_deref())?;
                rows += file.len();
                files.push(file);
            }
            lengths.push((part.name, rows));
        }
        firsts.push(files.len());
        let mut selected = Vec::new();
        for (part, range) in split.select(&lengths)? {
            let mut start = 0;
            for index in firsts[part]..firsts[part + 1] {
                let end = start + files[index].len();
                let (from, to) = (range.start.max(start), range.end.min(end));
                if from < to {
                    selected.push((index, from - start..to - start));
                }
                start = end;
            }
        }
        if selected.is_empty() {
            let files: Vec<PathBuf> = files.iter().map(|file| file.path().to_owned()).collect();
            let rows = lengths.iter().map(|(_, rows)| rows).sum();
            return Err(Error::NoRows { files, rows, split: split.text().to_owned() });
        }
        Ok(Self { files, selected })
    }

    /// Number of rows selected.
    pub fn len(&self) -> usize {
        self.selected.iter().map(|(_, range)| range.len()).sum()
    }

    /// Never true: opening refuses an empty selection.
    pub fn is_empty(&self) -> bool {
        self.selected.is_empty()
    }

    /// The file of the first row.
    pub fn first_file(&self) -> &Path {
        self.files[self.selected[0].0].path()
    }

    /// Reads the rows in order and hands each to `visit`; the first error ends it.
    pub fn for_each(&self, mut visit: impl FnMut(&Row) -> Result<()>) -> Result<()> {
        for (index, range) in &self.selected {
            self.files[*index].read(range.clone(), &mut visit)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::DataFiles;

    fn read(source: &str, contents: &[u8], split: &str) -> Result<Vec<(String, String)>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        std::fs::write(&path, contents).unwrap();
        let config = SourceConfig {
            source: source.to_owned(),
            data_files: Some(DataFiles::Train(vec![path.display().to_string()])),
            split: split.to_owned(),
            ..SourceConfig::default()
        };
        let mut rows = Vec::new();
        Rows::open(&config)?.for_each(|row| {
            let place = row.place().to_string().replace(&path.display().to_string(), "rows");
            rows.push((place, serde_json::to_string(row.columns()).unwrap()));
            Ok(())
        })?;
        Ok(rows)
    }

    fn json(contents: &str) -> Vec<(String, String)> {
        read("json", contents.as_bytes(), "train").unwrap()
    }

    fn columns(rows: &[(String, String)]) -> Vec<&str> {
        rows.iter().map(|(_, columns)| columns.as_str()).collect()
    }

    /// The error's text with the temporary file called `rows`.
    fn error(source: &str, contents: &[u8]) -> String {
        let error = read(source, contents, "train").unwrap_err().to_string();
        let (before, rest) = error.split_once('`').unwrap();
        let (_, after) = rest.split_once('`').unwrap();
        format!("{before}`rows`{after}")
    }

    #[test]
    fn array_and_lines_give_the_same_rows() {
        let rows = [r#"{"a":"x, ] } \" [","b":[1,{"c":2}]}"#, r#"{"a":""}"#, r#"{"b":null}"#];
        let array = json(&format!(" \n[{}]\n", rows.join(" ,\n")));
        let lines = json(&format!("\n{}\r\n\n  \n{}\n{}", rows[0], rows[1], rows[2]));
        assert_eq!(columns(&array), rows);
        assert_eq!(columns(&lines), rows);
        let marked = json(&format!("\u{feff}[{}]", rows.join(",")));
        assert_eq!(columns(&marked), rows);
        assert_eq!(columns(&json(&format!("\u{feff}{}", rows.join("\n")))), rows);
    }

    #[test]
    fn places_count_from_one() {
        let array = json("[\n{\"a\":1},\n\n{\"a\":\n2}\n]");
        assert_eq!(array[0].0, "`rows`, row 1 (line 2)");
        assert_eq!(array[1].0, "`rows`, row 2 (line 4)");
        assert_eq!(json("{\"a\":1}\n\n{\"a\":2}")[1].0, "`rows`, line 3");
    }

    #[test]
    fn text_rows_are_lines() {
        let rows = read("text", b"one\r\n\n two\nthree", "train").unwrap();
        assert_eq!(
            columns(&rows),
            [r#"{"text":"one"}"#, r#"{"text":""}"#, r#"{"text":" two"}"#, r#"{"text":"three"}"#]
        );
        assert_eq!(rows[2].0, "`rows`, line 3");
    }

    #[test]
    fn records_of_cells() {
        let text = b"\xef\xbb\xbfa,\"b c\",d\r\n1,\"x\ny, \"\"z\"\"\",\r\n\r\n2\n\"it's\",5\" wide,a\rb";
        let rows = read("csv", text, "train").unwrap();
        assert_eq!(
            columns(&rows),
            [
                r#"{"a":"1","b c":"x\ny, \"z\"","d":""}"#,
                r#"{"a":"2","b c":"","d":""}"#,
                r#"{"a":"it's","b c":"5\" wide","d":"a\rb"}"#
            ]
        );
        let places: Vec<_> = rows.iter().map(|row| row.0.as_str()).collect();
        assert_eq!(places, ["`rows`, row 1 (line 2)", "`rows`, row 2 (line 5)", "`rows`, row 3 (line 6)"]);
    }

    #[test]
    fn malformed_records() {
        assert_eq!(
            error("csv", b"a,b\n1,2\n1,2,3\n"),
            "bad record in `rows`, row 2 (line 3): more cells than columns\n  expected at most 2, found 3, the first too many is `3`"
        );
        let twice = read("csv", b"a,b,a\n", "train").unwrap_err().to_string();
        assert!(twice.starts_with("column `a` stands twice in the first line of `"), "{twice}");
        assert_eq!(
            error("csv", b"a\n\"x\n\ny"),
            "`rows` ends inside a quoted cell of the record that begins at line 2\n  expected a closing `\"`, found the end of the file"
        );
        assert_eq!(
            error("csv", b"a\n\xff\n"),
            "bad record in `rows`, row 1 (line 2): not UTF-8\n  expected valid UTF-8, found byte 0xff at position 1 of the record"
        );
        for empty in [&b""[..], b"a,b", b"a,b\n\n"] {
            assert!(error("csv", empty).starts_with("no rows in `rows`"), "{empty:?}");
        }
    }

    #[test]
    fn slices_skip_rows_unread() {
        let rows = read("json", b"{\"a\":1}\nbroken\n{\"a\":3}\n{\"a\":4}", "train[2:]+train[:1]").unwrap();
        assert_eq!(columns(&rows), [r#"{"a":3}"#, r#"{"a":4}"#, r#"{"a":1}"#]);
    }

    #[test]
    fn rows_that_are_no_objects() {
        for (line, found) in [
            ("\"context\"", "the string `context`"),
            ("42", "the number `42`"),
            ("null", "null"),
            ("true", "`true`"),
            ("[\"a\"]", "a list"),
        ] {
            let contents = format!("{{\"a\":1}}\n{line}\n");
            assert_eq!(
                error("json", contents.as_bytes()),
                format!("bad record in `rows`, line 2\n  expected a JSON object, found {found}")
            );
        }
        assert_eq!(
            error("json", b"[\"a\"]\n"),
            "bad record in `rows`, row 1 (line 1)\n  expected a JSON object, found the string `a`"
        );
    }

    #[test]
    fn malformed_json() {
        assert_eq!(
            error("json", b"{\"a\":1}\n\n{\"a\" 2}\n"),
            "bad record in `rows`, line 3: not valid JSON\n  expected `:` at line 1, column 6 of the record"
        );
        assert_eq!(
            error("json", b"[{\"a\":1},\n]"),
            "bad record in `rows`, row 2 (line 2): not valid JSON\n  EOF while parsing a value at line 1, column 0 of the record"
        );
        assert_eq!(
            error("json", b"{\n \"a\": 1\n}"),
            "bad record in `rows`, line 1: not valid JSON\n  EOF while parsing an object at line 1, column 1 of the record"
        );
    }

    #[test]
    fn a_file_cut_off_in_its_array() {
        let message = "`rows` ends inside its JSON array\n  expected `]` after row 2, found the end of the file";
        assert_eq!(error("json", b"[{\"a\":1},{\"a\":2}"), message);
        assert_eq!(error("json", b"[{\"a\":1},{\"a\":\"2]"), message);
        assert_eq!(error("json", b"["), message.replace("row 2", "row 0"));
    }

    #[test]
    fn text_after_the_array() {
        assert_eq!(
            error("json", b"[{\"a\":1}]\n{\"a\":2}"),
            "unexpected text in `rows`, line 2\n  expected the end of the file after the JSON array, found `{`"
        );
    }

    #[test]
    fn bytes_that_are_not_utf8() {
        assert_eq!(
            error("json", b"{\"a\":1}\n{\"a\":\"\xff\"}\n"),
            "bad record in `rows`, line 2: not UTF-8\n  expected valid UTF-8, found byte 0xff at position 7 of the record"
        );
        assert!(error("text", b"ok\nb\xe4h\n").starts_with("bad record in `rows`, line 2: not UTF-8"));
    }

    #[test]
    fn no_rows() {
        let text = |contents: &[u8], split: &str| {
            let error = read("json", contents, split).unwrap_err().to_string();
            error[error.find('\n').unwrap()..].to_owned()
        };
        assert_eq!(text(b"", "train"), "\n  `split: train` takes 0 of 0 rows");
        assert_eq!(text(b"[]", "train"), "\n  `split: train` takes 0 of 0 rows");
        assert_eq!(text(b"{\"a\":1}", "train[1:]"), "\n  `split: train[1:]` takes 0 of 1 rows");
        assert!(error("json", b"").starts_with("no rows in `rows`\n"));
    }
}
