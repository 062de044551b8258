//! Stage one, *written*: YAML text to a tree in which every value knows its file, line and column.
//!
//! Anchors, aliases and `<<` merge keys are resolved; a key that occurs twice, tags other than YAML's own scalar
//! and collection tags, control characters, several documents, and trees deeper than 128 or larger than 200,000 values are refused.
//! What is wrong with a text is told together, in the order of the text. Behind a syntax error nothing can be trusted, so
//! it is the last that is told; other faults leave a broken value or nothing in the tree, which is then thrown away.
//! Errors: [`Error::Problems`], [`Error::Read`], [`Error::NotUtf8`]. Panics: never.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use crate::error::{Error, YamlFault};
use crate::merged::Merged;
use crate::node::{Key, Map, Node, Value};
use crate::overrides::Overrides;
use crate::problems::{Problem, ProblemKind, ProblemList, Problems};
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
        let place = Place::File(&source);
        let Document { root, mut problems } = parse_document(source.text(), &place);
        let mut root = root.unwrap_or_else(Node::empty);
        match root.value() {
            Value::Map(_) => {}
            Value::Null => root = Node::new(Value::Map(Map::new()), root.origin().clone()),
            Value::String(text) => {
                // One word is a key without a value.
                let mut map = Map::new();
                map.push(Key::text(text.clone()), Node::new(Value::Null, root.origin().clone()));
                root = Node::new(Value::Map(map), root.origin().clone());
            }
            _ => problems.push(Problem::yaml(YamlFault::Root { found: root.found() }, root.origin().clone())),
        }
        // One that came through an alias is told here.
        let reserved = ProblemKind::Yaml(YamlFault::ReservedKey);
        if let Some(node) = root.get("config").filter(|_| problems.iter().all(|problem| problem.kind != reserved)) {
            problems.push(Problem::yaml(YamlFault::ReservedKey, node.key_origin().clone()));
        }
        if !problems.is_empty() {
            return Err(Error::Problems(ProblemList::in_file_order(problems)));
        }
        root.set_paths("");
        Ok(Self { root })
    }

    /// Applies command-line arguments: `key=value`, `~key`; later ones win.
    pub fn with_overrides<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Self, Error> {
        let mut root = Overrides::parse(arguments).apply(&self.root)?;
        // What is here can be printed and read again, so the limits of a document hold.
        let fault = if root.depth() > MAX_DEPTH {
            Some(YamlFault::TooDeep { limit: MAX_DEPTH })
        } else if root.count() > MAX_NODES {
            Some(YamlFault::TooLarge { limit: MAX_NODES })
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(Error::Problems(ProblemList::new(vec![Problem::yaml(fault, root.origin().clone())])));
        }
        root.set_paths("");
        Ok(Self { root })
    }

    /// Replaces every `${…}` by its value. What cannot be replaced is told together.
    pub fn resolve(&self) -> Result<Merged, Error> {
        self.resolve_or_check(|_| Problems::new())
    }

    /// As [`resolve`](Self::resolve); where references cannot be replaced, the error also has what `check` finds wrong with
    /// the rest. It is given the tree with null in their places, of which [`Problems`] takes no problem.
    pub fn resolve_or_check(&self, check: impl FnOnce(&Merged) -> Problems) -> Result<Merged, Error> {
        let (merged, mut problems) = Merged::new(&self.root, &|name| std::env::var(name).ok());
        if problems.is_empty() {
            return Ok(merged);
        }
        problems.extend(check(&merged).iter().cloned());
        Err(Error::Problems(ProblemList::new(problems)))
    }

    /// As [`resolve`](Self::resolve), with `${oc.env:…}` read through `env`.
    pub fn resolve_with(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Merged, Error> {
        let (merged, problems) = Merged::new(&self.root, env);
        if problems.is_empty() { Ok(merged) } else { Err(Error::Problems(ProblemList::new(problems))) }
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
    fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

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

/// What was read: the tree unless reading had to stop, and what is wrong with the text.
pub(crate) struct Document {
    pub root: Option<Node>,
    pub problems: Vec<Problem>,
}

/// Parses the value of a command-line argument.
pub(crate) fn parse_argument(text: &str, token: &Arc<str>) -> Document {
    parse_document(&with_plain_line_ends(text), &Place::Argument(token))
}

/// Parses one YAML document, whose lines end with `\n`, into a tree; an empty one is null.
fn parse_document(text: &str, place: &Place<'_>) -> Document {
    // The parser would take a NUL for the document's end, so it gets another character in the place of each bad one.
    let is_good = text.chars().all(is_printable);
    let readable: Cow<'_, str> = if is_good {
        text.into()
    } else {
        text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
    };
    let mut loader = Loader {
        parser: Parser::new_from_str(&readable),
        text: &readable,
        place,
        anchors: HashMap::new(),
        num_nodes: 0,
        quoted: Vec::new(),
        reached: 0,
        stopped_at: None,
        problems: Vec::new(),
    };
    let root = loader.document().ok();
    loader.tell_tabs();
    if !is_good {
        loader.tell_characters(text);
    }
    Document { root, problems: loader.problems }
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

/// Characters that may stand in a YAML document.
fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{85}') || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// Reading cannot go on; why is told.
struct Stopped;

type Outcome<T> = Result<T, Stopped>;

struct Loader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    text: &'a str,
    place: &'a Place<'a>,
    anchors: HashMap<usize, Node>,
    num_nodes: usize,
    /// Where quoted and block texts stand, as indices of characters.
    quoted: Vec<(usize, usize)>,
    /// Index of the character behind all that was read.
    reached: usize,
    /// Line and column at which reading had to stop; the parser's indices of characters are not always those of its lines.
    stopped_at: Option<(usize, usize)>,
    problems: Vec<Problem>,
}

/// The anchor that no alias has: what an alias without an anchor refers to.
const NO_ANCHOR: usize = 0;

impl<'a> Loader<'a> {
    fn document(&mut self) -> Outcome<Node> {
        let mut root = None;
        loop {
            let (event, span) = self.next_event()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) if root.is_some() => return self.stop(YamlFault::Documents, span),
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => root = Some(self.node(event, span, 0)?),
            }
        }
        self.reached = usize::MAX;
        let start = Span::empty(Marker::new(0, 1, 0));
        if let Some(root) = root {
            return Ok(root);
        }
        if self.text.lines().any(|line| line.starts_with("...")) {
            let reason = "expected a value before `...`".to_owned();
            return self.stop(YamlFault::Syntax { reason }, start);
        }
        Ok(Node::scalar(Value::Null, "", false, self.place.origin(start)))
    }

    /// Tells the first character of each line that may not stand in `text`, up to where reading stopped.
    fn tell_characters(&mut self, text: &str) {
        let end = self.stopped_at.unwrap_or((usize::MAX, 0));
        let mut told = 0;
        for (marker, c) in
            places(text).filter(|&(_, c)| !is_printable(c)).take_while(|(at, _)| (at.line(), at.col()) < end)
        {
            if marker.line() != told {
                told = marker.line();
                self.tell(YamlFault::Character { code: c.into() }, Span::new(marker, marker));
            }
        }
    }

    /// Tells the first tab of each line outside quotes, blocks of text and comments, which YAML 1.1 readers refuse.
    fn tell_tabs(&mut self) {
        if !self.text.contains('\t') {
            return;
        }
        // The spans are in order and do not overlap.
        let quoted = |index: usize| {
            let next = self.quoted.partition_point(|&(start, _)| start <= index);
            next > 0 && index < self.quoted[next - 1].1
        };
        let end = self.stopped_at.unwrap_or((usize::MAX, 0));
        let is_before = |at: &Marker| at.index() < self.reached && (at.line(), at.col()) < end;
        let (mut comment, mut blank, mut told) = (false, true, false);
        let mut tabs = Vec::new();
        for (marker, c) in places(self.text).take_while(|(marker, _)| is_before(marker)) {
            match c {
                '\n' => (comment, blank, told) = (false, true, false),
                '\t' if !(comment || told || quoted(marker.index())) => {
                    tabs.push(marker);
                    told = true;
                }
                c => {
                    comment |= c == '#' && blank && !quoted(marker.index());
                    blank = c.is_whitespace();
                }
            }
        }
        for marker in tabs {
            self.tell(YamlFault::Tab, Span::new(marker, marker));
        }
    }

    /// A block of text that ends with the document ends with a line break only if the document does.
    fn clipped<'t>(&self, text: &'t str, style: ScalarStyle, span: Span) -> &'t str {
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        if block && !self.text.ends_with('\n') && span.end.index() >= self.text.chars().count() {
            return text.strip_suffix('\n').unwrap_or(text);
        }
        text
    }

    /// The next event; an alias without an anchor is one of its own kind.
    fn next_event(&mut self) -> Outcome<(Event<'a>, Span)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.reached = self.reached.max(span.end.index());
                Ok((event, span))
            }
            Some(Err(error)) if error.info().ends_with("unknown anchor") => {
                // The parser has gone past the alias.
                let start = *error.marker();
                let name: String = self.text.chars().skip(start.index() + 1).take_while(|&c| is_in_name(c)).collect();
                let len = 1 + name.chars().count();
                let end = Marker::new(start.index() + len, start.line(), start.col() + len);
                let span = Span::new(start, end);
                self.tell(YamlFault::UnknownAlias { name }, span);
                Ok((Event::Alias(NO_ANCHOR), span))
            }
            Some(Err(error)) => self.syntax(&error),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn syntax<T>(&mut self, error: &ScanError) -> Outcome<T> {
        let marker = *error.marker();
        let reason = error.info().replace("`@'", "`@`").replace("``'", "a backtick").replace("`%'", "`%`");
        self.stop(YamlFault::Syntax { reason }, Span::new(marker, marker))
    }

    /// Tells a fault behind which nothing can be read.
    fn stop<T>(&mut self, fault: YamlFault, span: Span) -> Outcome<T> {
        self.stopped_at = Some((span.start.line(), span.start.col()));
        self.reached = self.reached.min(span.start.index());
        self.tell(fault, span);
        Err(Stopped)
    }

    fn tell(&mut self, fault: YamlFault, span: Span) {
        self.problems.push(Problem::yaml(fault, self.place.origin(span)));
    }

    /// Tells a fault of a value, and gives what stands in its place.
    fn broken(&mut self, fault: YamlFault, span: Span) -> Node {
        self.tell(fault, span);
        Node::broken(self.place.origin(span))
    }

    fn count(&mut self, new: usize, span: Span) -> Outcome<()> {
        self.num_nodes += new;
        if self.num_nodes > MAX_NODES {
            return self.stop(YamlFault::TooLarge { limit: MAX_NODES }, span);
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Outcome<Node> {
        if depth > MAX_DEPTH {
            return self.stop(YamlFault::TooDeep { limit: MAX_DEPTH }, span);
        }
        self.count(1, span)?;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                if style != ScalarStyle::Plain {
                    self.quoted.push((span.start.index(), span.end.index()));
                }
                (self.scalar(self.clipped(&text, style, span), style, tag.as_deref(), span), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", span);
                (self.list(span, depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", span);
                (self.map(span, depth)?, anchor)
            }
            Event::Alias(NO_ANCHOR) => return Ok(Node::broken(self.place.origin(span))),
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Ok(self.broken(YamlFault::RecursiveAlias, span));
                };
                if depth + node.depth() > MAX_DEPTH {
                    return self.stop(YamlFault::TooDeep { limit: MAX_DEPTH }, span);
                }
                self.count(node.count(), span)?;
                return Ok(node);
            }
            // A parser that keeps its grammar never gets here.
            _ => {
                let reason = "expected a value".to_owned();
                return self.stop(YamlFault::Syntax { reason }, span);
            }
        };
        if anchor != NO_ANCHOR {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, start: Span, depth: usize) -> Outcome<Node> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if event == Event::SequenceEnd {
                return Ok(Node::new(Value::List(items), self.place.origin(start)));
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn map(&mut self, start: Span, depth: usize) -> Outcome<Node> {
        let mut own: Vec<(Key, Node)> = Vec::new();
        let mut lines: HashMap<Key, Option<usize>> = HashMap::new();
        let mut merged = Map::new();
        loop {
            let (event, key_span) = self.next_event()?;
            if event == Event::MappingEnd {
                break;
            }
            if matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<") {
                let (event, span) = self.next_event()?;
                let value = self.node(event, span, depth + 1)?;
                self.merge_sections(&mut merged, &value);
                continue;
            }
            let key = self.node(event, key_span, depth + 1)?;
            // What is wrong with a key is told before its value is read.
            let name = self.key(&key, key_span, &mut lines);
            if name.as_ref().is_some_and(|name| name.as_str() == "config") && depth == 0 && self.place.is_file() {
                self.tell(YamlFault::ReservedKey, key_span);
            }
            let (event, span) = self.next_event()?;
            let mut value = self.node(event, span, depth + 1)?;
            if let Some(name) = name {
                value.set_key_origin(key.origin().clone());
                own.push((name, value));
            }
        }
        // Merged keys come first, and the section's own win in place.
        let shared = !merged.is_empty();
        for (key, node) in own {
            if shared { merged.insert(key, node) } else { merged.push(key, node) }
        }
        Ok(Node::new(Value::Map(merged), self.place.origin(start)))
    }

    /// The key that a node makes, unless it is no key or stands in `lines`, those of the section's earlier keys.
    fn key(&mut self, node: &Node, span: Span, lines: &mut HashMap<Key, Option<usize>>) -> Option<Key> {
        if node.is_broken() {
            return None;
        }
        let Some(key) = Key::from_value(node.value()) else {
            self.tell(YamlFault::Key { found: node.found() }, span);
            return None;
        };
        if let Some(&first_line) = lines.get(&key) {
            self.tell(YamlFault::DuplicateKey { key: key.to_string(), first_line }, span);
            return None;
        }
        lines.insert(key.clone(), node.origin().position().map(Position::line));
        Some(key)
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Node {
        let plain = style == ScalarStyle::Plain;
        let value = match tag {
            None if plain && matches!(text, "=" | "<<") => Err(YamlFault::Reserved { text: text.to_owned() }),
            None if plain => Ok(resolve_plain(text)),
            None => Ok(Value::String(text.to_owned())),
            Some(tag) => tagged(text, tag),
        };
        let quoted = !plain || tag.is_some_and(|tag| tag.suffix == "str");
        match value {
            Ok(value) => Node::scalar(value, text, quoted, self.place.origin(span)),
            Err(fault) => self.broken(fault, span),
        }
    }

    /// Tells a tag of a list or section that is not its own.
    fn check_tag(&mut self, tag: Option<&Tag>, suffix: &str, span: Span) {
        if let Some(tag) = tag.filter(|tag| !(tag.is_yaml_core_schema() && tag.suffix == suffix)) {
            self.tell(YamlFault::Tag { tag: tag_text(tag) }, span);
        }
    }

    /// Takes over the entries of a `<<` value; in a list of sections the first one that has a key wins.
    fn merge_sections(&mut self, merged: &mut Map, value: &Node) {
        let sections = match value.value() {
            Value::List(items) => items,
            _ => std::slice::from_ref(value),
        };
        let mut taken = HashSet::new();
        for section in sections.iter().filter(|section| !section.is_broken()) {
            let Some(map) = section.as_map() else {
                let fault = YamlFault::Merge { found: section.found() };
                self.problems.push(Problem::yaml(fault, section.origin().clone()));
                continue;
            };
            for (key, node) in map.iter() {
                if taken.insert(key.clone()) {
                    merged.insert(key.clone(), node.clone());
                }
            }
        }
    }
}

/// The value of a scalar with a tag.
fn tagged(text: &str, tag: &Tag) -> Result<Value, YamlFault> {
    let bad = || YamlFault::Tagged { tag: tag_text(tag), found: text.to_owned() };
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
        _ => Err(YamlFault::Tag { tag: tag_text(tag) }),
    }
}

/// Characters of an alias' name.
fn is_in_name(c: char) -> bool {
    !(c.is_whitespace() || ",[]{}".contains(c))
}

fn tag_text(tag: &Tag) -> String {
    let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
    format!("{handle}{}", tag.suffix)
}
