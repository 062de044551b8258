//! Records of cells: the lines of CSV and TSV files.
//!
//! Grammar: cells with separators between them; a cell in quotes may hold separators, line ends and doubled quotes. A quote
//!          that does not open a cell stands for itself. Lines end with `\n` or `\r\n`; a lone `\r` is text.
//! Header:  the first record names the columns. A record with fewer cells has empty ones at its end.
//! Values:  text, as written: no cell is taken for a number or for null.
//! Errors:  `Error::ColumnTwice`, `Error::ExtraCells`, `Error::Separator`. Panics: never.

use std::path::Path;

use serde_json::{Map, Value};

use crate::rows::Place;
use crate::scan::Quotes;
use crate::{Error, Result};

/// What separates cells: as the config says, else by the file's name.
pub(crate) fn separator(delimiter: Option<&str>, path: &Path) -> Result<u8> {
    match delimiter.map(str::as_bytes) {
        None if path.extension().is_some_and(|extension| extension == "tsv") => Ok(b'\t'),
        None => Ok(b','),
        Some(b"\\t") => Ok(b'\t'),
        Some(&[byte]) if byte.is_ascii() && !b"\"\r\n".contains(&byte) => Ok(byte),
        Some(_) => Err(Error::Separator { found: delimiter.unwrap_or_default().to_owned() }),
    }
}

/// Names of the columns.
#[derive(Debug)]
pub(crate) struct Header(Vec<String>);

impl Header {
    /// Reads the first record of a file.
    pub fn read(record: &str, separator: u8, path: &Path) -> Result<Self> {
        let names = cells(record, separator);
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                return Err(Error::ColumnTwice { path: path.to_owned(), column: name.clone() });
            }
        }
        Ok(Self(names))
    }

    /// The columns of a record.
    pub fn columns(&self, record: &str, separator: u8, place: &Place) -> Result<Map<String, Value>> {
        let mut values = cells(record, separator);
        if values.len() > self.0.len() {
            let (expected, found) = (self.0.len(), values.len());
            return Err(Error::ExtraCells {
                place: place.clone(),
                expected,
                found,
                cell: values.swap_remove(expected),
            });
        }
        values.resize(self.0.len(), String::new());
        Ok(self.0.iter().cloned().zip(values.into_iter().map(Value::from)).collect())
    }
}

/// The cells of a record.
fn cells(record: &str, separator: u8) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut state = Quotes::CellBegins;
    for symbol in record.chars() {
        // A separator is ASCII: no byte of a longer symbol equals it.
        let byte = u8::try_from(symbol).unwrap_or(b'x');
        let before = state;
        state = state.after(byte, separator);
        let is_text = match (before, state) {
            // A quote that opens or closes, but not the second of a doubled one.
            (Quotes::CellBegins, Quotes::Open) | (Quotes::Open, Quotes::Closing) => false,
            (Quotes::Open, _) => true,
            _ => {
                if byte == separator {
                    cells.push(String::new());
                }
                byte != separator
            }
        };
        if is_text {
            cells.last_mut().expect("it begins with one").push(symbol);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quotes() {
        for (record, expected) in [
            ("a,b", vec!["a", "b"]),
            ("", vec![""]),
            (",", vec!["", ""]),
            ("\"a,b\",c", vec!["a,b", "c"]),
            ("\"a\nb\",c", vec!["a\nb", "c"]),
            ("\"say \"\"hi\"\"\",c", vec!["say \"hi\"", "c"]),
            ("\"\",\"\"\"\"", vec!["", "\""]),
            ("it's,5\" wide,a\"b\"", vec!["it's", "5\" wide", "a\"b\""]),
            ("\"a\"b,c", vec!["ab", "c"]),
            ("a\rb, c ", vec!["a\rb", " c "]),
            ("\u{e9}\u{2c9},\u{1f980}", vec!["\u{e9}\u{2c9}", "\u{1f980}"]),
        ] {
            assert_eq!(cells(record, b','), expected, "{record:?}");
        }
        assert_eq!(cells("a;b,c", b';'), ["a", "b,c"]);
    }

    #[test]
    fn separators() {
        let of = |delimiter: Option<&str>, name: &str| separator(delimiter, Path::new(name));
        assert_eq!(of(None, "a.csv").unwrap(), b',');
        assert_eq!(of(None, "a.tsv").unwrap(), b'\t');
        assert_eq!(of(Some(";"), "a.tsv").unwrap(), b';');
        assert_eq!(of(Some("\\t"), "a.csv").unwrap(), b'\t');
        for bad in ["", "||", "\"", "\n", "\u{e9}"] {
            assert!(matches!(of(Some(bad), "a"), Err(Error::Separator { .. })), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_quoted_reads_back(cells_in in proptest::collection::vec("[a,\"\n\r ;\u{e9}]{0,6}", 1..5)) {
            let record: Vec<String> = cells_in.iter().map(|cell| format!("\"{}\"", cell.replace('"', "\"\""))).collect();
            prop_assert_eq!(cells(&record.join(","), b','), cells_in);
        }
    }
}
