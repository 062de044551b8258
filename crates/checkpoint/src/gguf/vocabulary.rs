//! The vocabulary inside a GGUF file, as plain data: this crate interprets none of it.

use super::problem::GgufProblem;
use super::reader::GgufFile;
use super::value::Value;

/// Everything a GGUF file says about its tokenizer (keys `tokenizer.ggml.*` and `tokenizer.chat_template`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Vocabulary {
    /// The algorithm: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE), ...
    pub model: String,
    /// The rule that splits text before merging (`smollm`, `llama-bpe`, ...).
    pub pre: Option<String>,
    /// Token texts by id.
    pub tokens: Vec<String>,
    /// Scores by id (SentencePiece only); empty or as long as `tokens`.
    pub scores: Vec<f32>,
    /// Kinds by id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; empty or as long as `tokens`.
    pub token_types: Vec<i32>,
    /// BPE merges, best first, each two pieces with a space between.
    pub merges: Vec<String>,
    /// Beginning of a sequence.
    pub bos_id: Option<u32>,
    /// End of a sequence.
    pub eos_id: Option<u32>,
    /// End of a turn.
    pub eot_id: Option<u32>,
    /// Unknown text.
    pub unknown_id: Option<u32>,
    /// Separator.
    pub separator_id: Option<u32>,
    /// Padding.
    pub padding_id: Option<u32>,
    /// Whether BOS goes first.
    pub add_bos: Option<bool>,
    /// Whether EOS goes last.
    pub add_eos: Option<bool>,
    /// Whether text gets a space in front (SentencePiece).
    pub add_space_prefix: Option<bool>,
    /// Whether runs of white space become one (SentencePiece).
    pub remove_extra_whitespaces: Option<bool>,
    /// The normaliser's compiled table (SentencePiece Unigram).
    pub precompiled_charsmap: Vec<u8>,
    /// A Jinja template of the conversation format.
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// Reads the vocabulary of `file`; `None` if it has none.
    pub fn read(file: &GgufFile) -> Result<Option<Self>, GgufProblem> {
        let Some(model) = file.text("tokenizer.ggml.model")? else { return Ok(None) };
        let tokens = file.texts("tokenizer.ggml.tokens")?;
        let count = tokens.len();
        let scores = match file.metadata.get("tokenizer.ggml.scores") {
            None => Vec::new(),
            Some(Value::F32s(scores)) => scores.clone(),
            Some(other) => return Err(wrong_type("tokenizer.ggml.scores", "an array of f32 numbers", other)),
        };
        let token_types = file.small_integers("tokenizer.ggml.token_type")?;
        for (key, length) in [("tokenizer.ggml.scores", scores.len()), ("tokenizer.ggml.token_type", token_types.len())]
        {
            if length != 0 && length != count {
                return Err(GgufProblem::KeyValue {
                    key: key.into(),
                    expected: format!("{count} elements, one a token"),
                    found: format!("{length} elements long"),
                });
            }
        }
        let id = |name: &str| file.token_id(&format!("tokenizer.ggml.{name}_token_id"), count);
        let flag = |name: &str| file.truth(&format!("tokenizer.ggml.{name}"));
        Ok(Some(Self {
            pre: file.text("tokenizer.ggml.pre")?,
            merges: file.texts("tokenizer.ggml.merges")?,
            bos_id: id("bos")?,
            eos_id: id("eos")?,
            eot_id: id("eot")?,
            unknown_id: id("unknown")?,
            // Writers of the format misspell the key; both spellings occur.
            separator_id: id("separator")?.or(id("seperator")?),
            padding_id: id("padding")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            precompiled_charsmap: file.bytes("tokenizer.ggml.precompiled_charsmap")?,
            chat_template: file.text("tokenizer.chat_template")?,
            model,
            tokens,
            scores,
            token_types,
        }))
    }
}

pub(super) fn wrong_type(key: &str, expected: &'static str, found: &Value) -> GgufProblem {
    GgufProblem::KeyType { key: key.into(), expected, found: found.kind() }
}

/// Typed look-ups: absent is `None` or empty, another type is an error.
impl GgufFile {
    /// Text under `key`.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, GgufProblem> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(wrong_type(key, "text", other)),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, GgufProblem> {
        match self.metadata.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Strings(texts)) => Ok(texts.clone()),
            Some(other) => Err(wrong_type(key, "an array of texts", other)),
        }
    }

    fn truth(&self, key: &str) -> Result<Option<bool>, GgufProblem> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong_type(key, "true or false", other)),
        }
    }

    fn small_integers(&self, key: &str) -> Result<Vec<i32>, GgufProblem> {
        let expected = "an array of 32-bit integers";
        let narrow = |values: Option<Vec<i32>>, value| values.ok_or_else(|| wrong_type(key, expected, value));
        match self.metadata.get(key) {
            None => Ok(Vec::new()),
            Some(value @ Value::Ints(ints)) => narrow(ints.iter().map(|int| i32::try_from(*int).ok()).collect(), value),
            Some(value @ Value::Uints(ints)) => {
                narrow(ints.iter().map(|int| i32::try_from(*int).ok()).collect(), value)
            }
            Some(other) => Err(wrong_type(key, expected, other)),
        }
    }

    fn bytes(&self, key: &str) -> Result<Vec<u8>, GgufProblem> {
        match self.metadata.get(key) {
            None => Ok(Vec::new()),
            // The table is written as bytes, signed or not.
            Some(Value::Uints(bytes)) => Ok(bytes.iter().map(|byte| *byte as u8).collect()),
            Some(Value::Ints(bytes)) => Ok(bytes.iter().map(|byte| *byte as u8).collect()),
            Some(other) => Err(wrong_type(key, "an array of bytes", other)),
        }
    }

    fn token_id(&self, key: &str, count: usize) -> Result<Option<u32>, GgufProblem> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(id) if id < count as u64 => Ok(Some(id as u32)),
            Some(id) => Err(GgufProblem::KeyValue {
                key: key.into(),
                expected: format!("less than {count}, the number of tokens"),
                found: id.to_string(),
            }),
            None => Err(wrong_type(key, "a token id", value)),
        }
    }
}
