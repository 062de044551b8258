//! `data/datasets.jsonl`: tokens and masks of the message formats, for rows whose messages are plain to build.

use std::path::Path;

use serde_json::{Value, json};
use testing::conformance::conformance_dir;
use tokenizers::{Message, ModelTokenizer, Role, TokenizerConfig};

/// The tokenizer of a case, from its config section.
fn tokenizer(dir: &Path, kind: &str, args: &Value) -> ModelTokenizer {
    let assets = dir.join("assets");
    let file = |name: &str| json!(assets.join(name));
    let (component, mut section) = match kind {
        "llama2" | "mistral" | "gemma" => (format!("{kind}.{kind}_tokenizer"), json!({"path": file("m.model")})),
        "phi3" => ("phi3.phi3_mini_tokenizer".to_owned(), json!({"path": file("m.model")})),
        "llama3" => ("llama3.llama3_tokenizer".to_owned(), json!({"path": file("tiktoken_small.model")})),
        _ => {
            let files = json!({"path": file("tiny_bpe_vocab.json"), "merges_file": file("tiny_bpe_merges.txt")});
            (format!("{kind}.{kind}_tokenizer"), files)
        }
    };
    section["_component_"] = json!(format!("torchtune.models.{component}"));
    for (key, value) in args.as_object().unwrap() {
        section[key] = value.clone();
    }
    build(&section)
}

/// A tokenizer from a config section.
pub fn build(section: &Value) -> ModelTokenizer {
    try_build(section).unwrap()
}

/// A tokenizer from a config section that is fine by itself, or why it cannot be built.
pub fn try_build(section: &Value) -> tokenizers::Result<ModelTokenizer> {
    let run = config::Merged::from_text("run.yaml", json!({ "tokenizer": section }).to_string()).unwrap();
    let mut problems = config::Problems::new();
    let node = run.root().at("tokenizer").unwrap();
    let checked = <TokenizerConfig as config::FromNode>::from_node(node, &mut problems);
    problems.finish().unwrap();
    checked.unwrap().build(None)
}

fn rows(dir: &Path, args: &Value) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("assets").join(args["data_files"].as_str().unwrap())).unwrap();
    let rows: Vec<Value> = match serde_json::from_str(&text) {
        Ok(Value::Array(rows)) => rows,
        Ok(row) => vec![row],
        Err(_) => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    };
    let split = args["split"].as_str().unwrap();
    let Some((_, range)) = split.split_once('[') else { return rows };
    let (from, to) = range.trim_end_matches(']').split_once(':').unwrap();
    let from = from.parse().unwrap_or(0);
    let to = to.parse().unwrap_or(rows.len()).min(rows.len());
    rows[from..to].to_vec()
}

fn alpaca_prompt(row: &Value) -> String {
    let (instruction, input) = (row["instruction"].as_str().unwrap(), row["input"].as_str().unwrap_or(""));
    if input.is_empty() {
        return format!(
            "Below is an instruction that describes a task. Write a response that appropriately completes the \
             request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
        );
    }
    format!(
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a \
         response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n\
         ### Response:\n"
    )
}

/// The messages of a row, or `None` for datasets that are not built from messages here.
fn messages(case: &Value, row: &Value) -> Option<Vec<Message>> {
    let args = &case["dataset_args"];
    let text = |key: &str| row[args["column_map"][key].as_str().unwrap_or(key)].as_str().unwrap().to_owned();
    let (trains_by_default, mut turns) = match case["dataset"].as_str()? {
        "alpaca_dataset" => (true, vec![(Role::User, alpaca_prompt(row)), (Role::Assistant, text("output"))]),
        "instruct_dataset" => (false, vec![(Role::User, text("input")), (Role::Assistant, text("output"))]),
        "chat_dataset" if args["conversation_style"] == "sharegpt" => {
            let turns = row[args["conversation_column"].as_str()?].as_array()?;
            let turn = |turn: &Value| {
                let role = match turn["from"].as_str()? {
                    "human" => Role::User,
                    "gpt" => Role::Assistant,
                    _ => Role::System,
                };
                Some((role, turn["value"].as_str()?.to_owned()))
            };
            (false, turns.iter().map(turn).collect::<Option<Vec<_>>>()?)
        }
        _ => return None,
    };
    if let Some(system) = args["new_system_prompt"].as_str() {
        turns.insert(0, (Role::System, system.to_owned()));
    }
    let on_input = args["train_on_input"].as_bool().unwrap_or(trains_by_default);
    let masked = |role| match role {
        Role::Assistant => false,
        Role::System => true,
        _ => !on_input,
    };
    Some(turns.into_iter().map(|(role, text)| Message::new(role, text).with_masked(masked(role))).collect())
}

#[test]
fn messages_become_the_reference_tokens_and_masks() {
    let Some(dir) = conformance_dir() else { return };
    let lines = std::fs::read_to_string(dir.join("data/datasets.jsonl")).unwrap();
    let mut compared = 0;
    for line in lines.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        if case["dataset_args"]["packed"] == true || case["error"].is_string() {
            continue;
        }
        let tokenizer = tokenizer(&dir, case["tokenizer"].as_str().unwrap(), &case["tokenizer_args"]);
        let rows = rows(&dir, &case["dataset_args"]);
        for (index, expected) in case["rows"].as_array().unwrap().iter().enumerate() {
            let Some(messages) = messages(&case, &rows[index]) else { continue };
            // The reference leaves holes where a character is not in the vocabulary; there is no id to compare with.
            if expected["tokens"].as_array().unwrap().contains(&Value::Null) {
                continue;
            }
            let (tokens, mask) = tokenizer.tokenize_messages(&messages, false).unwrap();
            assert_eq!(json!(tokens), expected["tokens"], "{} row {index}", case["case"]);
            assert_eq!(json!(mask), expected["mask"], "{} row {index}", case["case"]);
            compared += 1;
        }
    }
    assert!(compared > 0, "no row of `data/datasets.jsonl` was compared");
}
