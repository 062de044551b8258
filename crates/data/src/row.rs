//! One record of a data file, and the fields asked of it.
//!
//! Errors:  `Error::MissingColumn` (names the columns found), `Error::Field` (expected against found). Panics: never.

use serde_json::{Map, Value};

use crate::rows::Place;
use crate::{Error, Result};

/// Longest piece of a record that a message quotes, in characters.
const QUOTED_CHARS: usize = 80;

/// A record: its place and its columns. Columns that nobody asks for are ignored.
#[derive(Debug, Clone)]
pub struct Row {
    place: Place,
    columns: Map<String, Value>,
}

impl Row {
    /// A row with these columns.
    pub fn new(place: Place, columns: Map<String, Value>) -> Self {
        Self { place, columns }
    }

    /// Where the row stands.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The columns as read.
    pub fn columns(&self) -> &Map<String, Value> {
        &self.columns
    }

    /// A column that must hold text.
    pub fn text(&self, column: &str) -> Result<&str> {
        let value = self.value(column)?;
        value.as_str().ok_or_else(|| self.wrong_type(column, "a string", value))
    }

    /// A column of text that may be absent or null.
    pub fn optional_text(&self, column: &str) -> Result<Option<&str>> {
        match self.columns.get(column) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| self.wrong_type(column, "a string or null", value)),
        }
    }

    /// A column that must hold a list.
    pub fn list(&self, column: &str) -> Result<&[Value]> {
        let value = self.value(column)?;
        value.as_array().map(Vec::as_slice).ok_or_else(|| self.wrong_type(column, "a list of messages", value))
    }

    /// A key of an object inside the row, where `path` names the object, as in `messages[2]`.
    pub(crate) fn member<'a>(&self, object: &'a Value, path: &str, key: &str) -> Result<&'a Value> {
        let Some(object) = object.as_object() else { return Err(self.wrong_type(path, "an object", object)) };
        object.get(key).ok_or_else(|| {
            let keys = quoted(object.keys().map(String::as_str));
            self.bad_field(path, &format!("a key `{key}`"), if keys.is_empty() { "none" } else { &keys })
        })
    }

    /// As `member`, where the value must be text.
    pub(crate) fn member_text<'a>(&self, object: &'a Value, path: &str, key: &str) -> Result<&'a str> {
        let value = self.member(object, path, key)?;
        value.as_str().ok_or_else(|| self.wrong_type(&format!("{path}.{key}"), "a string", value))
    }

    /// The error for a value of the wrong type.
    pub(crate) fn wrong_type(&self, field: &str, expected: &str, found: &Value) -> Error {
        self.bad_field(field, expected, &describe(found))
    }

    /// The error for a field that does not hold what it should.
    pub(crate) fn bad_field(&self, field: &str, expected: &str, found: &str) -> Error {
        let (field, expected, found) = (field.to_owned(), expected.to_owned(), found.to_owned());
        Error::Field { place: self.place.clone(), field, expected, found }
    }

    fn value(&self, column: &str) -> Result<&Value> {
        self.columns.get(column).ok_or_else(|| Error::MissingColumn {
            place: self.place.clone(),
            column: column.to_owned(),
            found: self.columns.keys().cloned().collect(),
            row: shortened(&Value::Object(self.columns.clone()).to_string()),
        })
    }
}

/// A JSON value in a few words, for `found ...`.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Number(number) => format!("the number `{number}`"),
        Value::String(text) => format!("the string `{}`", shortened(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Words in backticks, with commas.
pub(crate) fn quoted<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Text cut to what a message can quote.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
