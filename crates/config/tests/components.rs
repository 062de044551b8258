//! `component!` and `choice!` as other crates use them, and what each field type accepts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use config::{FromNode, Key, Map, Merged, Names, Node, Origin, Problems, Value, Written};

config::choice! {
    /// Kind of checkpoint.
    pub enum ModelType {
        /// Llama 3.
        Llama3 = "LLAMA3",
        /// Llama 3.2.
        Llama3_2 = "LLAMA3_2",
    }
}

config::component! {
    /// Files of a checkpoint named by a pattern.
    pub struct FileList {
        /// Pattern with two `{}`.
        pub filename_format: String = "model-{}-of-{}.safetensors".into(),
        /// Number of the last file, zeros included.
        pub max_filename: String = "00001".into(),
    }
}

config::component! {
    /// Everything a field can be.
    pub struct Everything {
        /// A switch.
        pub flag: bool = true,
        /// A count.
        pub count: usize [1..] = 3,
        /// A signed number.
        pub offset: i64 [-5..=5] = -1,
        /// A share, in [0, 1].
        pub share: f32 [0.0..=1.0] = 0.5,
        /// A path.
        pub path: PathBuf = "a/b".into(),
        /// A limit;
        /// `null` = none.
        pub limit: Option<f64> [positive] = None,
        /// Words.
        pub words: Vec<String> [one_of("q_proj", "v_proj")] = vec!["q_proj".into()],
        /// A pair.
        pub pair: [f64; 2] = [0.9, 0.999],
        /// A map of words.
        pub columns: BTreeMap<String, String> = BTreeMap::new(),
        /// A choice.
        pub model_type: Option<ModelType> = Some(ModelType::Llama3),
        /// Another component.
        pub files: FileList = FileList::default(),
        /// Anything.
        pub anything: Node = Value::Null.into(),
        /// A key that is a word of Rust.
        pub kind as "type": u64 = 7,
    }
}

config::component! {
    /// Reads files.
    pub struct SourceConfig {
        /// Where from.
        pub source: String,
        /// Which part.
        pub split: String = "train".into(),
        ..
        /// Every other key.
        pub load_options: Map,
    }
}

config::component! {
    /// No keys at all.
    struct Nothing {}
}

fn checked<T: FromNode>(yaml: &str) -> Result<T, Vec<String>> {
    let merged = Merged::from_text("test.yaml", yaml).expect("parses");
    let mut problems = Problems::new();
    let value = T::from_node(merged.root(), &mut problems);
    match problems.finish() {
        Ok(notices) if notices.is_empty() => Ok(value.expect("no problem, so a value")),
        Ok(notices) => Err(notices.iter().map(ToString::to_string).collect()),
        Err(error) => {
            assert!(value.is_none(), "a value in spite of problems");
            Err(vec![error.to_string()])
        }
    }
}

/// The value of one key, read as `T`.
fn read<T: FromNode>(scalar: &str) -> Option<T> {
    let merged = Merged::from_text("test.yaml", format!("x: {scalar}")).expect("parses");
    let mut problems = Problems::new();
    let value = T::from_node(merged.root().get("x").expect("written above"), &mut problems);
    assert_eq!(value.is_some(), problems.is_empty(), "{scalar}");
    value
}

#[test]
fn defaults_and_values() {
    assert_eq!(checked::<Everything>("{}"), Ok(Everything::default()));
    let yaml = "
flag: no
count: 0x10
offset: -5
share: 1
path: 2024
limit: 1e-5
words: [v_proj]
pair: [1, 2.5]
columns: {input: prompt, output: 00012}
model_type: llama3_2
files: {max_filename: 00030}
anything: [1, {a: b}]
type: 9
";
    let found: Everything = checked(yaml).expect("no problem");
    assert_eq!((found.flag, found.count, found.offset, found.share, found.kind), (false, 16, -5, 1.0, 9));
    assert_eq!((found.path, found.limit, found.pair), ("2024".into(), Some(1e-5), [1.0, 2.5]));
    assert_eq!(found.words, ["v_proj"]);
    assert_eq!(found.columns["output"], "00012");
    assert_eq!(found.model_type, Some(ModelType::Llama3_2));
    assert_eq!(found.files, FileList { max_filename: "00030".into(), ..FileList::default() });
    assert_eq!(found.anything.at("[1].a").and_then(Node::as_str), Some("b"));
    assert_eq!(checked::<Nothing>("{}"), Ok(Nothing {}));
}

#[test]
fn every_number_spelling_is_a_float() {
    for (text, value) in
        [("2e-5", 2e-5), ("2E-5", 2e-5), ("2.0e-5", 2e-5), ("2e5", 2e5), (".5", 0.5), ("1_000", 1e3), ("3", 3.0)]
    {
        assert_eq!(read::<f64>(text), Some(value), "{text}");
        assert_eq!(read::<f32>(text), Some(value as f32), "{text}");
    }
    for text in ["\"2e-5\"", "none", "nan", "null", "true", "[1]", "{a: 1}", "None", ""] {
        assert_eq!(read::<f64>(text), None, "{text}");
    }
}

#[test]
fn integers_have_a_range() {
    assert_eq!(read::<u64>("18446744073709551615"), Some(u64::MAX));
    assert_eq!(read::<u64>("18446744073709551616"), None);
    assert_eq!(read::<u64>("-1"), None);
    assert_eq!(read::<i64>("-9223372036854775808"), Some(i64::MIN));
    assert_eq!(read::<u8>("256"), None);
    assert_eq!(read::<usize>("1.0"), None);
    assert_eq!(read::<i32>("'1'"), None);
}

#[test]
fn text_is_as_written() {
    for text in ["00005", "1e-5", "yes", "0x1F", "1_000", ".inf"] {
        assert_eq!(read::<String>(text).as_deref(), Some(text));
    }
    assert_eq!(read::<String>("'quoted'").as_deref(), Some("quoted"));
    assert_eq!(read::<String>("null"), None);
    assert_eq!(read::<PathBuf>("null"), None);
    assert_eq!(read::<Option<PathBuf>>("null"), Some(None));
    // Through a reference and through the command line too.
    let written = Written::parse("t.yaml", "a: 00030\nb: ${a}\nc: x").expect("parses");
    let merged = written.with_overrides(&["c=00040"]).and_then(|written| written.resolve()).expect("resolves");
    for (key, text) in [("a", "00030"), ("b", "00030"), ("c", "00040")] {
        let node = merged.root().get(key).expect("written above");
        assert_eq!(String::from_node(node, &mut Problems::new()).as_deref(), Some(text));
    }
}

#[test]
fn rest_takes_all_other_keys() {
    let config: SourceConfig =
        checked("_component_: x\nsource: json\ndata_files: [a, b]\nspilt: y").expect("no problem");
    let keys: Vec<&str> = config.load_options.keys().map(Key::as_str).collect();
    assert_eq!(keys, ["data_files", "spilt"]);
    assert_eq!(config.split, "train");
    assert!(checked::<SourceConfig>("split: x").is_err());
}

#[test]
fn fields_describe_themselves() {
    let field = |name: &str| Everything::FIELDS.iter().find(|field| field.name == name).expect("a field");
    assert_eq!(Everything::FIELDS.len(), 13);
    assert_eq!(field("count").doc, "A count.");
    assert_eq!((field("count").accepts)(), "an integer >= 1");
    assert_eq!(field("count").default_text().as_deref(), Some("3"));
    assert_eq!((field("limit").accepts)(), "a number > 0 or null");
    assert_eq!(field("limit").doc, "A limit; `null` = none.");
    assert_eq!(field("limit").default_text().as_deref(), Some("null"));
    assert_eq!(field("type").ty, "u64");
    assert_eq!((field("model_type").accepts)(), "one of `LLAMA3`, `LLAMA3_2` or null");
    assert_eq!(field("path").default_text().as_deref(), Some("\"a/b\""));
    assert_eq!(SourceConfig::FIELDS[0].default, None);
    assert_eq!(SourceConfig::FIELDS[0].default_text(), None);
}

#[test]
fn every_problem_is_reported_and_nothing_else() {
    let merged = Merged::from_text(
        "t.yaml",
        "flag: 1\ncount: 0\nwords: [q_proj, k_proj, 1]\npair: 1\nshare: x\ncuont: 3\nzzz: 1",
    );
    let mut problems = Problems::new();
    assert_eq!(Everything::check(merged.expect("parses").root(), &mut problems), None);
    let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["flag", "count", "share", "words[1]", "words[2]", "pair", "cuont"]);
    assert_eq!(problems.notices().len(), 1);
    let place = problems.iter().nth(1).and_then(|problem| problem.origin.position()).expect("a place in the file");
    assert_eq!((place.line(), place.column()), (2, 8));
}

#[test]
fn a_component_is_absent_when_null() {
    let written = Written::parse("t.yaml", "a: {_component_: x, k: 1}\nb: null\nc: {k: 1}").expect("parses");
    let merged = written.with_overrides(&["a=None"]).and_then(|written| written.resolve()).expect("resolves");
    let absent: Vec<bool> =
        ["a", "b", "c"].iter().map(|key| merged.root().get(key).expect("there").is_absent()).collect();
    assert_eq!(absent, [true, true, false]);
}

#[test]
fn nested_components_switch_by_their_path() {
    let text = "outer:\n  inner: {_component_: a.A, k: 1}\n  list: [{_component_: a.A}, x]";
    let written = Written::parse("t.yaml", text).expect("parses");
    let changed = written.with_overrides(&["outer.inner=b.B", "outer.list[0]=c.C", "outer.list.1=y"]).expect("applies");
    let at = |path: &str| changed.root().at(path).expect("there").clone();
    assert_eq!(at("outer.inner").component_name(), Some("b.B"));
    assert_eq!(at("outer.inner.k").value(), &Value::Int(1));
    assert_eq!(at("outer.list[0]._component_").as_str(), Some("c.C"));
    assert_eq!(at("outer.list[1]").as_str(), Some("y"));
    assert!(
        matches!(at("outer.inner._component_").origin(), Origin::CommandLine(token) if &**token == "outer.inner=b.B")
    );
    // Naming the component that is there switches nothing.
    let same = written.with_overrides(&["outer.inner=a.A"]).expect("applies");
    assert!(!same.root().at("outer.inner._component_").expect("there").origin().is_command_line());
}

#[test]
fn names_have_several_spellings() {
    const NAMES: Names<u8> = Names {
        role: "scheduler",
        built: &[(&["t.training.get_cosine", "t.training.lr_schedulers.get_cosine"], 1)],
        not_built: &["t.training.get_exponential"],
    };
    assert_eq!(NAMES.find("t.training.lr_schedulers.get_cosine"), Some(1));
    assert_eq!(NAMES.find("get_cosine"), None);
    assert!(NAMES.is_not_built("t.training.get_exponential"));
    assert_eq!(NAMES.spellings().count(), 2);
}

#[test]
fn references_resolve_after_overrides() {
    let written = Written::parse(
        "t.yaml",
        "out: /a\nckpt: {out: \"${out}\", sib: \"${.out}/s\", up: \"${..out}\"}\nl: [1, \"${l[0]}\"]",
    );
    let changed = written.and_then(|written| written.with_overrides(&["out=/b=c"])).expect("applies");
    let merged = changed.resolve().expect("resolves");
    let text = |path: &str| merged.root().at(path).expect("there").as_str().map(str::to_owned);
    assert_eq!(text("ckpt.out").as_deref(), Some("/b=c"));
    assert_eq!(text("ckpt.sib").as_deref(), Some("/b=c/s"));
    assert_eq!(text("ckpt.up").as_deref(), Some("/b=c"));
    assert_eq!(merged.root().at("l[1]").expect("there").value(), &Value::Int(1));
    assert!(changed.to_yaml(config::Order::File).contains("out: ${out}"));
}

#[test]
fn resolvers_read_the_environment_and_the_tree() {
    let text = r#"
a: {b: [10, 20], c: x}
env: ${oc.env:ONE}
default: ${oc.env:TWO,3}
nothing: ${oc.env:TWO,null}
number: ${oc.decode:${oc.env:ONE}}
list: "${oc.decode:'[1, x, {k: 2.5}]'}"
chosen: ${oc.select:a.b}
missing: ${oc.select:a.z,${a.c}}
renamed: ${oc.deprecated:a.c,gone}
quoted: ${oc.env:TWO,'it\'s'}
keys: ${oc.dict.keys:a}
values: ${oc.dict.values:a}
nested: ${a.${a.name}}
last: ${a.b[-1]}
text: pre ${a.b} ${a} ${none} ${not} post
escaped: \${a} \\${a.c}
none: null
not: false
"#;
    let text = text.replace("c: x}", "c: x, name: c}");
    let written = Written::parse("t.yaml", text).expect("parses");
    let merged = written.resolve_with(&|name| (name == "ONE").then(|| "1".to_owned())).expect("resolves");
    let json = merged.to_json(config::Order::File);
    let expected = serde_json::json!({
        "a": {"b": [10, 20], "c": "x", "name": "c"},
        "env": "1", "default": "3", "nothing": null, "number": 1, "list": [1, "x", {"k": 2.5}],
        "chosen": [10, 20], "missing": "x", "renamed": "x", "quoted": "it's", "keys": ["b", "c", "name"], "values": [[10, 20], "x", "c"],
        "nested": "x", "last": 20,
        "text": "pre [10, 20] {'b': [10, 20], 'c': 'x', 'name': 'c'} None False post",
        "escaped": r"${a} \x", "none": null, "not": false,
    });
    assert_eq!(json, expected);
}

#[test]
fn printed_forms() {
    let text = "b: [1, {x: 1, y: [a]}, []]\na:\n  lr: 1e-5\n  s: '1e-5'\n  n: ~\n  t: yes\n  e: {}\n  i: .inf\nc: [[1, 2], [3]]\n";
    let merged = Merged::from_text("t.yaml", text).expect("parses");
    insta::assert_snapshot!(format!(
        "{}----\n{}----\n{:#}\n",
        merged.to_yaml(config::Order::File),
        merged.to_yaml(config::Order::Sorted),
        merged.to_json(config::Order::File)
    ));
}
