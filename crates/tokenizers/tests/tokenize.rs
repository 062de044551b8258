//! `data/tokenize.jsonl`: ids and decoded text of every line, for every tokenizer file it names.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use testing::conformance::{Cases, conformance_dir};
use tokenizers::{HuggingFace, SentencePiece, Tiktoken, Tokenizer};

fn open(path: &Path) -> Box<dyn Tokenizer> {
    let bytes = std::fs::read(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "json") {
        return Box::new(HuggingFace::open(path).unwrap());
    }
    match Tiktoken::from_bytes(&bytes, path) {
        Ok(tokenizer) => Box::new(tokenizer),
        Err(_) => Box::new(SentencePiece::from_bytes(&bytes, path).unwrap()),
    }
}

/// Ids as a list of numbers.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn every_line_has_the_reference_ids_and_text() {
    let Some(dir) = conformance_dir() else { return };
    let lines = std::fs::read_to_string(dir.join("data/tokenize.jsonl")).unwrap();
    let mut open_models: HashMap<String, Box<dyn Tokenizer>> = HashMap::new();
    let mut cases = Cases::new("tokenize");
    let mut wrong = Vec::new();
    for (number, line) in lines.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let model = case["model"].as_str().unwrap();
        let tokenizer = open_models.entry(model.to_owned()).or_insert_with(|| open(&dir.join("assets").join(model)));
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        let found = tokenizer.encode(text).unwrap();
        let decoded = tokenizer.decode(&expected, true);
        if found != expected || decoded != case["decoded"] {
            wrong.push(format!(
                "line {}, {model}, {text:?}:\n    expected {expected:?} {}\n    found    {found:?} {decoded:?}",
                number + 1,
                case["decoded"],
            ));
        }
        let starts = tokenizer.encode_with_starts(text).unwrap();
        assert!(starts.is_sorted_by_key(|(_, start)| *start), "line {}: {starts:?}", number + 1);
        assert!(starts.iter().all(|(_, start)| *start <= text.len()), "line {}: {starts:?}", number + 1);
        cases.ran(model);
    }
    assert!(wrong.is_empty(), "{} lines differ\n  {}", wrong.len(), wrong.join("\n  "));
    cases.finish();
}
