//! Config values to Rust types: the trait every field type of a component implements.
//!
//! | type | accepts |
//! |------|---------|
//! | `bool` | `true`, `yes`, `on`, … unquoted |
//! | integers | integers in their range, unquoted; no floats |
//! | `f64`, `f32` | numbers, unquoted, and `inf`; as fields of components finite ones, unless a limit names `.inf` |
//! | `String`, `PathBuf` | any scalar but null, with the text as it was written: `00030` keeps its zeros |
//! | `Option<T>` | null, a section whose `_component_` is null, or what `T` accepts |
//! | `Vec<T>`, `[T; N]` | lists |
//! | `BTreeMap<String, T>`, [`Map`] | sections |
//! | [`Node`] | anything |
//!
//! Components made by [`component!`](crate::component) and choices made by [`choice!`](crate::choice) implement it too.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::check::Check;
use crate::node::{Map, Node, Value};
use crate::problems::{ProblemKind, Problems};
use crate::scalar::resolve_plain;

/// A type that a config value turns into.
pub trait FromNode: Sized {
    /// What the value must be, as a noun: `an integer`, `a list, each element a number`.
    fn expected() -> String;

    /// The same, narrowed by a field's limit: `an integer >= 1`, `a list, each element a number > 0`.
    fn expected_within(check: &Check) -> String {
        check.describe(&Self::expected())
    }

    /// The value of `node`, or `None` after reporting why not.
    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self>;

    /// The values a field's check looks at: the number itself, what an `Option` holds, each element of a list.
    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        let _ = visit;
    }
}

/// One number or text that a field's check can look at.
pub trait Leaf {
    /// The value as a number, for range checks.
    fn number(&self) -> Option<f64> {
        None
    }
    /// The value as text, for lists of allowed words.
    fn text(&self) -> Option<&str> {
        None
    }
}

/// The value of an element, unless what is wrong with it is told already.
fn unless_broken<T: FromNode>(node: &Node, problems: &mut Problems) -> Option<T> {
    if node.is_broken() { None } else { T::from_node(node, problems) }
}

/// Reports a wrong value, with a hint where a known slip explains it.
fn refuse<T: FromNode>(node: &Node, problems: &mut Problems) -> Option<T> {
    let expected = T::expected();
    let problem = problems.wrong_value(node, expected);
    if let Some(raw) = node.raw().filter(|raw| node.is_quoted() && !matches!(resolve_plain(raw), Value::String(_))) {
        problem.hint(format!("write it without quotes: `{raw}`"));
    }
    None
}

/// The integer that a node holds; one with more digits than [`Value::Int`] has room for counts as the largest or smallest.
fn integer(node: &Node) -> Option<i128> {
    let raw = match node.value() {
        Value::Int(i) => return Some(*i),
        Value::String(_) if !node.is_quoted() => node.raw()?,
        _ => return None,
    };
    let digits = raw.strip_prefix(['+', '-']).unwrap_or(raw);
    // Shorter ones would be integers if they were any.
    let is_long = digits.len() > 30 && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    is_long.then(|| if raw.starts_with('-') { i128::MIN } else { i128::MAX })
}

/// Reports an integer outside of what its type holds, and says so where it is not for its sign.
fn refuse_beyond<T: FromNode>(
    node: &Node,
    given: i128,
    bits: u32,
    is_signed: bool,
    problems: &mut Problems,
) -> Option<T> {
    let problem = problems.wrong_value(node, T::expected());
    if let ProblemKind::Value { found, .. } = &mut problem.kind
        && (given > 0 || is_signed)
    {
        let size = if given > 0 { "large" } else { "small" };
        found.push_str(&format!(", too {size} for {bits} bits"));
    }
    None
}

impl FromNode for bool {
    fn expected() -> String {
        "true or false".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        match node.value() {
            Value::Bool(b) => Some(*b),
            _ => refuse(node, problems),
        }
    }
}

macro_rules! integers {
    ($($type:ty => $expected:expr),* $(,)?) => {$(
        impl FromNode for $type {
            fn expected() -> String {
                $expected.into()
            }

            fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
                if let Some(given) = integer(node) {
                    let is_signed = <$type>::MIN != 0;
                    let refuse = || refuse_beyond(node, given, <$type>::BITS, is_signed, problems);
                    return Self::try_from(given).ok().or_else(refuse);
                }
                match node.value() {
                    Value::Float(x) if x.fract() == 0.0 && x.abs() < 1e15 => {
                        problems.wrong_value(node, $expected).hint(format!("write `{x}`"));
                        None
                    }
                    _ => refuse(node, problems),
                }
            }

            fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
                visit(self);
            }
        }

        impl Leaf for $type {
            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )*};
}

integers! {
    i32 => "an integer of 32 bits",
    i64 => "an integer",
    u8 => "an integer from 0 to 255",
    u16 => "an integer from 0 to 65535",
    u32 => "an integer from 0 to 4294967295",
    u64 => "an integer >= 0",
    usize => "an integer >= 0",
}

impl FromNode for f64 {
    fn expected() -> String {
        "a number".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        match node.value() {
            Value::Int(i) => Some(*i as f64),
            Value::Float(x) => Some(*x),
            // Text in YAML, which writes `.inf`; Python reads it as a number.
            Value::String(text) if text == "inf" => Some(f64::INFINITY),
            _ => refuse(node, problems),
        }
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        visit(self);
    }
}

impl Leaf for f64 {
    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl FromNode for f32 {
    fn expected() -> String {
        f64::expected()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        f64::from_node(node, problems).map(|x| x as f32)
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        visit(self);
    }
}

impl Leaf for f32 {
    fn number(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl FromNode for String {
    fn expected() -> String {
        "text".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        match (node.value(), node.raw()) {
            (Value::Null | Value::List(_) | Value::Map(_), _) => refuse(node, problems),
            (Value::String(text), _) => Some(text.clone()),
            (_, Some(raw)) => Some(raw.to_owned()),
            (_, None) => Some(crate::yaml_text::scalar_text(node.value())),
        }
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        visit(self);
    }
}

impl Leaf for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl FromNode for PathBuf {
    fn expected() -> String {
        "a path".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        match node.value() {
            Value::Null | Value::List(_) | Value::Map(_) => refuse(node, problems),
            _ => String::from_node(node, problems).map(Self::from),
        }
    }
}

impl<T: FromNode> FromNode for Option<T> {
    fn expected() -> String {
        format!("{} or null", T::expected())
    }

    fn expected_within(check: &Check) -> String {
        format!("{} or null", T::expected_within(check))
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        if node.is_absent() {
            return Some(None);
        }
        let before = problems.len();
        let value = T::from_node(node, problems);
        problems.widen_expected(before, node, &T::expected(), &Self::expected());
        if node.as_str().is_some_and(|text| text.eq_ignore_ascii_case("none")) {
            let hint = "`null` means no value, on the command line also `None` in exactly that spelling";
            problems.advise(before, node, hint);
        }
        value.map(Some)
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        if let Some(value) = self {
            value.leaves(visit);
        }
    }
}

impl<T: FromNode> FromNode for Vec<T> {
    fn expected() -> String {
        format!("a list, each element {}", T::expected())
    }

    fn expected_within(check: &Check) -> String {
        format!("a list, each element {}", T::expected_within(check))
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let Some(items) = node.as_list() else {
            let problem = problems.wrong_value(node, Self::expected());
            if let (Some(raw), Value::String(_)) = (node.raw(), node.value()) {
                problem.hint(format!("write `[{raw}]`"));
            }
            return None;
        };
        // Every element is looked at before giving up, so that all problems are reported.
        let values: Vec<Option<T>> = items.iter().map(|item| unless_broken(item, problems)).collect();
        values.into_iter().collect()
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        for value in self {
            value.leaves(visit);
        }
    }
}

impl<T: FromNode, const N: usize> FromNode for [T; N] {
    fn expected() -> String {
        format!("a list of {N}, each element {}", T::expected())
    }

    fn expected_within(check: &Check) -> String {
        format!("a list of {N}, each element {}", T::expected_within(check))
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        if node.as_list().is_none_or(|items| items.len() != N) {
            problems.wrong_value(node, Self::expected());
            return None;
        }
        Vec::from_node(node, problems)?.try_into().ok()
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        for value in self {
            value.leaves(visit);
        }
    }
}

impl<T: FromNode> FromNode for BTreeMap<String, T> {
    fn expected() -> String {
        format!("a section, each value {}", T::expected())
    }

    fn expected_within(check: &Check) -> String {
        format!("a section, each value {}", T::expected_within(check))
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let Some(map) = node.as_map() else {
            problems.wrong_value(node, Self::expected());
            return None;
        };
        let values: Vec<Option<(String, T)>> =
            map.iter().map(|(key, node)| Some((key.to_string(), unless_broken(node, problems)?))).collect();
        values.into_iter().collect()
    }

    fn leaves(&self, visit: &mut dyn FnMut(&dyn Leaf)) {
        for value in self.values() {
            value.leaves(visit);
        }
    }
}

impl FromNode for Map {
    fn expected() -> String {
        "a section".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let map = node.as_map().cloned();
        if map.is_none() {
            problems.wrong_value(node, Self::expected());
        }
        map
    }
}

impl FromNode for Node {
    fn expected() -> String {
        "a value".into()
    }

    fn from_node(node: &Node, _problems: &mut Problems) -> Option<Self> {
        Some(node.clone())
    }
}
