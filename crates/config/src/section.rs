//! Reading one section key by key: defaults, required keys, limits, and what to do with keys nobody asked for.
//! [`component!`](crate::component) writes the calls; nothing else needs to.

use crate::check::Check;
use crate::error::OverrideFault;
use crate::from_node::FromNode;
use crate::node::{Key, Map, Node, Value};
use crate::path::split_path;
use crate::problems::{Problem, Problems};
use crate::source::Origin;
use crate::suggest;

/// One key of a component: what it is called, what it takes, what it means.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// The key as written in YAML.
    pub name: &'static str,
    /// The Rust type.
    pub ty: &'static str,
    /// The default as a Rust expression; `None` for a required key.
    pub default: Option<&'static str>,
    /// One or two sentences: meaning, unit, range, special value.
    pub doc: &'static str,
    /// What the key accepts, as a noun: `a number > 0`.
    pub accepts: fn() -> String,
}

/// A component as the reference page shows it; [`component!`](crate::component) implements it.
pub trait Described {
    /// What the component is, as sentences.
    const ABOUT: &'static str;
    /// Its keys, in the order of the page.
    const FIELDS: &'static [FieldSpec];
}

impl FieldSpec {
    /// The default as a user would write it in YAML; `None` for a required key.
    pub fn default_text(&self) -> Option<String> {
        let text = self.default?.trim();
        let text = text.strip_suffix(".into()").or_else(|| text.strip_suffix(".to_owned()")).unwrap_or(text);
        let text = text.strip_prefix("Some(").and_then(|inner| inner.strip_suffix(')')).unwrap_or(text);
        let text = text.strip_suffix(".into()").unwrap_or(text);
        Some(match text {
            "None" => "null".to_owned(),
            // What a type is without a value.
            _ if text.ends_with("::default()") => "null".to_owned(),
            "Vec::new()" => "[]".to_owned(),
            // A choice: `OutputFormat::Txt` is written `txt`.
            _ if text.contains("::") && !text.contains('(') => {
                text.rsplit("::").next().unwrap_or(text).to_ascii_lowercase()
            }
            _ => text.strip_prefix("vec!").unwrap_or(text).to_owned(),
        })
    }
}

/// What a field accepts: the type's noun narrowed by the check.
pub fn accepts<T: FromNode>(check: Option<&Check>) -> String {
    check.map_or_else(T::expected, T::expected_within)
}

/// A section while its keys are read.
pub struct Section<'a> {
    node: &'a Node,
    map: &'a Map,
    fields: &'static [FieldSpec],
    problems: &'a mut Problems,
}

impl<'a> Section<'a> {
    /// Starts reading `node`, which must be a section.
    pub fn open(node: &'a Node, fields: &'static [FieldSpec], problems: &'a mut Problems) -> Option<Self> {
        match node.as_map() {
            Some(map) => Some(Self { node, map, fields, problems }),
            None => {
                problems.wrong_value(node, "a section");
                None
            }
        }
    }

    /// The value of a key that must be there.
    pub fn required<T: FromNode>(&mut self, key: &str, check: Option<&Check>) -> Option<T> {
        match self.map.get(key) {
            Some(node) => self.checked(node, check),
            None => {
                self.problems.missing(self.node, key, accepts::<T>(check));
                None
            }
        }
    }

    /// The value of a key that has a default.
    pub fn optional<T: FromNode>(
        &mut self,
        key: &str,
        check: Option<&Check>,
        default: impl FnOnce() -> T,
    ) -> Option<T> {
        match self.map.get(key) {
            Some(node) => self.checked(node, check),
            None => Some(default()),
        }
    }

    fn checked<T: FromNode>(&mut self, node: &Node, check: Option<&Check>) -> Option<T> {
        if node.is_missing() {
            self.problems
                .wrong_value(node, accepts::<T>(check))
                .hint(format!("give it a value: `{}=...`", node.path()));
            return None;
        }
        if node.is_broken() {
            return None;
        }
        let before = self.problems.len();
        let Some(value) = T::from_node(node, self.problems) else {
            self.problems.widen_expected(before, node, &T::expected(), &accepts::<T>(check));
            return None;
        };
        let mut within = Vec::new();
        value.leaves(&mut |leaf| {
            let is_finite = || leaf.number().is_none_or(f64::is_finite);
            within.push(check.map_or_else(is_finite, |check| check.accepts(leaf)));
        });
        if within.iter().all(|&within| within) {
            return Some(value);
        }
        match node.as_list() {
            // Each element that is wrong, by itself.
            Some(items) if items.len() == within.len() => {
                for (item, _) in items.iter().zip(&within).filter(|(_, within)| !**within) {
                    self.outside(item, check, check.map_or("a number".to_owned(), |check| check.describe("a number")));
                }
            }
            _ => self.outside(node, check, accepts::<T>(check)),
        }
        None
    }

    /// Reports a value outside a field's limit.
    fn outside(&mut self, node: &Node, check: Option<&Check>, expected: String) {
        let is_number = !matches!(node.value(), Value::Float(x) if !x.is_finite()) && node.as_str() != Some("inf");
        let is_endless = !is_number && !expected.contains(".inf");
        let expected = if is_endless { expected.replacen("a number", "a finite number", 1) } else { expected };
        let problem = self.problems.wrong_value(node, expected);
        if let (Some(Check::OneOf(words)), Some(text)) = (check, node.raw())
            && let Some(meant) = suggest::nearest(text, words.iter().copied())
        {
            problem.hint(format!("did you mean `{meant}`?"));
        }
    }

    /// The entries that are no field of the component, for components that pass them on.
    pub fn rest(&self) -> Map {
        let mut rest = Map::new();
        for (key, node) in self.unclaimed() {
            rest.insert(key.clone(), node.clone());
        }
        rest
    }

    fn unclaimed(&self) -> impl Iterator<Item = (&'a Key, &'a Node)> + use<'a> {
        let fields = self.fields;
        self.map.iter().filter(move |(key, _)| {
            key.as_str() != "_component_" && !fields.iter().any(|field| field.name == key.as_str())
        })
    }

    /// Reports the keys that no field takes. Close to a known key, or from an argument that sets no key: an error. Left over from the component that a
    /// command-line switch replaced, or simply unknown: a notice. Read by a `${…}` elsewhere: nothing.
    pub fn close(self) {
        let switched = self.map.get("_component_").filter(|name| name.origin().is_command_line());
        for (key, node) in self.unclaimed() {
            if node.is_referenced() {
                continue;
            }
            if let Some(problem) = stray_argument(node) {
                self.problems.push(problem);
                continue;
            }
            if let Some(name) = switched
                && !(node.key_origin().is_command_line() || node.origin().is_command_line())
            {
                let component = name.found();
                self.problems.notice(format!("`{}` is dropped: {component} does not take it", node.path()));
                continue;
            }
            match suggest::nearest(key.as_str(), self.fields.iter().map(|field| field.name)) {
                Some(meant) => {
                    self.problems.unknown_key(node, self.node.path_of(meant));
                }
                None => self.problems.notice(format!("unknown key `{}` is ignored", node.path())),
            }
        }
    }
}

/// What is wrong with the argument that set a key nobody takes, if it means nothing: torchtune lets such arguments pass.
fn stray_argument(node: &Node) -> Option<Problem> {
    let Origin::CommandLine(token) = node.key_origin() else { return None };
    let (key, value) = token.split_once('=')?;
    let parts = split_path(key);
    let fault = if parts.iter().any(String::is_empty) {
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let key = if parts.is_empty() { "key".to_owned() } else { parts.join(".") };
        OverrideFault::EmptyPart { token: token.to_string(), meant: format!("{key}={value}") }
    } else if node.path() == "config" {
        OverrideFault::ConfigKey { token: token.to_string() }
    } else {
        return None;
    };
    Some(Problem::of_argument(fault, node.key_origin().clone()))
}
