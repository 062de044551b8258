//! Tokenizer files of every kind behind one trait.
//!
//! A [`Tokenizer`] turns text into ids and back; a [`ModelTokenizer`] adds what a model family expects around messages:
//! turn markers, prompt template, truncation, masks. Files: SentencePiece `tokenizer.model`, Hugging Face
//! `tokenizer.json`, tiktoken `tokenizer.model` (Llama 3), `vocab.json` with `merges.txt` (Qwen), and the vocabulary of a
//! GGUF file, which arrives as plain data in a [`GgufVocab`].

mod auto;
pub mod components;
mod error;
pub mod formats;
mod gguf;
mod huggingface;
mod message;
mod sentencepiece;
mod special;
mod template;
mod tiktoken;

pub use auto::open_auto;
pub use components::TokenizerConfig;
pub use error::{Error, Result, SentencePieceProblem};
pub use formats::{FormatOptions, ModelTokenizer, Tokenized, TruncationType};
pub use gguf::GgufVocab;
pub use huggingface::HuggingFace;
pub use message::{Content, Message, Role};
pub use sentencepiece::SentencePiece;
pub use special::{SpecialIds, WithSpecials};
pub use template::PromptTemplate;
pub use tiktoken::Tiktoken;

/// Text to ids and back.
///
/// No method adds bos or eos; callers that want them take them from [`Tokenizer::specials`].
pub trait Tokenizer: Send + Sync + std::fmt::Debug {
    /// The ids of a text, each with the byte of the text where its token starts. Starts never decrease.
    fn encode_with_starts(&self, text: &str) -> Result<Vec<(u32, usize)>>;

    /// The ids of a text.
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_with_starts(text)?.into_iter().map(|(id, _)| id).collect())
    }

    /// The ids of a text that continues another one: without the leading space that a SentencePiece model would add.
    fn encode_continuing(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text)
    }

    /// The text of ids. Special tokens are left out with `skip_special`; ids outside the vocabulary become U+FFFD.
    fn decode(&self, ids: &[u32], skip_special: bool) -> String;

    /// Highest id plus one.
    fn vocab_size(&self) -> usize;

    /// How the vocabulary writes an id.
    fn id_to_piece(&self, id: u32) -> Option<String>;

    /// The id of a vocabulary entry, special tokens included.
    fn piece_to_id(&self, piece: &str) -> Option<u32>;

    /// The ids with a role of their own.
    fn specials(&self) -> &SpecialIds;

    /// Where the tokenizer came from, for messages: a path as the user knows it.
    fn origin(&self) -> &str;

    /// Checks that a model with `model_vocab_size` embedding rows has one for each id.
    fn check_fits(&self, model_vocab_size: usize) -> Result<()> {
        if self.vocab_size() > model_vocab_size {
            return Err(Error::VocabularyTooSmall {
                origin: self.origin().to_owned(),
                tokenizer: self.vocab_size(),
                model: model_vocab_size,
            });
        }
        Ok(())
    }
}
