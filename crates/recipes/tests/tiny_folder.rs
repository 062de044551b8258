//! A Hugging Face folder of a tiny model, without weights but with a tokenizer of letters, and rows to train on.
//!
//! Tokens: 0 `<s>`, 1 `</s>`, 2 a line break, 3 a blank, 4 to 29 the letters `a` to `z`; 30 and 31 are spare.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Every token, in the byte-level alphabet; the position is the id.
pub(crate) fn tokens() -> Vec<String> {
    let special = ["<s>", "</s>", "\u{10a}", "\u{120}"].map(str::to_owned);
    special.into_iter().chain(('a'..='z').map(String::from)).collect()
}

/// Writes the folder.
pub(crate) fn write_model(dir: &Path, tied: bool) {
    std::fs::create_dir_all(dir).expect("writable");
    let write = |name: &str, value: &Value| std::fs::write(dir.join(name), value.to_string()).expect("writable");
    write(
        "config.json",
        &json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 32,
            "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "max_position_embeddings": 64, "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 1,
        }),
    );
    let vocab: Map<String, Value> = tokens().into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    write(
        "tokenizer.json",
        &json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [special(0, "<s>"), special(1, "</s>")],
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocab, "merges": []},
        }),
    );
    write(
        "tokenizer_config.json",
        &json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}),
    );
}

/// Row number `index`: a word, and the word backwards.
pub(crate) fn row(index: usize) -> Value {
    let word: String = (0..3 + index % 5).map(|i| char::from(b'a' + ((index * 7 + i * 11) % 26) as u8)).collect();
    json!({"input": word, "output": word.chars().rev().collect::<String>()})
}

/// Writes rows as a JSON list.
pub(crate) fn write_rows(path: &Path, rows: impl IntoIterator<Item = Value>) {
    let rows: Vec<Value> = rows.into_iter().collect();
    std::fs::write(path, Value::Array(rows).to_string()).expect("writable");
}
