//! Stage one, *written*: YAML text to a tree in which every value knows its file, line and column.
//!
//! Anchors, aliases and `<<` merge keys are resolved; a key that occurs twice, tags other than YAML's own scalar
//! and collection tags, control characters, several documents, and trees deeper than 128 or larger than 200,000 values are refused.
//! Errors: [`Error::Yaml`], [`Error::Read`], [`Error::NotUtf8`]. Panics: never.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use crate::error::{Error, YamlFault};
use crate::merged::Merged;
use crate::node::{Key, Map, Node, Value};
use crate::overrides::Overrides;
use crate::scalar::{parse_float, parse_int, resolve_plain};
use crate::source::{Origin, Position, Source};
use crate::yaml_text::{Order, to_yaml};

/// Levels of nesting beyond which a document is refused; recursion in this crate is bounded by it.
pub(crate) const MAX_DEPTH: usize = 128;
/// Values beyond which a document is refused: aliases can multiply.
pub(crate) const MAX_NODES: usize = 200_000;

/// A config as its file says, perhaps with overrides; `${…}` are still text.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    root: Node,
}

impl Written {
    /// Reads a YAML file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let name = path.as_ref().display().to_string();
        let bytes = std::fs::read(&path).map_err(|source| Error::Read { path: name.clone(), source })?;
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(name, text),
            Err(bad) => {
                let good = bad.utf8_error().valid_up_to();
                let line = 1 + String::from_utf8_lossy(&bad.as_bytes()[..good]).matches('\n').count();
                Err(Error::NotUtf8 { path: name, line })
            }
        }
    }

    /// Parses YAML text; `name` is what messages call the file. An empty document has no keys.
    pub fn parse(name: impl Into<String>, text: impl Into<String>) -> Result<Self, Error> {
        let text: String = text.into();
        let text = with_plain_line_ends(text.strip_prefix('\u{feff}').unwrap_or(&text));
        let source = Source::new(name, text);
        let mut root = parse_document(source.text(), &Place::File(&source))?;
        match root.value() {
            Value::Map(_) => {}
            Value::Null => root = Node::new(Value::Map(Map::new()), root.origin().clone()),
            Value::String(text) => {
                // One word is a key without a value.
                let mut map = Map::new();
                map.push(Key::text(text.clone()), Node::new(Value::Null, root.origin().clone()));
                root = Node::new(Value::Map(map), root.origin().clone());
            }
            _ => {
                return Err(Error::Yaml {
                    fault: YamlFault::Root { found: root.found() },
                    origin: root.origin().clone(),
                });
            }
        }
        if let Some(node) = root.get("config") {
            return Err(Error::Yaml { fault: YamlFault::ReservedKey, origin: node.key_origin().clone() });
        }
        root.set_paths("");
        Ok(Self { root })
    }

    /// Applies command-line arguments: `key=value`, `~key`; later ones win.
    pub fn with_overrides<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Self, Error> {
        let mut root = Overrides::parse(arguments)?.apply(&self.root)?;
        // What is here can be printed and read again, so the limits of a document hold.
        let too_much = |fault| Err(Error::Yaml { fault, origin: root.origin().clone() });
        if root.depth() > MAX_DEPTH {
            return too_much(YamlFault::TooDeep { limit: MAX_DEPTH });
        }
        if root.count() > MAX_NODES {
            return too_much(YamlFault::TooLarge { limit: MAX_NODES });
        }
        root.set_paths("");
        Ok(Self { root })
    }

    /// Replaces every `${…}` by its value.
    pub fn resolve(&self) -> Result<Merged, Error> {
        Merged::new(&self.root, &|name| std::env::var(name).ok())
    }

    /// As [`resolve`](Self::resolve), with `${oc.env:…}` read through `env`.
    pub fn resolve_with(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Merged, Error> {
        Merged::new(&self.root, env)
    }

    /// The tree.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The tree as YAML text, `${…}` as they stand.
    pub fn to_yaml(&self, order: Order) -> String {
        to_yaml(&self.root, order)
    }
}

/// Where a document stands: a file, or the value of a command-line argument.
enum Place<'a> {
    File(&'a Arc<Source>),
    Argument(&'a Arc<str>),
}

impl Place<'_> {
    fn origin(&self, span: Span) -> Origin {
        match self {
            Self::File(source) => {
                let (start, end) = (span.start, span.end);
                let width = end.index().saturating_sub(start.index());
                Origin::File(Position::new(Arc::clone(source), start.line(), start.col() + 1, width))
            }
            Self::Argument(token) => Origin::CommandLine(Arc::clone(token)),
        }
    }
}

/// Parses the value of a command-line argument.
pub(crate) fn parse_argument(text: &str, token: &Arc<str>) -> Result<Node, Error> {
    parse_document(&with_plain_line_ends(text), &Place::Argument(token))
}

/// Parses one YAML document, whose lines end with `\n`, into a tree; an empty one is null.
fn parse_document(text: &str, place: &Place<'_>) -> Result<Node, Error> {
    let mut loader = Loader {
        parser: Parser::new_from_str(text),
        text,
        place,
        anchors: HashMap::new(),
        num_nodes: 0,
        quoted: Vec::new(),
    };
    loader.refuse_characters()?;
    loader.document()
}

/// A text whose lines all end with `\n`; YAML takes `\r\n` and `\r` for the same.
fn with_plain_line_ends(text: &str) -> Cow<'_, str> {
    if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n").into() } else { text.into() }
}

/// Every character with its place.
fn places(text: &str) -> impl Iterator<Item = (Marker, char)> {
    let (mut line, mut column) = (1, 0);
    text.chars().enumerate().map(move |(index, c)| {
        let marker = Marker::new(index, line, column);
        (line, column) = if c == '\n' { (line + 1, 0) } else { (line, column + 1) };
        (marker, c)
    })
}

/// Characters that may stand in a YAML document; the parser itself would take a NUL for the document's end.
fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{85}') || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

struct Loader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    text: &'a str,
    place: &'a Place<'a>,
    anchors: HashMap<usize, Node>,
    num_nodes: usize,
    /// Where quoted and block texts stand, as indices of characters.
    quoted: Vec<(usize, usize)>,
}

impl<'a> Loader<'a> {
    fn document(&mut self) -> Result<Node, Error> {
        let mut root = None;
        loop {
            let (event, span) = self.next_event()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) if root.is_some() => return Err(self.fault(YamlFault::Documents, span)),
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => root = Some(self.node(event, span, 0)?),
            }
        }
        self.refuse_tabs()?;
        let start = Span::empty(Marker::new(0, 1, 0));
        if let Some(root) = root {
            return Ok(root);
        }
        if self.text.lines().any(|line| line.starts_with("...")) {
            let reason = "expected a value before `...`".to_owned();
            return Err(self.fault(YamlFault::Syntax { reason }, start));
        }
        Ok(Node::scalar(Value::Null, "", false, self.place.origin(start)))
    }

    fn refuse_characters(&self) -> Result<(), Error> {
        match places(self.text).find(|&(_, c)| !is_printable(c)) {
            Some((marker, c)) => Err(self.fault(YamlFault::Character { code: c.into() }, Span::new(marker, marker))),
            None => Ok(()),
        }
    }

    /// Refuses tabs outside quotes, blocks of text and comments, as YAML 1.1 readers do.
    fn refuse_tabs(&self) -> Result<(), Error> {
        if !self.text.contains('\t') {
            return Ok(());
        }
        // The spans are in order and do not overlap.
        let quoted = |index: usize| {
            let next = self.quoted.partition_point(|&(start, _)| start <= index);
            next > 0 && index < self.quoted[next - 1].1
        };
        let (mut comment, mut blank) = (false, true);
        for (marker, c) in places(self.text) {
            match c {
                '\n' => (comment, blank) = (false, true),
                '\t' if !comment && !quoted(marker.index()) => {
                    return Err(self.fault(YamlFault::Tab, Span::new(marker, marker)));
                }
                c => {
                    comment |= c == '#' && blank && !quoted(marker.index());
                    blank = c.is_whitespace();
                }
            }
        }
        Ok(())
    }

    /// A block of text that ends with the document ends with a line break only if the document does.
    fn clipped<'t>(&self, text: &'t str, style: ScalarStyle, span: Span) -> &'t str {
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        if block && !self.text.ends_with('\n') && span.end.index() >= self.text.chars().count() {
            return text.strip_suffix('\n').unwrap_or(text);
        }
        text
    }

    fn next_event(&mut self) -> Result<(Event<'a>, Span), Error> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn syntax(&self, error: &ScanError) -> Error {
        let marker = *error.marker();
        let reason = error.info().replace("`@'", "`@`").replace("``'", "a backtick").replace("`%'", "`%`");
        self.fault(YamlFault::Syntax { reason }, Span::new(marker, marker))
    }

    fn fault(&self, fault: YamlFault, span: Span) -> Error {
        Error::Yaml { fault, origin: self.place.origin(span) }
    }

    fn count(&mut self, new: usize, span: Span) -> Result<(), Error> {
        self.num_nodes += new;
        if self.num_nodes > MAX_NODES {
            return Err(self.fault(YamlFault::TooLarge { limit: MAX_NODES }, span));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Error> {
        if depth > MAX_DEPTH {
            return Err(self.fault(YamlFault::TooDeep { limit: MAX_DEPTH }, span));
        }
        self.count(1, span)?;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if style != ScalarStyle::Plain {
                    self.quoted.push((span.start.index(), span.end.index()));
                }
                (self.scalar(self.clipped(&text, style, span), style, tag.as_deref(), span)?, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.collection_tag(tag.as_deref(), "seq", span)?;
                (self.list(span, depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.collection_tag(tag.as_deref(), "map", span)?;
                (self.map(span, depth)?, anchor)
            }
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(self.fault(YamlFault::RecursiveAlias, span));
                };
                if depth + node.depth() > MAX_DEPTH {
                    return Err(self.fault(YamlFault::TooDeep { limit: MAX_DEPTH }, span));
                }
                self.count(node.count(), span)?;
                return Ok(node);
            }
            // A parser that keeps its grammar never gets here.
            _ => {
                let reason = "expected a value".to_owned();
                return Err(self.fault(YamlFault::Syntax { reason }, span));
            }
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, start: Span, depth: usize) -> Result<Node, Error> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if event == Event::SequenceEnd {
                return Ok(Node::new(Value::List(items), self.place.origin(start)));
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn map(&mut self, start: Span, depth: usize) -> Result<Node, Error> {
        let mut own: Vec<(Key, Node)> = Vec::new();
        let mut seen: HashMap<Key, Option<usize>> = HashMap::new();
        let mut merged = Map::new();
        loop {
            let (event, key_span) = self.next_event()?;
            if event == Event::MappingEnd {
                break;
            }
            if matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<") {
                let (event, span) = self.next_event()?;
                let value = self.node(event, span, depth + 1)?;
                merge_sections(&mut merged, &value)?;
                continue;
            }
            let key = self.node(event, key_span, depth + 1)?;
            let (event, span) = self.next_event()?;
            let mut value = self.node(event, span, depth + 1)?;
            let Some(key_name) = Key::from_value(key.value()) else {
                return Err(self.fault(YamlFault::Key { found: key.found() }, key_span));
            };
            let line = key.origin().position().map(Position::line);
            if let Some(&first_line) = seen.get(&key_name) {
                let fault = YamlFault::DuplicateKey { key: key_name.to_string(), first_line };
                return Err(self.fault(fault, key_span));
            }
            seen.insert(key_name.clone(), line);
            value.set_key_origin(key.origin().clone());
            own.push((key_name, value));
        }
        // Merged keys come first, and the section's own win in place.
        let shared = !merged.is_empty();
        for (key, node) in own {
            if shared { merged.insert(key, node) } else { merged.push(key, node) }
        }
        Ok(Node::new(Value::Map(merged), self.place.origin(start)))
    }

    fn scalar(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Result<Node, Error> {
        let plain = style == ScalarStyle::Plain;
        let value = match tag {
            None if plain && matches!(text, "=" | "<<") => {
                return Err(self.fault(YamlFault::Reserved { text: text.to_owned() }, span));
            }
            None if plain => resolve_plain(text),
            None => Value::String(text.to_owned()),
            Some(tag) => self.tagged(text, tag, span)?,
        };
        let quoted = !plain || tag.is_some_and(|tag| tag.suffix == "str");
        Ok(Node::scalar(value, text, quoted, self.place.origin(span)))
    }

    fn tagged(&self, text: &str, tag: &Tag, span: Span) -> Result<Value, Error> {
        let bad = || self.fault(YamlFault::Tagged { tag: tag_text(tag), found: text.to_owned() }, span);
        let core = tag.is_yaml_core_schema();
        match tag.suffix.as_str() {
            "str" if core => Ok(Value::String(text.to_owned())),
            "null" if core => Ok(Value::Null),
            "int" if core => parse_int(text).map(Value::Int).ok_or_else(bad),
            "float" if core => {
                let float = parse_float(text).or_else(|| parse_int(text).map(|i| i as f64));
                float.map(Value::Float).ok_or_else(bad)
            }
            "bool" if core => match resolve_plain(text) {
                Value::Bool(b) => Ok(Value::Bool(b)),
                _ => Err(bad()),
            },
            "" | "!" if matches!(tag.handle.as_str(), "" | "!") => Ok(resolve_plain(text)),
            _ => Err(self.fault(YamlFault::Tag { tag: tag_text(tag) }, span)),
        }
    }

    fn collection_tag(&self, tag: Option<&Tag>, suffix: &str, span: Span) -> Result<(), Error> {
        match tag {
            Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == suffix) => {
                Err(self.fault(YamlFault::Tag { tag: tag_text(tag) }, span))
            }
            _ => Ok(()),
        }
    }
}

/// Takes over the entries of a `<<` value; in a list of sections the first one that has a key wins.
fn merge_sections(merged: &mut Map, value: &Node) -> Result<(), Error> {
    let bad =
        |node: &Node| Error::Yaml { fault: YamlFault::Merge { found: node.found() }, origin: node.origin().clone() };
    let sections = match value.value() {
        Value::Map(_) => std::slice::from_ref(value),
        Value::List(items) => items,
        _ => return Err(bad(value)),
    };
    let mut taken = HashSet::new();
    for section in sections {
        let map = section.as_map().ok_or_else(|| bad(section))?;
        for (key, node) in map.iter() {
            if taken.insert(key.clone()) {
                merged.insert(key.clone(), node.clone());
            }
        }
    }
    Ok(())
}

fn tag_text(tag: &Tag) -> String {
    let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
    format!("{handle}{}", tag.suffix)
}
