//! Command-line arguments after the recipe's options: `key=value` sets, `~key` removes.
//!
//! - `key` is a dotted path; `files[0]` and `files.0` set an element of a list. Missing sections are made.
//! - The value is what follows the first `=`, as YAML: `lr=1e-5`, `betas=[0.9, 0.95]`, `column_map={input: prompt}`.
//!   `None`, exactly, is null. Where the key contains `max_filename` the value is text and keeps its zeros.
//! - A key that is a component in the file, at any depth, switches the component: `optimizer=torch.optim.SGD` sets
//!   `optimizer._component_` and keeps the section's other keys, and so does
//!   `optimizer={_component_: torch.optim.SGD, lr: 0.1}`, which sets these too.
//! - As torchtune does, `=5` sets the key "" and `config=x` a key `config`: no recipe takes them, so that checking refuses them.
//! - All assignments are collected first and merged over the file last: sections key by key, anything else
//!   as a whole; `???` replaces nothing. Removals act on the file only, so `~f f=2` and `f=2 ~f` both leave `f = 2`.

use std::sync::Arc;

use crate::error::{Error, OverrideFault};
use crate::node::{Key, Map, Node, Value};
use crate::path::{join_path, split_path};
use crate::problems::{Problem, ProblemList};
use crate::reference::{Part, Reference, parse_value};
use crate::resolve::element;
use crate::source::Origin;
use crate::suggest;
use crate::written::{self, Document, MAX_DEPTH};

/// Parsed arguments, in the order given.
#[derive(Clone, Debug)]
pub struct Overrides {
    list: Vec<Override>,
    arguments: Vec<Arc<str>>,
    /// What cannot be an override; told when the others are applied.
    problems: Vec<Problem>,
}

#[derive(Clone, Debug)]
struct Override {
    token: Arc<str>,
    path: Vec<String>,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Set(Node),
    Remove,
}

impl Overrides {
    /// Parses the arguments.
    pub fn parse<S: AsRef<str>>(arguments: &[S]) -> Self {
        let arguments: Vec<Arc<str>> = arguments.iter().map(|argument| argument.as_ref().into()).collect();
        let (mut list, mut problems) = (Vec::with_capacity(arguments.len()), Vec::new());
        let mut rest = &arguments[..];
        while let Some((token, following)) = rest.split_first() {
            rest = following;
            match parse_argument(token, following) {
                Ok(parsed) => list.push(parsed),
                Err(fault) => {
                    // The rest of a torn one is no argument of its own.
                    rest = &rest[fault.num_torn..];
                    problems.extend(fault.problems);
                }
            }
        }
        Self { list, arguments, problems }
    }

    /// The tree with the overrides applied, or everything that is wrong with them, in their order.
    pub fn apply(&self, root: &Node) -> Result<Node, Error> {
        let mut root = root.clone();
        let mut problems = self.problems.clone();
        let mut patch = Patch::Section { entries: Vec::new(), by_path: true, origin: Origin::Code };
        for Override { token, path, action } in &self.list {
            let applied = match action {
                Action::Remove => remove(&mut root, path, token),
                Action::Set(value) => {
                    let mut path = path.clone();
                    if node_at(&root, &path).is_some_and(Node::is_component) && is_name(value, path.len() == 1) {
                        path.push("_component_".to_owned());
                    }
                    patch.set(&path, value.clone(), token)
                }
            };
            problems.extend(applied.err());
        }
        merge(&mut root, &mut Vec::new(), patch, &mut problems);
        if problems.is_empty() {
            return Ok(root);
        }
        let index = |problem: &Problem| match &problem.origin {
            Origin::CommandLine(token) => self.arguments.iter().position(|argument| argument == token),
            Origin::File(_) | Origin::Code => None,
        };
        problems.sort_by_key(index);
        Err(Error::Problems(ProblemList::new(problems)))
    }
}

fn problem(token: &Arc<str>, fault: OverrideFault) -> Problem {
    Problem::of_argument(fault, Origin::CommandLine(Arc::clone(token)))
}

/// What is wrong with one argument.
struct BadArgument {
    problems: Vec<Problem>,
    /// How many of the arguments behind it belong to it: `key = value` arrives as three.
    num_torn: usize,
}

impl From<Vec<Problem>> for BadArgument {
    fn from(problems: Vec<Problem>) -> Self {
        Self { problems, num_torn: 0 }
    }
}

/// One argument; those that follow it tell of a key and value that were torn apart.
fn parse_argument(token: &Arc<str>, following: &[Arc<str>]) -> Result<Override, BadArgument> {
    let argument = &**token;
    let bad = |fault, num_torn| Err(BadArgument { problems: vec![problem(token, fault)], num_torn });
    if let Some(flag) = argument.strip_prefix("--") {
        let value = following.first().filter(|next| !next.contains('=') && !next.starts_with(['-', '~']));
        let (meant, num_torn) = match (flag.contains('='), value) {
            (true, _) => (Some(flag.to_owned()), 0),
            (false, Some(value)) if !flag.is_empty() => (Some(format!("{}={value}", flag.replace('-', "_"))), 1),
            (false, _) => (None, 0),
        };
        return bad(OverrideFault::Flag { token: argument.to_owned(), meant }, num_torn);
    }
    if let Some(key) = argument.strip_prefix('~') {
        if let Some((key, _)) = key.split_once('=') {
            let meant = format!("~{key}");
            return bad(OverrideFault::RemoveWithValue { token: argument.to_owned(), meant }, 0);
        }
        let path = checked_path(key, token)?;
        return Ok(Override { token: Arc::clone(token), path, action: Action::Remove });
    }
    let Some((key, text)) = argument.split_once('=') else {
        let (value, num_torn) = torn_value(following);
        let key = argument.trim_start_matches('-');
        let meant = (!key.is_empty()).then(|| format!("{key}={}", value.unwrap_or("value")));
        return bad(OverrideFault::NoValue { token: argument.to_owned(), meant }, num_torn);
    };
    let path = checked_path(key, token)?;
    let value = override_value(key, text, token)?;
    Ok(Override { token: Arc::clone(token), path, action: Action::Set(value) })
}

/// The value behind a key that stands alone, and how many arguments it takes: `key = value`, `key =value`.
fn torn_value(following: &[Arc<str>]) -> (Option<&str>, usize) {
    match following {
        [sign, value, ..] if &**sign == "=" => (Some(value), 2),
        [next, ..] if next.starts_with('=') => (Some(&next[1..]).filter(|value| !value.is_empty()), 1),
        _ => (None, 0),
    }
}

fn checked_path(key: &str, token: &Arc<str>) -> Result<Vec<String>, Vec<Problem>> {
    let path = split_path(key);
    if path.len() > MAX_DEPTH {
        return Err(vec![problem(token, OverrideFault::TooDeep { limit: MAX_DEPTH })]);
    }
    Ok(path)
}

fn override_value(key: &str, text: &str, token: &Arc<str>) -> Result<Node, Vec<Problem>> {
    if text == "None" {
        return Ok(Node::scalar(Value::Null, text, false, Origin::CommandLine(Arc::clone(token))));
    }
    let Document { root, problems } = written::parse_argument(text, token);
    let Some(value) = root.filter(|_| problems.is_empty()) else { return Err(problems) };
    if key.contains("max_filename")
        && let Some(raw) = value.raw()
    {
        return Ok(Node::scalar(Value::String(raw.to_owned()), raw, true, value.origin().clone()));
    }
    Ok(value)
}

/// True if `value`, given for a component, is put in the place of its name. A section that names a component is merged
/// key by key instead. Below the top level, where torchtune has no switch, only a text is a name, and other values do what
/// they do to any section.
fn is_name(value: &Node, at_top: bool) -> bool {
    match value.as_str() {
        Some(text) => at_top || !(text.contains("${") || value.is_missing()),
        None => at_top && !value.is_component(),
    }
}

fn node_at<'a>(root: &'a Node, path: &[String]) -> Option<&'a Node> {
    path.iter().try_fold(root, |node, segment| node.get(segment))
}

/// Takes a key out of the file's tree, and its section with it when that leaves the section empty.
fn remove(root: &mut Node, path: &[String], token: &Arc<str>) -> Result<(), Problem> {
    let key = join_path(path);
    let text = token.to_string();
    if let Some(depth) = list_above(root, path) {
        return Err(problem(token, OverrideFault::RemoveElement { key: join_path(&path[..depth]), token: text }));
    }
    if key.contains("_component_") || node_at(root, path).is_some_and(Node::is_component) {
        let key = key.strip_suffix("._component_").unwrap_or(&key).to_owned();
        return Err(problem(token, OverrideFault::RemoveComponent { key, token: text }));
    }
    let (last, parents) = path.split_last().expect("a path has a segment");
    let section = node_at(root, parents).and_then(Node::as_map);
    if section.is_none_or(|map| map.get(last).is_none()) {
        let known = section.into_iter().flat_map(Map::iter).filter(|(_, node)| !node.is_component());
        let nearest = suggest::nearest(last, known.map(|(key, _)| key.as_str())).map(|name| {
            let mut path = parents.to_vec();
            path.push(name.to_owned());
            join_path(&path)
        });
        return Err(problem(token, OverrideFault::RemoveAbsent { key, token: text, nearest }));
    }
    remove_at(root, path);
    Ok(())
}

/// The part of a path that leads to a list, if what the path names is in one.
fn list_above(root: &Node, path: &[String]) -> Option<usize> {
    (0..path.len()).find(|&depth| node_at(root, &path[..depth]).is_some_and(|node| node.as_list().is_some()))
}

/// Removes and tells whether the section is empty afterwards.
fn remove_at(node: &mut Node, path: &[String]) -> bool {
    let Value::Map(map) = node.value_mut() else { return false };
    let emptied = match path {
        [] => false,
        [last] => {
            map.remove(last);
            true
        }
        [first, rest @ ..] => {
            let emptied = map.get_mut(first).is_some_and(|below| remove_at(below, rest));
            if emptied {
                map.remove(first);
            }
            emptied
        }
    };
    emptied && map.is_empty()
}

/// All assignments together, before they meet the file.
#[derive(Clone, Debug)]
enum Patch {
    /// A scalar or a list, which replaces what is there.
    Value(Node),
    /// Keys to set inside what is there.
    Section {
        entries: Vec<(Key, Patch)>,
        /// Made by a dotted path (which may index a list), not by a `{…}` value (which may not).
        by_path: bool,
        origin: Origin,
    },
}

impl Patch {
    fn from_value(value: Node) -> Self {
        let origin = value.origin().clone();
        match value.value() {
            Value::Map(map) => {
                let entries = map.iter().map(|(key, node)| (key.clone(), Self::from_value(node.clone()))).collect();
                Self::Section { entries, by_path: false, origin }
            }
            _ => Self::Value(value),
        }
    }

    /// Adds one assignment; later ones win, `{…}` values join what is there.
    fn set(&mut self, path: &[String], value: Node, token: &Arc<str>) -> Result<(), Problem> {
        let Some((first, rest)) = path.split_first() else {
            self.join(Self::from_value(value));
            return Ok(());
        };
        if let Self::Value(node) = self
            && let Value::List(items) = node.value_mut()
        {
            let Some(index) = index_of(first, items.len()) else {
                let whole = split_path(token.split('=').next().unwrap_or(""));
                let above = &whole[..whole.len().saturating_sub(path.len())];
                return Err(problem(token, index_fault(above, first, items.len(), token)));
            };
            let mut element = Self::from_value(items[index].clone());
            element.set(rest, value, token)?;
            items[index] = element.build();
            return Ok(());
        }
        let origin = Origin::CommandLine(Arc::clone(token));
        if let Self::Value(_) = self {
            *self = Self::Section { entries: Vec::new(), by_path: true, origin: origin.clone() };
        }
        let Self::Section { entries, .. } = self else { return Ok(()) };
        let at = entries.iter().position(|(key, _)| key.as_str() == first);
        let at = at.unwrap_or_else(|| {
            let below = Self::Section { entries: Vec::new(), by_path: true, origin };
            entries.push((Key::text(first.clone()), below));
            entries.len() - 1
        });
        entries[at].1.set(rest, value, token)
    }

    fn join(&mut self, new: Self) {
        match (self, new) {
            (Self::Section { entries, by_path, .. }, Self::Section { entries: new, by_path: new_by_path, .. }) => {
                *by_path = new_by_path;
                for (key, patch) in new {
                    match entries.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => known.join(patch),
                        None => entries.push((key, patch)),
                    }
                }
            }
            (this, new) => *this = new,
        }
    }

    /// The tree this makes where the file has nothing.
    fn build(self) -> Node {
        match self {
            Self::Value(node) => node,
            Self::Section { entries, origin, .. } => {
                let mut map = Map::new();
                for (key, patch) in entries {
                    let mut node = patch.build();
                    node.set_key_origin(node.origin().clone());
                    map.push(key, node);
                }
                Node::new(Value::Map(map), origin)
            }
        }
    }

    fn token(&self) -> Arc<str> {
        let origin = match self {
            Self::Value(node) => node.origin(),
            Self::Section { entries, origin, .. } => match (origin, entries.first()) {
                (Origin::CommandLine(_), _) | (_, None) => origin,
                (_, Some((_, patch))) => return patch.token(),
            },
        };
        match origin {
            Origin::CommandLine(token) => Arc::clone(token),
            Origin::File(_) | Origin::Code => "".into(),
        }
    }
}

fn index_of(segment: &str, len: usize) -> Option<usize> {
    segment.parse().ok().filter(|&index| index < len)
}

fn index_fault(path: &[String], segment: &str, len: usize, token: &Arc<str>) -> OverrideFault {
    OverrideFault::Index { key: join_path(path), token: token.to_string(), index: segment.to_owned(), len }
}

/// Merges `patch` over what stands at `path`, in the order of the arguments: a reference on the way leads to what earlier
/// ones have made of its target.
fn merge(root: &mut Node, path: &mut Vec<String>, patch: Patch, problems: &mut Vec<Problem>) {
    let token = patch.token();
    let is_removable = list_above(root, path).is_none() && !node_at(root, path).is_some_and(Node::is_component);
    let incompatible = |expected, found| {
        let (key, token_text) = (join_path(path), token.to_string());
        problem(&token, OverrideFault::Incompatible { key, token: token_text, expected, found, is_removable })
    };
    let target = target_of(root, path);
    let node = node_at_mut(root, path);
    match patch {
        Patch::Value(new) => {
            if new.as_list().is_some() && target.as_ref().unwrap_or(node).as_map().is_some() {
                problems.push(incompatible("a section", "a list"));
                return;
            }
            // Naming the component that is there already switches nothing: it stays the file's. `???` takes nothing away.
            let same = *node == new && path.last().is_some_and(|key| key == "_component_");
            if !(same || new.is_missing()) {
                node.replace(new);
            }
        }
        Patch::Section { entries, by_path, origin } => {
            // `section: ${other}` with `section.key=value` becomes a copy of `other` with that key set; lists likewise.
            if let Some(target) = target {
                node.replace(target);
            }
            match node.value() {
                Value::List(_) if !by_path => problems.push(incompatible("a list", "a section")),
                Value::Map(_) | Value::List(_) => merge_entries(root, path, entries, problems),
                _ => node.replace(Patch::Section { entries, by_path, origin }.build()),
            }
        }
    }
}

/// Merges each entry over the key or element of the same name.
fn merge_entries(root: &mut Node, path: &mut Vec<String>, entries: Vec<(Key, Patch)>, problems: &mut Vec<Problem>) {
    for (key, patch) in entries {
        match node_at_mut(root, path).value_mut() {
            Value::List(items) if index_of(key.as_str(), items.len()).is_none() => {
                let token = patch.token();
                let fault = index_fault(path, key.as_str(), items.len(), &token);
                problems.push(problem(&token, fault));
            }
            Value::Map(map) if map.get(key.as_str()).is_none() => {
                let mut node = patch.build();
                node.set_key_origin(node.origin().clone());
                map.push(key, node);
            }
            _ => {
                path.push(key.to_string());
                merge(root, path, patch, problems);
                path.pop();
            }
        }
    }
}

fn node_at_mut<'a>(root: &'a mut Node, path: &[String]) -> &'a mut Node {
    path.iter().fold(root, |node, segment| node.get_mut(segment).expect("merging walks along what is there"))
}

/// The section or list that a reference at `path` leads to.
fn target_of(root: &Node, path: &[String]) -> Option<Node> {
    let (mut node, mut path) = (node_at(root, path)?, path.to_vec());
    node.as_str()?;
    // References may lead to references; a circle ends here, and is reported when references are resolved.
    for _ in 0..MAX_DEPTH {
        let Some(text) = node.as_str() else { break };
        path = absolute_path(text, &path)?;
        node = path.iter().try_fold(root, |node, segment| element(node, segment))?;
    }
    (node.as_map().is_some() || node.as_list().is_some()).then(|| node.clone())
}

/// Where a text leads that is nothing but one `${...}` with a plain key; `holder` is the path of the text itself.
fn absolute_path(text: &str, holder: &[String]) -> Option<Vec<String>> {
    let Ok(parts) = parse_value(text) else { return None };
    let [Part::Reference(Reference::Key { dots, segments, .. })] = &parts[..] else { return None };
    let base = if *dots == 0 { 0 } else { holder.len().checked_sub(*dots)? };
    let mut path = holder[..base].to_vec();
    for segment in segments {
        let [Part::Text(name)] = &segment[..] else { return None };
        path.push(name.clone());
    }
    Some(path)
}
