//! A tree as YAML text: blocks indented by two, lists not indented under their key.
//!
//! Strings are quoted where they would read back as something else; floats are the shortest text that reads back as
//! the same number, with a dot (`1.0e-05`) so that every YAML reader takes them for floats. Integers written with leading
//! zeros keep them: a component that wants a text still gets `00005` from a printed config.
//! Law: reading the text gives the tree again.

use crate::node::{Key, KeyKind, Map, Node, Value};
use crate::number::python_float;
use crate::scalar::resolve_plain;

/// Order of keys in printed YAML and JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As in the file.
    File,
    /// Alphabetical.
    Sorted,
}

/// The tree as a YAML document; ends with a line break. An empty map is `{}`.
pub fn to_yaml(node: &Node, order: Order) -> String {
    let mut out = String::new();
    write_block(&mut out, node, 0, order);
    out
}

/// A map's entries in the order asked for.
pub(crate) fn ordered(map: &Map, order: Order) -> Vec<(&Key, &Node)> {
    let mut entries: Vec<(&Key, &Node)> = map.iter().collect();
    if order == Order::Sorted {
        entries.sort_by(|a, b| a.0.cmp(b.0));
    }
    entries
}

/// Writes a node whose first line continues the current one, and ends the line.
fn write_block(out: &mut String, node: &Node, indent: usize, order: Order) {
    match node.value() {
        Value::Map(map) if !map.is_empty() => {
            for (i, (key, value)) in ordered(map, order).into_iter().enumerate() {
                if i > 0 {
                    pad(out, indent);
                }
                write_entry(out, key, value, indent, order);
            }
        }
        Value::List(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    pad(out, indent);
                }
                out.push_str("- ");
                write_block(out, item, indent + 2, order);
            }
        }
        value => {
            match zeros(node) {
                Some(digits) => out.push_str(digits),
                None => out.push_str(&scalar_text(value)),
            }
            out.push('\n');
        }
    }
}

/// An integer as it was written, if it has leading zeros: where a text is wanted, `00005` is not `5`.
fn zeros(node: &Node) -> Option<&str> {
    let raw = node.raw().filter(|_| matches!(node.value(), Value::Int(_)) && !node.is_quoted())?;
    let digits = raw.trim_start_matches(['+', '-']);
    (digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit())).then_some(raw)
}

fn write_entry(out: &mut String, key: &Key, value: &Node, indent: usize, order: Order) {
    // A YAML reader looks only so far for the colon; longer keys are written on a line of their own.
    const LONGEST_KEY: usize = 120;
    let key = key_text(key);
    if key.chars().count() > LONGEST_KEY {
        out.push_str("? ");
        out.push_str(&key);
        out.push('\n');
        pad(out, indent);
    } else {
        out.push_str(&key);
    }
    out.push(':');
    match value.value() {
        Value::Map(map) if !map.is_empty() => {
            out.push('\n');
            pad(out, indent + 2);
            write_block(out, value, indent + 2, order);
        }
        Value::List(items) if !items.is_empty() => {
            out.push('\n');
            pad(out, indent);
            write_block(out, value, indent, order);
        }
        _ => {
            out.push(' ');
            write_block(out, value, indent, order);
        }
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// A scalar, or an empty list or map, as it stands in a document.
pub(crate) fn scalar_text(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Float(x) => float_text(*x),
        Value::String(text) => string_text(text),
        Value::List(_) => "[]".to_owned(),
        Value::Map(_) => "{}".to_owned(),
    }
}

fn key_text(key: &Key) -> String {
    match key.kind() {
        KeyKind::Text => string_text(key.as_str()),
        KeyKind::Float => match key.as_str() {
            "nan" => ".nan".to_owned(),
            "inf" => ".inf".to_owned(),
            "-inf" => "-.inf".to_owned(),
            text => with_dot(text),
        },
        KeyKind::Bool | KeyKind::Int => key.as_str().to_owned(),
    }
}

/// A float as YAML: `1.0e-05`, `.inf`, `-.inf`, `.nan`.
pub(crate) fn float_text(x: f64) -> String {
    if x.is_nan() {
        ".nan".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { ".inf" } else { "-.inf" }.to_owned()
    } else {
        with_dot(&python_float(x))
    }
}

fn with_dot(text: &str) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text.to_owned(),
    }
}

fn string_text(text: &str) -> String {
    if text.chars().any(needs_escape) {
        double_quoted(text)
    } else if is_plain(text) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

/// True if the text can stand without quotes and reads back as itself.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let second = text.chars().nth(1);
    let first_is_fine = match first {
        '-' | '?' | ':' => second.is_some_and(|c| c != ' ') && !text.starts_with("---"),
        '.' => !text.starts_with("..."),
        c => !",[]{}#&*!|>'\"%@`=< ".contains(c),
    };
    first_is_fine
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && matches!(resolve_plain(text), Value::String(_))
}

/// Characters that only a double-quoted scalar can hold safely.
fn needs_escape(c: char) -> bool {
    c.is_control() || matches!(c, '\u{85}' | '\u{a0}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn escaped(c: char) -> String {
    format!("\\u{:04x}", c as u32)
}

fn double_quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if needs_escape(c) => out.push_str(&escaped(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_would_read_as_something_else_are_quoted() {
        for (text, printed) in [
            ("word", "word"),
            ("None", "None"),
            ("/tmp/a b", "/tmp/a b"),
            ("${output_dir}/logs", "${output_dir}/logs"),
            ("train[:95%]", "train[:95%]"),
            ("a:b", "a:b"),
            ("-x", "-x"),
            ("2024-01-01", "2024-01-01"),
            ("", "''"),
            ("null", "'null'"),
            ("yes", "'yes'"),
            ("00030", "'00030'"),
            ("1e-5", "'1e-5'"),
            ("a: b", "'a: b'"),
            ("a #b", "'a #b'"),
            ("it's", "it's"),
            ("'", "''''"),
            ("- a", "'- a'"),
            ("[a", "'[a'"),
            ("=", "'='"),
            ("<<", "'<<'"),
            ("---", "'---'"),
            (" a", "' a'"),
            ("a\nb\t\u{1}", "\"a\\nb\\t\\u0001\""),
        ] {
            assert_eq!(string_text(text), printed, "{text:?}");
        }
    }

    #[test]
    fn floats_have_a_dot() {
        for (x, text) in [(1e-5, "1.0e-05"), (2.5e-7, "2.5e-07"), (1.0, "1.0"), (1e16, "1.0e+16"), (0.95, "0.95")] {
            assert_eq!(float_text(x), text);
            assert_eq!(resolve_plain(text), Value::Float(x));
        }
    }
}
