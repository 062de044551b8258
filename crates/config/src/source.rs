//! Where a value came from: a place in a file, an argument of the command line, or the program itself.
//!
//! Lines and columns are 1-based; columns count characters.

use std::fmt;
use std::sync::Arc;

/// A config file's name, as the user wrote it, and its text, kept for source excerpts.
#[derive(PartialEq, Eq)]
pub struct Source {
    name: String,
    text: String,
    /// Line and column behind the last character of the last line.
    end: (usize, usize),
}

impl Source {
    /// Keeps `text` under `name` (a path, or words such as `<built-in> llama3_2/1B_full`).
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        let text: String = text.into();
        let last = text.lines().last().unwrap_or("");
        let end = (text.lines().count().max(1), last.chars().count() + 1);
        Arc::new(Self { name: name.into(), text, end })
    }

    /// The file's name as given by the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn line(&self, line: usize) -> &str {
        self.text.lines().nth(line.saturating_sub(1)).unwrap_or("")
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.name).finish()
    }
}

/// A place in a file: line and column of the first character, and how many characters it covers.
#[derive(Clone, PartialEq, Eq)]
pub struct Position {
    source: Arc<Source>,
    line: usize,
    column: usize,
    width: usize,
}

impl Position {
    /// A place in `source`; `line` and `column` are 1-based. What is missing at the end of the text is placed behind its
    /// last character.
    pub fn new(source: Arc<Source>, line: usize, column: usize, width: usize) -> Self {
        let (line, column) = (line.max(1), column.max(1)).min(source.end);
        Self { source, line, column, width }
    }

    /// The file's name.
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// 1-based line.
    pub fn line(&self) -> usize {
        self.line
    }

    /// 1-based column, in characters.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The lines that show the place: an arrow with file, line and column, the source line, and carets.
    /// Starts without a line break and ends without one.
    pub fn excerpt(&self) -> String {
        let number = self.line.to_string();
        let gutter = number.len().max(2);
        let (text, start) = clip(self.source.line(self.line), self.column - 1);
        let shown = text.chars().count();
        let carets = self.width.min(shown.saturating_sub(start)).max(1);
        let text = if text.is_empty() { text } else { format!(" {text}") };
        format!(
            "{:gutter$}--> {}:{}:{}\n{:gutter$} |\n{number:>gutter$} |{text}\n{:gutter$} | {:start$}{}",
            "",
            self.source.name,
            self.line,
            self.column,
            "",
            "",
            "",
            "^".repeat(carets)
        )
    }
}

/// At most 120 characters around column `start` (0-based), with control characters as blanks so that carets line up.
fn clip(line: &str, start: usize) -> (String, usize) {
    const WIDTH: usize = 120;
    const BEFORE: usize = 40;
    let skipped = if start + BEFORE > WIDTH { start - BEFORE } else { 0 };
    let text: String = line.chars().skip(skipped).take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
    (text.trim_end().to_owned(), start - skipped)
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.source.name, self.line, self.column)
    }
}

/// Where a key or value was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Written in a file.
    File(Position),
    /// Given by this command-line argument, such as `batch_size=4`.
    CommandLine(Arc<str>),
    /// Made by the program: a default, or a value computed from others.
    #[default]
    Code,
}

impl Origin {
    /// The place in a file, if it is one.
    pub fn position(&self) -> Option<&Position> {
        match self {
            Self::File(position) => Some(position),
            Self::CommandLine(_) | Self::Code => None,
        }
    }

    /// True for values given on the command line.
    pub fn is_command_line(&self) -> bool {
        matches!(self, Self::CommandLine(_))
    }

    /// How a heading ends: `` in `run.yaml` ``, ` on the command line`, or nothing.
    pub(crate) fn within(&self) -> String {
        match self {
            Self::File(position) => format!(" in `{}`", position.file()),
            Self::CommandLine(_) => " on the command line".to_owned(),
            Self::Code => String::new(),
        }
    }

    /// The lines below a heading: the source excerpt, or the argument; each line after a line break.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::File(position) => format!("\n{}", position.excerpt()),
            Self::CommandLine(token) => format!("\n  given as `{token}`"),
            Self::Code => String::new(),
        }
    }

    /// For YAML errors, where the argument itself is the document: `` in `run.yaml` `` or `` in `name=[` ``.
    pub(crate) fn within_token(&self) -> String {
        match self {
            Self::CommandLine(token) => format!(" in `{token}`"),
            Self::File(_) | Self::Code => self.within(),
        }
    }

    /// The source excerpt after a line break, for places in files only.
    pub(crate) fn shown_file(&self) -> String {
        self.position().map(|position| format!("\n{}", position.excerpt())).unwrap_or_default()
    }

    /// A short note for lists of problems: ` (line 12, column 3)`, `` (`batch_size=0`) ``, or nothing.
    pub(crate) fn note(&self) -> String {
        match self {
            Self::File(position) => format!(" (line {}, column {})", position.line(), position.column()),
            Self::CommandLine(token) => format!(" (command line `{token}`)"),
            Self::Code => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_points_at_the_text() {
        let source = Source::new("run.yaml", "a: 1\noptimizer:\n  learning_rate: 3e-4\n");
        let shown = Position::new(source, 3, 3, 13).excerpt();
        assert_eq!(shown, "  --> run.yaml:3:3\n   |\n 3 |   learning_rate: 3e-4\n   |   ^^^^^^^^^^^^^");
    }

    #[test]
    fn places_behind_the_text_are_at_its_end() {
        for (text, line, column, place) in
            [("a: [1", 9, 1, "1:6"), ("a: [1\n", 2, 1, "1:6"), ("a: 1\nb: 2\n", 1, 500, "1:500"), ("", 0, 0, "1:1")]
        {
            let excerpt = Position::new(Source::new("run.yaml", text), line, column, 5).excerpt();
            assert!(excerpt.starts_with(&format!("  --> run.yaml:{place}\n")) && excerpt.ends_with('^'), "{excerpt}");
        }
    }

    #[test]
    fn long_lines_are_clipped_around_the_place() {
        let source = Source::new("run.yaml", format!("{}here{}", "x".repeat(300), "y".repeat(300)));
        let shown = Position::new(source, 1, 301, 4).excerpt();
        let lines: Vec<&str> = shown.lines().collect();
        let caret = lines[3].find('^').expect("a caret line");
        assert_eq!(&lines[2][caret..caret + 4], "here");
        assert!(lines[2].len() < 140);
    }
}
