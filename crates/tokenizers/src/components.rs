//! Tokenizers as a config names them, and how each is built.
//!
//! | component | engine and format |
//! |-----------|-------------------|
//! | `torchtune.models.llama2.llama2_tokenizer` | SentencePiece, Llama 2's chat template |
//! | `torchtune.models.mistral.mistral_tokenizer` | SentencePiece, Mistral's chat template |
//! | `torchtune.models.gemma.gemma_tokenizer` | SentencePiece, no template |
//! | `torchtune.models.phi3.phi3_mini_tokenizer` | SentencePiece, Phi 3's markers |
//! | `torchtune.models.phi4.phi4_tokenizer` | `vocab.json` and `merges.txt`, Phi 4's markers |
//! | `torchtune.models.llama3.llama3_tokenizer` | tiktoken, Llama 3's markers |
//! | `torchtune.models.qwen2.qwen2_tokenizer`, `qwen2_5`, `qwen3` | `vocab.json` and `merges.txt`, Qwen's markers |
//! | `ferrotune.tokenizers.auto` | whatever the folder, file or checkpoint holds, with its own chat template |

use std::path::{Path, PathBuf};

use config::{FromNode, Names, Node, Problems};

use crate::auto::{added_tokens_of, byte_level_files, open_tiktoken};
use crate::formats::{
    Format, FormatOptions, LLAMA3_SPECIAL_TOKENS, PHI3_SPECIAL_TOKENS, Phi3, Phi4, QWEN2_5_SPECIAL_TOKENS,
    QWEN2_SPECIAL_TOKENS, QWEN3_SPECIAL_TOKENS, Qwen, TruncationType, phi4_special_tokens,
};
use crate::huggingface::PreTokenizer;
use crate::{
    GgufVocab, ModelTokenizer, PromptTemplate, Result, Role, SentencePiece, SpecialIds, Tokenizer, WithSpecials,
    open_auto,
};

config::component! {
    /// Llama 2's tokenizer.
    pub struct Llama2TokenizerConfig {
        /// SentencePiece file, `tokenizer.model`.
        pub path: PathBuf,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = Some(PromptTemplate::Llama2Chat),
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// Mistral's tokenizer.
    pub struct MistralTokenizerConfig {
        /// SentencePiece file, `tokenizer.model`.
        pub path: PathBuf,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = Some(PromptTemplate::MistralChat),
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// Gemma's tokenizer.
    pub struct GemmaTokenizerConfig {
        /// SentencePiece file, `tokenizer.model`.
        pub path: PathBuf,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = None,
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// Phi 3 mini's tokenizer.
    pub struct Phi3MiniTokenizerConfig {
        /// SentencePiece file, `tokenizer.model`.
        pub path: PathBuf,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = None,
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// Phi 4's tokenizer. It cuts text as torchtune does, which differs from the model's own way where letters meet digits or
    /// underscores; `ferrotune.tokenizers.auto` on the model's folder cuts as the model was trained.
    pub struct Phi4TokenizerConfig {
        /// Vocabulary, `vocab.json`.
        pub vocab_path: PathBuf,
        /// Merge rules, `merges.txt`.
        pub merges_path: PathBuf,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = None,
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// Llama 3's tokenizer.
    pub struct Llama3TokenizerConfig {
        /// tiktoken file, `original/tokenizer.model`.
        pub path: PathBuf,
        /// `tokenizer.json` whose added tokens replace Llama 3's own special tokens; `null` = Llama 3's own.
        pub special_tokens_path: Option<PathBuf> = None,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = None,
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// The tokenizer of Qwen 2, 2.5 and 3.
    pub struct QwenTokenizerConfig {
        /// Vocabulary, `vocab.json`.
        pub path: PathBuf,
        /// Merge rules, `merges.txt`.
        pub merges_file: PathBuf,
        /// `tokenizer.json` whose added tokens replace the family's own special tokens; `null` = the family's own.
        pub special_tokens_path: Option<PathBuf> = None,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = None,
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

config::component! {
    /// The tokenizer of a model folder, a tokenizer file or a GGUF checkpoint, with its own chat template.
    pub struct AutoTokenizerConfig {
        /// A model folder or a tokenizer file; `null` = the vocabulary inside the checkpoint.
        pub path: Option<PathBuf> = None,
        /// Longest conversation in tokens, longer ones are cut; `null` = no limit.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Text around the messages, inside the chat template: a template's name, or a mapping from role to `[prefix, suffix]`; `null` = none.
        pub prompt_template: Option<PromptTemplate> = None,
        /// Which end of a long conversation is cut off.
        pub truncation_type: TruncationType = TruncationType::Right,
    }
}

/// The kinds of tokenizer that a config can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerKind {
    /// [`AutoTokenizerConfig`].
    Auto,
    /// [`Llama2TokenizerConfig`].
    Llama2,
    /// [`MistralTokenizerConfig`].
    Mistral,
    /// [`GemmaTokenizerConfig`].
    Gemma,
    /// [`Phi3MiniTokenizerConfig`].
    Phi3Mini,
    /// [`Phi4TokenizerConfig`].
    Phi4,
    /// [`Llama3TokenizerConfig`].
    Llama3,
    /// [`QwenTokenizerConfig`].
    Qwen2,
    /// [`QwenTokenizerConfig`].
    Qwen2_5,
    /// [`QwenTokenizerConfig`].
    Qwen3,
}

/// The names of all tokenizers.
pub const TOKENIZERS: Names<TokenizerKind> = Names {
    role: "tokenizer",
    built: &[
        (&["ferrotune.tokenizers.auto"], TokenizerKind::Auto),
        (&["torchtune.models.llama2.llama2_tokenizer"], TokenizerKind::Llama2),
        (&["torchtune.models.llama3.llama3_tokenizer"], TokenizerKind::Llama3),
        (&["torchtune.models.mistral.mistral_tokenizer"], TokenizerKind::Mistral),
        (&["torchtune.models.gemma.gemma_tokenizer", "torchtune.models.gemma2.gemma_tokenizer"], TokenizerKind::Gemma),
        (&["torchtune.models.qwen2.qwen2_tokenizer"], TokenizerKind::Qwen2),
        (&["torchtune.models.qwen2_5.qwen2_5_tokenizer"], TokenizerKind::Qwen2_5),
        (&["torchtune.models.qwen3.qwen3_tokenizer"], TokenizerKind::Qwen3),
        (&["torchtune.models.phi3.phi3_mini_tokenizer"], TokenizerKind::Phi3Mini),
        (&["torchtune.models.phi4.phi4_tokenizer"], TokenizerKind::Phi4),
    ],
    not_built: &[
        "torchtune.models.llama3_2_vision.llama3_2_vision_transform",
        "torchtune.models.llama4.llama4_transform",
        "torchtune.models.clip.clip_tokenizer",
        "torchtune.models.t5.t5_tokenizer",
        "torchtune.modules.transforms.tokenizers.GPT2BaseTokenizer",
        "torchtune.modules.transforms.tokenizers.HuggingFaceBaseTokenizer",
        "torchtune.modules.transforms.tokenizers.HuggingFaceModelTokenizer",
        "torchtune.modules.transforms.tokenizers.SentencePieceBaseTokenizer",
        "torchtune.modules.transforms.tokenizers.TikTokenBaseTokenizer",
    ],
};

/// The checked `tokenizer` section of a config.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizerConfig {
    /// `ferrotune.tokenizers.auto`.
    Auto(AutoTokenizerConfig),
    /// `llama2_tokenizer`.
    Llama2(Llama2TokenizerConfig),
    /// `mistral_tokenizer`.
    Mistral(MistralTokenizerConfig),
    /// `gemma_tokenizer`.
    Gemma(GemmaTokenizerConfig),
    /// `phi3_mini_tokenizer`.
    Phi3Mini(Phi3MiniTokenizerConfig),
    /// `phi4_tokenizer`.
    Phi4(Phi4TokenizerConfig),
    /// `llama3_tokenizer`.
    Llama3(Llama3TokenizerConfig),
    /// `qwen2_tokenizer`.
    Qwen2(QwenTokenizerConfig),
    /// `qwen2_5_tokenizer`.
    Qwen2_5(QwenTokenizerConfig),
    /// `qwen3_tokenizer`.
    Qwen3(QwenTokenizerConfig),
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self::Auto(AutoTokenizerConfig::default())
    }
}

impl FromNode for TokenizerConfig {
    fn expected() -> String {
        "a section with `_component_`, the name of a tokenizer".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        Some(match TOKENIZERS.choose(node, problems)? {
            TokenizerKind::Auto => Self::Auto(AutoTokenizerConfig::check(node, problems)?),
            TokenizerKind::Llama2 => Self::Llama2(Llama2TokenizerConfig::check(node, problems)?),
            TokenizerKind::Mistral => Self::Mistral(MistralTokenizerConfig::check(node, problems)?),
            TokenizerKind::Gemma => Self::Gemma(GemmaTokenizerConfig::check(node, problems)?),
            TokenizerKind::Phi3Mini => Self::Phi3Mini(Phi3MiniTokenizerConfig::check(node, problems)?),
            TokenizerKind::Phi4 => Self::Phi4(Phi4TokenizerConfig::check(node, problems)?),
            TokenizerKind::Llama3 => Self::Llama3(Llama3TokenizerConfig::check(node, problems)?),
            TokenizerKind::Qwen2 => Self::Qwen2(QwenTokenizerConfig::check(node, problems)?),
            TokenizerKind::Qwen2_5 => Self::Qwen2_5(QwenTokenizerConfig::check(node, problems)?),
            TokenizerKind::Qwen3 => Self::Qwen3(QwenTokenizerConfig::check(node, problems)?),
        })
    }
}

/// The format options among a config's fields.
macro_rules! options {
    ($config:ident) => {
        FormatOptions {
            max_seq_len: $config.max_seq_len,
            prompt_template: $config.prompt_template.clone(),
            truncation: $config.truncation_type,
        }
    };
}

impl TokenizerConfig {
    /// Builds the tokenizer; `vocab` is the vocabulary inside the checkpoint, if it carries one.
    pub fn build(&self, vocab: Option<&GgufVocab>) -> Result<ModelTokenizer> {
        let always_eos = Format::SentencePiece { eos_at_inference: true };
        match self {
            Self::Auto(config) => open_auto(config.path.as_deref(), vocab, options!(config)),
            Self::Llama2(config) => {
                sentencepiece(&config.path, Format::SentencePiece { eos_at_inference: false }, options!(config))
            }
            Self::Mistral(config) => sentencepiece(&config.path, always_eos, options!(config)),
            Self::Gemma(config) => sentencepiece(&config.path, always_eos, options!(config)),
            Self::Phi3Mini(config) => phi3(&config.path, options!(config)),
            Self::Phi4(config) => phi4(config),
            Self::Llama3(config) => match &config.special_tokens_path {
                Some(path) => open_tiktoken(&config.path, &added_tokens_of(path)?, options!(config)),
                None => open_tiktoken(&config.path, LLAMA3_SPECIAL_TOKENS, options!(config)),
            },
            Self::Qwen2(config) => qwen(config, QWEN2_SPECIAL_TOKENS, &[], false),
            Self::Qwen2_5(config) => qwen(config, QWEN2_5_SPECIAL_TOKENS, &[], true),
            Self::Qwen3(config) => qwen(config, QWEN2_5_SPECIAL_TOKENS, QWEN3_SPECIAL_TOKENS, true),
        }
    }
}

/// These models have no id for padding; 0 is what the reference takes.
fn sentencepiece(path: &Path, format: Format, options: FormatOptions) -> Result<ModelTokenizer> {
    ModelTokenizer::new(Box::new(SentencePiece::open(path)?), format, options, Some(0))
}

fn phi3(path: &Path, options: FormatOptions) -> Result<ModelTokenizer> {
    let model = SentencePiece::open(path)?;
    let tokens: Vec<(String, u32)> = PHI3_SPECIAL_TOKENS.iter().map(|(text, id)| ((*text).to_owned(), *id)).collect();
    let (_, endoftext) = PHI3_SPECIAL_TOKENS[0];
    let specials =
        SpecialIds { bos: model.specials().bos, eos: Some(endoftext), pad: Some(endoftext), stop: Vec::new() };
    let tokenizer = WithSpecials::new(Box::new(model), tokens, false, specials);
    ModelTokenizer::new(Box::new(tokenizer), Format::Phi3(Phi3), options, None)
}

fn phi4(config: &Phi4TokenizerConfig) -> Result<ModelTokenizer> {
    let engine = byte_level_files(&config.vocab_path, &config.merges_path, PreTokenizer::Words, false)?;
    let specials =
        SpecialIds { bos: Some(Phi4::ENDOFTEXT), eos: Some(Phi4::IM_END), pad: Some(Phi4::PAD), stop: Vec::new() };
    let tokenizer = WithSpecials::new(Box::new(engine), phi4_special_tokens(), false, specials);
    ModelTokenizer::new(Box::new(tokenizer), Format::Phi4(Phi4), options!(config), None)
}

fn qwen(
    config: &QwenTokenizerConfig,
    special_tokens: &[(&str, u32)],
    more: &[(&str, u32)],
    tool_marks: bool,
) -> Result<ModelTokenizer> {
    let tokens = match &config.special_tokens_path {
        Some(path) => added_tokens_of(path)?,
        None => special_tokens.iter().chain(more).map(|(text, id)| ((*text).to_owned(), *id)).collect(),
    };
    let engine = byte_level_files(&config.path, &config.merges_file, PreTokenizer::Cl100k(1), true)?;
    let id = |token: &str| tokens.iter().find(|(text, _)| text == token).map(|(_, id)| *id);
    let pad = id("<|endoftext|>");
    let specials = SpecialIds { bos: None, eos: id("<|im_end|>"), pad, stop: pad.into_iter().collect() };
    let tokenizer = WithSpecials::new(Box::new(engine), tokens, true, specials);
    let format = Format::Qwen(Qwen::new(&tokenizer, tool_marks)?);
    ModelTokenizer::new(Box::new(tokenizer), format, options!(config), None)
}

impl FromNode for PromptTemplate {
    fn expected() -> String {
        "the name of a template, or a mapping from role to `[prefix, suffix]`".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        if let Some(name) = node.as_str() {
            return match Self::from_name(name) {
                Ok(template) => Some(template),
                Err(error) => {
                    let problem = problems.wrong_value(node, Self::expected());
                    if let Some(hint) = error.hint() {
                        problem.hint(hint);
                    }
                    None
                }
            };
        }
        let Some(map) = node.as_map() else {
            problems.wrong_value(node, Self::expected());
            return None;
        };
        let before = problems.len();
        let mut roles = Vec::new();
        for (key, value) in map.iter() {
            let role: Option<Role> = key.as_str().parse().ok();
            let parts = value.as_list().and_then(|parts| <&[Node; 2]>::try_from(parts).ok());
            let text = |node: &Node| match node.as_str() {
                Some(text) => Some(text.to_owned()),
                None => node.is_null().then(String::new),
            };
            let texts = parts.and_then(|[prefix, suffix]| Some((text(prefix)?, text(suffix)?)));
            match (role, texts) {
                (None, _) => {
                    let reason = "expected a role: `system`, `user`, `assistant`, `ipython` or `tool`";
                    problems.refuse(value, reason);
                }
                (_, None) => {
                    problems.wrong_value(value, "a list of two texts, `[prefix, suffix]`");
                }
                (Some(role), Some((prefix, suffix))) => roles.push((role, prefix, suffix)),
            }
        }
        (problems.len() == before).then_some(Self::Roles(roles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(yaml: &str) -> (Option<TokenizerConfig>, Problems) {
        let run = config::Merged::from_text("run.yaml", yaml).unwrap();
        let mut problems = Problems::new();
        let checked = TokenizerConfig::from_node(run.root().at("tokenizer").unwrap(), &mut problems);
        (checked, problems)
    }

    #[test]
    fn a_section_becomes_a_config() {
        let (checked, problems) = check(
            "tokenizer: {_component_: torchtune.models.llama2.llama2_tokenizer, path: /m/tokenizer.model, max_seq_len: 64, \
             prompt_template: {user: ['Q: ', null]}, truncation_type: left}",
        );
        assert!(problems.is_empty());
        let Some(TokenizerConfig::Llama2(config)) = checked else { panic!("not llama2") };
        assert_eq!(config.max_seq_len, Some(64));
        assert_eq!(config.truncation_type, TruncationType::Left);
        assert_eq!(
            config.prompt_template,
            Some(PromptTemplate::Roles(vec![(Role::User, "Q: ".into(), String::new())]))
        );
    }

    #[test]
    fn the_default_template_gives_way_to_null() {
        let llama2 = "_component_: torchtune.models.llama2.llama2_tokenizer, path: t";
        let (checked, _) = check(&format!("tokenizer: {{{llama2}}}"));
        let Some(TokenizerConfig::Llama2(config)) = checked else { panic!("not llama2") };
        assert_eq!(config.prompt_template, Some(PromptTemplate::Llama2Chat));
        let (checked, _) = check(&format!("tokenizer: {{{llama2}, prompt_template: null}}"));
        let Some(TokenizerConfig::Llama2(config)) = checked else { panic!("not llama2") };
        assert_eq!(config.prompt_template, None);
    }

    #[test]
    fn wrong_templates_are_problems_with_hints() {
        let auto = "tokenizer: {_component_: ferrotune.tokenizers.auto, prompt_template:";
        for (template, hint) in [
            ("torchtune.data.summarize", Some("did you mean `torchtune.data.SummarizeTemplate`?")),
            ("3", None),
            ("{human: [a, b]}", None),
            ("{user: a}", None),
            ("{user: [a, b, c]}", None),
        ] {
            let (checked, problems) = check(&format!("{auto} {template}}}"));
            assert!(checked.is_none(), "{template}");
            let found: Vec<_> = problems.iter().collect();
            assert_eq!(found.len(), 1, "{template}");
            assert_eq!(found[0].hint.as_deref(), hint, "{template}");
        }
    }
}
