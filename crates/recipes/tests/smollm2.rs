//! SmolLM2-135M-Instruct, where it is: `FERROTUNE_SMOLLM2_GGUF` names its GGUF file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::KvCache;
use serde_json::Value;
use tensor::{Cx, DType};

use crate::tiny::{logits, open_folder, open_gguf, run_full_finetune};
use crate::transformers;

/// The file, if the variable is set.
fn gguf() -> Option<PathBuf> {
    std::env::var_os("FERROTUNE_SMOLLM2_GGUF").map(PathBuf::from)
}

/// An answer of the conformance pack.
#[derive(Debug, serde::Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<i32>,
    new_ids: Vec<i32>,
    next_token_logits_top5: Vec<(usize, f64)>,
}

/// Token ids from the likeliest down.
fn ranked(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    ids
}

#[test]
fn greedy_answers_are_the_references() {
    let (Some(path), Some(conformance)) = (gguf(), testing::conformance_dir()) else {
        println!("skipped: FERROTUNE_SMOLLM2_GGUF is not set, or there is no conformance pack");
        return;
    };
    let text = std::fs::read_to_string(conformance.join("smollm2/greedy.json")).expect("readable");
    let cases: Vec<Greedy> = serde_json::from_str(&text).expect("a list of answers");
    assert!(!cases.is_empty(), "there are answers to compare with");
    let (model, mut store) = open_gguf(&path);
    let backend = Arc::clone(store.backend());
    for case in cases {
        let room = case.prompt_ids.len() + case.new_ids.len();
        let mut cache = KvCache::new(&*backend, model.config(), DType::F32, room).expect("fits");
        let mut fresh = case.prompt_ids.clone();
        for (index, &expected) in case.new_ids.iter().enumerate() {
            let mut cx = Cx::inference(&*backend, &mut store);
            let next = model.next_logits(&mut cx, &fresh, &mut cache).expect("runs");
            let next = backend.to_f32(&next).expect("f32");
            let likeliest = ranked(&next);
            if index == 0 {
                for (&(id, logit), &found) in case.next_token_logits_top5.iter().zip(&likeliest) {
                    let error = (f64::from(next[id]) - logit).abs();
                    assert!(error < 1e-3, "`{}`: logit of {id} is {}, expected {logit}", case.prompt, next[id]);
                    assert_eq!(found, id, "`{}`: order of the five likeliest", case.prompt);
                }
            }
            assert_eq!(likeliest[0], expected as usize, "`{}`: token {index} of the answer", case.prompt);
            fresh = vec![expected];
        }
    }
}

/// Runs 20 steps in bf16 on packs of 512 tokens, two a step; gives the output folder.
fn fine_tune(gguf: &Path, rows: &Path, out: &Path) {
    let dir = gguf.parent().expect("a file is in a folder");
    let file = gguf.file_name().expect("a file has a name").to_string_lossy();
    let yaml = format!(
        "output_dir: {}
dtype: bf16
seed: 1
shuffle: True
batch_size: 2
max_steps_per_epoch: 20
tokenizer: {{_component_: ferrotune.tokenizers.auto, max_seq_len: 512}}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: {}
  checkpoint_files: ['{file}']
  output_dir: ${{output_dir}}
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  source: json
  data_files: {}
  packed: True
optimizer: {{_component_: torch.optim.AdamW, lr: 2e-4, fused: True}}
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${{output_dir}}
  output_fmt: jsonl
  filename: log.jsonl
",
        out.display(),
        dir.display(),
        rows.display(),
    );
    let config = config::Merged::from_text("run.yaml", yaml).expect("valid YAML");
    run_full_finetune(&config).expect("runs");
}

#[test]
#[ignore = "slow: 20 steps of a model of 135 million weights"]
fn twenty_steps_lower_the_loss_and_the_saved_folder_loads() {
    let rows = testing::conformance::workspace_root().map(|root| root.join("../shared/data/alpaca_en_demo.json"));
    let (Some(gguf), Some(rows)) = (gguf(), rows.filter(|rows| rows.is_file())) else {
        println!("skipped: FERROTUNE_SMOLLM2_GGUF is not set, or there is no `../shared/data/alpaca_en_demo.json`");
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    fine_tune(&gguf, &rows, dir.path());

    let log = std::fs::read_to_string(dir.path().join("log.jsonl")).expect("the run logs");
    let losses: Vec<f64> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["loss"].as_f64().expect("a number"))
        .collect();
    assert_eq!(losses.len(), 20, "one line a step");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..4]), mean(&losses[16..]));
    println!("losses: {losses:?}");
    assert!(last < first - 0.2, "the loss goes from {first} to {last}: {losses:?}");

    let saved = dir.path().join("epoch_0");
    let prompt = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198];
    let (model, mut store) = open_folder(&saved);
    let after = logits(&model, &mut store, &prompt);
    let (original, mut original_store) = open_gguf(&gguf);
    let before = logits(&original, &mut original_store, &prompt);
    assert_ne!(after, before, "training changes the answer");
    let Some(python) = transformers::python() else {
        println!("skipped: no transformers to compare with");
        return;
    };
    let answer = transformers::ask(&python, &saved, &prompt, "Hello world 12");
    transformers::assert_same_logits("after training", &after, &answer.logits, 1e-3);
    let tokenizer = tokenizers::open_auto(Some(&saved), None, tokenizers::FormatOptions::default()).expect("readable");
    assert_eq!(tokenizer.encode_text("Hello world 12", false, false).expect("encodes"), answer.tokens);
}
