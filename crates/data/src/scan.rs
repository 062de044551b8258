//! One pass over a data file that notes where its rows lie, without reading them.
//!
//! Errors:  `Error::Io`, `Error::Unclosed`, `Error::AfterArray`, `Error::UnclosedQuote`. Panics: never.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes of one row in its file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Offset of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: usize,
    /// Line of the first byte, from 1.
    pub line: u64,
}

/// A file being scanned.
pub(crate) struct Scan {
    reader: BufReader<File>,
    path: PathBuf,
    /// Bytes consumed.
    offset: u64,
    /// Line of the next byte, from 1.
    line: u64,
}

/// Where a byte of a record of cells stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quotes {
    /// A cell begins with the next byte.
    CellBegins,
    /// In a cell, outside of quotes.
    Outside,
    /// Between quotes.
    Open,
    /// Behind a quote that closes, or that a second one doubles.
    Closing,
}

impl Quotes {
    /// Where the byte after `byte` stands. Outside of quotes a separator and a line feed begin a cell.
    pub fn after(self, byte: u8, separator: u8) -> Self {
        match (self, byte) {
            (Self::Open, b'"') => Self::Closing,
            (Self::Open, _) | (Self::CellBegins | Self::Closing, b'"') => Self::Open,
            (_, b'\n') => Self::CellBegins,
            (_, byte) if byte == separator => Self::CellBegins,
            _ => Self::Outside,
        }
    }
}

impl Scan {
    /// Opens a file and skips its byte order mark.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|cause| Error::Io { path: path.to_owned(), cause })?;
        let mut scan = Self { reader: BufReader::new(file), path: path.to_owned(), offset: 0, line: 1 };
        if scan.buffer()?.starts_with(BYTE_ORDER_MARK) {
            scan.consume(BYTE_ORDER_MARK.len());
        }
        Ok(scan)
    }

    /// The first byte that is not white space, left unread; `None` at the end.
    pub fn skip_white_space(&mut self) -> Result<Option<u8>> {
        loop {
            let Some(&byte) = self.buffer()?.first() else { return Ok(None) };
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.line += u64::from(byte == b'\n');
            self.consume(1);
        }
    }

    /// One span a line, without the line's end; lines of white space only if `keep_blank`.
    pub fn lines(&mut self, keep_blank: bool) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = self.reader.read_until(b'\n', &mut line);
            let read = read.map_err(|cause| Error::Io { path: self.path.clone(), cause })?;
            if read == 0 {
                return Ok(spans);
            }
            let content = line.strip_suffix(b"\n").unwrap_or(&line);
            let content = content.strip_suffix(b"\r").unwrap_or(content);
            if keep_blank || !content.trim_ascii().is_empty() {
                spans.push(Span { start: self.offset, len: content.len(), line: self.line });
            }
            self.offset += read as u64;
            self.line += 1;
        }
    }

    /// The elements of the array whose `[` is the next byte. What an element holds is not checked.
    pub fn array(&mut self) -> Result<Vec<Span>> {
        self.consume(1);
        let mut spans = Vec::new();
        if self.skip_white_space()? == Some(b']') {
            self.consume(1);
        } else {
            loop {
                self.skip_white_space()?;
                let (start, line) = (self.offset, self.line);
                let started = !self.buffer()?.is_empty();
                let rows = spans.len() + usize::from(started);
                let end = self.skip_element()?.ok_or_else(|| Error::Unclosed { path: self.path.clone(), rows })?;
                spans.push(Span { start, len: (self.offset - 1 - start) as usize, line });
                if end == b']' {
                    break;
                }
            }
        }
        match self.skip_white_space()? {
            Some(found) => {
                Err(Error::AfterArray { path: self.path.clone(), line: self.line, found: char::from(found) })
            }
            None => Ok(spans),
        }
    }

    /// One span a record of cells, without the record's end; empty lines are left out. A line ends outside of quotes only,
    /// and quotes open only at the beginning of a cell.
    pub fn records(&mut self, separator: u8) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        loop {
            let (start, line) = (self.offset, self.line);
            let Some((content, is_last)) = self.skip_record(separator)? else { return Ok(spans) };
            if content > 0 {
                spans.push(Span { start, len: content, line });
            }
            if is_last {
                return Ok(spans);
            }
        }
    }

    /// Consumes a record and its end: how many bytes it has without the end, and whether the file ends with it. `None` at
    /// the end of the file.
    fn skip_record(&mut self, separator: u8) -> Result<Option<(usize, bool)>> {
        let (start, line) = (self.offset, self.line);
        let (mut quotes, mut last) = (Quotes::CellBegins, 0);
        loop {
            let buffer = self.buffer()?;
            if buffer.is_empty() {
                let content = (self.offset - start) as usize;
                return match quotes {
                    Quotes::Open => Err(Error::UnclosedQuote { path: self.path.clone(), line }),
                    _ if content == 0 => Ok(None),
                    _ => Ok(Some((content, true))),
                };
            }
            let (mut lines, mut used, mut is_end) = (0, buffer.len(), false);
            for (index, &byte) in buffer.iter().enumerate() {
                lines += u64::from(byte == b'\n');
                quotes = quotes.after(byte, separator);
                if byte == b'\n' && quotes == Quotes::CellBegins {
                    (used, is_end) = (index + 1, true);
                    break;
                }
                last = byte;
            }
            self.line += lines;
            self.consume(used);
            if is_end {
                let content = (self.offset - start) as usize - 1;
                return Ok(Some((content - usize::from(content > 0 && last == b'\r'), false)));
            }
        }
    }

    /// Consumes an element and the `,` or `]` after it, which is returned; `None` if the file ends before.
    fn skip_element(&mut self) -> Result<Option<u8>> {
        let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
        loop {
            let buffer = self.buffer()?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let (mut lines, mut used, mut end) = (0, buffer.len(), None);
            for (index, &byte) in buffer.iter().enumerate() {
                lines += u64::from(byte == b'\n');
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if in_string => escaped = true,
                    b'"' => in_string = !in_string,
                    _ if in_string => {}
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' if depth > 0 => depth -= 1,
                    b',' | b']' if depth == 0 => {
                        (used, end) = (index + 1, Some(byte));
                        break;
                    }
                    _ => {}
                }
            }
            self.line += lines;
            self.consume(used);
            if end.is_some() {
                return Ok(end);
            }
        }
    }

    fn buffer(&mut self) -> Result<&[u8]> {
        let path = &self.path;
        self.reader.fill_buf().map_err(|cause| Error::Io { path: path.clone(), cause })
    }

    fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
    }
}
