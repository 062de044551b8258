//! What command-line arguments do, rule by rule, from the written tree to the checked component.

use std::collections::BTreeMap;
use std::path::PathBuf;

use config::{Error, FromNode, Merged, Names, Node, Order, Problems, Value, Written};

config::component! {
    /// AdamW.
    pub struct AdamWConfig {
        /// Learning rate.
        pub lr: f64 [positive] = 1e-3,
        /// Decay of the moments.
        pub betas: [f64; 2] = [0.9, 0.999],
        /// One kernel.
        pub fused: bool = false,
    }
}

config::component! {
    /// Gradient descent.
    pub struct SgdConfig {
        /// Learning rate.
        pub lr: f64 [positive],
        /// Momentum.
        pub momentum: f64 = 0.0,
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Optimizer {
    AdamW(AdamWConfig),
    Sgd(SgdConfig),
}

type CheckOptimizer = fn(&Node, &mut Problems) -> Option<Optimizer>;

const OPTIMIZERS: Names<CheckOptimizer> = Names {
    role: "optimizer",
    built: &[
        (&["torch.optim.AdamW"], |node, problems| AdamWConfig::check(node, problems).map(Optimizer::AdamW)),
        (&["torch.optim.SGD"], |node, problems| SgdConfig::check(node, problems).map(Optimizer::Sgd)),
    ],
    not_built: &[],
};

impl FromNode for Optimizer {
    fn expected() -> String {
        "an optimizer's section".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        OPTIMIZERS.choose(node, problems)?(node, problems)
    }
}

config::component! {
    /// A stage of a run, with components inside.
    pub struct StageConfig {
        /// Its optimizer.
        optimizer: Optimizer,
        /// Steps.
        steps: u32 = 10,
    }
}

config::choice! {
    /// Kind of checkpoint.
    pub enum ModelType {
        /// Llama 3.
        Llama3 = "LLAMA3",
        /// A word that YAML takes for a number.
        Numbered = "007",
    }
}

config::component! {
    /// A run.
    pub struct RunConfig {
        /// Where results go.
        output_dir: PathBuf = "/out".into(),
        /// Largest norm; `null` = no limit.
        clip_grad_norm: Option<f64> [positive] = None,
        /// What is recomputed.
        ac_mode: Option<String> = None,
        /// The optimizer, or none.
        optimizer: Option<Optimizer> = None,
        /// Stages, each with components of its own.
        stages: Vec<StageConfig> = Vec::new(),
        /// The last stage.
        last: Option<StageConfig> = None,
        /// Texts.
        files: Vec<String> = Vec::new(),
        /// Texts by name.
        names: BTreeMap<String, String> = BTreeMap::new(),
        /// Steps of warm-up; `null` = 100.
        num_warmup_steps: Option<u64> = Some(100),
        /// Decay.
        weight_decay: f64 [0.0..] = 0.01,
        /// Kind of checkpoint; `null` = as the model says.
        model_type: Option<ModelType> = None,
    }
}

const RUN: &str = "
output_dir: /a
clip_grad_norm: 1.0
ac_mode: full
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
  betas: [0.9, 0.95]
  fused: True
stages:
- optimizer: {_component_: torch.optim.AdamW, fused: True}
- optimizer: {_component_: torch.optim.SGD, lr: 1, momentum: 0.9}
last:
  optimizer:
    _component_: torch.optim.AdamW
    lr: 3e-4
    fused: True
files: [a, b]
";

fn written(text: &str, arguments: &[&str]) -> Written {
    Written::parse("run.yaml", text).and_then(|file| file.with_overrides(arguments)).expect("can be applied")
}

fn merged(text: &str, arguments: &[&str]) -> Merged {
    written(text, arguments).resolve_with(&|_| None).expect("resolves")
}

/// The value at a path of [`RUN`] with arguments.
fn value(path: &str, arguments: &[&str]) -> Value {
    merged(RUN, arguments).root().at(path).expect("is there").value().clone()
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

fn fault(text: &str, arguments: &[&str]) -> Error {
    let file = Written::parse("run.yaml", text).expect("parses");
    file.with_overrides(arguments).expect_err("cannot be applied")
}

/// The checked run and the notices, or the message.
fn checked(text: &str, arguments: &[&str]) -> Result<(RunConfig, Vec<String>), String> {
    let mut problems = Problems::new();
    let run = RunConfig::check(merged(text, arguments).root(), &mut problems);
    let notices = problems.finish().map_err(|error| error.to_string())?;
    Ok((run.expect("no problem"), notices.iter().map(ToString::to_string).collect()))
}

#[test]
fn only_none_in_that_spelling_is_null() {
    for argument in ["clip_grad_norm=None", "clip_grad_norm=null", "clip_grad_norm=~", "clip_grad_norm="] {
        assert_eq!(value("clip_grad_norm", &[argument]), Value::Null, "{argument}");
        assert_eq!(checked(RUN, &[argument]).expect("a limit may be null").0.clip_grad_norm, None, "{argument}");
    }
    for (argument, word) in
        [("none", "none"), ("NONE", "NONE"), ("'None'", "None"), ("\"None\"", "None"), ("!!str None", "None")]
    {
        let assignment = |key: &str| format!("{key}={argument}");
        assert_eq!(value("clip_grad_norm", &[&assignment("clip_grad_norm")]), text(word), "{argument}");
        let error = checked(RUN, &[&assignment("clip_grad_norm")]).expect_err("no number");
        assert!(error.contains("`clip_grad_norm`") && error.contains("a number > 0 or null"), "{error}");
        assert_eq!(checked(RUN, &[&assignment("ac_mode")]).expect("any text").0.ac_mode.as_deref(), Some(word));
    }
    // Inside a list or section, and in a file, it is a word.
    assert_eq!(value("files[0]", &["files=[None]"]), text("None"));
    assert_eq!(merged("a: None", &[]).root().at("a").and_then(Node::as_str), Some("None"));
}

#[test]
fn values_may_contain_equals_signs() {
    assert_eq!(value("prompt", &["prompt=2+2=4"]), text("2+2=4"));
    assert_eq!(value("tokenizer.path", &["tokenizer.path=/d/a=b/tok"]), text("/d/a=b/tok"));
    assert_eq!(value("files[1]", &["files=[a, b=c]"]), text("b=c"));
    assert_eq!(value("names.x", &["names={x: y=z}"]), text("y=z"));
    assert_eq!(value("prompt", &["prompt==x"]), text("=x"));
    assert_eq!(value("prompt", &["prompt='='"]), text("="));
    assert_eq!(value("", &["=5"]), merged(RUN, &["=5"]).root().value().clone());
}

#[test]
fn a_switch_keeps_the_section_and_drops_what_is_stale_with_a_notice() {
    let dropped = |path: &str, keys: &[&str]| -> Vec<String> {
        let line = |key: &&str| format!("`{path}.{key}` is dropped: `torch.optim.SGD` does not take it");
        keys.iter().map(line).collect()
    };
    // At the top, deeper, and in a list; by name, by its key, and by a section that names it.
    for (path, keys) in
        [("optimizer", &["betas", "fused"][..]), ("last.optimizer", &["fused"]), ("stages[0].optimizer", &["fused"])]
    {
        for form in ["=torch.optim.SGD", "._component_=torch.optim.SGD", "={_component_: torch.optim.SGD}"] {
            let arguments = [format!("{path}{form}"), format!("{path}.lr=0.5"), format!("{path}.momentum=0.25")];
            let arguments = arguments.each_ref().map(String::as_str);
            let section = merged(RUN, &arguments).root().at(path).expect("is there").clone();
            assert_eq!(section.component_name(), Some("torch.optim.SGD"), "{arguments:?}");
            assert!(section.get("fused").is_some(), "nothing is dropped before the check");
            let (run, notices) = checked(RUN, &arguments).expect("a switch");
            assert_eq!(notices, dropped(path, keys), "{arguments:?}");
            let optimizer = match path {
                "optimizer" => run.optimizer.expect("set"),
                "last.optimizer" => run.last.expect("set").optimizer,
                _ => run.stages[0].optimizer.clone(),
            };
            assert_eq!(optimizer, Optimizer::Sgd(SgdConfig { lr: 0.5, momentum: 0.25 }));
        }
    }
}

#[test]
fn a_section_that_names_a_component_is_a_switch_with_its_keys() {
    let (run, notices) =
        checked(RUN, &["optimizer={_component_: torch.optim.SGD, lr: 1, momentum: 0.5}"]).expect("a switch");
    assert_eq!(run.optimizer, Some(Optimizer::Sgd(SgdConfig { lr: 1.0, momentum: 0.5 })));
    assert_eq!(notices.len(), 2, "{notices:?}");
    // The keys that both take stay, and the section around it too.
    let (run, _) = checked(RUN, &["last={optimizer: {_component_: torch.optim.SGD}, steps: 3}"]).expect("a switch");
    let optimizer = Optimizer::Sgd(SgdConfig { lr: 3e-4, momentum: 0.0 });
    assert_eq!(run.last, Some(StageConfig { optimizer, steps: 3 }));
    // The same component is no switch: its keys are still checked.
    let error = checked(&RUN.replace("fused", "fuzed"), &["optimizer={_component_: torch.optim.AdamW, lr: 1}"]);
    assert!(
        error.as_ref().is_err_and(|error| error.contains("unknown key, did you mean `optimizer.fused`?")),
        "{error:?}"
    );
    // Where the file has no component, the section is put there.
    let (run, _) = checked("optimizer: null", &["optimizer={_component_: torch.optim.SGD, lr: 1}"]).expect("a section");
    assert_eq!(run.optimizer, Some(Optimizer::Sgd(SgdConfig { lr: 1.0, momentum: 0.0 })));
    // Keys alone name no component.
    let error = checked(RUN, &["optimizer={lr: 1}"]).expect_err("no name");
    assert!(error.contains("`optimizer._component_`"), "{error}");
}

#[test]
fn a_later_switch_wins_and_keys_from_the_command_line_are_not_stale() {
    let (run, notices) = checked(RUN, &["optimizer=None", "optimizer=torch.optim.SGD", "optimizer=torch.optim.AdamW"])
        .expect("AdamW again");
    let adamw = AdamWConfig { lr: 2e-5, betas: [0.9, 0.95], fused: true };
    assert_eq!((run.optimizer, notices.len()), (Some(Optimizer::AdamW(adamw)), 0));
    let (_, notices) =
        checked(RUN, &["optimizer=torch.optim.SGD", "optimizer.betas=[0.1, 0.2]"]).expect("unknown, not close");
    assert_eq!(
        notices,
        [
            "unknown key `optimizer.betas` is ignored",
            "`optimizer.fused` is dropped: `torch.optim.SGD` does not take it",
        ]
    );
    let error = checked(RUN, &["optimizer=torch.optim.SGD", "optimizer.momentun=0.1"]).expect_err("a slip");
    assert!(error.contains("unknown key `optimizer.momentun`"), "{error}");
}

#[test]
fn a_component_set_to_null_is_absent() {
    for argument in ["=None", "=null", "=~", "=", "._component_=None", "={_component_: null}"] {
        let argument = &format!("optimizer{argument}");
        let (run, notices) = checked(RUN, &[argument]).expect("a section may be absent");
        assert_eq!((run.optimizer, notices.len()), (None, 0), "{argument}");
    }
    let file = RUN.replace("_component_: torch.optim.AdamW\n  lr: 2e-5", "_component_: null\n  lr: 2e-5");
    assert_eq!(checked(&file, &[]).expect("absent in the file").0.optimizer, None);
    assert_eq!(checked("optimizer: null", &[]).expect("absent in the file").0.optimizer, None);
    // The word `none` is no null, and a required component cannot be absent.
    assert!(checked(RUN, &["optimizer=none"]).expect_err("no such component").contains("unknown optimizer `none`"));
    assert!(checked(RUN, &["last.optimizer=None"]).expect_err("required").contains("`last.optimizer`"));
}

#[test]
fn what_is_no_name_does_to_a_nested_component_what_it_does_to_a_section() {
    let file =
        "a: {b: {_component_: x.One, k: 1}, l: [{_component_: x.One, k: 1}]}\no: {_component_: x.One}\np: {q: 2}";
    let b = |argument: &str| merged(file, &[argument]).to_json(Order::File)["a"]["b"].to_string();
    assert_eq!(b("a.b=x.Two"), r#"{"_component_":"x.Two","k":1}"#);
    assert_eq!(b("a.b={k: 2, z: 3}"), r#"{"_component_":"x.One","k":2,"z":3}"#);
    assert_eq!(b("a.b=${p}"), r#"{"q":2}"#);
    assert_eq!(b("a.b=7"), "7");
    assert_eq!(b("a.b=None"), "null");
    assert_eq!(b("a={b: x.Two}"), r#""x.Two""#);
    let error = fault(file, &["a.l[0]=[1]"]).to_string();
    assert!(error.contains("`a.l.0`") && error.contains("expected a section, found a list"), "{error}");
    // At the top, everything is a name but a section that names one.
    assert_eq!(merged(file, &["o=7"]).root().at("o._component_").map(Node::value), Some(&Value::Int(7)));
}

#[test]
fn question_marks_ask_for_a_value_and_take_none_away() {
    assert_eq!(value("clip_grad_norm", &["clip_grad_norm=???"]), Value::Float(1.0));
    assert_eq!(value("optimizer._component_", &["optimizer=???"]), text("torch.optim.AdamW"));
    assert_eq!(value("last.optimizer.lr", &["last={optimizer: {lr: ???}}"]), Value::Float(3e-4));
    assert_eq!(value("clip_grad_norm", &["clip_grad_norm=2", "clip_grad_norm=???"]), Value::Float(1.0));
    let error = checked(RUN, &["weight_decay=???"]).expect_err("no value");
    assert!(error.contains("expected a number >= 0, found `???`"), "{error}");
}

#[test]
fn tilde_removes_a_key_and_the_sections_it_empties() {
    let removed = |arguments: &[&str], path: &str| merged(RUN, arguments).root().at(path).is_none();
    assert!(removed(&["~optimizer.fused"], "optimizer.fused"));
    assert!(!removed(&["~optimizer.fused"], "optimizer.betas"));
    assert!(removed(&["~files"], "files"));
    let file = "a: {b: {c: 1}}\nd: {e: 1}\nf: 1";
    let left = |arguments: &[&str]| merged(file, arguments).to_json(Order::File).to_string();
    assert_eq!(left(&["~a.b.c"]), r#"{"d":{"e":1},"f":1}"#);
    assert_eq!(left(&["~a", "~d.e"]), r#"{"f":1}"#);
    // Removals act on the file, assignments come last.
    assert_eq!(left(&["f=2", "~f", "~a", "~d"]), r#"{"f":2}"#);
    for (argument, words) in [
        ("~nope.x", "no key `nope.x`"),
        ("~model._component_", "cannot remove component `model`"),
        ("~optimizer", "cannot remove component `optimizer`"),
        ("~last.optimizer", "cannot remove component `last.optimizer`"),
        ("~files.0", "cannot remove an element of the list `files`"),
        ("~files[0]", "cannot remove an element of the list `files`"),
        ("~output_dir.x", "no key `output_dir.x`"),
        ("~output_dir=/b", "unexpected value in `~output_dir=/b`"),
        ("~", "no key ``"),
    ] {
        let error = fault(RUN, &[argument]).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn lists_and_sections_are_flow_values() {
    assert_eq!(
        merged("a: {x: 1}\nl: [1, 2]", &["a={y: [1, {z: no}], w: {}}", "l=[3]"]).to_json(Order::File).to_string(),
        r#"{"a":{"x":1,"y":[1,{"z":false}],"w":{}},"l":[3]}"#
    );
    // Without a blank the colon belongs to the word.
    assert_eq!(
        merged("{}", &["a={b:1}", "c=d: e"]).to_json(Order::File).to_string(),
        r#"{"a":{"b:1":null},"c":{"d":"e"}}"#
    );
    assert!(fault(RUN, &["files={a: 1}"]).to_string().contains("expected a list, found a section"));
    assert!(fault(RUN, &["optimizer.betas={a: 1}"]).to_string().contains("expected a list, found a section"));
    assert!(fault("a: {x: 1}", &["a=[1]"]).to_string().contains("expected a section, found a list"));
}

#[test]
fn scalars_are_those_of_yaml_1_1() {
    for (argument, expected) in [
        ("1e-5", Value::Float(1e-5)),
        ("2E5", Value::Float(2e5)),
        (".5", Value::Float(0.5)),
        ("-.inf", Value::Float(f64::NEG_INFINITY)),
        ("nan", text("nan")),
        ("1_000", Value::Int(1000)),
        ("010", Value::Int(8)),
        ("08", text("08")),
        ("0x1F", Value::Int(31)),
        ("0o17", text("0o17")),
        ("1:30", Value::Int(90)),
        ("yes", Value::Bool(true)),
        ("OFF", Value::Bool(false)),
        ("y", text("y")),
        ("2024-01-01", text("2024-01-01")),
        ("'1'", text("1")),
        ("x #y", text("x")),
        ("#y", Value::Null),
    ] {
        assert_eq!(value("x", &[&format!("x={argument}")]), expected, "{argument}");
    }
}

#[test]
fn references_see_overrides() {
    let file = "
out: /a
ckpt: {out: '${out}', deep: {up: '${..out}/x', same: '${.up}', top: '${...name}'}}
name: n
pick: ${ckpt.${kind}}
kind: out
escaped: \\${out}
env: ${oc.env:NAME,none}/${oc.env:OTHER,7}
list: ['${out}', '${list[0]}']
";
    let written = written(file, &["out=/b=c", "kind=deep", "ckpt.deep.same=${out}!", "new=${.out}"]);
    let merged = written.resolve_with(&|name| (name == "NAME").then(|| "me".to_owned())).expect("resolves");
    let json = merged.to_json(Order::File);
    assert_eq!(
        json,
        serde_json::json!({
            "out": "/b=c",
            "ckpt": {"out": "/b=c", "deep": {"up": "/b=c/x", "same": "/b=c!", "top": "n"}},
            "name": "n",
            "pick": {"up": "/b=c/x", "same": "/b=c!", "top": "n"},
            "kind": "deep",
            "escaped": "${out}",
            "env": "me/7",
            "list": ["/b=c", "/b=c"],
            "new": "/b=c",
        })
    );
    let unset = Written::parse("run.yaml", "a: ???\nb: ${a}").expect("parses").resolve_with(&|_| None);
    assert!(unset.expect_err("unset").to_string().contains("refers to a key without a value"));
    for (argument, words) in [
        ("out=${nope}", "`${nope}` refers to a key that does not exist"),
        ("out=${ckpt.out}", "references in a circle: `out` -> `ckpt.out` -> `out`"),
    ] {
        let written = Written::parse("run.yaml", file).expect("parses").with_overrides(&[argument]).expect("applies");
        let error = written.resolve_with(&|_| None).expect_err("cannot be resolved").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn elements_of_lists_are_set_by_number() {
    for arguments in [["files[1]=x", "stages[1].optimizer.lr=3"], ["files.1=x", "stages.1.optimizer.lr=3"]] {
        let (run, _) = checked(RUN, &arguments).expect("elements");
        assert_eq!(run.files, ["a", "x"]);
        assert_eq!(run.stages[1].optimizer, Optimizer::Sgd(SgdConfig { lr: 3.0, momentum: 0.9 }));
    }
    // Elements of a list that an earlier argument gave.
    assert_eq!(checked(RUN, &["files=[a, b, c]", "files[2]=d"]).expect("elements").0.files, ["a", "b", "d"]);
    for argument in ["files[2]=x", "files[-1]=x", "files[x]=x", "files.=x", "stages[7].steps=1"] {
        let error = fault(RUN, &[argument]).to_string();
        assert!(error.contains("no element") && error.contains("its length is 2"), "{error}");
    }
}

#[test]
fn a_part_of_a_reference_is_set_in_a_copy() {
    let file = "a: {list: [1, 2], map: {x: 1}}\nb: {l: '${a.list}', m: '${..n}', r: '${.l}'}\nn: ${a.map}\nc: ${c}";
    let file_of_copies = &file.replace("\nc: ${c}", "");
    let copies = merged(file_of_copies, &["b.l[0]=5", "b.m.y=2", "n.z=3"]);
    assert_eq!(
        copies.to_json(Order::File),
        serde_json::json!({
            "a": {"list": [1, 2], "map": {"x": 1}},
            "b": {"l": [5, 2], "m": {"x": 1, "y": 2}, "r": [5, 2]},
            "n": {"x": 1, "z": 3},
        })
    );
    // What earlier arguments made of the target is what is copied, and lists do not become sections.
    let copies = merged(file_of_copies, &["a.map.x=2", "n.y=3"]);
    assert_eq!(copies.root().at("n.x").map(Node::value), Some(&Value::Int(2)));
    assert!(fault(file, &["b.l={x: 1}"]).to_string().contains("expected a list, found a section"));
    assert!(fault(file, &["n=[1]"]).to_string().contains("expected a section, found a list"));
    // A circle has nothing to copy.
    let json = merged(file, &["c.x=1"]).to_json(Order::File);
    assert_eq!(json["c"], serde_json::json!({"x": 1}));
}

#[test]
fn leading_zeros_survive_where_a_text_is_wanted() {
    let arguments = [
        "output_dir=007",
        "ac_mode=00030",
        "files=[001, b]",
        "files[1]=02",
        "names={n: 003, m: '${ac_mode}'}",
        "model_type=007",
    ];
    let expect = |run: &RunConfig| {
        assert_eq!(run.output_dir, PathBuf::from("007"));
        assert_eq!(run.ac_mode.as_deref(), Some("00030"));
        assert_eq!(run.files, ["001", "02"]);
        assert_eq!((&*run.names["n"], &*run.names["m"]), ("003", "00030"));
        assert_eq!(run.model_type, Some(ModelType::Numbered));
    };
    expect(&checked(RUN, &arguments).expect("texts").0);
    // A printed config says the same.
    let merged = merged(RUN, &arguments);
    expect(&checked(&merged.to_yaml(Order::File), &[]).expect("texts").0);
    assert_eq!(merged.root().at("ac_mode").map(Node::value), Some(&Value::Int(24)), "octal, as OmegaConf reads it");
    // Where the key asks for it, they are text from the start.
    let key = "checkpointer.checkpoint_files.max_filename";
    assert_eq!(value(key, &[&format!("{key}=00005")]), text("00005"));
    assert_eq!(value(key, &[&format!("{key}='00005'")]), text("00005"));
}

#[test]
fn zero_is_a_value() {
    let (run, _) = checked("num_warmup_steps: 0\nweight_decay: 0", &[]).expect("zeros");
    assert_eq!((run.num_warmup_steps, run.weight_decay), (Some(0), 0.0));
    assert_eq!(checked("{}", &["num_warmup_steps=0"]).expect("zero").0.num_warmup_steps, Some(0));
    assert_eq!(checked("num_warmup_steps: null", &[]).expect("null").0.num_warmup_steps, None);
    assert_eq!(checked("{}", &[]).expect("the default").0.num_warmup_steps, Some(100));
}

#[test]
fn choices_ignore_case_and_list_the_others() {
    for word in ["LLAMA3", "llama3", "Llama3"] {
        assert_eq!(
            checked("{}", &[&format!("model_type={word}")]).expect("a choice").0.model_type,
            Some(ModelType::Llama3)
        );
    }
    let error = checked("{}", &["model_type=LLAMA_3"]).expect_err("no choice");
    assert!(error.contains("expected one of `LLAMA3`, `007` or null, found `LLAMA_3`"), "{error}");
}

#[test]
fn what_overrides_make_stays_within_the_limits_of_a_file() {
    let path = |depth: usize| vec!["a"; depth].join(".");
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let printed = written("{}", &[&format!("{}={}", path(64), nested(64))]).to_yaml(Order::File);
    assert!(Written::parse("printed.yaml", printed).is_ok());
    for argument in [format!("{}={}", path(100), nested(100)), format!("{}=1", path(129)), format!("x={}", nested(129))]
    {
        let error = fault("{}", &[&argument]).to_string();
        assert!(error.contains("more than 128"), "{error}");
    }
    let many = format!("[{}]", vec!["1"; 150_000].join(","));
    assert!(fault("{}", &[&format!("a={many}"), &format!("b={many}")]).to_string().contains("more than 200000 values"));
}

#[test]
fn references_cannot_nest_beyond_the_stack() {
    // Each value refers to the next through as many braces as are allowed.
    let link = |i: usize| format!("k{i}: \"{}k{}{}\"", "${".repeat(31), i + 1, "}".repeat(31));
    let text = (0..400).map(link).collect::<Vec<_>>().join("\n") + "\nk400: k400";
    let error = std::thread::Builder::new()
        .stack_size(1 << 20)
        .spawn(move || Merged::from_text("run.yaml", text).expect_err("too deep").to_string())
        .expect("starts")
        .join()
        .expect("no panic");
    assert!(error.contains("nested more than"), "{error}");
}
