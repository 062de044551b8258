//! Laws on random input: printing and reading give the same tree; an override does what an edit of the file does; nothing a
//! user writes makes the crate panic.

use config::{Key, Map, Merged, Node, Order, Value, Written, to_json, to_yaml};
use proptest::prelude::*;

use crate::round_trip::{Printer, holds, reads_back};

/// Texts that a careless printer would break: words of other types, YAML's own characters, Unicode.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z_]{1,12}",
        "[ -~]{0,12}",
        "\\PC{0,8}",
        any::<String>(),
        prop::sample::select(vec![
            "",
            "null",
            "~",
            "yes",
            "No",
            "1e-5",
            "0x1F",
            "010",
            "1:30",
            "1_0",
            ".inf",
            ".5",
            "=",
            "<<",
            "- a",
            "? a",
            "a: b",
            "a #b",
            "---",
            "...",
            "%x",
            "@x",
            "!x",
            "&x",
            "*x",
            "|",
            ">",
            "'",
            "\"",
            "a\nb",
            "\t",
            " a",
            "a ",
            "a:",
            "#",
            "{}",
            "[]",
            "${a}",
            "2024-01-01",
            "\u{85}",
            "\u{feff}x",
            "-",
            ":",
            "::",
            "a\r\nb",
            "\u{0}",
            "???",
            "-1",
            "+1",
        ])
        .prop_map(str::to_owned),
    ]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|i| Value::Int(i.into())),
        any::<i128>().prop_filter("no minimum", |i| *i != i128::MIN).prop_map(Value::Int),
        any::<f64>().prop_map(Value::Float),
        (-400i32..400).prop_map(|e| Value::Float(10f64.powi(e))),
        prop::sample::select(vec![f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 1e16, 1e-5]).prop_map(Value::Float),
        text().prop_map(Value::String),
    ]
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        4 => text().prop_map(Key::text),
        1 => "[a-z ]{100,1400}".prop_map(Key::text),
        1 => scalar().prop_filter_map("null is no key", |value| Key::from_value(&value)),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5)
                .prop_map(|items| Value::List(items.into_iter().map(Node::from).collect())),
            map_of(inner),
        ]
    })
}

fn map_of(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec((key(), inner), 0..5).prop_map(|entries| {
        let mut map = Map::new();
        for (key, value) in entries {
            map.insert(key, value.into());
        }
        Value::Map(map)
    })
}

/// A config: a map without the one key that no config may have.
fn tree() -> impl Strategy<Value = Node> {
    map_of(value()).prop_map(Node::from).prop_filter("`config` is no key", |node| node.get("config").is_none())
}

/// Pieces of YAML, overrides and references in random order: closer to the grammar than random characters.
fn fragments() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "_component_",
        ": ",
        ":",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        "? ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        ",",
        "&x ",
        "*x",
        "<<: ",
        "!!str ",
        "!!int ",
        "!x ",
        "${",
        "a.b",
        "}",
        "..",
        ".",
        "\\",
        "'",
        "\"",
        "|\n",
        ">\n",
        "#",
        " ",
        "\t",
        "1",
        "e5",
        "~",
        "=",
        "None",
        "oc.env:",
        "oc.select:",
        "oc.decode:",
        "oc.create:",
        "%",
        "@",
        "---\n",
        "...\n",
        "\u{e9}",
        "\r",
        "[0]",
        "-1",
        "0",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Arguments that are nearly right, for [`TREE`].
fn argument() -> impl Strategy<Value = String> {
    let path = prop::sample::select(vec![
        "a",
        "a.b",
        "a.b[0]",
        "a.b.1",
        "a.b[1].c",
        "a._component_",
        "a.inner",
        "a.inner.k",
        "a[inner]",
        "b",
        "b.a",
        "c",
        "c[0]",
        "c[2]",
        "c.x",
        "d",
        "d.x",
        "e",
        "e.f.g",
        "max_filename",
        "",
        ".",
        "a.",
        "[0]",
        "1",
        "config",
    ]);
    let value = prop_oneof![
        3 => prop::sample::select(vec![
            "None", "none", "'None'", "", "1", "010", "1e-5", "x.Other", "[1, 2]", "[]", "{}", "{c: 3}", "{_component_: x.New, k: 2}",
            "{b: {0: 1}}", "${a.b}", "${d}", "${.c}", "${..c}", "a=b", "=", "[1", "{a", "\\${a}", "- x", "???", "${oc.env:X}",
        ]).prop_map(str::to_owned),
        1 => scalar().prop_map(|value| to_yaml(&value.into(), Order::File).trim_end().to_owned()),
        1 => fragments(),
    ];
    prop_oneof![
        8 => (path.clone(), value).prop_map(|(path, value)| format!("{path}={value}")),
        2 => path.prop_map(|path| format!("~{path}")),
        1 => (prop::sample::select(vec!["", "~", "--"]), fragments()).prop_map(|(mark, text)| format!("{mark}{text}")),
        1 => any::<String>(),
    ]
}

/// Sections, lists, components and references for [`argument`].
const TREE: &str = "a: {b: [1, {c: 2}], _component_: x.y, inner: {_component_: x.z, k: 1}}
b: {a: '${a.b[0]}', max_filename: 00005}
c: [1, 2]
d: ${a.inner}
e: ${c}
1: one
";

/// Keys, values and paths of letters, so that paths often meet keys; no components and no references.
fn plain_tree() -> impl Strategy<Value = Value> {
    let word = prop_oneof!["[ -#%-~]{0,8}", "[a-z]{1,5}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|i| Value::Int(i.into())),
        any::<f64>().prop_filter("JSON", |x| x.is_finite()).prop_map(Value::Float),
        word.prop_filter("null on a command line", |word| word != "None").prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let entries = prop::collection::vec((prop::sample::select(vec!["a", "b", "c", "d"]), inner.clone()), 1..4);
        prop_oneof![
            1 => prop::collection::vec(inner, 0..4).prop_map(|items| Value::List(items.into_iter().map(Node::from).collect())),
            2 => entries.prop_map(|entries| {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(Key::text(key), value.into());
                }
                Value::Map(map)
            }),
        ]
    })
}

/// What `path=value` makes of a value, as one would edit the file: sections are merged, anything else is put in place.
/// `None` where a list would meet a section, which is refused.
fn edited(old: Option<&Value>, path: &[&str], new: &Value) -> Option<Value> {
    let (Some((first, rest)), old) = (path.split_first(), old.unwrap_or(&Value::Null)) else {
        return match (old, new) {
            (Some(Value::Map(old)), Value::Map(new)) => {
                let mut map = old.clone();
                for (key, value) in new.iter() {
                    let value = edited(old.get(key.as_str()).map(Node::value), &[], value.value())?;
                    map.insert(key.clone(), value.into());
                }
                Some(Value::Map(map))
            }
            (Some(Value::Map(_)), Value::List(_)) | (Some(Value::List(_)), Value::Map(_)) => None,
            _ => Some(new.clone()),
        };
    };
    match old {
        Value::List(items) => {
            let index: usize = first.parse().ok().filter(|index| *index < items.len())?;
            let mut items = items.clone();
            items[index] = edited(Some(items[index].value()), rest, new)?.into();
            Some(Value::List(items))
        }
        old => {
            let mut map = if let Value::Map(map) = old { map.clone() } else { Map::new() };
            let value = edited(map.get(first).map(Node::value), rest, new)?;
            map.insert(Key::text(*first), value.into());
            Some(Value::Map(map))
        }
    }
}

/// A text without the characters that JSON leaves bare and YAML wants escaped.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}'), "_")
}

/// A tree as JSON can hold it, keys being texts.
fn json_tree() -> impl Strategy<Value = Value> {
    let leaf = scalar().prop_map(|value| match value {
        Value::String(text) => Value::String(clean(&text)),
        value => value,
    });
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| Value::List(items.into_iter().map(Node::from).collect())),
            prop::collection::vec((text(), inner), 0..4).prop_map(|entries| {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(Key::text(clean(&key)), value.into());
                }
                Value::Map(map)
            }),
        ]
    })
}

/// What JSON makes of a value: `.inf` and its like and integers beyond 64 bits are texts.
fn through_json(value: &Value) -> Value {
    match value {
        Value::Float(x) if x.is_nan() => Value::String(".nan".into()),
        Value::Float(x) if x.is_infinite() => Value::String(if *x > 0.0 { ".inf" } else { "-.inf" }.into()),
        Value::Int(i) if i64::try_from(*i).is_err() && u64::try_from(*i).is_err() => Value::String(i.to_string()),
        Value::List(items) => Value::List(items.iter().map(|item| through_json(item.value()).into()).collect()),
        Value::Map(map) => {
            let mut out = Map::new();
            for (key, node) in map.iter() {
                out.insert(key.clone(), through_json(node.value()).into());
            }
            Value::Map(out)
        }
        value => value.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_tree_reads_back_as_itself(tree in tree()) {
        prop_assert_eq!(reads_back(&tree, to_yaml), Ok(()));
    }

    /// JSON is YAML, so the same reader reads it.
    #[test]
    fn a_tree_printed_as_json_reads_back(value in json_tree()) {
        let mut root = Map::new();
        root.insert(Key::text("x"), value.clone().into());
        let json = to_json(&Value::Map(root).into(), Order::File).to_string();
        prop_assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
        match Written::parse("printed.json", json.as_str()) {
            Ok(read) => prop_assert_eq!(read.root().get("x").map(Node::value), Some(&through_json(&value)), "{}", json),
            Err(error) => prop_assert!(false, "{}\n{}", error, json),
        }
    }

    #[test]
    fn an_override_is_an_edit_of_the_file(
        file in plain_tree(),
        path in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d", "0", "1"]), 1..4),
        value in plain_tree(),
    ) {
        let mut root = Map::new();
        root.insert(Key::text("a"), file.into());
        let root = Value::Map(root);
        let file = Written::parse("run.yaml", to_yaml(&root.clone().into(), Order::File)).expect("printed");
        let argument = format!("{}={}", path.join("."), to_json(&value.clone().into(), Order::File));
        let changed = file.with_overrides(&[&argument]);
        match edited(Some(&root), &path, &value) {
            Some(expected) => {
                let by_hand = Written::parse("run.yaml", to_yaml(&expected.into(), Order::File)).expect("printed");
                prop_assert_eq!(changed.expect("no list meets a section"), by_hand, "{}", argument);
            }
            None => prop_assert!(changed.is_err(), "{}", argument),
        }
    }

    #[test]
    fn the_later_of_two_overrides_wins(first in scalar(), second in scalar()) {
        let file = Written::parse("run.yaml", "a: {b: 1}").expect("parses");
        let argument = |value: &Value| format!("a.b={}", to_yaml(&value.clone().into(), Order::File).trim_end_matches('\n'));
        let both = file.with_overrides(&[argument(&first), argument(&second)]).expect("applies");
        prop_assert_eq!(both, file.with_overrides(&[argument(&second)]).expect("applies"));
    }

    #[test]
    fn sorting_changes_nothing_but_the_order(tree in tree()) {
        prop_assert_eq!(to_json(&tree, Order::File), to_json(&tree, Order::Sorted));
    }

    #[test]
    fn an_override_sets_what_it_says(name in "[a-z]{1,8}", value in scalar()) {
        let argument = format!("section.{name}={}", to_yaml(&value.clone().into(), Order::File).trim_end_matches('\n'));
        let written = Written::parse("run.yaml", "section: {other: 1}").expect("parses");
        let changed = written.with_overrides(&[argument.as_str()]);
        match changed {
            Ok(changed) => {
                let found = changed.root().at(&format!("section.{name}")).map(Node::value);
                // `None` without quotes is null on a command line.
                let expected = if value == Value::String("None".into()) { &Value::Null } else { &value };
                prop_assert_eq!(found, Some(expected), "{}", argument);
                prop_assert_eq!(changed.root().at("section").and_then(Node::as_map).map(Map::len), Some(2 - usize::from(name == "other")));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn random_characters_never_panic(text in any::<String>(), arguments in prop::collection::vec(any::<String>(), 0..4)) {
        prop_assert_eq!(holds(&text, &[""; 0], to_yaml), Ok(()));
        prop_assert_eq!(holds(TREE, &arguments, to_yaml), Ok(()));
    }

    #[test]
    fn pieces_of_yaml_never_panic(text in fragments()) {
        prop_assert_eq!(holds(&text, &[""; 0], to_yaml), Ok(()));
    }

    #[test]
    fn random_overrides_never_panic(arguments in prop::collection::vec(argument(), 0..6)) {
        prop_assert_eq!(holds(TREE, &arguments, to_yaml), Ok(()));
    }

    #[test]
    fn random_references_never_panic(text in fragments()) {
        let node: Node = Value::String(text).into();
        let text = format!("a: 1\nb: {{a: 2}}\nc: {}", to_yaml(&node, Order::File));
        prop_assert_eq!(holds(&text, &[""; 0], to_yaml), Ok(()));
    }
}

/// The laws notice printers that are wrong.
#[test]
fn wrong_printers_are_noticed() {
    let without_quotes: Printer = |node, order| to_yaml(node, order).replace('\'', "");
    let rounded: Printer = |node, order| to_yaml(node, order).replace("0.95", "0.9");
    let short: Printer = |node, order| to_yaml(node, order).lines().skip(1).collect::<Vec<_>>().join("\n");
    let sorted: Printer = |node, order| to_yaml(node, order) + if order == Order::Sorted { "more: 1\n" } else { "" };
    let broken: Printer = |node, order| to_yaml(node, order) + "[";
    let text = "a: 'yes'\nb: [0.9, 0.95]\n";
    assert_eq!(holds(text, &["c=1"], to_yaml), Ok(()));
    for wrong in [without_quotes, rounded, short, sorted, broken] {
        assert!(holds(text, &["c=1"], wrong).is_err());
    }
    // Wrong only where an override or a reference has been.
    let only_overrides: Printer = |node, order| to_yaml(node, order).replace("c: 1", "c: 2");
    assert!(holds("a: 1", &["c=1"], only_overrides).is_err());
    let only_resolved: Printer = |node, order| to_yaml(node, order).replace("b: 7", "b: 8");
    assert!(holds("a: 7\nb: ${a}", &[""; 0], only_resolved).is_err());
}

#[test]
fn expansion_is_bounded() {
    // Aliases that multiply, references that multiply, references that nest, text that multiplies.
    let aliases = (0..40).map(|i| format!("a{}: &a{} [*a{i}, *a{i}]", i + 1, i + 1)).collect::<Vec<_>>().join("\n");
    let references = |form: &str| {
        (0..60)
            .map(|i| format!("a{}: {}", i + 1, form.replace('#', &format!("${{a{i}}}"))))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let chain = (0..5000).map(|i| format!("a{}: ${{a{i}}}", i + 1)).collect::<Vec<_>>();
    let nest = (0..5000).map(|i| format!("a{}: {{x: \"${{a{i}}}\"}}", i + 1)).collect::<Vec<_>>();
    let backwards = |lines: &[String]| lines.iter().rev().cloned().collect::<Vec<_>>().join("\n");
    for text in [
        format!("a0: &a0 x\n{aliases}"),
        format!("a0: x\n{}", references("[\"#\", \"#\"]")),
        format!("a0: x\n{}", references("\"##\"")),
        format!("a0: x\n{}", nest.join("\n")),
        format!("{}\na0: x", backwards(&nest)),
        format!("{}\na0: x", backwards(&chain)),
        format!("a: {}", "[".repeat(5000)),
        format!("a:\n {}1", "- ".repeat(5000)),
    ] {
        let error = Merged::from_text("run.yaml", text.as_str());
        assert!(error.is_err(), "{}", &text[..60]);
    }
    let long = format!("{}=1", vec!["a"; 5000].join("."));
    assert!(Written::parse("run.yaml", "").expect("parses").with_overrides(&[long]).is_err());
}

/// Blanks of YAML are spaces and tabs; others belong to a value.
#[test]
fn spaces_of_other_kinds_belong_to_an_overrides_value() {
    for value in ["\u{2000}", "x\u{2000}", "\u{a0}x", "\u{3000}"] {
        let written = Written::parse("run.yaml", "section: {other: 1}").expect("parses");
        let changed = written.with_overrides(&[format!("section.a={value}").as_str()]).expect("applies");
        let found = changed.root().at("section.a").map(Node::value);
        assert_eq!(found, Some(&Value::String(value.into())), "{value:?}");
    }
}
