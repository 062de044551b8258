//! Replacing every `${…}` by what it refers to.
//!
//! - `${a.b}`, `${a[0]}`: from the root. `${.b}`: next to the value itself; `${..b}`: one level further out.
//! - A value that is one reference keeps the target's type and may be a list or section; mixed with text it is
//!   written as Python writes it (`None`, `True`, `1e-05`).
//! - Resolvers: `oc.env:NAME[,default]` (text), `oc.decode:text` (text to a value), `oc.select:key[,default]`,
//!   `oc.create:value`, `oc.dict.keys:key`, `oc.dict.values:key`, `oc.deprecated:key[,message]`.
//!
//! Errors: a missing or unset key, a circle, an unknown resolver, an unset environment variable, each with the key
//! that holds the reference. All are found: a value that cannot be resolved becomes a broken one, and references to it
//! are broken without being told. Panics: never; depth and size of what references expand to are bounded.

use std::collections::{HashMap, HashSet};

use crate::error::ReferenceFault;
use crate::node::{Key, Map, Node, Value};
use crate::number::python_str;
use crate::path::{join_path, split_path};
use crate::problems::Problem;
use crate::reference::{Argument, Part, Reference, parse_argument, parse_value};
use crate::scalar::{parse_float, parse_int};
use crate::suggest;
use crate::written::{MAX_DEPTH, MAX_NODES};

/// Steps from value to value to reference: the recursion of this module.
const MAX_STEPS: usize = 160;
/// Values, and characters of text, that references may expand to.
const MAX_SIZE: usize = 1_000_000;

/// The tree with every reference replaced and every path set, and what is wrong with those that cannot be replaced.
pub(crate) fn resolve(root: &Node, env: &dyn Fn(&str) -> Option<String>) -> (Node, Vec<Problem>) {
    let mut resolver = Resolver {
        root,
        env,
        done: HashMap::new(),
        broken: HashSet::new(),
        active: Vec::new(),
        referenced: HashSet::new(),
        steps: 0,
        size: 0,
        is_exhausted: false,
        problems: Vec::new(),
    };
    let mut resolved = resolver.node(root, &mut Vec::new());
    if resolver.problems.is_empty() && resolved.count() > MAX_NODES {
        resolver.tell(ReferenceFault::TooLarge { limit: MAX_NODES });
    }
    resolved.set_paths("");
    for key in &resolver.referenced {
        if let Value::Map(map) = resolved.value_mut()
            && let Some(node) = map.get_mut(key)
        {
            node.set_referenced();
        }
    }
    (resolved, in_file_order(resolver.problems))
}

/// Those of the file by their place, then those of the command line as they were found.
fn in_file_order(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| match problem.origin.position() {
        Some(place) => (false, place.line(), place.column()),
        None => (true, 0, 0),
    });
    problems
}

/// A reference that cannot be replaced; why is told.
struct Broken;

type Outcome<T> = Result<T, Broken>;

struct Resolver<'a> {
    root: &'a Node,
    env: &'a dyn Fn(&str) -> Option<String>,
    /// Values of strings with references, by path.
    done: HashMap<Vec<String>, Node>,
    /// Paths of the strings that cannot be resolved.
    broken: HashSet<Vec<String>>,
    /// Paths of the strings being resolved, outermost first.
    active: Vec<Vec<String>>,
    /// Top-level keys that a reference reads.
    referenced: HashSet<String>,
    steps: usize,
    size: usize,
    /// References have expanded to too much, so no more are followed.
    is_exhausted: bool,
    problems: Vec<Problem>,
}

impl Resolver<'_> {
    /// Tells a fault of the string being resolved.
    fn tell(&mut self, fault: ReferenceFault) {
        self.is_exhausted |= matches!(fault, ReferenceFault::TooLarge { .. });
        let holder = self.written(self.active.last().map_or(&[][..], Vec::as_slice));
        self.problems.push(Problem::reference(fault, holder.path().to_owned(), holder.origin().clone()));
    }

    /// The node of the file at a path that leads somewhere.
    fn written(&self, path: &[String]) -> &Node {
        path.iter().try_fold(self.root, |node, segment| node.get(segment)).unwrap_or(self.root)
    }

    fn fail<T>(&mut self, fault: ReferenceFault) -> Outcome<T> {
        self.tell(fault);
        Err(Broken)
    }

    /// Runs one level of recursion.
    fn deeper<T>(&mut self, run: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.steps == MAX_STEPS {
            return self.fail(ReferenceFault::TooDeep { limit: MAX_STEPS });
        }
        self.steps += 1;
        let outcome = run(self);
        self.steps -= 1;
        outcome
    }

    /// A node of the file, resolved; broken values stand where that is impossible.
    fn node(&mut self, node: &Node, path: &mut Vec<String>) -> Node {
        let resolved = self.deeper(|this| this.value(node, path));
        let mut resolved = resolved.unwrap_or_else(|Broken| Node::broken(node.origin().clone()));
        resolved.set_key_origin(node.key_origin().clone());
        resolved
    }

    fn value(&mut self, node: &Node, path: &mut Vec<String>) -> Outcome<Node> {
        let value = match node.value() {
            Value::String(text) if text.contains("${") => return self.string(text, node, path),
            Value::List(items) => {
                let mut resolved = Vec::with_capacity(items.len());
                for (i, item) in items.iter().enumerate() {
                    path.push(i.to_string());
                    resolved.push(self.node(item, path));
                    path.pop();
                }
                Value::List(resolved)
            }
            Value::Map(map) => {
                let mut resolved = Map::new();
                for (key, item) in map.iter() {
                    path.push(key.to_string());
                    resolved.push(key.clone(), self.node(item, path));
                    path.pop();
                }
                Value::Map(resolved)
            }
            _ => return Ok(node.clone()),
        };
        Ok(Node::new(value, node.origin().clone()))
    }

    /// A string with references, resolved once.
    fn string(&mut self, text: &str, node: &Node, path: &[String]) -> Outcome<Node> {
        if self.is_exhausted || self.broken.contains(path) {
            return Err(Broken);
        }
        if let Some(done) = self.done.get(path).cloned() {
            self.grow(&done, path.len())?;
            return Ok(done);
        }
        if let Some(start) = self.active.iter().position(|active| active == path) {
            let circle = self.active[start..].iter().map(Vec::as_slice).chain([path]);
            let names: Vec<String> = circle.map(|path| format!("`{}`", self.written(path).path())).collect();
            return self.fail(ReferenceFault::Cycle { chain: names.join(" -> ") });
        }
        self.active.push(path.to_vec());
        let resolved = self.replaced(text, path.len());
        self.active.pop();
        let Ok(mut resolved) = resolved else {
            self.broken.insert(path.to_vec());
            return Err(Broken);
        };
        resolved.set_origin(node.origin().clone());
        self.done.insert(path.to_vec(), resolved.clone());
        Ok(resolved)
    }

    /// What the text of the string being resolved becomes.
    fn replaced(&mut self, text: &str, depth: usize) -> Outcome<Node> {
        let parts = parse_value(text).or_else(|fault| self.fail(fault))?;
        let resolved = self.value_of(&parts)?;
        self.grow(&resolved, depth)?;
        Ok(resolved)
    }

    /// Counts what a reference adds to the tree, against multiplication and depth.
    fn grow(&mut self, node: &Node, depth: usize) -> Outcome<()> {
        if depth + node.depth() > MAX_DEPTH {
            return self.fail(ReferenceFault::TooDeep { limit: MAX_DEPTH });
        }
        self.size += node.count() + node.as_str().map_or(0, str::len);
        if self.size > MAX_SIZE {
            return self.fail(ReferenceFault::TooLarge { limit: MAX_SIZE });
        }
        Ok(())
    }

    /// One reference keeps its target's type; anything else is text.
    fn value_of(&mut self, parts: &[Part]) -> Outcome<Node> {
        match parts {
            [Part::Reference(reference)] => self.reference(reference),
            parts => Ok(Value::String(self.text_of(parts)?).into()),
        }
    }

    fn text_of(&mut self, parts: &[Part]) -> Outcome<String> {
        let mut out = String::new();
        for part in parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Reference(reference) => out.push_str(&python_str(&self.reference(reference)?)),
            }
            if out.len() > MAX_SIZE {
                return self.fail(ReferenceFault::TooLarge { limit: MAX_SIZE });
            }
        }
        Ok(out)
    }

    fn reference(&mut self, reference: &Reference) -> Outcome<Node> {
        self.deeper(|this| match reference {
            Reference::Key { dots, segments, text } => {
                let path: Vec<String> = segments.iter().map(|segment| this.text_of(segment)).collect::<Outcome<_>>()?;
                let nested = segments.iter().any(|parts| parts.len() != 1 || !matches!(parts[0], Part::Text(_)));
                let shown = if nested { format!("{}{}", ".".repeat(*dots), join_path(&path)) } else { text.clone() };
                this.key(*dots, &path, &shown)
            }
            Reference::Call { name, arguments } => this.call(name, arguments),
        })
    }

    /// The absolute path of a key, seen from the value being resolved.
    fn absolute(&self, dots: usize, path: &[String]) -> Option<Vec<String>> {
        let holder = self.active.last().map_or(&[][..], Vec::as_slice);
        let base = if dots == 0 { 0 } else { holder.len().checked_sub(dots)? };
        Some(holder[..base].iter().chain(path).cloned().collect())
    }

    fn key(&mut self, dots: usize, path: &[String], text: &str) -> Outcome<Node> {
        let absolute = self.absolute(dots, path);
        let found = match &absolute {
            Some(absolute) => self.lookup(absolute)?,
            None => None,
        };
        match found {
            Some(node) if node.is_missing() => self.fail(ReferenceFault::Unset { reference: text.to_owned() }),
            Some(node) => Ok(node),
            None => {
                let nearest = absolute.and_then(|path| self.nearest(&path));
                self.fail(ReferenceFault::Missing { reference: text.to_owned(), nearest })
            }
        }
    }

    /// The resolved node at a path, going through references on the way.
    fn lookup(&mut self, path: &[String]) -> Outcome<Option<Node>> {
        let root = self.root;
        let mut node = root;
        for (depth, segment) in path.iter().enumerate() {
            if node.as_str().is_some_and(|text| text.contains("${")) {
                let through = self.whole(node, &path[..depth])?;
                let rest = &path[depth..];
                return Ok(rest.iter().try_fold(&through, |node, segment| node.get(segment)).cloned());
            }
            match element(node, segment) {
                Some(below) => node = below,
                None => return Ok(None),
            }
        }
        if let Some(first) = path.first() {
            self.referenced.insert(first.clone());
        }
        self.whole(node, path).map(Some)
    }

    /// A node of the file, resolved without a broken value in it.
    fn whole(&mut self, node: &Node, path: &[String]) -> Outcome<Node> {
        let resolved = self.node(node, &mut path.to_vec());
        let is_broken = !self.problems.is_empty() && resolved.has_broken();
        if is_broken { Err(Broken) } else { Ok(resolved) }
    }

    /// An existing key that a missing one was probably meant to be.
    fn nearest(&self, path: &[String]) -> Option<String> {
        let mut node = self.root;
        for (depth, segment) in path.iter().enumerate() {
            match node.get(segment) {
                Some(below) => node = below,
                None => {
                    let known = node.as_map()?.keys().map(Key::as_str);
                    let meant = suggest::nearest(segment, known)?;
                    let mut path = path.to_vec();
                    meant.clone_into(&mut path[depth]);
                    return Some(join_path(&path));
                }
            }
        }
        None
    }

    fn call(&mut self, name: &str, arguments: &[Argument]) -> Outcome<Node> {
        match name {
            "oc.env" => self.env(arguments),
            "oc.decode" => self.decode(arguments),
            "oc.select" => self.select(arguments),
            "oc.deprecated" => self.deprecated(arguments),
            "oc.create" => match arguments {
                [value] => self.argument(value),
                _ => self.bad_arguments("oc.create", "one value", arguments.len()),
            },
            "oc.dict.keys" => self.entries("oc.dict.keys", arguments, |(key, _)| {
                let text = key.as_str();
                Node::from(Value::String(text.to_owned()))
            }),
            "oc.dict.values" => self.entries("oc.dict.values", arguments, |(_, node)| node.clone()),
            _ => self.fail(ReferenceFault::UnknownResolver { name: name.to_owned() }),
        }
    }

    fn bad_arguments<T>(&mut self, name: &'static str, expected: &'static str, count: usize) -> Outcome<T> {
        let found = if count == 1 { "1 argument".to_owned() } else { format!("{count} arguments") };
        self.fail(ReferenceFault::Arguments { name, expected, found })
    }

    fn env(&mut self, arguments: &[Argument]) -> Outcome<Node> {
        let (name, default) = match arguments {
            [name] => (name, None),
            [name, default] => (name, Some(default)),
            _ => return self.bad_arguments("oc.env", "a name and perhaps a default", arguments.len()),
        };
        let variable = python_str(&self.argument(name)?);
        if let Some(value) = (self.env)(&variable) {
            return Ok(Value::String(value).into());
        }
        let Some(default) = default else { return self.fail(ReferenceFault::Environment { variable }) };
        let default = self.argument(default)?;
        Ok(if default.is_null() { default } else { Value::String(python_str(&default)).into() })
    }

    fn decode(&mut self, arguments: &[Argument]) -> Outcome<Node> {
        let [argument] = arguments else { return self.bad_arguments("oc.decode", "one text", arguments.len()) };
        let node = self.argument(argument)?;
        match node.as_str() {
            Some(text) => {
                let argument = parse_argument(text).or_else(|fault| self.fail(fault))?;
                self.argument(&argument)
            }
            None => Ok(node),
        }
    }

    fn select(&mut self, arguments: &[Argument]) -> Outcome<Node> {
        let (key, default) = match arguments {
            [key] => (key, None),
            [key, default] => (key, Some(default)),
            _ => return self.bad_arguments("oc.select", "a key and perhaps a default", arguments.len()),
        };
        let key = python_str(&self.argument(key)?);
        match (self.by_text(&key)?, default) {
            (Some(node), _) if !node.is_missing() => Ok(node),
            (_, Some(default)) => self.argument(default),
            (_, None) => Ok(Value::Null.into()),
        }
    }

    /// The key that has replaced this one; a message for the user may follow.
    fn deprecated(&mut self, arguments: &[Argument]) -> Outcome<Node> {
        let ([key] | [key, _]) = arguments else {
            return self.bad_arguments("oc.deprecated", "a key and perhaps a message", arguments.len());
        };
        let reference = python_str(&self.argument(key)?);
        match self.by_text(&reference)? {
            Some(node) => Ok(node),
            None => self.fail(ReferenceFault::Missing { reference, nearest: None }),
        }
    }

    /// The node a key given as text names; a leading dot makes it relative.
    fn by_text(&mut self, key: &str) -> Outcome<Option<Node>> {
        let path = key.trim_start_matches('.');
        match self.absolute(key.len() - path.len(), &split_path(path)) {
            Some(absolute) => self.lookup(&absolute),
            None => Ok(None),
        }
    }

    fn entries(
        &mut self,
        name: &'static str,
        arguments: &[Argument],
        take: impl Fn((&Key, &Node)) -> Node,
    ) -> Outcome<Node> {
        let [argument] = arguments else { return self.bad_arguments(name, "one key", arguments.len()) };
        let given = self.argument(argument)?;
        let section = match given.as_str() {
            Some(key) => self.by_text(key)?,
            None => Some(given),
        };
        match section.as_ref().and_then(Node::as_map) {
            Some(map) => Ok(Value::List(map.iter().map(take).collect()).into()),
            None => self.fail(ReferenceFault::Arguments {
                name,
                expected: "the key of a section",
                found: section.map_or("no such key".to_owned(), |node| node.found()),
            }),
        }
    }

    fn argument(&mut self, argument: &Argument) -> Outcome<Node> {
        self.deeper(|this| match argument {
            Argument::Quoted(parts) => Ok(Value::String(this.text_of(parts)?).into()),
            Argument::Bare(parts) => match &parts[..] {
                [Part::Text(text)] => Ok(bare(text).into()),
                parts => this.value_of(parts),
            },
            Argument::List(items) => {
                let items: Vec<Node> = items.iter().map(|item| this.argument(item)).collect::<Outcome<_>>()?;
                Ok(Value::List(items).into())
            }
            Argument::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(Key::text(this.text_of(key)?), this.argument(value)?);
                }
                Ok(Value::Map(map).into())
            }
        })
    }
}

/// One level down; list elements also count from the end, as `-1`.
pub(crate) fn element<'a>(node: &'a Node, segment: &str) -> Option<&'a Node> {
    match node.as_list() {
        Some(items) => {
            let index: isize = segment.parse().ok()?;
            let from_end = items.len().checked_sub(index.unsigned_abs());
            items.get(if index < 0 { from_end? } else { index.unsigned_abs() })
        }
        None => node.get(segment),
    }
}

/// An unquoted argument of a resolver: null, bool and numbers in JSON's spellings, in any case, else text.
fn bare(text: &str) -> Value {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_start_matches(['+', '-']);
    let signed = lower.len() - digits.len() <= 1;
    match (lower.as_str(), digits) {
        ("null", _) => Value::Null,
        ("true", _) => Value::Bool(true),
        ("false", _) => Value::Bool(false),
        ("nan", _) => Value::Float(f64::NAN),
        (_, "inf") if signed => Value::Float(if lower.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
        _ if signed && digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') && !digits.contains([':', 'x']) => {
            let octal = digits.len() > 1 && digits.starts_with('0') && !digits.contains(['.', 'e']);
            let number = if octal { None } else { parse_int(&lower).map(Value::Int) };
            number.or_else(|| parse_float(&lower).map(Value::Float)).unwrap_or_else(|| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}
