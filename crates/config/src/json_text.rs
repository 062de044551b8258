//! A tree as JSON: numbers that JSON cannot hold are the strings `.inf`, `-.inf`, `.nan`; keys become text.

use serde_json::{Number, Value as Json};

use crate::node::{Key, KeyKind, Node, Value};
use crate::yaml_text::{Order, float_text, ordered};

/// The tree as one JSON value, keys in the order asked for.
pub fn to_json(node: &Node, order: Order) -> Json {
    match node.value() {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(i) => int(*i),
        Value::Float(x) => Number::from_f64(*x).map_or_else(|| Json::String(float_text(*x)), Json::Number),
        Value::String(text) => Json::String(text.clone()),
        Value::List(items) => Json::Array(items.iter().map(|item| to_json(item, order)).collect()),
        Value::Map(map) => {
            // Of the keys `1` and `"1"`, which JSON cannot tell apart, the text is the one that stays.
            let stays = |key: &Key, value: &Node| {
                key.kind() == KeyKind::Text || map.get(key.as_str()).is_some_and(|found| std::ptr::eq(found, value))
            };
            let entries = ordered(map, order).into_iter().filter(|(key, value)| stays(key, value));
            Json::Object(entries.map(|(key, value)| (key.to_string(), to_json(value, order))).collect())
        }
    }
}

/// Integers beyond 64 bits, which no JSON number here holds, become text.
fn int(i: i128) -> Json {
    let number = i64::try_from(i).map(Number::from).or_else(|_| u64::try_from(i).map(Number::from));
    number.map_or_else(|_| Json::String(i.to_string()), Json::Number)
}
