//! The exact text of every error, as a user reads it: `error:`, the message, and the hint.
//! The snapshots beside this file double as documentation.

use std::fmt::Write as _;

use config::{Error, Merged, Names, Notice, Problems, Written};

config::choice! {
    /// Number format.
    enum Dtype {
        /// 16 bits.
        Bf16 = "bf16",
        /// 32 bits.
        Fp32 = "fp32" | "float32",
    }
}

config::component! {
    /// AdamW.
    struct AdamWConfig {
        /// Learning rate, > 0.
        lr: f64 [positive],
        /// Decay of the two moments, each in [0, 1).
        betas: [f64; 2] [0.0..1.0] = [0.9, 0.999],
        /// One kernel for all tensors.
        fused: bool = false,
    }
}

config::component! {
    /// A run.
    struct RunConfig {
        /// Where results go.
        output_dir: std::path::PathBuf,
        /// Rows in a micro-batch, >= 1.
        batch_size: usize [1..] = 2,
        /// Seed; `null` = from the clock.
        seed: Option<u64> = None,
        /// Largest gradient norm; `null` = no limit.
        clip_grad_norm: Option<f64> [positive_or_inf] = None,
        /// A share that is dropped.
        dropout: f64 = 0.0,
        /// Number format.
        dtype: Dtype = Dtype::Fp32,
        /// What is recomputed.
        ac_mode: String [one_of("none", "full", "selective")] = "none".into(),
        /// Files.
        files: Vec<String> = Vec::new(),
        /// The optimizer.
        optimizer: Option<AdamWConfig> = None,
    }
}

const OPTIMIZERS: Names<u8> = Names {
    role: "optimizer",
    built: &[(&["torch.optim.AdamW", "torch.optim.adamw.AdamW"], 0), (&["torch.optim.SGD"], 1)],
    not_built: &["bitsandbytes.optim.PagedAdamW8bit"],
};

const BASE: &str = "\
output_dir: /tmp/out
batch_size: 2
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
  fused: True
files: [a, b]
nested:
  a:
    b: 1
log: ${output_dir}/log
";

/// What the program prints for an error.
fn shown(error: &Error) -> String {
    assert_eq!(error.exit_code(), 2);
    let mut out = format!("error: {error}\n");
    if let Some(hint) = error.hint() {
        write!(out, "\nhint: {hint}\n").expect("strings take everything");
    }
    out
}

fn check(text: &str, arguments: &[&str]) -> Result<Vec<Notice>, Error> {
    let check = |merged: &Merged| {
        let mut problems = Problems::new();
        if let Some(optimizer) = merged.root().get("optimizer").filter(|node| !node.is_absent()) {
            OPTIMIZERS.choose(optimizer, &mut problems);
        }
        RunConfig::check(merged.root(), &mut problems);
        problems
    };
    let merged = Written::parse("run.yaml", text)?.with_overrides(arguments)?.resolve_or_check(check)?;
    check(&merged).finish()
}

/// One section of a snapshot: the input and everything that is printed for it.
fn section(out: &mut String, input: &str, result: Result<Vec<Notice>, Error>) {
    writeln!(out, "==== {}", input.trim_end().replace('\t', "<tab>").replace('\0', "<nul>").replace('\r', "<cr>"))
        .expect("strings take everything");
    match result {
        Ok(notices) if notices.is_empty() => out.push_str("fine\n"),
        Ok(notices) => {
            for notice in notices {
                writeln!(out, "notice: {notice}").expect("strings take everything");
            }
        }
        Err(error) => out.push_str(&shown(&error)),
    }
    out.push('\n');
}

#[test]
fn bad_yaml() {
    let mut out = String::new();
    for text in [
        "a: [1, 2\nb: 3",
        "a: {b: 1",
        "a:\n\tb: 1",
        "a: b: c",
        "a: \"open",
        "a: @x",
        "a: 1\n  b: 2",
        "lr: 1\nseed: 2\nlr: 3",
        "a: {b: 1, b: 2}",
        "a: *nowhere",
        "a: &x [*x]",
        "? [a, b]\n: 1",
        "~: 1",
        "<<: 1",
        "<<: [{a: 1}, 2]",
        "a: !!python/name:os.system x",
        "a: !mine 1",
        "a: !!int one",
        "a: =",
        "a: <<",
        "a: 1\t# tab",
        "a: 1\nb: x\u{0}y",
        "a: 1\rb: [",
        "...",
        "a: 1\n---\nb: 2",
        "- a\n- b",
        "5",
        "config: 1",
    ] {
        section(&mut out, text, Merged::from_text("run.yaml", text).map(|_| Vec::new()));
    }
    insta::assert_snapshot!(out);
}

#[test]
fn several_faults_of_a_text() {
    let mut out = String::new();
    for text in [
        // All kinds behind which the parser goes on.
        "\
lr: 1
lr: 2
? [a]
: 1
~: null
tag: !mine 1
tags: !!python/tuple [1, 2]
int: !!int one
equals: =
alias: *nowhere
own: &own [*own]
<<: 1
more:
  <<: [{a: 1}, 2, *nothing, 3]
  a: 1
  a: 2
config: 1
tab: 1\t# one\t
",
        // The values of doubtful keys are read too.
        "a: 1\na: {b: =, b: 2}\n*x : !y {}\n",
        // Behind a syntax error nothing is told.
        "a: 1\na: !x 2\nb: \"\\q\"\na: =\n\tc: \0\n",
        "a: =\nb: [1, 2\nc: 3\nc: 4\n",
        "config: 1\na: \"open\nb: =\n",
        // One of each line.
        "a: \u{1}\u{2}\nb: \u{3}\nc:\t1\t\n",
        "- =\n- =\n",
        "a: =\n---\nb: =\n",
        "base: &base {config: =}\n<<: *base\n",
    ] {
        section(&mut out, text, check(text, &[]));
    }
    section(&mut out, "60 faults", check(&format!("a:\n{}", "- =\n".repeat(60)), &[]));
    insta::assert_snapshot!(out);
}

#[test]
fn several_bad_overrides() {
    let mut out = String::new();
    for arguments in [
        &["--batch_size=4", "seed=1", "~nope", "dtype", "files[7]=x", "nested=[1]", "log={a: 1, a: 2, b: !x y}"][..],
        // What is torn apart is told once.
        &["batch_size", "=", "4", "--seed", "3", "dtype", "=fp32", "~optimizer"],
        &["files=[a, b", "files[1]=c"],
    ] {
        section(&mut out, &arguments.join(" "), check(BASE, arguments));
    }
    insta::assert_snapshot!(out);
}

#[test]
fn several_bad_references() {
    let mut out = String::new();
    for (what, text, arguments) in [
        (
            "with what is wrong elsewhere, and without what follows",
            "\
output_dir: ${nope}/x
log: ${output_dir}/log
batch_size: ${circle}
circle: ${round}
round: ${circle}
seed: -1
clip_grad_norm: ${now:}
optimizer:
  _component_: ${oc.env:OPTIMIZER_OF_NOBODY}
  lr: ${batch_size}
  learning_rat: 1
files: ['${files}', a, 1]
dtype: bf61
",
            &["ac_mode=${ac}"][..],
        ),
        (
            "a section",
            "output_dir: o\noptimizer: ${optimizers.nope}\noptimizers: {a: {x: '${b}'}}\ncopy: ${optimizers.a}\n",
            &[],
        ),
        ("a misspelt key", "ouput_dir: /tmp\nlog: ${output_dir}/log\nseed: x\n", &[]),
        ("a missing key", "log: ${output_dir}/log\nseed: 1\n", &[]),
        ("a key without a value", "output_dir: ???\nlog: ${output_dir}/log\n", &[]),
    ] {
        section(&mut out, &format!("{what} {}", arguments.join(" ")), check(text, arguments));
    }
    insta::assert_snapshot!(out);
}

#[test]
fn unreadable_files() {
    let folder = std::env::temp_dir().join(format!("ferrotune_config_{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    std::fs::write(folder.join("bytes.yaml"), b"a: 1\nb: \xff\n").expect("written");
    let mut out = String::new();
    for name in ["missing.yaml", "bytes.yaml"] {
        let result = Merged::read(folder.join(name), &[""; 0]).map(|_| Vec::new());
        section(&mut out, name, result);
    }
    std::fs::remove_dir_all(&folder).expect("removed");
    insta::assert_snapshot!(out.replace(&folder.display().to_string(), "[TMP]"));
}

#[test]
fn bad_overrides() {
    let mut out = String::new();
    for arguments in [
        &["--batch_size=4"][..],
        &["--batch-size", "4"],
        &["--compile"],
        &["batch_size"],
        &["batch_size", "=", "4"],
        &["batch_size", "=4"],
        &["batch_size", "="],
        &["-x"],
        &["~nope.x"],
        &["~optimizer.fuse"],
        &["~optimizer._component_"],
        &["~optimizer"],
        &["~files.0"],
        &["~batch_size=4"],
        &["files={a: 1}"],
        &["optimizer.lr=[1, 2"],
        &["log=@x"],
        &["log=| x"],
        &["nested=[1, 2]"],
        &["files[7]=x"],
        &["files.first=x"],
        &["files=[a]", "files[3]=b"],
        &["=5"],
        &["optimizer..lr=1"],
        &["bath..size=1"],
        &["config=other.yaml"],
        &["-"],
        &["log=a: b: c"],
        &["log=*.txt"],
    ] {
        section(&mut out, &arguments.join(" "), check(BASE, arguments));
    }
    insta::assert_snapshot!(out);
}

#[test]
fn bad_references() {
    let mut out = String::new();
    for value in [
        "${ouput_dir}/x",
        "${nested.a.c}",
        "${nope}",
        "${log2}",
        "${now:%Y}",
        "${oc.env:HOME_OF_NOBODY}",
        "${oc.env:}",
        "${oc.decode:'[1'}",
        "${oc.dict.keys:files}",
        "${a",
        "${}",
        "${...x}",
        "${unset}",
    ] {
        let text = format!("{BASE}unset: ???\nlog2: \"{value}\"\n");
        section(&mut out, value, check(&text, &[]));
    }
    section(&mut out, "a: ${b}, b: ${a}", check("a: ${b}\nb: ${a}", &[]));
    section(&mut out, "output_dir=${nope}", check(BASE, &["output_dir=${nope}"]));
    insta::assert_snapshot!(out);
}

#[test]
fn bad_values() {
    let mut out = String::new();
    for arguments in [
        &["batch_size=0"][..],
        &["batch_size=-1"],
        &["batch_size=1e3"],
        &["batch_size=1.5"],
        &["batch_size=two"],
        &["batch_size=null"],
        &["batch_size=\"4\""],
        &["batch_size=99999999999999999999999999"],
        &["batch_size=-99999999999999999999999999"],
        &["seed=1234567890123456789012345678901234567890123456789012345678901234567890"],
        &["output_dir=1234567890123456789012345678901234567890123456789012345678901234567890"],
        &["seed=???"],
        &["batch_size=none"],
        &["output_dir=None"],
        &["clip_grad_norm=none"],
        &["clip_grad_norm='None'"],
        &["clip_grad_norm=0"],
        &["clip_grad_norm=.nan"],
        &["clip_grad_norm=.inf"],
        &["clip_grad_norm=inf"],
        &["optimizer.lr=inf"],
        &["optimizer.lr=.inf"],
        &["optimizer.lr=.nan"],
        &["dropout=.nan", "optimizer.betas=[0.9, .nan]"],
        &["dropout=-.inf"],
        &["optimizer.lr='2e-5'"],
        &["optimizer.lr=true"],
        &["optimizer.lr=[1]"],
        &["optimizer.betas=[0.9]"],
        &["optimizer.betas=[0.9, 1.0]"],
        &["optimizer.betas=[x, 2.0]"],
        &["optimizer.fused=1"],
        &["dtype=bf61"],
        &["dtype=null"],
        &["ac_mode=ful"],
        &["ac_mode=None"],
        &["files=a.safetensors"],
        &["files=[a, null]"],
        &["output_dir=null"],
        &["optimizer=torch.optim.Adam"],
        &["optimizer=zzz"],
        &["optimizer=bitsandbytes.optim.PagedAdamW8bit"],
        &["optimizer=[1]"],
        &["optimizer={lr: 1}"],
        &["batch-size=4"],
        &["batch_size =4"],
        &["optimizer.learning_rate=1"],
        &["batch_size=0", "optimizer.learning_rate=1", "seed=-1", "~output_dir"],
    ] {
        section(&mut out, &arguments.join(" "), check(&BASE.replace("log: ${output_dir}/log\n", ""), arguments));
    }
    insta::assert_snapshot!(out);
}

#[test]
fn bad_files() {
    let mut out = String::new();
    for text in [
        "output_dir: /tmp/out\noptimizer:\n  _component_: torch.optim.AdamW\n  learning_rate: 3e-4\n  lr: 1\n",
        "output_dir: /tmp/out\nbatch_size: 0\n",
        "batch_size: 2\n",
        "output_dir: /tmp/out\noptimizer:\n  _component_: torch.optim.AdamW\n",
        "output_dir: /tmp/out\noptimizer:\n  lr: 1\n",
        "output_dir: /tmp/out\noptimizer: torch.optim.AdamW\n",
        "output_dir: /tmp/out\noptimizer: {_component_: torch.optim.SDG, lr: 1}\n",
        "gradient_accumulation_steps: 4\nbatch_sise: 3\noptimizer:\n  _component_: torch.optim.AdamW\n  lr: -1\n  betas: [0.5, x]\nseed: one\n",
        "output_dir: /tmp/out\nmy_own_key: 1\nname: x\nlogs: /l/${name}\n",
    ] {
        section(&mut out, text, check(text, &[]));
    }
    insta::assert_snapshot!(out);
}

#[test]
fn conflicts_between_keys() {
    let merged = Merged::from_text("run.yaml", "batch_size: 0\nlora_rank: 8\n").expect("parses");
    let mut problems = Problems::new();
    let node = |key: &str| merged.root().get(key).expect("written above");
    let reason = "`lora_rank` is set but recipe `full_finetune_single_device` trains no adapter";
    problems.refuse(node("lora_rank"), reason).hint("remove `lora_rank`, or run recipe `lora_finetune_single_device`");
    let mut out = shown(&problems.clone().finish().expect_err("one problem"));
    problems.wrong_value(node("batch_size"), "an integer >= 1");
    out.push('\n');
    out.push_str(&shown(&problems.finish().expect_err("two problems")));
    insta::assert_snapshot!(out);
}

#[test]
fn switched_components() {
    let text = "output_dir: o\noptimizer:\n  _component_: torch.optim.SGD\n  lr: 1\n  momentum: 0.9\n  fuzed: True\n";
    let mut out = String::new();
    for arguments in [
        &["optimizer=torch.optim.AdamW"][..],
        &["optimizer=torch.optim.AdamW", "optimizer.fuzed=True"],
        &["optimizer=torch.optim.SGD"],
        &["optimizer=None"],
    ] {
        section(&mut out, &arguments.join(" "), check(text, arguments));
    }
    insta::assert_snapshot!(out);
}
