//! What a model family expects around messages: turn markers, truncation, masks.
//!
//! A [`ModelTokenizer`] is a [`Tokenizer`] with a format, a prompt template and a length limit. A mask entry is true where
//! the loss ignores the token.
//!
//! | format          | shape of a conversation |
//! |-----------------|-------------------------|
//! | `sentencepiece` | bos, the messages' texts, eos after each answer, bos again |
//! | `llama3`        | bos, then header, text and end marker for each message, eos |
//! | `qwen`          | `<|im_start|>role`, text, `<|im_end|>` for each message |
//! | `phi3`          | bos, `<|role|>`, text, `<|end|>` for each message, eos after each answer |
//! | `phi4`          | `<|im_start|>role<|im_sep|>`, text, `<|im_end|>` for each message |
//! | `chat_template` | the text that the folder's own template renders |
//! | `plain`         | bos, the messages' texts, eos after each answer |

mod chat_template;
mod llama3;
mod phi3;
mod phi4;
mod plain;
mod qwen;
mod sentencepiece;

pub use self::chat_template::ChatTemplate;
pub use self::llama3::{LLAMA3_SPECIAL_TOKENS, Llama3};
pub use self::phi3::{PHI3_SPECIAL_TOKENS, Phi3};
pub use self::phi4::{Phi4, phi4_special_tokens};
pub use self::qwen::{QWEN2_5_SPECIAL_TOKENS, QWEN2_SPECIAL_TOKENS, QWEN3_SPECIAL_TOKENS, Qwen};

use crate::{Content, Error, Message, PromptTemplate, Result, Tokenizer};

/// Ids and, for each, whether the loss ignores it.
pub type Tokenized = (Vec<u32>, Vec<bool>);

config::choice! {
    /// Which end of a conversation that is too long is cut off.
    #[derive(Default)]
    pub enum TruncationType {
        /// Keep the beginning.
        #[default]
        Right = "right",
        /// Keep the end.
        Left = "left",
    }
}

/// How messages become ids.
#[derive(Debug)]
pub enum Format {
    /// The family of Llama 2, Mistral and Gemma.
    SentencePiece {
        /// Whether a prompt for generation gets eos all the same, as the reference does for Mistral and Gemma.
        eos_at_inference: bool,
    },
    /// Llama 3 and its successors.
    Llama3(Llama3),
    /// Qwen 2, 2.5 and 3.
    Qwen(Qwen),
    /// Phi 3.
    Phi3(Phi3),
    /// Phi 4.
    Phi4(Phi4),
    /// The template of the model's folder.
    ChatTemplate(Box<ChatTemplate>),
    /// No markers but bos and eos.
    Plain,
}

impl Format {
    fn name(&self) -> &'static str {
        match self {
            Self::SentencePiece { .. } => "a SentencePiece tokenizer",
            Self::Llama3(_) => "llama3_tokenizer",
            Self::Qwen(_) => "qwen2_tokenizer",
            Self::Phi3(_) => "phi3_mini_tokenizer",
            Self::Phi4(_) => "phi4_tokenizer",
            Self::ChatTemplate(_) => "the model's chat template",
            Self::Plain => "a tokenizer without chat template",
        }
    }
}

/// Settings that every kind of tokenizer takes.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// Longest result in tokens; `None` = no limit.
    pub max_seq_len: Option<usize>,
    /// Text around the messages.
    pub prompt_template: Option<PromptTemplate>,
    /// Which end is cut off.
    pub truncation: TruncationType,
}

/// A tokenizer as recipes and datasets use it.
#[derive(Debug)]
pub struct ModelTokenizer {
    tokenizer: Box<dyn Tokenizer>,
    format: Format,
    options: FormatOptions,
    pad_id: u32,
}

impl ModelTokenizer {
    /// Puts a format around a tokenizer. `pad_id` defaults to the tokenizer's pad, then eos, then 0.
    pub fn new(
        tokenizer: Box<dyn Tokenizer>,
        format: Format,
        options: FormatOptions,
        pad_id: Option<u32>,
    ) -> Result<Self> {
        if options.max_seq_len == Some(0) {
            return Err(Error::ZeroMaxSeqLen);
        }
        let writes_markers = matches!(format, Format::Qwen(_) | Format::Phi4(_) | Format::ChatTemplate(_));
        if writes_markers && options.prompt_template == Some(PromptTemplate::ChatMl) {
            return Err(Error::DoubleTemplate { template: PromptTemplate::ChatMl.name(), format: format.name() });
        }
        let specials = tokenizer.specials();
        let pad_id = pad_id.or(specials.pad).or(specials.eos).unwrap_or(0);
        Ok(Self { tokenizer, format, options, pad_id })
    }

    /// The ids and the mask of a conversation. With `inference` the end is left open for the model to go on: no end
    /// marker after the last message, and an empty last assistant message stands for its header alone.
    pub fn tokenize_messages(&self, messages: &[Message], inference: bool) -> Result<Tokenized> {
        for (index, message) in messages.iter().enumerate() {
            message.check()?;
            if message.content.iter().any(|item| item.text().is_none()) {
                return Err(Error::ImageContent { index, role: message.role, format: self.format.name() });
            }
        }
        let templated = match &self.options.prompt_template {
            Some(template) => template.apply(messages)?,
            None => messages.to_vec(),
        };
        let conversation = Conversation {
            tokenizer: &*self.tokenizer,
            messages: &templated,
            inference,
            max_seq_len: self.options.max_seq_len,
            truncation: self.options.truncation,
        };
        match &self.format {
            Format::SentencePiece { eos_at_inference } => sentencepiece::tokenize(&conversation, *eos_at_inference),
            Format::Llama3(llama3) => llama3.tokenize(&conversation),
            Format::Qwen(qwen) => qwen.tokenize(&conversation),
            Format::Phi3(phi3) => phi3.tokenize(&conversation),
            Format::Phi4(phi4) => phi4.tokenize(&conversation),
            Format::ChatTemplate(template) => template.tokenize(&conversation),
            Format::Plain => plain::tokenize(&conversation),
        }
    }

    /// The ids of plain text, with bos and eos where asked for and where the tokenizer has them; never truncated.
    pub fn encode_text(&self, text: &str, add_bos: bool, add_eos: bool) -> Result<Vec<u32>> {
        let specials = self.tokenizer.specials();
        let mut ids: Vec<u32> = specials.bos.filter(|_| add_bos).into_iter().collect();
        ids.extend(self.tokenizer.encode(text)?);
        ids.extend(specials.eos.filter(|_| add_eos));
        Ok(ids)
    }

    /// The text of ids, with or without special tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.tokenizer.decode(ids, skip_special)
    }

    /// The tokenizer without its format.
    pub fn tokenizer(&self) -> &dyn Tokenizer {
        &*self.tokenizer
    }

    /// Longest result in tokens; `None` = no limit.
    pub fn max_seq_len(&self) -> Option<usize> {
        self.options.max_seq_len
    }

    /// The id that fills a batch.
    pub fn pad_id(&self) -> u32 {
        self.pad_id
    }

    /// The ids at which generation stops.
    pub fn stop_tokens(&self) -> Vec<u32> {
        self.tokenizer.specials().stop_ids()
    }

    /// Checks that a model with this many embedding rows has one for each id.
    pub fn check_fits(&self, model_vocab_size: usize) -> Result<()> {
        self.tokenizer.check_fits(model_vocab_size)
    }
}

/// What a format works on.
struct Conversation<'a> {
    tokenizer: &'a dyn Tokenizer,
    messages: &'a [Message],
    inference: bool,
    max_seq_len: Option<usize>,
    truncation: TruncationType,
}

/// Ids with their mask, growing.
#[derive(Default)]
struct Output {
    tokens: Vec<u32>,
    mask: Vec<bool>,
}

impl Output {
    fn push(&mut self, id: u32, masked: bool) {
        self.extend([id], masked);
    }

    fn extend(&mut self, ids: impl IntoIterator<Item = u32>, masked: bool) {
        self.tokens.extend(ids);
        self.mask.resize(self.tokens.len(), masked);
    }
}

impl Conversation<'_> {
    /// Whether what is there already fills the limit.
    fn is_full(&self, out: &Output) -> bool {
        self.max_seq_len.is_some_and(|max| out.tokens.len() >= max)
    }

    /// Applies the limit. `end` is the id, with its mask, that every result under a limit ends with: it takes the place of
    /// the last token, also where nothing was cut, as in the reference.
    fn finish(&self, mut out: Output, end: Option<(u32, bool)>) -> Tokenized {
        let Some(max) = self.max_seq_len else { return (out.tokens, out.mask) };
        let extra = out.tokens.len().saturating_sub(max);
        match self.truncation {
            TruncationType::Right => {
                out.tokens.truncate(max);
                out.mask.truncate(max);
            }
            TruncationType::Left => {
                out.tokens.drain(..extra);
                out.mask.drain(..extra);
            }
        }
        if let (Some((id, masked)), Some(token), Some(mask)) = (end, out.tokens.last_mut(), out.mask.last_mut()) {
            (*token, *mask) = (id, masked);
        }
        (out.tokens, out.mask)
    }
}

/// The texts of a message; images were refused before.
fn texts(message: &Message) -> impl Iterator<Item = &str> {
    message.content.iter().filter_map(Content::text)
}
