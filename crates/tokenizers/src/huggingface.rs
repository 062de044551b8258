//! Hugging Face `tokenizer.json`, run by the Hugging Face engine, and byte-level BPE vocabularies turned into one.
//!
//! The file's own truncation, padding and automatic bos/eos are switched off: callers add what they want. Special tokens
//! in text are recognised, as everywhere in that world. Characters that a vocabulary without an unknown token does not
//! cover are left out, as the engine does.
//!
//! Errors: `Error::Json` for text that is no JSON, `Error::HuggingFace` for a description the engine refuses.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Error, Result, SpecialIds, Tokenizer};

/// The pattern of Llama 3's and Qwen's pre-tokenisers, with at most `digits` digits a piece.
pub(crate) fn cl100k_pattern(digits: u8) -> String {
    let digits = if digits == 1 { String::new() } else { format!("{{1,{digits}}}") };
    format!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

/// How text is cut before byte-level merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// GPT-2's pattern.
    Gpt2,
    /// Digits 0 to 9 one by one, then GPT-2's pattern.
    DigitsThenGpt2,
    /// [`cl100k_pattern`] with this many digits.
    Cl100k(u8),
    /// Words of letters, digits and underscores; the rest as GPT-2 does. So torchtune cuts for Phi 4.
    Words,
}

/// The pattern of [`PreTokenizer::Words`], with what Python takes for words and blanks.
const WORDS_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}\p{N}_]+| ?[^\s\x1c-\x1f\p{L}\p{N}_]+|[\s\x1c-\x1f]+(?![^\s\x1c-\x1f])|[\s\x1c-\x1f]+";

/// A byte-level BPE vocabulary.
pub(crate) struct ByteLevelBpe<'a> {
    /// Every token and its id.
    pub vocab: Vec<(&'a str, u32)>,
    /// Merge rules, best first.
    pub merges: Vec<(&'a str, &'a str)>,
    /// How text is cut.
    pub pre_tokenizer: PreTokenizer,
    /// Whether text is brought to Unicode normal form C.
    pub nfc: bool,
    /// Whether a piece that is a token is taken whole.
    pub ignore_merges: bool,
    /// Tokens recognised in text: token, id, whether it is special.
    pub added: Vec<(&'a str, u32, bool)>,
    /// The token that every text begins with, if the vocabulary asks for one (written for others, not used here).
    pub bos: Option<(&'a str, u32)>,
}

impl ByteLevelBpe<'_> {
    /// The vocabulary as a `tokenizer.json`.
    pub fn to_json(&self) -> Value {
        let level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let pre_tokenizer = match self.pre_tokenizer {
            PreTokenizer::Gpt2 => level(true),
            PreTokenizer::DigitsThenGpt2 => {
                json!({"type": "Sequence", "pretokenizers": [split("[0-9]"), level(true)]})
            }
            PreTokenizer::Cl100k(digits) => {
                json!({"type": "Sequence", "pretokenizers": [split(&cl100k_pattern(digits)), level(false)]})
            }
            PreTokenizer::Words => json!({"type": "Sequence", "pretokenizers": [split(WORDS_PATTERN), level(false)]}),
        };
        let vocab: Map<String, Value> = self.vocab.iter().map(|(t, id)| ((*t).to_owned(), json!(id))).collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(&self.added),
            "normalizer": self.nfc.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.bos.map(|(token, id)| bos_template(token, id)),
            "decoder": level(true),
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": self.ignore_merges,
                "vocab": vocab,
                "merges": self.merges,
            },
        })
    }
}

/// The `added_tokens` list of a `tokenizer.json`.
pub(crate) fn added_tokens(tokens: &[(&str, u32, bool)]) -> Value {
    let entry = |(content, id, special): &(&str, u32, bool)| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special});
    tokens.iter().map(entry).collect()
}

/// The post-processor that begins every text with `token`.
pub(crate) fn bos_template(token: &str, id: u32) -> Value {
    let special = json!({"SpecialToken": {"id": token, "type_id": 0}});
    let sequence = |name: &str, type_id: u32| json!({"Sequence": {"id": name, "type_id": type_id}});
    let mut tokens = Map::new();
    tokens.insert(token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
    json!({
        "type": "TemplateProcessing",
        "single": [special, sequence("A", 0)],
        "pair": [special, sequence("A", 0), sequence("B", 1)],
        "special_tokens": tokens,
    })
}

/// A tokenizer described by a `tokenizer.json`.
#[derive(Debug)]
pub struct HuggingFace {
    inner: hf_tokenizers::Tokenizer,
    specials: SpecialIds,
    vocab_size: usize,
    origin: String,
}

impl HuggingFace {
    /// Reads a `tokenizer.json`. The ids with a role are in other files; see [`HuggingFace::with_specials`].
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.to_owned(), source })?;
        if value.get("model").is_none() {
            return Err(Error::NotATokenizer {
                path: path.to_owned(),
                expected: "a JSON object with a `model`, as in `tokenizer.json`",
                found: "JSON without it".to_owned(),
            });
        }
        Self::from_value(value, path.display().to_string())
    }

    /// A tokenizer from a parsed description.
    pub(crate) fn from_value(value: Value, origin: String) -> Result<Self> {
        let refused = |reason: String| Error::HuggingFace { origin: origin.clone(), reason };
        let mut inner: hf_tokenizers::Tokenizer =
            serde_json::from_value(value).map_err(|error| refused(error.to_string()))?;
        inner.with_truncation(None).map_err(|error| refused(error.to_string()))?;
        inner.with_padding(None);
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        Ok(Self { inner, specials: SpecialIds::default(), vocab_size, origin })
    }

    /// Sets the ids with a role.
    pub fn with_specials(mut self, specials: SpecialIds) -> Self {
        self.specials = specials;
        self
    }

    fn refused(&self, text: &str, error: &hf_tokenizers::Error) -> Error {
        Error::Encode { origin: self.origin.clone(), bytes: text.len(), reason: error.to_string() }
    }

    fn decode_known(&self, ids: &[u32], skip_special: bool) -> String {
        // The engine's decoders only fail on pieces that no vocabulary can hold.
        self.inner.decode(ids, skip_special).unwrap_or_default()
    }
}

impl Tokenizer for HuggingFace {
    fn encode_with_starts(&self, text: &str) -> Result<Vec<(u32, usize)>> {
        let encoding = self.inner.encode(text, false).map_err(|error| self.refused(text, &error))?;
        let starts = encoding.get_offsets().iter().map(|(start, _)| *start);
        Ok(encoding.get_ids().iter().copied().zip(starts).collect())
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| self.refused(text, &error))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut runs = ids.split(|&id| self.inner.id_to_token(id).is_none()).peekable();
        while let Some(run) = runs.next() {
            text.push_str(&self.decode_known(run, skip_special));
            if runs.peek().is_some() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn id_to_piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    fn piece_to_id(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    fn specials(&self) -> &SpecialIds {
        &self.specials
    }

    fn origin(&self) -> &str {
        &self.origin
    }
}

/// Reads a `vocab.json`: tokens with their ids.
pub(crate) fn read_vocab(path: &Path) -> Result<Vec<(String, u32)>> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let tokens: Value =
        serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.to_owned(), source })?;
    let wrong = |key: &str, expected, value: &Value| Error::JsonValue {
        path: path.to_owned(),
        key: key.to_owned(),
        expected,
        found: json_kind(value),
    };
    let tokens = tokens.as_object().ok_or_else(|| wrong(".", "an object of tokens and ids", &tokens))?;
    let token = |(token, id): (&String, &Value)| {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
        Ok((token.clone(), number.ok_or_else(|| wrong(token, "an id from 0 to 4294967295", id))?))
    };
    tokens.iter().map(token).collect()
}

/// Reads a `merges.txt`: pairs of symbols, best first.
pub(crate) fn read_merges(path: &Path) -> Result<Vec<(String, String)>> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let text = String::from_utf8(bytes).map_err(|error| Error::NotATokenizer {
        path: path.to_owned(),
        expected: "a text of merge rules, one pair a line",
        found: format!("a byte at {} that is not UTF-8", error.utf8_error().valid_up_to()),
    })?;
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || (index == 0 && line.starts_with("#version:")) {
            continue;
        }
        let (left, right) = pair(line).ok_or_else(|| Error::Merges {
            path: path.to_owned(),
            line: index + 1,
            found: line.chars().take(60).collect(),
        })?;
        rules.push((left.to_owned(), right.to_owned()));
    }
    Ok(rules)
}

/// A merge rule: two symbols separated by one space.
pub(crate) fn pair(rule: &str) -> Option<(&str, &str)> {
    let (left, right) = rule.split_once(' ')?;
    (!left.is_empty() && !right.is_empty() && !right.contains(' ')).then_some((left, right))
}

/// What kind of JSON value this is, in words.
pub(crate) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "another number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
