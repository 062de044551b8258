//! The format of a model without one: bos, the texts, eos after each answer.
//!
//! The messages of an exchange are joined by a line break where none separates them, and encoded as one text, so that the ids
//! are those of the text as the model would read it. Bos stands once, at the beginning, and is ignored by the loss.

use super::{Conversation, Output, Tokenized};
use crate::{Result, Role};

pub(super) fn tokenize(conversation: &Conversation<'_>) -> Result<Tokenized> {
    let specials = conversation.tokenizer.specials();
    let eos = specials.eos;
    let mut out = Output::default();
    out.extend(specials.bos, true);
    let last = conversation.messages.len().saturating_sub(1);
    let mut spans = Spans::default();
    for (index, message) in conversation.messages.iter().enumerate() {
        if !spans.text.is_empty() && !spans.text.ends_with(char::is_whitespace) {
            spans.text.push('\n');
            if let Some((end, _)) = spans.ends.last_mut() {
                *end = spans.text.len();
            }
        }
        spans.text.push_str(&message.text());
        spans.ends.push((spans.text.len(), message.masked));
        let ends_turn = message.role == Role::Assistant;
        if ends_turn || index == last {
            std::mem::take(&mut spans).encode(conversation, &mut out)?;
        }
        let open = conversation.inference && index == last;
        if ends_turn && !open {
            out.extend(eos, message.masked);
        }
    }
    let is_cut = conversation.max_seq_len.is_some_and(|max| out.tokens.len() > max);
    let end = eos.filter(|_| is_cut && !conversation.inference);
    Ok(conversation.finish(out, end.map(|eos| (eos, true))))
}

/// A text with the ends of the messages in it and their masks.
#[derive(Default)]
pub(super) struct Spans {
    /// The whole text.
    pub text: String,
    /// One past the last byte of each message, and its mask.
    pub ends: Vec<(usize, bool)>,
}

impl Spans {
    /// Encodes the text as a whole; a token belongs to the message in which it starts.
    pub fn encode(&self, conversation: &Conversation<'_>, out: &mut Output) -> Result<()> {
        let mut ends = self.ends.iter().peekable();
        let mut masked = self.ends.last().is_some_and(|(_, masked)| *masked);
        for (id, start) in conversation.tokenizer.encode_with_starts(&self.text)? {
            while let Some((end, mask)) = ends.peek() {
                masked = *mask;
                if start < *end {
                    break;
                }
                ends.next();
            }
            out.push(id, masked);
        }
        Ok(())
    }
}
