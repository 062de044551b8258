//! The format of Qwen: `<|im_start|>role`, a line break, the text, `<|im_end|>`, a line break, for each message.
//!
//! The last message, if it is an answer, ends without them; then eos (`<|im_end|>`) follows, masked as the token before it.
//! Qwen 2 puts nothing around tool results. Qwen 2.5 and 3 make one user turn of consecutive tool results, each between
//! `<tool_response>` marks, and put `<tool_call>` marks around a tool call.

use super::{Conversation, Output, Tokenized, texts};
use crate::{Error, Message, Result, Role, Tokenizer};

/// Qwen 2's special tokens.
pub const QWEN2_SPECIAL_TOKENS: &[(&str, u32)] =
    &[("<|endoftext|>", 151643), ("<|im_start|>", 151644), ("<|im_end|>", 151645)];

/// Qwen 2.5's special tokens.
pub const QWEN2_5_SPECIAL_TOKENS: &[(&str, u32)] = &[
    ("<|endoftext|>", 151643),
    ("<|im_start|>", 151644),
    ("<|im_end|>", 151645),
    ("<|object_ref_start|>", 151646),
    ("<|object_ref_end|>", 151647),
    ("<|box_start|>", 151648),
    ("<|box_end|>", 151649),
    ("<|quad_start|>", 151650),
    ("<|quad_end|>", 151651),
    ("<|vision_start|>", 151652),
    ("<|vision_end|>", 151653),
    ("<|vision_pad|>", 151654),
    ("<|image_pad|>", 151655),
    ("<|video_pad|>", 151656),
    ("<tool_call>", 151657),
    ("</tool_call>", 151658),
    ("<|fim_prefix|>", 151659),
    ("<|fim_middle|>", 151660),
    ("<|fim_suffix|>", 151661),
    ("<|fim_pad|>", 151662),
    ("<|repo_name|>", 151663),
    ("<|file_sep|>", 151664),
];

/// What Qwen 3 adds to Qwen 2.5's special tokens.
pub const QWEN3_SPECIAL_TOKENS: &[(&str, u32)] =
    &[("<tool_response>", 151665), ("</tool_response>", 151666), ("<think>", 151667), ("</think>", 151668)];

/// The ids of the turn markers.
#[derive(Debug, Clone, Copy)]
pub struct Qwen {
    im_start: u32,
    im_end: u32,
    /// Whether tool calls and results have marks of their own.
    tool_marks: bool,
}

impl Qwen {
    /// The markers among a tokenizer's special tokens.
    pub fn new(tokenizer: &dyn Tokenizer, tool_marks: bool) -> Result<Self> {
        let id = |token: &str| {
            let missing = || Error::MissingSpecialToken { token: token.into(), origin: tokenizer.origin().into() };
            tokenizer.piece_to_id(token).ok_or_else(missing)
        };
        Ok(Self { im_start: id("<|im_start|>")?, im_end: id("<|im_end|>")?, tool_marks })
    }

    pub(super) fn tokenize(&self, conversation: &Conversation<'_>) -> Result<Tokenized> {
        let tokenizer = conversation.tokenizer;
        let mut out = Output::default();
        for (index, message) in conversation.messages.iter().enumerate() {
            let mut ids = Vec::new();
            self.header(tokenizer, conversation.messages, index, &mut ids)?;
            for text in texts(message) {
                ids.extend(tokenizer.encode(text)?);
            }
            self.footer(tokenizer, conversation.messages, index, &mut ids)?;
            out.extend(ids, message.masked);
            if conversation.is_full(&out) {
                break;
            }
        }
        if !conversation.inference {
            let masked = out.mask.last().copied().unwrap_or(false);
            out.push(self.im_end, masked);
        }
        // Under a limit the reference masks the last token whatever it is.
        let end = (!conversation.inference).then_some((self.im_end, true));
        Ok(conversation.finish(out, end))
    }

    fn header(&self, tokenizer: &dyn Tokenizer, messages: &[Message], index: usize, ids: &mut Vec<u32>) -> Result<()> {
        let message = &messages[index];
        let is_result = message.role == Role::Ipython;
        let role = if is_result { Role::User } else { message.role };
        let continues = is_result && index.checked_sub(1).is_some_and(|before| messages[before].role == Role::Ipython);
        if continues || (is_result && !self.tool_marks) {
            return Ok(());
        }
        ids.push(self.im_start);
        ids.extend(tokenizer.encode(&format!("{role}\n"))?);
        if is_result {
            ids.extend(tokenizer.encode("<tool_response>\n")?);
        } else if self.tool_marks && message.ipython {
            ids.extend(tokenizer.encode("<tool_call>\n")?);
        }
        Ok(())
    }

    fn footer(&self, tokenizer: &dyn Tokenizer, messages: &[Message], index: usize, ids: &mut Vec<u32>) -> Result<()> {
        let message = &messages[index];
        let next = messages.get(index + 1);
        if message.role == Role::Ipython {
            if !self.tool_marks {
                return Ok(());
            }
            if next.is_some_and(|next| next.role == Role::Ipython) {
                ids.extend(tokenizer.encode("\n</tool_response>\n<tool_response>\n")?);
                return Ok(());
            }
            ids.extend(tokenizer.encode("\n</tool_response>")?);
        } else if self.tool_marks && message.ipython {
            ids.extend(tokenizer.encode("\n</tool_call>")?);
        }
        if message.role != Role::Assistant || next.is_some() {
            ids.push(self.im_end);
            ids.extend(tokenizer.encode("\n")?);
        }
        Ok(())
    }
}
