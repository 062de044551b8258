//! The format of Llama 3: header, text and end marker for each message.
//!
//! `bos` (ignored by the loss); per message `start_header role end_header "\n\n"`, each text without white space at both ends,
//! `eot`, or `eom` when a tool answers before the turn ends; `eos` at the end (ignored). A tool call begins with `python_tag`.

use super::{Conversation, Output, Tokenized, texts};
use crate::{Error, Message, Result, Tokenizer};

/// The special tokens with ids of their own; the rest of 128002 to 128255 is reserved.
pub const LLAMA3_SPECIAL_TOKENS: &[(&str, u32)] = &[
    ("<|begin_of_text|>", 128000),
    ("<|end_of_text|>", 128001),
    ("<|reserved_special_token_0|>", 128002),
    ("<|reserved_special_token_1|>", 128003),
    ("<|finetune_right_pad_id|>", 128004),
    ("<|step_id|>", 128005),
    ("<|start_header_id|>", 128006),
    ("<|end_header_id|>", 128007),
    ("<|eom_id|>", 128008),
    ("<|eot_id|>", 128009),
    ("<|python_tag|>", 128010),
];

/// The ids of the turn markers.
#[derive(Debug, Clone, Copy)]
pub struct Llama3 {
    bos: u32,
    eos: u32,
    start_header: u32,
    end_header: u32,
    eom: u32,
    eot: u32,
    python_tag: u32,
}

impl Llama3 {
    /// The markers among a tokenizer's special tokens.
    pub fn new(tokenizer: &dyn Tokenizer) -> Result<Self> {
        let id = |token: &str| {
            let missing = || Error::MissingSpecialToken { token: token.into(), origin: tokenizer.origin().into() };
            tokenizer.piece_to_id(token).ok_or_else(missing)
        };
        Ok(Self {
            bos: id("<|begin_of_text|>")?,
            eos: id("<|end_of_text|>")?,
            start_header: id("<|start_header_id|>")?,
            end_header: id("<|end_header_id|>")?,
            eom: id("<|eom_id|>")?,
            eot: id("<|eot_id|>")?,
            python_tag: id("<|python_tag|>")?,
        })
    }

    pub(super) fn tokenize(&self, conversation: &Conversation<'_>) -> Result<Tokenized> {
        let mut out = Output::default();
        out.push(self.bos, true);
        let last = conversation.messages.len().saturating_sub(1);
        for (index, message) in conversation.messages.iter().enumerate() {
            let open = conversation.inference && index == last;
            out.extend(self.message(conversation.tokenizer, message, open)?, message.masked);
            if conversation.is_full(&out) {
                break;
            }
        }
        let end = (!conversation.inference).then_some((self.eos, true));
        out.extend(end.map(|(eos, _)| eos), true);
        Ok(conversation.finish(out, end))
    }

    fn message(&self, tokenizer: &dyn Tokenizer, message: &Message, open: bool) -> Result<Vec<u32>> {
        let mut ids = vec![self.start_header];
        ids.extend(tokenizer.encode(message.role.as_str())?);
        ids.push(self.end_header);
        ids.extend(tokenizer.encode("\n\n")?);
        if message.ipython {
            ids.push(self.python_tag);
        }
        for text in texts(message) {
            ids.extend(tokenizer.encode(text.trim_matches(is_space))?);
        }
        if !open {
            ids.push(if message.eot { self.eot } else { self.eom });
        }
        Ok(ids)
    }
}

/// White space in Python's sense: four separators more than in Rust's.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
