//! Command-line arguments after the recipe's options: `key=value` sets, `~key` removes.
//!
//! - `key` is a dotted path; `files[0]` and `files.0` set an element of a list. Missing sections are made.
//! - The value is what follows the first `=`, as YAML: `lr=1e-5`, `betas=[0.9, 0.95]`, `column_map={input: prompt}`.
//!   `None`, exactly, is null. Where the key contains `max_filename` the value is text and keeps its zeros.
//! - A key that is a component in the file, at any depth, switches the component: `optimizer=torch.optim.SGD` sets
//!   `optimizer._component_` and keeps the section's other keys, and so does
//!   `optimizer={_component_: torch.optim.SGD, lr: 0.1}`, which sets these too.
//! - All assignments are collected first and merged over the file last: sections key by key, anything else
//!   as a whole; `???` replaces nothing. Removals act on the file only, so `~f f=2` and `f=2 ~f` both leave `f = 2`.

use std::sync::Arc;

use crate::error::{Error, OverrideFault};
use crate::node::{Key, Map, Node, Value};
use crate::path::{join_path, split_path};
use crate::reference::{Part, Reference, parse_value};
use crate::resolve::element;
use crate::source::Origin;
use crate::suggest;
use crate::written::{self, MAX_DEPTH};

/// Parsed arguments, in the order given.
#[derive(Clone, Debug)]
pub struct Overrides {
    list: Vec<Override>,
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
    /// Parses the arguments; the first that cannot be an override is the error.
    pub fn parse<S: AsRef<str>>(arguments: &[S]) -> Result<Self, Error> {
        let mut list = Vec::with_capacity(arguments.len());
        for (i, argument) in arguments.iter().enumerate() {
            let following = arguments.iter().skip(i + 1).take(2).map(AsRef::as_ref).collect::<Vec<_>>();
            list.push(parse_argument(argument.as_ref(), &following)?);
        }
        Ok(Self { list })
    }

    /// The tree with the overrides applied.
    pub fn apply(&self, root: &Node) -> Result<Node, Error> {
        let mut root = root.clone();
        let mut patch = Patch::Section { entries: Vec::new(), by_path: true, origin: Origin::Code };
        for Override { token, path, action } in &self.list {
            match action {
                Action::Remove => remove(&mut root, path, token)?,
                Action::Set(value) => {
                    let mut path = path.clone();
                    if node_at(&root, &path).is_some_and(Node::is_component) && is_name(value, path.len() == 1) {
                        path.push("_component_".to_owned());
                    }
                    patch.set(&path, value.clone(), token)?;
                }
            }
        }
        merge(&mut root, &mut Vec::new(), patch)?;
        Ok(root)
    }
}

fn fault(token: &Arc<str>, fault: OverrideFault) -> Error {
    Error::Override { fault, token: Arc::clone(token) }
}

/// One argument; `following` are the next two, for hints about a key and value that were torn apart.
fn parse_argument(argument: &str, following: &[&str]) -> Result<Override, Error> {
    let token: Arc<str> = argument.into();
    if let Some(flag) = argument.strip_prefix("--") {
        let value = following.first().filter(|next| !next.contains('=') && !next.starts_with(['-', '~']));
        let meant = match (flag.contains('='), value) {
            (true, _) => Some(flag.to_owned()),
            (false, Some(value)) if !flag.is_empty() => Some(format!("{}={value}", flag.replace('-', "_"))),
            (false, _) => None,
        };
        return Err(fault(&token, OverrideFault::Flag { token: argument.to_owned(), meant }));
    }
    if let Some(key) = argument.strip_prefix('~') {
        if let Some((key, _)) = key.split_once('=') {
            let meant = format!("~{key}");
            return Err(fault(&token, OverrideFault::RemoveWithValue { token: argument.to_owned(), meant }));
        }
        let path = checked_path(key, &token)?;
        return Ok(Override { token, path, action: Action::Remove });
    }
    let Some((key, text)) = argument.split_once('=') else {
        // `key = value` arrives as three arguments.
        let value = match following {
            ["=", value, ..] => value,
            [next, ..] => next.strip_prefix('=').filter(|value| !value.is_empty()).unwrap_or("value"),
            [] => "value",
        };
        let meant = format!("{argument}={value}");
        return Err(fault(&token, OverrideFault::NoValue { token: argument.to_owned(), meant: Some(meant) }));
    };
    let path = checked_path(key, &token)?;
    let value = override_value(key, text, &token)?;
    Ok(Override { token, path, action: Action::Set(value) })
}

fn checked_path(key: &str, token: &Arc<str>) -> Result<Vec<String>, Error> {
    let path = split_path(key);
    if path.len() > MAX_DEPTH {
        return Err(fault(token, OverrideFault::TooDeep { limit: MAX_DEPTH }));
    }
    Ok(path)
}

fn override_value(key: &str, text: &str, token: &Arc<str>) -> Result<Node, Error> {
    if text == "None" {
        return Ok(Node::scalar(Value::Null, text, false, Origin::CommandLine(Arc::clone(token))));
    }
    let value = written::parse_argument(text, token)?;
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
fn remove(root: &mut Node, path: &[String], token: &Arc<str>) -> Result<(), Error> {
    let key = join_path(path);
    let text = token.to_string();
    if key.contains("_component_") || node_at(root, path).is_some_and(Node::is_component) {
        let key = key.strip_suffix("._component_").unwrap_or(&key).to_owned();
        return Err(fault(token, OverrideFault::RemoveComponent { key, token: text }));
    }
    let (last, parents) = path.split_last().expect("a path has a segment");
    for depth in 0..=parents.len() {
        let above = node_at(root, &path[..depth]);
        if above.is_some_and(|node| node.as_list().is_some()) {
            let key = join_path(&path[..depth]);
            return Err(fault(token, OverrideFault::RemoveElement { key, token: text }));
        }
    }
    let section = node_at(root, parents).and_then(Node::as_map);
    if section.is_none_or(|map| map.get(last).is_none()) {
        let known = section.map(|map| map.keys().map(Key::as_str).collect::<Vec<_>>()).unwrap_or_default();
        let nearest = suggest::nearest(last, known).map(|name| {
            let mut path = parents.to_vec();
            path.push(name.to_owned());
            join_path(&path)
        });
        return Err(fault(token, OverrideFault::RemoveAbsent { key, token: text, nearest }));
    }
    remove_at(root, path);
    Ok(())
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
    fn set(&mut self, path: &[String], value: Node, token: &Arc<str>) -> Result<(), Error> {
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
                return Err(fault(token, index_fault(above, first, items.len(), token)));
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
fn merge(root: &mut Node, path: &mut Vec<String>, patch: Patch) -> Result<(), Error> {
    let token = patch.token();
    let incompatible = |expected, found| {
        let key = join_path(path);
        Err(fault(&token, OverrideFault::Incompatible { key, token: token.to_string(), expected, found }))
    };
    let target = target_of(root, path);
    let node = node_at_mut(root, path);
    match patch {
        Patch::Value(new) => {
            if new.as_list().is_some() && target.as_ref().unwrap_or(node).as_map().is_some() {
                return incompatible("a section", "a list");
            }
            // Naming the component that is there already switches nothing: it stays the file's. `???` takes nothing away.
            let same = *node == new && path.last().is_some_and(|key| key == "_component_");
            if !(same || new.is_missing()) {
                node.replace(new);
            }
            Ok(())
        }
        Patch::Section { entries, by_path, origin } => {
            // `section: ${other}` with `section.key=value` becomes a copy of `other` with that key set; lists likewise.
            if let Some(target) = target {
                node.replace(target);
            }
            match node.value() {
                Value::List(_) if !by_path => incompatible("a list", "a section"),
                Value::Map(_) | Value::List(_) => merge_entries(root, path, entries),
                _ => {
                    node.replace(Patch::Section { entries, by_path, origin }.build());
                    Ok(())
                }
            }
        }
    }
}

/// Merges each entry over the key or element of the same name.
fn merge_entries(root: &mut Node, path: &mut Vec<String>, entries: Vec<(Key, Patch)>) -> Result<(), Error> {
    for (key, patch) in entries {
        match node_at_mut(root, path).value_mut() {
            Value::List(items) if index_of(key.as_str(), items.len()).is_none() => {
                let token = patch.token();
                return Err(fault(&token, index_fault(path, key.as_str(), items.len(), &token)));
            }
            Value::Map(map) if map.get(key.as_str()).is_none() => {
                let mut node = patch.build();
                node.set_key_origin(node.origin().clone());
                map.push(key, node);
            }
            _ => {
                path.push(key.to_string());
                merge(root, path, patch)?;
                path.pop();
            }
        }
    }
    Ok(())
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
