//! Whole datasets against the reference's integers: every line of `data/datasets.jsonl`.

use std::path::Path;

use config::{FromNode, Merged, Problems};
use data::builders::{DATASETS, PREFERENCE_DATASETS};
use data::{Dataset, DatasetConfig, Layout, PreferenceDatasetConfig, Rows, collate};
use serde_json::{Value, json};
use tokenizers::ModelTokenizer;
use tokenizers::components::{TOKENIZERS, TokenizerConfig};

use crate::conformance;

type Outcome = Result<(), String>;

#[test]
fn datasets_equal_the_reference() {
    let (Some(cases), Some(assets)) = (conformance::lines("data/datasets.jsonl"), conformance::path("assets")) else {
        return;
    };
    let mut met = testing::conformance::Cases::new("datasets");
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["case"].as_str().unwrap();
        if is_built(case) {
            met.ran(name);
            if let Err(difference) = check(case, &assets) {
                wrong.push(format!("{name}: {difference}"));
            }
        } else {
            met.skipped(name);
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    met.finish();
}

#[test]
fn a_wrong_integer_is_reported() {
    let (Some(mut cases), Some(assets)) = (conformance::lines("data/datasets.jsonl"), conformance::path("assets"))
    else {
        return;
    };
    let case = cases.iter_mut().find(|case| is_built(case) && case["rows"][0]["labels"].is_array()).unwrap();
    case["rows"][0]["labels"][0] = json!(123_456);
    let difference = check(case, &assets).unwrap_err();
    assert!(difference.contains("row 0, labels[0]: expected 123456"), "{difference}");
}

/// The component of a tokenizer kind, as `llama2` or `phi3`.
fn tokenizer_component(kind: &str) -> Option<&'static str> {
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    let names = [format!("{kind}_tokenizer"), format!("{kind}_mini_tokenizer")];
    TOKENIZERS.spellings().find(|name| names.iter().any(|n| n == last(name)))
}

/// Whether the dataset and the tokenizer of a case are built.
fn is_built(case: &Value) -> bool {
    let component = format!("torchtune.datasets.{}", case["dataset"].as_str().unwrap());
    let dataset = DATASETS.find(&component).is_some() || PREFERENCE_DATASETS.find(&component).is_some();
    dataset && tokenizer_component(case["tokenizer"].as_str().unwrap()).is_some()
}

/// A section read as a config would be.
fn section<T: FromNode>(component: &str, arguments: &Value) -> Result<T, String> {
    let mut section = arguments.clone();
    section["_component_"] = json!(component);
    let merged = Merged::from_text("case", json!({ "section": section }).to_string()).map_err(|e| e.to_string())?;
    let mut problems = Problems::new();
    let value = T::from_node(merged.root().at("section").unwrap(), &mut problems);
    let notices = problems.finish().map_err(|e| e.to_string())?;
    if !notices.is_empty() {
        return Err(format!("unexpected notices {notices:?}"));
    }
    value.ok_or_else(|| "refused without a problem".to_owned())
}

fn tokenizer(case: &Value, assets: &Path) -> Result<ModelTokenizer, String> {
    let kind = case["tokenizer"].as_str().unwrap();
    let mut arguments = case["tokenizer_args"].clone();
    let mut file = |key: &str, name: &str| arguments[key] = json!(assets.join(name));
    if kind.starts_with("qwen") {
        file("path", "tiny_bpe_vocab.json");
        file("merges_file", "tiny_bpe_merges.txt");
    } else {
        file("path", if kind == "llama3" { "tiktoken_small.model" } else { "m.model" });
    }
    let config: TokenizerConfig = section(tokenizer_component(kind).unwrap(), &arguments)?;
    config.build(None).map_err(|e| e.to_string())
}

fn check(case: &Value, assets: &Path) -> Outcome {
    let component = format!("torchtune.datasets.{}", case["dataset"].as_str().unwrap());
    let mut arguments = case["dataset_args"].clone();
    arguments["data_files"] = json!(assets.join(arguments["data_files"].as_str().unwrap()));
    let tokenizer = tokenizer(case, assets)?;
    if PREFERENCE_DATASETS.find(&component).is_some() {
        return check_pairs(case, &section(&component, &arguments)?, &tokenizer);
    }
    let plan = section::<DatasetConfig>(&component, &arguments)?.plan().map_err(|e| e.to_string())?;
    let dataset = plan.build(&tokenizer).map_err(|e| e.to_string())?;
    check_len(case, dataset.len())?;
    let rows: Vec<Value> = case["rows"].as_array().unwrap().iter().map(without_unknown).collect();
    for (index, row) in rows.iter().enumerate() {
        check_row(index, row, &dataset)?;
    }
    match &plan.layout {
        Layout::Messages(transform) => check_masks(&rows, &Rows::open(&plan.rows).unwrap(), transform, &tokenizer),
        Layout::Text { .. } => Ok(()),
    }
}

/// A row without the tokens that are null: bytes that the tiny vocabulary lacks, which no model could be fed and which
/// the engine here leaves out. The label of a token is the next one that is left.
fn without_unknown(row: &Value) -> Value {
    let (Some(tokens), Some(labels)) = (row["tokens"].as_array(), row["labels"].as_array()) else { return row.clone() };
    let kept: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].is_null()).collect();
    if kept.len() == tokens.len() {
        return row.clone();
    }
    let next = kept[1..].iter().map(|&next| labels[next - 1].clone()).chain(labels.last().cloned());
    json!({
        "tokens": kept.iter().map(|&i| tokens[i].clone()).collect::<Vec<_>>(),
        "labels": next.collect::<Vec<_>>(),
        "mask": kept.iter().map(|&i| row["mask"][i].clone()).collect::<Vec<_>>(),
    })
}

fn check_len(case: &Value, found: usize) -> Outcome {
    let expected = case["len"].as_u64().unwrap() as usize;
    if found == expected { Ok(()) } else { Err(format!("expected {expected} rows, found {found}")) }
}

/// A row, padded as in a batch of its own.
fn check_row(index: usize, row: &Value, dataset: &Dataset) -> Outcome {
    let batch = collate(dataset, &[index], 0);
    compare(index, row, "tokens", &batch.tokens)?;
    compare(index, row, "labels", &batch.labels)?;
    if dataset.packed_len().is_none() {
        return Ok(());
    }
    compare(index, row, "input_pos", &batch.positions)?;
    let sample = dataset.sample(index);
    let padding = batch.tokens_per_row - sample.tokens.len();
    let documents = sample.documents.iter().map(|d| d.len);
    let seq_lens: Vec<i32> = documents.chain((padding > 0).then_some(padding)).map(|len| len as i32).collect();
    compare(index, row, "seq_lens", &seq_lens)
}

fn check_masks(expected: &[Value], rows: &Rows, transform: &data::Transform, tokenizer: &ModelTokenizer) -> Outcome {
    let expected = expected.iter().filter(|row| !row["mask"].is_null());
    let mut masks = Vec::new();
    rows.for_each(|row| {
        masks.push(tokenizer.tokenize_messages(&transform.messages(row)?, false).unwrap().1);
        Ok(())
    })
    .unwrap();
    for (index, row) in expected.enumerate() {
        let mask: Vec<bool> = serde_json::from_value(row["mask"].clone()).unwrap();
        if mask != masks[index] {
            return Err(format!("row {index}: masks differ"));
        }
    }
    Ok(())
}

fn check_pairs(case: &Value, config: &PreferenceDatasetConfig, tokenizer: &ModelTokenizer) -> Outcome {
    let pairs = config.plan().and_then(|plan| plan.build(tokenizer)).map_err(|e| e.to_string())?;
    check_len(case, pairs.len())?;
    for (index, row) in case["rows"].as_array().unwrap().iter().enumerate() {
        for (side, name) in ["chosen", "rejected"].into_iter().enumerate() {
            let sample = pairs.sides().sample(2 * index + side);
            compare(index, row, &format!("{name}_input_ids"), sample.tokens)?;
            // The reference keeps these labels in place; the first of them takes part in no loss.
            let labels = row[format!("{name}_labels")].as_array().unwrap();
            let shifted: Vec<Value> = labels[1..].iter().cloned().chain([json!(-100)]).collect();
            compare(index, &json!({ "shifted labels": shifted }), "shifted labels", sample.labels)?;
        }
    }
    Ok(())
}

fn compare(index: usize, row: &Value, key: &str, found: &[i32]) -> Outcome {
    let expected: Vec<i32> =
        serde_json::from_value(row[key].clone()).map_err(|e| format!("row {index}, {key}: {e}"))?;
    if let Some(at) = expected.iter().zip(found).position(|(e, f)| e != f) {
        return Err(format!("row {index}, {key}[{at}]: expected {}, found {}", expected[at], found[at]));
    }
    if expected.len() != found.len() {
        return Err(format!("row {index}, {key}: expected {} entries, found {}", expected.len(), found.len()));
    }
    Ok(())
}
