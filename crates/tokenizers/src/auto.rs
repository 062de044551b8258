//! A tokenizer from whatever a folder, a file or a GGUF checkpoint offers, with the model's own chat template.
//!
//! Files of a folder, the first that is there: `tokenizer.json`, `tokenizer.model` (SentencePiece or tiktoken),
//! `vocab.json` with `merges.txt`. Special tokens, in this order: `tokenizer_config.json`, `special_tokens_map.json`,
//! `generation_config.json`, `config.json`. Chat template: `chat_template.jinja`, then `tokenizer_config.json`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::GIT_LFS;
use crate::formats::{ChatTemplate, Format, FormatOptions, LLAMA3_SPECIAL_TOKENS, Llama3};
use crate::huggingface::{ByteLevelBpe, PreTokenizer, read_merges, read_vocab};
use crate::{
    Error, GgufVocab, HuggingFace, ModelTokenizer, Result, SentencePiece, SpecialIds, Tiktoken, Tokenizer, WithSpecials,
};

/// Opens a tokenizer. `path` is a folder or a file; without it the vocabulary of the checkpoint is used.
pub fn open_auto(path: Option<&Path>, vocab: Option<&GgufVocab>, options: FormatOptions) -> Result<ModelTokenizer> {
    match (path, vocab) {
        (Some(path), _) => open_path(path, options),
        (None, Some(vocab)) => open_gguf(vocab, options),
        (None, None) => Err(Error::NoSource),
    }
}

fn open_gguf(vocab: &GgufVocab, options: FormatOptions) -> Result<ModelTokenizer> {
    let tokenizer = vocab.tokenizer()?;
    let roles = [
        ("bos_token", vocab.bos),
        ("eos_token", vocab.eos),
        ("unk_token", vocab.unknown),
        ("pad_token", vocab.padding),
    ];
    let tokens = roles.into_iter().filter_map(|(name, id)| Some((name.to_owned(), vocab.token(id)?))).collect();
    let format = match &vocab.chat_template {
        Some(source) => Format::ChatTemplate(Box::new(ChatTemplate::new(source, tokens, &vocab.origin)?)),
        None => Format::Plain,
    };
    ModelTokenizer::new(tokenizer, format, options, None)
}

fn open_path(path: &Path, options: FormatOptions) -> Result<ModelTokenizer> {
    let metadata = fs::metadata(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let (folder, file) = if metadata.is_dir() {
        (path, find_file(path)?)
    } else {
        (path.parent().unwrap_or(Path::new("")), path.to_owned())
    };
    let facts = FolderFacts::read(folder)?;
    let bytes = fs::read(&file).map_err(|source| Error::Read { path: file.clone(), source })?;
    if bytes.starts_with(b"GGUF") {
        return Err(Error::GgufFile { path: file });
    }
    if Tiktoken::recognises(&bytes) {
        return open_tiktoken(&file, LLAMA3_SPECIAL_TOKENS, options);
    }
    let tokenizer = if file.file_name().is_some_and(|name| name == "vocab.json") {
        open_vocab_and_merges(&file, &facts)?
    } else if bytes.first().is_some_and(|byte| b"{ \t\r\n\xef".contains(byte)) && describe(&bytes) == JSON {
        let tokenizer = HuggingFace::open(&file)?;
        let specials = facts.special_ids(&|token| tokenizer.piece_to_id(token));
        Box::new(tokenizer.with_specials(specials)) as Box<dyn Tokenizer>
    } else {
        open_sentencepiece(&bytes, &file, &facts)?
    };
    let format = match &facts.chat_template {
        Some((source, origin)) => {
            let tokens = facts.token_texts(&*tokenizer);
            Format::ChatTemplate(Box::new(ChatTemplate::new(source, tokens, origin)?))
        }
        None => Format::Plain,
    };
    ModelTokenizer::new(tokenizer, format, options, None)
}

fn find_file(folder: &Path) -> Result<PathBuf> {
    let names: &[&[&str]] = &[&["tokenizer.json"], &["tokenizer.model"], &["vocab.json", "merges.txt"]];
    let there = names.iter().find(|names| names.iter().all(|name| folder.join(name).is_file()));
    there.map(|names| folder.join(names[0])).ok_or_else(|| Error::NoTokenizer { folder: folder.to_owned() })
}

/// A tiktoken file with special tokens that are never recognised in text, in Llama 3's format.
pub(crate) fn open_tiktoken(
    path: &Path,
    special_tokens: &[(impl AsRef<str>, u32)],
    options: FormatOptions,
) -> Result<ModelTokenizer> {
    let tokens: Vec<(String, u32)> = special_tokens.iter().map(|(t, id)| (t.as_ref().to_owned(), *id)).collect();
    let id = |token: &str| tokens.iter().find(|(text, _)| text == token).map(|(_, id)| *id);
    let stop = ["<|eot_id|>", "<|eom_id|>"].into_iter().filter_map(id).collect();
    let specials = SpecialIds {
        bos: id("<|begin_of_text|>"),
        eos: id("<|end_of_text|>"),
        pad: id("<|finetune_right_pad_id|>"),
        stop,
    };
    let tokenizer: Box<dyn Tokenizer> =
        Box::new(WithSpecials::new(Box::new(Tiktoken::open(path)?), tokens, false, specials));
    let format = Format::Llama3(Llama3::new(&*tokenizer)?);
    ModelTokenizer::new(tokenizer, format, options, None)
}

/// A SentencePiece model; with a chat template its control pieces are recognised, because the template writes them.
fn open_sentencepiece(bytes: &[u8], path: &Path, facts: &FolderFacts) -> Result<Box<dyn Tokenizer>> {
    let not_a_tokenizer = |error| match error {
        Error::NotATokenizer { path, found, .. } => Error::NotATokenizer { path, expected: KINDS, found },
        other => other,
    };
    let tokenizer = SentencePiece::from_bytes(bytes, path).map_err(not_a_tokenizer)?;
    let mut tokens = tokenizer.control_pieces();
    tokens.extend(facts.added_tokens.iter().cloned());
    let mut specials = facts.special_ids(&|token| {
        let added = facts.added_tokens.iter().find(|(text, _)| text == token).map(|(_, id)| *id);
        added.or_else(|| tokenizer.piece_to_id(token))
    });
    let own = tokenizer.specials();
    specials.bos = specials.bos.or(own.bos);
    specials.eos = specials.eos.or(own.eos);
    specials.pad = specials.pad.or(own.pad);
    let recognise = facts.chat_template.is_some();
    Ok(Box::new(WithSpecials::new(Box::new(tokenizer), tokens, recognise, specials)))
}

/// `vocab.json` and `merges.txt`: Qwen's way of cutting text where the folder says Qwen, GPT-2's otherwise.
fn open_vocab_and_merges(vocab: &Path, facts: &FolderFacts) -> Result<Box<dyn Tokenizer>> {
    let pre_tokenizer = if facts.is_qwen() { PreTokenizer::Cl100k(1) } else { PreTokenizer::Gpt2 };
    let tokenizer = byte_level_files(vocab, &vocab.with_file_name("merges.txt"), pre_tokenizer, facts.is_qwen())?;
    let tokens = facts.added_tokens.clone();
    let specials = facts.special_ids(&|token| {
        let added = tokens.iter().find(|(text, _)| text == token).map(|(_, id)| *id);
        added.or_else(|| tokenizer.piece_to_id(token))
    });
    Ok(Box::new(WithSpecials::new(Box::new(tokenizer), tokens, true, specials)))
}

/// The engine for `vocab.json` and `merges.txt`, without special tokens.
pub(crate) fn byte_level_files(
    vocab: &Path,
    merges: &Path,
    pre_tokenizer: PreTokenizer,
    nfc: bool,
) -> Result<HuggingFace> {
    let (tokens, rules) = (read_vocab(vocab)?, read_merges(merges)?);
    let bpe = ByteLevelBpe {
        vocab: tokens.iter().map(|(token, id)| (token.as_str(), *id)).collect(),
        merges: rules.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect(),
        pre_tokenizer,
        nfc,
        ignore_merges: false,
        added: Vec::new(),
        bos: None,
    };
    HuggingFace::from_value(bpe.to_json(), vocab.display().to_string())
}

const KINDS: &str = "a `tokenizer.json`, a SentencePiece model or a tiktoken file";
const JSON: &str = "JSON";

/// What the first bytes of a file look like, for messages.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let known: &[(&[u8], &str)] = &[
        (b"GGUF", "a GGUF file"),
        (b"PK\x03\x04", "a zip archive"),
        (b"version https://git-lfs", GIT_LFS),
        (b"<!DOCTYPE", "a web page"),
        (b"<html", "a web page"),
        (b"{", JSON),
    ];
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    if text.is_empty() {
        return "nothing".to_owned();
    }
    if let Some((_, name)) = known.iter().find(|(start, _)| text.starts_with(start)) {
        return (*name).to_owned();
    }
    let start = &bytes[..bytes.len().min(24)];
    match std::str::from_utf8(start) {
        Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => {
            format!("text that begins with `{}`", text.lines().next().unwrap_or_default())
        }
        _ => format!("bytes that begin with {:02x?}", &start[..start.len().min(8)]),
    }
}

/// What the JSON files of a model folder say about its tokenizer.
#[derive(Debug, Default)]
struct FolderFacts {
    /// `bos_token`, `eos_token`, `pad_token`, `unk_token`: name and text.
    tokens: Vec<(String, String)>,
    /// The same by id, from the generation and model configs: `bos`, `eos` (all of them), `pad`.
    ids: Vec<(&'static str, Vec<u32>)>,
    /// Tokens beside the vocabulary: text and id.
    added_tokens: Vec<(String, u32)>,
    /// The template and the file it came from.
    chat_template: Option<(String, String)>,
    tokenizer_class: String,
}

impl FolderFacts {
    /// Reads the files that are there; none has to be.
    fn read(folder: &Path) -> Result<Self> {
        let mut facts = Self::default();
        let jinja = folder.join("chat_template.jinja");
        match fs::read_to_string(&jinja) {
            Ok(template) => facts.chat_template = Some((template, jinja.display().to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Read { path: jinja, source }),
        }
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = folder.join(name);
            if let Some(config) = read_json(&path)? {
                facts.take_tokens(&config);
                facts.take_template(&config, &path);
            }
        }
        for name in ["generation_config.json", "config.json"] {
            if let Some(config) = read_json(&folder.join(name))? {
                facts.take_ids(&config);
            }
        }
        Ok(facts)
    }

    fn take_tokens(&mut self, config: &Value) {
        for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            let value = &config[name];
            let text = value.as_str().or_else(|| value["content"].as_str());
            if let Some(text) = text.filter(|_| self.tokens.iter().all(|(known, _)| known != name)) {
                self.tokens.push((name.to_owned(), text.to_owned()));
            }
        }
        for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
            if let (Ok(id), Some(text)) = (id.parse(), token["content"].as_str()) {
                self.added_tokens.push((text.to_owned(), id));
            }
        }
        if let Some(class) = config["tokenizer_class"].as_str() {
            class.clone_into(&mut self.tokenizer_class);
        }
    }

    /// The template is a text, or a list of named ones of which `default` counts.
    fn take_template(&mut self, config: &Value, path: &Path) {
        if self.chat_template.is_some() {
            return;
        }
        let value = &config["chat_template"];
        let named = value.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == "default"));
        let text = value.as_str().or_else(|| named?["template"].as_str());
        self.chat_template = text.map(|text| (text.to_owned(), path.display().to_string()));
    }

    fn take_ids(&mut self, config: &Value) {
        let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        for (name, key) in [("bos", "bos_token_id"), ("eos", "eos_token_id"), ("pad", "pad_token_id")] {
            let ids: Vec<u32> = match &config[key] {
                Value::Array(list) => list.iter().filter_map(number).collect(),
                value => number(value).into_iter().collect(),
            };
            if !ids.is_empty() && self.ids.iter().all(|(known, _)| *known != name) {
                self.ids.push((name, ids));
            }
        }
    }

    fn is_qwen(&self) -> bool {
        self.tokenizer_class.contains("Qwen")
    }

    /// The ids with a role; `id_of` looks a token up.
    fn special_ids(&self, id_of: &dyn Fn(&str) -> Option<u32>) -> SpecialIds {
        let ids = |name: &str| self.ids.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, ids)| ids);
        let role = |name: &str| {
            let key = format!("{name}_token");
            let text = self.tokens.iter().find(|(known, _)| *known == key).and_then(|(_, text)| id_of(text));
            text.or_else(|| ids(name).first().copied())
        };
        SpecialIds { bos: role("bos"), eos: role("eos"), pad: role("pad"), stop: ids("eos").to_vec() }
    }

    /// Names and texts of the special tokens, for the chat template.
    fn token_texts(&self, tokenizer: &dyn Tokenizer) -> Vec<(String, String)> {
        let mut tokens = self.tokens.clone();
        let specials = tokenizer.specials();
        for (name, id) in [("bos_token", specials.bos), ("eos_token", specials.eos), ("pad_token", specials.pad)] {
            let is_new = tokens.iter().all(|(known, _)| known != name);
            if let Some(piece) = id.filter(|_| is_new).and_then(|id| tokenizer.id_to_piece(id)) {
                tokens.push((name.to_owned(), piece));
            }
        }
        tokens
    }
}

/// A JSON file, if it is there.
fn read_json(path: &Path) -> Result<Option<Value>> {
    match fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).map_err(|source| Error::Json { path: path.to_owned(), source })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// The special tokens that a `tokenizer.json` lists under `added_tokens`.
pub(crate) fn added_tokens_of(path: &Path) -> Result<Vec<(String, u32)>> {
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.to_owned(), source })?;
    let wrong = |key: String, expected, value: &Value| Error::JsonValue {
        path: path.to_owned(),
        key,
        expected,
        found: crate::huggingface::json_kind(value),
    };
    let list = &value["added_tokens"];
    let list = list.as_array().ok_or_else(|| wrong("added_tokens".into(), "a list of tokens", list))?;
    let entry = |(index, token): (usize, &Value)| {
        let key = |name: &str| format!("added_tokens[{index}].{name}");
        let text = token["content"].as_str();
        let text = text.ok_or_else(|| wrong(key("content"), "a string", &token["content"]))?;
        let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| wrong(key("id"), "an id from 0 to 4294967295", &token["id"]))?;
        Ok((text.to_owned(), id))
    };
    list.iter().enumerate().map(entry).collect()
}
