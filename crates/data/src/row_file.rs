//! One data file: where its rows lie, and how to read some of them.
//!
//! Opening notes where rows begin and end, or reads how many there are, so memory stays at a few words a row however
//! large the file.
//!
//! JSON:    after an optional byte order mark and white space, `[` opens an array of objects; anything else means one
//!          object a line, blank lines skipped.
//! CSV:     see `csv.rs`. Parquet: see `parquet.rs`.
//! Text:    every line is a row with the single column `text`; line ends (`\n`, `\r\n`) are not part of it.
//! Errors:  `Error::Io`; with file and row `Error::NotUtf8`, `Error::Json`, `Error::NotAnObject`, `Error::ExtraCells`;
//!          `Error::Unclosed`, `Error::AfterArray`, `Error::UnclosedQuote`, `Error::ColumnTwice`, `Error::Parquet`.
//!          Panics: never.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::csv::{Header, separator};
#[cfg(feature = "parquet")]
use crate::parquet::ParquetFile;
use crate::row::{Row, describe};
use crate::rows::{Place, TEXT_COLUMN};
use crate::scan::{Scan, Span};
use crate::source::Format;
use crate::{Error, Result};

/// A file whose rows have been found.
#[derive(Debug)]
pub(crate) struct RowFile {
    path: Arc<Path>,
    rows: Found,
}

#[derive(Debug)]
enum Found {
    /// Bytes of each row, and how to read them.
    Spans(Layout, Vec<Span>),
    #[cfg(feature = "parquet")]
    Parquet(ParquetFile),
}

#[derive(Debug)]
enum Layout {
    Array,
    ObjectPerLine,
    TextPerLine,
    Cells(Header, u8),
}

impl RowFile {
    /// Finds the rows of a file; `delimiter` separates the cells of CSV files, where the config has one.
    pub fn open(path: &Path, format: Format, delimiter: Option<&str>) -> Result<Self> {
        let rows = match format {
            #[cfg(feature = "parquet")]
            Format::Parquet => Found::Parquet(ParquetFile::open(path)?),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => return Err(Error::Format { found: path.display().to_string() }),
            Format::Text => Found::Spans(Layout::TextPerLine, Scan::open(path)?.lines(true)?),
            Format::Json => {
                let mut scan = Scan::open(path)?;
                if scan.skip_white_space()? == Some(b'[') {
                    Found::Spans(Layout::Array, scan.array()?)
                } else {
                    Found::Spans(Layout::ObjectPerLine, scan.lines(false)?)
                }
            }
            Format::Csv => {
                let separator = separator(delimiter, path)?;
                let mut spans = Scan::open(path)?.records(separator)?;
                let first = if spans.is_empty() { Span { start: 0, len: 0, line: 1 } } else { spans.remove(0) };
                let place = Place { file: path.into(), line: first.line, row: None };
                let mut record = vec![0; first.len];
                let io = |cause| Error::Io { path: path.to_owned(), cause };
                let mut reader = File::open(path).map_err(io)?;
                std::io::Seek::seek(&mut reader, std::io::SeekFrom::Start(first.start)).map_err(io)?;
                reader.read_exact(&mut record).map_err(io)?;
                let header = Header::read(text_of(&record, || place.clone())?, separator, path)?;
                Found::Spans(Layout::Cells(header, separator), spans)
            }
        };
        Ok(Self { path: path.into(), rows })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.rows {
            Found::Spans(_, spans) => spans.len(),
            #[cfg(feature = "parquet")]
            Found::Parquet(file) => file.len(),
        }
    }

    /// Reads a range of rows in order and hands each to `visit`; the first error ends it.
    pub fn read(&self, range: Range<usize>, visit: &mut impl FnMut(&Row) -> Result<()>) -> Result<()> {
        match &self.rows {
            Found::Spans(layout, spans) => self.read_spans(layout, spans, range, visit),
            #[cfg(feature = "parquet")]
            Found::Parquet(file) => {
                file.read(range, &mut |row, columns| visit(&Row::new(Place::in_parquet(&self.path, row), columns)))
            }
        }
    }

    fn read_spans(
        &self,
        layout: &Layout,
        spans: &[Span],
        range: Range<usize>,
        visit: &mut impl FnMut(&Row) -> Result<()>,
    ) -> Result<()> {
        let io = |cause| Error::Io { path: self.path.to_path_buf(), cause };
        let mut reader = BufReader::new(File::open(&self.path).map_err(io)?);
        let mut at = 0;
        let mut bytes = Vec::new();
        for index in range {
            let span = spans[index];
            reader.seek_relative((span.start - at) as i64).map_err(io)?;
            bytes.resize(span.len, 0);
            reader.read_exact(&mut bytes).map_err(io)?;
            at = span.start + span.len as u64;
            let row = matches!(layout, Layout::Array | Layout::Cells(..)).then_some(index as u64 + 1);
            let place = Place { file: self.path.clone(), line: span.line, row };
            let columns = layout.parse(&bytes, &place)?;
            visit(&Row::new(place, columns))?;
        }
        Ok(())
    }
}

impl Layout {
    fn parse(&self, bytes: &[u8], place: &Place) -> Result<Map<String, Value>> {
        let text = text_of(bytes, || place.clone())?;
        match self {
            Self::TextPerLine => Ok(Map::from_iter([(TEXT_COLUMN.to_owned(), Value::from(text))])),
            Self::Cells(header, separator) => header.columns(text, *separator, place),
            Self::Array | Self::ObjectPerLine => match serde_json::from_str(text) {
                Ok(Value::Object(columns)) => Ok(columns),
                Ok(other) => Err(Error::NotAnObject { place: place.clone(), found: describe(&other) }),
                Err(cause) => {
                    let (line, column) = (cause.line(), cause.column());
                    Err(Error::Json { place: place.clone(), reason: reason(&cause), line, column })
                }
            },
        }
    }
}

fn text_of(bytes: &[u8], place: impl FnOnce() -> Place) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|cause| {
        let at = cause.valid_up_to();
        Error::NotUtf8 { place: place(), byte: bytes[at], position: at + 1 }
    })
}

/// A JSON error without the position that its text ends with.
fn reason(cause: &serde_json::Error) -> String {
    let text = cause.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(reason, _)| reason.to_owned())
}
