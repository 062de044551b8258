//! Python's transformers loads what a run saves and computes the same logits, where it is installed.
//!
//! The environment variable `FERROTUNE_PYTHON` names the interpreter; without it `python3` is asked and may lack the
//! packages.

use std::path::Path;
use std::process::Command;

use crate::tiny::{logits, open_folder, run_full_finetune};
use crate::tiny_folder;

/// Prints the logits of the ids in the second argument by the model in the first, and the ids of the text in the third.
const SCRIPT: &str = "
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, ids, text = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0].double()
tokens = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)['input_ids']
print(json.dumps({'logits': logits.flatten().tolist(), 'tokens': tokens}))
";

/// What transformers answers.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Answer {
    pub(crate) logits: Vec<f64>,
    pub(crate) tokens: Vec<u32>,
}

/// The interpreter, if it has what is needed. Panics if one is named and has not.
pub(crate) fn python() -> Option<String> {
    let named = std::env::var("FERROTUNE_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import torch, transformers"]).output();
    let usable = found.is_ok_and(|output| output.status.success());
    assert!(usable || named.is_none(), "FERROTUNE_PYTHON is `{python}`, which cannot import torch and transformers");
    usable.then_some(python)
}

/// Asks transformers about a saved folder.
pub(crate) fn ask(python: &str, folder: &Path, ids: &[i32], text: &str) -> Answer {
    let output = Command::new(python)
        .env("HF_HUB_OFFLINE", "1")
        .args(["-c", SCRIPT])
        .arg(folder)
        .args([&serde_json::to_string(ids).expect("integers"), text])
        .output()
        .expect("the interpreter starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "transformers refuses `{}`:\n{stderr}", folder.display());
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

/// Panics unless both have the same logits up to `bound`.
#[track_caller]
pub(crate) fn assert_same_logits(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of logits");
    let differences = found.iter().zip(expected).map(|(&f, e)| (f64::from(f) - e).abs());
    let worst = differences.fold(0.0f64, |worst, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) });
    assert!(worst < bound, "{what}: logits differ by {worst:e}, bound {bound:e}");
}

const PROMPT: [i32; 8] = [0, 4, 9, 29, 3, 17, 8, 1];

#[test]
fn transformers_loads_a_saved_folder() {
    let Some(python) = python() else {
        println!("skipped: python3 has no torch and transformers (FERROTUNE_PYTHON names another interpreter)");
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name);
    tiny_folder::write_rows(&at("rows.json"), (0..8).map(tiny_folder::row));
    for (tied, dtype) in [(true, "fp32"), (false, "bf16")] {
        let (base, out) = (at(&format!("base_{dtype}")), at(&format!("out_{dtype}")));
        tiny_folder::write_model(&base, tied);
        let yaml = format!(
            "output_dir: {}
model: {{init: random}}
dtype: {dtype}
seed: 1
batch_size: 2
log_level: ERROR
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: {}
  output_dir: ${{output_dir}}
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: json
  data_files: {}
optimizer: {{_component_: torch.optim.AdamW, lr: 1e-2}}
",
            out.display(),
            base.display(),
            at("rows.json").display(),
        );
        let config = config::Merged::from_text("run.yaml", yaml).expect("valid YAML");
        run_full_finetune(&config).expect("runs");

        let saved = out.join("epoch_0");
        let answer = ask(&python, &saved, &PROMPT, "ab z");
        assert_eq!(answer.tokens, [4, 5, 3, 29], "{dtype}: tokens");
        let (model, mut store) = open_folder(&saved);
        assert_same_logits(dtype, &logits(&model, &mut store, &PROMPT), &answer.logits, 1e-4);
    }
}
