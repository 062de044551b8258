//! Trains the tokenizer of `examples/first_run` on that example's own rows; `cargo xtask first-run-tokenizer` runs it.
//!
//! Reads `rows.json` and writes `model/tokenizer.json` (byte-level BPE: 6 special tokens, 256 bytes, then merges) and
//! `model/tokenizer_config.json` (roles of the special tokens, chat template).
//!
//! Numbers: ties between merges are broken by id, so the same rows give the same bytes.
//! Checked: the test below trains again and compares with the files in the repository.

use std::fs;
use std::path::{Path, PathBuf};

use hf_tokenizers::models::bpe::{BPE, BpeTrainer};
use hf_tokenizers::models::{ModelWrapper, TrainerWrapper};
use hf_tokenizers::pre_tokenizers::byte_level::ByteLevel;
use hf_tokenizers::{AddedToken, ProgressFormat, Tokenizer};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Ids of the model's embedding; the model's `config.json` says the same.
const VOCAB_SIZE: usize = 512;
/// A merge that is seen only once saves nothing.
const MIN_FREQUENCY: u64 = 2;

const BOS: &str = "<|begin|>";
const EOS: &str = "<|end|>";
const PAD: &str = "<|pad|>";
/// Begin a message of each role.
const ROLES: [&str; 3] = ["<|system|>", "<|user|>", "<|assistant|>"];

/// Every message begins with its role's token; only answers are ended, for that is where generation stops.
const CHAT_TEMPLATE: &str = "{{ bos_token }}\
    {% for message in messages %}\
    {{ '<|' + message['role'] + '|>' + message['content'] }}\
    {% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn main() -> Result<()> {
    let example = example_dir();
    for (name, bytes) in train(&texts(&example.join("rows.json"))?)? {
        fs::write(example.join("model").join(name), bytes)?;
    }
    Ok(())
}

fn example_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/first_run")
}

/// All questions and answers.
fn texts(rows: &Path) -> Result<Vec<String>> {
    let rows: Vec<serde_json::Map<String, Value>> = serde_json::from_slice(&fs::read(rows)?)?;
    let of_row = |row: serde_json::Map<String, Value>| row.into_iter().map(|(_, value)| value);
    rows.into_iter().flat_map(of_row).map(|value| Ok(value.as_str().ok_or("a column is no text")?.to_owned())).collect()
}

/// The files of a tokenizer trained on `texts`: names and contents.
fn train(texts: &[String]) -> Result<[(&'static str, String); 2]> {
    let special = [BOS, EOS, PAD].into_iter().chain(ROLES).map(|token| AddedToken::from(token, true));
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(VOCAB_SIZE)
        .min_frequency(MIN_FREQUENCY)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(special.collect())
        .progress_format(ProgressFormat::Silent)
        .build()
        .into();
    // No space is added in front: a special token stands there already.
    let byte_level = ByteLevel::new(false, true, true);
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(BPE::default()));
    tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    tokenizer.train(&mut trainer, texts.iter())?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    let files = [
        ("tokenizer.json", tokenizer.to_string(true)?),
        ("tokenizer_config.json", serde_json::to_string_pretty(&config)?),
    ];
    Ok(files.map(|(name, text)| (name, text + "\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_again_gives_the_files_of_the_example() {
        let example = example_dir();
        for (name, text) in train(&texts(&example.join("rows.json")).unwrap()).unwrap() {
            let path = example.join("model").join(name);
            let there = fs::read_to_string(&path).unwrap();
            assert!(text == there, "{} is not what `cargo xtask first-run-tokenizer` writes", path.display());
        }
    }

    #[test]
    fn other_rows_give_another_tokenizer() {
        let mut rows = texts(&example_dir().join("rows.json")).unwrap();
        let before = train(&rows).unwrap();
        rows.extend(std::iter::repeat_n("zigzag".to_owned(), 50));
        assert!(train(&rows).unwrap() != before);
    }
}
