//! The tree a config is: values with the place they came from and their dotted path.
//!
//! Lookups take dotted paths (`optimizer.lr`, `files[0]`, `files.0`). Equality compares values only, not places;
//! `.nan` equals itself, so that a printed tree can be compared with what it reads back as.

use std::fmt;
use std::sync::Arc;

use crate::number::{python_float, python_quoted};
use crate::path::split_path;
use crate::source::Origin;

/// What a node holds.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A floating-point number, perhaps not finite.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in file order.
    Map(Map),
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
            (Self::String(a), Self::String(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => a == b,
            _ => false,
        }
    }
}

/// A key: nearly always text, but `1: x` and `true: x` are legal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    kind: KeyKind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyKind {
    Text,
    Bool,
    Int,
    Float,
}

impl Key {
    /// A key made of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { kind: KeyKind::Text, text: text.into() }
    }

    /// The key a scalar makes; `None` for null, lists and maps, which cannot be keys.
    pub fn from_value(value: &Value) -> Option<Self> {
        let (kind, text) = match value {
            Value::Bool(b) => (KeyKind::Bool, b.to_string()),
            Value::Int(i) => (KeyKind::Int, i.to_string()),
            Value::Float(x) => (KeyKind::Float, python_float(*x)),
            Value::String(text) => (KeyKind::Text, text.clone()),
            Value::Null | Value::List(_) | Value::Map(_) => return None,
        };
        Some(Self { kind, text })
    }

    /// The key as text; `1` and `true` for keys that are not text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn kind(&self) -> KeyKind {
        self.kind
    }

    pub(crate) fn python_repr(&self) -> String {
        match (self.kind, self.text.as_str()) {
            (KeyKind::Text, text) => python_quoted(text),
            (KeyKind::Bool, "true") => "True".to_owned(),
            (KeyKind::Bool, _) => "False".to_owned(),
            (_, text) => text.to_owned(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Keys and values in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Map {
    entries: Vec<(Key, Node)>,
}

impl Map {
    /// A map without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`; a key that is not text matches its spelling (`1`, `true`).
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.index_of(key).map(|i| &self.entries[i].1)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.index_of(key).map(|i| &mut self.entries[i].1)
    }

    fn index_of(&self, key: &str) -> Option<usize> {
        let matching = |kind_matters: bool| {
            self.entries.iter().position(|(k, _)| k.text == key && (!kind_matters || k.kind == KeyKind::Text))
        };
        matching(true).or_else(|| matching(false))
    }

    /// Sets `key`, in place if it is there, at the end if not.
    pub fn insert(&mut self, key: Key, node: Node) {
        match self.entries.iter_mut().find(|(k, _)| *k == key) {
            Some(entry) => entry.1 = node,
            None => self.entries.push((key, node)),
        }
    }

    /// Adds an entry whose key is known to be absent.
    pub(crate) fn push(&mut self, key: Key, node: Node) {
        self.entries.push((key, node));
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        self.index_of(key).map(|i| self.entries.remove(i).1)
    }

    /// Entries in file order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Key, &Node)> {
        self.entries.iter().map(|(key, node)| (key, node))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Node)> {
        self.entries.iter_mut().map(|(key, node)| (&*key, node))
    }

    /// Keys in file order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.iter().map(|(key, _)| key)
    }
}

impl PartialEq for Map {
    /// The same keys with the same values, in any order.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.entries.iter().zip(&other.entries).all(|(a, b)| {
                a == b || (a.0 != b.0 && other.entries.iter().any(|(key, node)| *key == a.0 && *node == a.1))
            })
    }
}

/// A scalar's text as it was written, without quotes.
#[derive(Clone, Debug)]
pub(crate) struct ScalarText {
    pub raw: Arc<str>,
    pub quoted: bool,
}

/// A value, where it was given, where its key was given, and its dotted path.
#[derive(Clone, Debug)]
pub struct Node {
    value: Value,
    written: Option<ScalarText>,
    origin: Origin,
    key_origin: Origin,
    path: Arc<str>,
    referenced: bool,
    broken: bool,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self::new(value, Origin::Code)
    }
}

impl Node {
    /// A value and where it was given.
    pub fn new(value: Value, origin: Origin) -> Self {
        Self {
            value,
            written: None,
            origin,
            key_origin: Origin::Code,
            path: "".into(),
            referenced: false,
            broken: false,
        }
    }

    /// Stands where a value should, about which a problem has been found.
    pub(crate) fn broken(origin: Origin) -> Self {
        Self { broken: true, ..Self::new(Value::Null, origin) }
    }

    /// A scalar that keeps its text.
    pub(crate) fn scalar(value: Value, raw: &str, quoted: bool, origin: Origin) -> Self {
        Self { written: Some(ScalarText { raw: raw.into(), quoted }), ..Self::new(value, origin) }
    }

    /// An empty section: every key has its default.
    pub fn empty() -> Self {
        Value::Map(Map::new()).into()
    }

    /// What the node holds.
    pub fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn value_mut(&mut self) -> &mut Value {
        &mut self.value
    }

    /// The value alone.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// Where the value was given.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Where the node's key was given; the value's origin for list elements and the root.
    pub fn key_origin(&self) -> &Origin {
        if self.key_origin == Origin::Code { &self.origin } else { &self.key_origin }
    }

    /// The dotted path from the root: `optimizer.lr`, `files[0]`; empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of a key below this node.
    pub fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A scalar's text as it was written (`00030`, `1e-5`), without quotes.
    pub fn raw(&self) -> Option<&str> {
        self.written.as_ref().map(|written| &*written.raw)
    }

    /// True for a scalar written in quotes or as a block of text.
    pub fn is_quoted(&self) -> bool {
        self.written.as_ref().is_some_and(|written| written.quoted)
    }

    /// True for `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// True for `???`, which marks a value that the user must supply.
    pub fn is_missing(&self) -> bool {
        self.as_str() == Some("???")
    }

    /// True for `null` and for a section whose `_component_` is `null`: both mean that there is no such component.
    pub fn is_absent(&self) -> bool {
        self.is_null() || self.get("_component_").is_some_and(Node::is_null)
    }

    /// The text of a string value.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The entries of a map.
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The elements of a list.
    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value of one key of a map, or one element of a list by its number. Dots are part of the key here.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(map) => map.get(key),
            Value::List(items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Map(map) => map.get_mut(key),
            Value::List(items) => items.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// The node at a dotted path such as `optimizer.lr` or `files[0]`; the empty path is this node.
    pub fn at(&self, path: &str) -> Option<&Node> {
        if path.is_empty() {
            return Some(self);
        }
        split_path(path).iter().try_fold(self, |node, segment| node.get(segment))
    }

    /// The component's name, when this is a section with a `_component_` text.
    pub fn component_name(&self) -> Option<&str> {
        self.get("_component_").and_then(Node::as_str)
    }

    /// True for a map with a `_component_` key, whatever that key holds.
    pub fn is_component(&self) -> bool {
        self.as_map().is_some_and(|map| map.get("_component_").is_some())
    }

    /// True when a `${…}` elsewhere reads this node: the key has a use even if no component takes it.
    pub fn is_referenced(&self) -> bool {
        self.referenced
    }

    /// True for a null that stands where a value should, about which a problem has been found: nothing more is to be said
    /// of it.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// True if this node or one below it is broken.
    pub(crate) fn has_broken(&self) -> bool {
        match &self.value {
            Value::Map(map) => map.iter().any(|(_, node)| node.has_broken()),
            Value::List(items) => items.iter().any(Self::has_broken),
            _ => self.broken,
        }
    }

    pub(crate) fn set_referenced(&mut self) {
        self.referenced = true;
    }

    pub(crate) fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    pub(crate) fn set_key_origin(&mut self, origin: Origin) {
        self.key_origin = origin;
    }

    /// The same key with another value.
    pub(crate) fn replace(&mut self, new: Node) {
        self.value = new.value;
        self.written = new.written;
        self.origin = new.origin;
    }

    /// Writes each node's dotted path, starting from `path` here.
    pub(crate) fn set_paths(&mut self, path: &str) {
        self.path = path.into();
        match &mut self.value {
            Value::Map(map) => {
                for (key, node) in map.iter_mut() {
                    let below = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
                    node.set_paths(&below);
                }
            }
            Value::List(items) => {
                for (i, node) in items.iter_mut().enumerate() {
                    node.set_paths(&format!("{path}[{i}]"));
                }
            }
            _ => {}
        }
    }

    /// Levels of lists and maps: 0 for a scalar.
    pub(crate) fn depth(&self) -> usize {
        match &self.value {
            Value::Map(map) => 1 + map.iter().map(|(_, node)| node.depth()).max().unwrap_or(0),
            Value::List(items) => 1 + items.iter().map(Node::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Number of nodes, this one included.
    pub(crate) fn count(&self) -> usize {
        match &self.value {
            Value::Map(map) => 1 + map.iter().map(|(_, node)| node.count()).sum::<usize>(),
            Value::List(items) => 1 + items.iter().map(Node::count).sum::<usize>(),
            _ => 1,
        }
    }

    /// How a message shows the value: the user's own text in backticks, or the kind of a list or section.
    pub fn found(&self) -> String {
        match (&self.value, &self.written) {
            (Value::List(items), _) => format!("a list of {}", items.len()),
            (Value::Map(_), _) => "a section".to_owned(),
            (Value::Null, Some(written)) if written.raw.is_empty() => "nothing".to_owned(),
            (_, Some(written)) if written.quoted => format!("the text `{:?}`", written.raw),
            (_, Some(written)) => format!("`{}`", written.raw),
            (Value::Null, None) => "`null`".to_owned(),
            (Value::Bool(b), None) => format!("`{b}`"),
            (Value::Int(i), None) => format!("`{i}`"),
            (Value::Float(x), None) => format!("`{}`", python_float(*x)),
            (Value::String(text), None) => format!("`{text}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_text_are_found_by_their_spelling() {
        let mut map = Map::new();
        map.insert(Key::from_value(&Value::Int(1)).expect("a key"), Value::Bool(true).into());
        assert_eq!(map.get("1"), Some(&Value::Bool(true).into()));
        map.insert(Key::text("1"), Value::Bool(false).into());
        assert_eq!(map.get("1"), Some(&Value::Bool(false).into()));
        assert_eq!(map.len(), 2);
    }

    #[test]
    fn maps_are_equal_in_any_order() {
        let entries = [("a", 1), ("b", 2)];
        let make = |entries: &[(&str, i128)]| {
            let mut map = Map::new();
            for (key, value) in entries {
                map.insert(Key::text(*key), Value::Int(*value).into());
            }
            map
        };
        let reversed: Vec<_> = entries.into_iter().rev().collect();
        assert_eq!(make(&entries), make(&reversed));
        assert_ne!(make(&entries), make(&[("a", 1), ("b", 3)]));
        assert_ne!(make(&entries), make(&[("a", 1)]));
    }
}
