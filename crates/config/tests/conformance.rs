//! The conformance pack's `config` folder: every line of its files, compared at the merged stage.

use std::fs;
use std::path::PathBuf;

use config::{Order, Written};
use serde_json::{Map, Value};

/// The pack's `config` folder, or `None` (said on stderr) where there is no pack.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn folder() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/conformance");
    let root = std::env::var_os("CONFORMANCE_DIR").map_or_else(|| PathBuf::from(default), PathBuf::from);
    let folder = root.join("config");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no conformance pack at {}", root.display());
    None
}

fn lines(folder: &std::path::Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(file)).expect("the pack has this file");
    text.lines().filter(|line| !line.trim().is_empty()).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Dotted keys whose value differs; sections are compared key by key, anything else as a whole.
fn changes(prefix: &str, before: &Map<String, Value>, after: &Map<String, Value>, out: &mut Map<String, Value>) {
    let dotted = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    for (key, old) in before {
        match (old, after.get(key)) {
            (_, None) => {
                out.insert(dotted(key), "<removed>".into());
            }
            (Value::Object(old), Some(Value::Object(new))) => changes(&dotted(key), old, new, out),
            (old, Some(new)) if !same(old, new) => {
                out.insert(dotted(key), new.clone());
            }
            _ => {}
        }
    }
    for (key, new) in after {
        if !before.contains_key(key) {
            out.insert(dotted(key), new.clone());
        }
    }
}

/// Equal in value and type: 1 and 1.0 differ, and so do 0.1 and its neighbour.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.is_f64() == b.is_f64() && a.to_string() == b.to_string(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// True where this program takes on purpose what the reference refuses: a value may contain `=`.
fn taken_on_purpose(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument.matches('=').count() > 1 && !argument.starts_with('-'))
}

/// What is wrong with one line of `overrides.jsonl`, if anything.
fn check_override(base: &Written, resolved: &Map<String, Value>, case: &Value) -> Option<String> {
    let arguments: Vec<String> = serde_json::from_value(case["args"].clone()).expect("a list of texts");
    let merged = base.with_overrides(&arguments).and_then(|written| written.resolve());
    match (case.get("error").filter(|error| !error.is_null()), merged) {
        (Some(_), Err(error)) => (error.exit_code() != 2).then(|| "exit code".to_owned()),
        (Some(_), Ok(_)) if taken_on_purpose(&arguments) => None,
        (Some(error), Ok(_)) => Some(format!("{arguments:?} must be refused: {error}")),
        (None, Err(error)) => Some(format!("{arguments:?} is refused: {error}")),
        (None, Ok(merged)) => {
            let json = merged.to_json(Order::File);
            let mut found = Map::new();
            changes("", resolved, json.as_object().expect("an object"), &mut found);
            let (found, expected) = (Value::Object(found), case["changes"].clone());
            (!same(&found, &expected)).then(|| format!("{arguments:?}: expected {expected}, found {found}"))
        }
    }
}

#[test]
fn overrides_change_what_the_reference_changes() {
    let Some(folder) = folder() else { return };
    let base = Written::read(folder.join("base.yaml")).expect("the base config reads");
    let json: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("base.json")).expect("the pack has it")).expect("JSON");
    let resolved = json["resolved"].as_object().expect("an object");
    let cases = lines(&folder, "overrides.jsonl");
    let failures: Vec<String> = cases.iter().filter_map(|case| check_override(&base, resolved, case)).collect();
    assert!(cases.len() > 1, "no cases");
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn documents_load_as_the_reference_loads_them() {
    let Some(folder) = folder() else { return };
    let cases = lines(&folder, "yaml.jsonl");
    let mut failures = Vec::new();
    for case in &cases {
        let (name, text) = (&case["case"], case["yaml"].as_str().expect("a text"));
        let merged = Written::parse("case.yaml", text).and_then(|written| written.resolve());
        match (case.get("error").filter(|error| !error.is_null()), merged) {
            (Some(_), Err(_)) => {}
            (Some(error), Ok(_)) => failures.push(format!("{name} must be refused: {error}")),
            (None, Err(error)) => failures.push(format!("{name} is refused: {error}")),
            (None, Ok(merged)) => {
                let found = merged.to_json(Order::File);
                if !same(&found, &case["resolved"]) {
                    failures.push(format!("{name}: expected {}, found {found}", case["resolved"]));
                }
            }
        }
    }
    assert!(cases.len() > 1, "no cases");
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn the_harness_sees_a_wrong_answer() {
    let base = Written::parse("base.yaml", "a: 1\nb: {c: 2}").expect("parses");
    let resolved = serde_json::json!({"a": 1, "b": {"c": 2}});
    let resolved = resolved.as_object().expect("an object");
    let wrong = |case: Value| check_override(&base, resolved, &case).is_some();
    assert!(!wrong(serde_json::json!({"args": ["b.c=3"], "changes": {"b.c": 3}})));
    assert!(wrong(serde_json::json!({"args": ["b.c=3"], "changes": {"b.c": 3.0}})));
    assert!(wrong(serde_json::json!({"args": ["b.c=3"], "changes": {}})));
    assert!(wrong(serde_json::json!({"args": ["b.c=3"], "error": "ValueError"})));
    assert!(wrong(serde_json::json!({"args": ["b"], "changes": {}})));
}
