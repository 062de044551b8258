//! The vocabulary inside a GGUF file, as plain data: an engine to encode with, and the files of a Hugging Face folder.
//!
//! | `tokenizer.ggml.model` | engine |
//! |------------------------|--------|
//! | `gpt2`                 | byte-level BPE with the pre-tokeniser that `tokenizer.ggml.pre` names |
//! | `llama`                | SentencePiece BPE with byte fallback, merge order from the scores |
//!
//! Token types: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Control and user-defined tokens are
//! recognised in text.

use serde_json::{Map, Value, json};

use crate::huggingface::{ByteLevelBpe, PreTokenizer, added_tokens, bos_template, pair};
use crate::sentencepiece::BpeParts;
use crate::{Error, HuggingFace, Result, SentencePiece, SpecialIds, Tokenizer, WithSpecials};

const MODELS: &[&str] = &["gpt2", "llama"];
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;

/// Names of `tokenizer.ggml.pre`: how text is cut, whether whole tokens skip merging, whether text is normalised (NFC).
/// `smollm` and its like cut the digits 0 to 9; other numerals are left to GPT-2's pattern, as in the reference ids.
const PRE: &[(&str, PreTokenizer, bool, bool)] = &[
    ("default", PreTokenizer::Gpt2, false, false),
    ("gpt-2", PreTokenizer::Gpt2, false, false),
    ("phi-2", PreTokenizer::Gpt2, false, false),
    ("olmo", PreTokenizer::Gpt2, false, false),
    ("smollm", PreTokenizer::DigitsThenGpt2, false, false),
    ("starcoder", PreTokenizer::DigitsThenGpt2, false, false),
    ("refact", PreTokenizer::DigitsThenGpt2, false, false),
    ("command-r", PreTokenizer::DigitsThenGpt2, false, true),
    ("llama-bpe", PreTokenizer::Cl100k(3), true, false),
    ("llama3", PreTokenizer::Cl100k(3), true, false),
    ("llama-v3", PreTokenizer::Cl100k(3), true, false),
    ("dbrx", PreTokenizer::Cl100k(3), false, false),
    ("smaug-bpe", PreTokenizer::Cl100k(3), true, false),
    ("qwen2", PreTokenizer::Cl100k(1), false, true),
    ("deepseek-r1-qwen", PreTokenizer::Cl100k(1), false, true),
    ("stablelm2", PreTokenizer::Cl100k(1), false, false),
];

/// What a GGUF file says about its tokenizer (`tokenizer.ggml.*` and `tokenizer.chat_template`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// The file, for messages.
    pub origin: String,
    /// `model`: the kind of vocabulary, `gpt2` or `llama`.
    pub model: String,
    /// `pre`: the pre-tokeniser of a `gpt2` vocabulary.
    pub pre: Option<String>,
    /// `tokens`: the position is the id.
    pub tokens: Vec<String>,
    /// `scores`: merge order of a `llama` vocabulary, highest first.
    pub scores: Option<Vec<f32>>,
    /// `token_type`: see the module's documentation.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: rules of a `gpt2` vocabulary, best first, two symbols separated by a space.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `padding_token_id`.
    pub padding: Option<u32>,
    /// `add_bos_token`: whether texts begin with bos outside chats.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`: whether a space is put before the text (`llama`, default true).
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl GgufVocab {
    /// The engine for this vocabulary.
    pub fn tokenizer(&self) -> Result<Box<dyn Tokenizer>> {
        self.check()?;
        let specials = SpecialIds { bos: self.bos, eos: self.eos, pad: self.padding, stop: self.end_of_turn_ids() };
        if self.model == "gpt2" {
            let json = self.byte_level()?.to_json();
            return Ok(Box::new(HuggingFace::from_value(json, self.origin.clone())?.with_specials(specials)));
        }
        let parts = BpeParts {
            pieces: self.pieces(),
            add_dummy_prefix: self.add_space_prefix.unwrap_or(true),
            specials: specials.clone(),
            origin: self.origin.clone(),
        };
        let engine = SentencePiece::from_parts(parts)?;
        let tokens = self.added().into_iter().map(|(token, id, _)| (token.to_owned(), id)).collect();
        Ok(Box::new(WithSpecials::new(Box::new(engine), tokens, true, specials)))
    }

    /// The text of a `tokenizer.json` for this vocabulary.
    pub fn to_tokenizer_json(&self) -> Result<String> {
        self.check()?;
        let json = if self.model == "gpt2" { self.byte_level()?.to_json() } else { self.sentencepiece_json() };
        Ok(format!("{json:#}\n"))
    }

    /// The text of a `tokenizer_config.json`: special tokens and the chat template.
    pub fn to_tokenizer_config_json(&self) -> Result<String> {
        self.check()?;
        let mut config = Map::new();
        config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".into(), json!(false));
        let roles = [
            ("bos_token", self.bos),
            ("eos_token", self.eos),
            ("unk_token", self.unknown),
            ("pad_token", self.padding),
        ];
        for (key, id) in roles {
            if let Some(token) = id.and_then(|id| self.tokens.get(id as usize)) {
                config.insert(key.into(), json!(token));
            }
        }
        if let Some(template) = &self.chat_template {
            config.insert("chat_template".into(), json!(template));
        }
        Ok(format!("{:#}\n", Value::Object(config)))
    }

    /// The token of an id, for templates.
    pub(crate) fn token(&self, id: Option<u32>) -> Option<String> {
        self.tokens.get(id? as usize).cloned()
    }

    fn check(&self) -> Result<()> {
        let origin = || self.origin.clone();
        if !MODELS.contains(&self.model.as_str()) {
            return Err(Error::GgufModel { origin: origin(), found: self.model.clone(), known: MODELS });
        }
        let expected = self.tokens.len();
        let lengths = [
            ("tokenizer.ggml.scores", self.scores.as_ref().map(Vec::len)),
            ("tokenizer.ggml.token_type", self.token_types.as_ref().map(Vec::len)),
        ];
        for (key, length) in lengths {
            if let Some(found) = length.filter(|&length| length != expected) {
                return Err(Error::GgufLength { origin: origin(), key, expected, found });
            }
        }
        let ids =
            [("bos", self.bos), ("eos", self.eos), ("eot", self.eot), ("unknown", self.unknown), ("pad", self.padding)];
        for (name, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= expected) {
                return Err(Error::SpecialIdOutOfRange { name, id, origin: origin(), vocab_size: expected });
            }
        }
        Ok(())
    }

    /// Control tokens that end a turn in some chat format.
    fn end_of_turn_ids(&self) -> Vec<u32> {
        const ENDS: &[&str] = &["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end|>"];
        let control = self.added().into_iter().filter(|(token, _, special)| *special && ENDS.contains(token));
        self.eot.into_iter().chain(control.map(|(_, id, _)| id)).collect()
    }

    fn kind(&self, id: usize) -> i32 {
        self.token_types.as_ref().map_or(NORMAL, |kinds| kinds[id])
    }

    /// Control and user-defined tokens: token, id, whether it is special.
    fn added(&self) -> Vec<(&str, u32, bool)> {
        let tokens = self.tokens.iter().enumerate();
        let kinds = tokens.map(|(id, token)| (token.as_str(), id as u32, self.kind(id)));
        let added = kinds.filter(|(token, _, kind)| !token.is_empty() && matches!(*kind, CONTROL | USER_DEFINED));
        added.map(|(token, id, kind)| (token, id, kind == CONTROL)).collect()
    }

    fn begins_with_bos(&self, default: bool) -> Option<(&str, u32)> {
        let bos = self.bos.filter(|_| self.add_bos.unwrap_or(default))?;
        Some((&self.tokens[bos as usize], bos))
    }

    fn byte_level(&self) -> Result<ByteLevelBpe<'_>> {
        let pre = self.pre.as_deref().unwrap_or("default");
        let known = PRE.iter().find(|(name, ..)| *name == pre);
        let &(_, pre_tokenizer, ignore_merges, nfc) = known.ok_or_else(|| Error::GgufPre {
            origin: self.origin.clone(),
            found: pre.to_owned(),
            known: PRE.iter().map(|(name, ..)| *name).collect(),
        })?;
        let merges = self.merges.iter().enumerate().map(|(index, rule)| {
            let found = || Error::GgufMerge { origin: self.origin.clone(), index, found: rule.clone() };
            pair(rule).ok_or_else(found)
        });
        Ok(ByteLevelBpe {
            vocab: self.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id as u32)).collect(),
            merges: merges.collect::<Result<_>>()?,
            pre_tokenizer,
            nfc,
            ignore_merges,
            added: self.added(),
            bos: self.begins_with_bos(false),
        })
    }

    /// Pieces for the SentencePiece engine; without types the unknown token is the one named, or the first.
    fn pieces(&self) -> Vec<(String, f32, i32)> {
        let unknown = self.unknown.unwrap_or(0) as usize;
        let score = |id: usize| self.scores.as_ref().map_or(-(id as f32), |scores| scores[id]);
        let untyped = self.token_types.is_none();
        let kind = |id: usize| if untyped && id == unknown { UNKNOWN } else { self.kind(id) };
        self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), score(id), kind(id))).collect()
    }

    /// A `tokenizer.json` in the form Hugging Face converts SentencePiece BPE models to.
    fn sentencepiece_json(&self) -> Value {
        let pieces = self.pieces();
        let vocab: Map<String, Value> =
            pieces.iter().enumerate().map(|(id, (piece, ..))| (piece.clone(), json!(id))).collect();
        let unknown = pieces.iter().find(|(.., kind)| *kind == UNKNOWN).map(|(piece, ..)| piece.clone());
        let prepend = self.add_space_prefix.unwrap_or(true);
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prepend {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let mut added = self.added();
        if let Some(token) = &unknown {
            let id = pieces.iter().position(|(piece, ..)| piece == token).unwrap_or(0);
            added.push((token, id as u32, true));
            added.sort_unstable_by_key(|(_, id, _)| *id);
        }
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(&added),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.begins_with_bos(true).map(|(token, id)| bos_template(token, id)),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": unknown,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": true,
                "byte_fallback": pieces.iter().any(|(.., kind)| *kind == 6),
                "ignore_merges": false,
                "vocab": vocab,
                "merges": merges_from_scores(&pieces),
            },
        })
    }
}

/// Every way to put a piece together from two others, best score first: the merge rules of a model that has only scores.
fn merges_from_scores(pieces: &[(String, f32, i32)]) -> Vec<(&str, &str)> {
    let text = |kind: i32| matches!(kind, NORMAL | USER_DEFINED | 5);
    let ids: std::collections::HashMap<&str, usize> = pieces
        .iter()
        .enumerate()
        .filter(|(_, (.., kind))| text(*kind))
        .map(|(id, (piece, ..))| (piece.as_str(), id))
        .collect();
    let mut rules = Vec::new();
    for (piece, score, _) in pieces.iter().filter(|(.., kind)| *kind == NORMAL) {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                rules.push((*score, l, r, left, right));
            }
        }
    }
    rules.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    rules.into_iter().map(|(.., left, right)| (left, right)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> GgufVocab {
        let bytes = (0..256).map(|b| (format!("<0x{b:02X}>"), 0.0, 6));
        let words = ["\u{2581}", "a", "b", "ab", "\u{2581}ab", "c", "abc"];
        let words = words.iter().enumerate().map(|(i, w)| ((*w).to_owned(), -(i as f32), 1));
        let head = [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(t, kind)| (t.to_owned(), 0.0, kind));
        let pieces: Vec<(String, f32, i32)> = head.into_iter().chain(bytes).chain(words).collect();
        GgufVocab {
            origin: "tiny.gguf".into(),
            model: "llama".into(),
            tokens: pieces.iter().map(|p| p.0.clone()).collect(),
            scores: Some(pieces.iter().map(|p| p.1).collect()),
            token_types: Some(pieces.iter().map(|p| p.2).collect()),
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            ..GgufVocab::default()
        }
    }

    #[test]
    fn the_json_form_of_a_llama_vocabulary_gives_the_same_ids() {
        let vocab = llama();
        let ours = vocab.tokenizer().unwrap();
        let json = serde_json::from_str(&vocab.to_tokenizer_json().unwrap()).unwrap();
        let theirs = HuggingFace::from_value(json, "json".into()).unwrap();
        for text in ["ab", "abc ab", "a\u{e9}b", "abab c", "x", "<s>ab</s>", "a\nb"] {
            assert_eq!(ours.encode(text).unwrap(), theirs.encode(text).unwrap(), "{text}");
        }
        assert_eq!(ours.decode(&ours.encode("abc ab").unwrap(), true), "abc ab");
    }

    #[test]
    fn wrong_vocabularies_are_named() {
        let vocab = GgufVocab { model: "bert".into(), ..llama() };
        assert!(vocab.tokenizer().unwrap_err().to_string().contains("`bert`"));
        let vocab = GgufVocab { model: "gpt2".into(), pre: Some("tekken".into()), ..llama() };
        let message = vocab.tokenizer().unwrap_err().to_string();
        assert!(message.contains("`tekken`") && message.contains("`smollm`"), "{message}");
        let vocab = GgufVocab { scores: Some(vec![0.0]), ..llama() };
        assert!(matches!(vocab.tokenizer(), Err(Error::GgufLength { found: 1, .. })));
        let vocab = GgufVocab { eos: Some(99_999), ..llama() };
        assert!(matches!(vocab.to_tokenizer_json(), Err(Error::SpecialIdOutOfRange { name: "eos", .. })));
        let vocab = GgufVocab { model: "gpt2".into(), merges: vec!["ab".into()], ..llama() };
        assert!(matches!(vocab.tokenizer(), Err(Error::GgufMerge { index: 0, .. })));
    }
}
