//! Laws on random input: printing and reading give the same tree; nothing a user writes makes the crate panic.

use config::{Key, Map, Merged, Node, Order, Value, Written, to_json, to_yaml};
use proptest::prelude::*;

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

fn exercise(text: &str, arguments: &[String]) {
    let Ok(written) = Written::parse("run.yaml", text) else { return };
    let overridden = written.with_overrides(arguments);
    for written in [Ok(written), overridden] {
        match written.and_then(|written| written.resolve_with(&|_| Some("value".to_owned()))) {
            Ok(merged) => {
                merged.to_yaml(Order::Sorted);
                merged.to_json(Order::File);
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                error.hint();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_tree_reads_back_as_itself(tree in tree()) {
        for order in [Order::File, Order::Sorted] {
            let printed = to_yaml(&tree, order);
            let read = Written::parse("printed.yaml", printed.as_str());
            match read {
                Ok(read) => prop_assert_eq!(read.root(), &tree, "{}", printed),
                Err(error) => prop_assert!(false, "{}\n{}", error, printed),
            }
        }
    }

    #[test]
    fn sorting_changes_nothing_but_the_order(tree in tree()) {
        prop_assert_eq!(to_json(&tree, Order::File), to_json(&tree, Order::Sorted));
    }

    #[test]
    fn an_override_sets_what_it_says(name in "[a-z]{1,8}", value in scalar()) {
        prop_assume!(!matches!(&value, Value::String(text) if text.contains('\0')));
        let argument = format!("section.{name}={}", to_yaml(&value.clone().into(), Order::File).trim_end());
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
        exercise(&text, &[]);
        exercise("a: {b: [1, {c: 2}]}\nd: ${a.b}", &arguments);
    }

    #[test]
    fn malformed_yaml_never_panics(text in fragments()) {
        exercise(&text, &[]);
    }

    #[test]
    fn random_overrides_never_panic(arguments in prop::collection::vec((prop::sample::select(vec!["", "~", "--"]), fragments()), 0..4)) {
        let arguments: Vec<String> = arguments.into_iter().map(|(mark, text)| format!("{mark}{text}")).collect();
        exercise("a: {b: [1, {c: 2}], _component_: x.y}\nb: {a: ${a.b[0]}}\nc: [1, 2]", &arguments);
    }

    #[test]
    fn random_references_never_panic(text in fragments()) {
        let node: Node = Value::String(text).into();
        exercise(&format!("a: 1\nb: {{a: 2}}\nc: {}", to_yaml(&node, Order::File)), &[]);
    }
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
