//! The format of Phi 4: `<|im_start|>role<|im_sep|>`, the text, `<|im_end|>`, for each message.
//!
//! No bos and no line breaks. Texts lose their trailing spaces. Answers end with `<|im_end|>`, which is the token at which generation stops; the
//! reference leaves it out when it trains, so that a model never learns to stop.

use super::{Conversation, Output, Tokenized, texts};
use crate::{Result, Role};

/// Phi 4's special tokens: the ids from 100256 to 100351, unused ones as `<|dummy_N|>`.
pub fn phi4_special_tokens() -> Vec<(String, u32)> {
    const NAMED: &[(&str, u32)] = &[
        ("<|endoftext|>", Phi4::ENDOFTEXT),
        ("<|fim_prefix|>", 100258),
        ("<|fim_middle|>", 100259),
        ("<|fim_suffix|>", 100260),
        ("<|im_start|>", Phi4::IM_START),
        ("<|im_end|>", Phi4::IM_END),
        ("<|im_sep|>", Phi4::IM_SEP),
        ("<|endofprompt|>", 100276),
    ];
    let mut dummies = 0..;
    let text = |id: u32| match NAMED.iter().find(|(_, named)| *named == id) {
        Some((text, _)) => (*text).to_owned(),
        None => format!("<|dummy_{}|>", dummies.next().unwrap_or_default()),
    };
    let ids = 100256..=100351;
    ids.clone().map(text).zip(ids).collect()
}

/// The format; its ids are fixed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phi4;

impl Phi4 {
    /// Bos.
    pub const ENDOFTEXT: u32 = 100257;
    /// Before a role.
    pub const IM_START: u32 = 100264;
    /// After a message; eos.
    pub const IM_END: u32 = 100265;
    /// Between role and text.
    pub const IM_SEP: u32 = 100266;
    /// `<|dummy_85|>` fills batches.
    pub const PAD: u32 = 100349;

    #[expect(clippy::unused_self, reason = "formats are called alike")]
    pub(super) fn tokenize(self, conversation: &Conversation<'_>) -> Result<Tokenized> {
        let tokenizer = conversation.tokenizer;
        let mut out = Output::default();
        let last = conversation.messages.len().saturating_sub(1);
        let mut masked = false;
        for (index, message) in conversation.messages.iter().enumerate() {
            masked = message.masked;
            out.push(Self::IM_START, masked);
            out.extend(tokenizer.encode(&message.role.to_string())?, masked);
            out.push(Self::IM_SEP, masked);
            for text in texts(message) {
                out.extend(tokenizer.encode(text.trim_end_matches(' '))?, masked);
            }
            let open = conversation.inference && index == last && message.role == Role::Assistant;
            if !open {
                out.push(Self::IM_END, masked);
            }
            if conversation.is_full(&out) {
                break;
            }
        }
        let end = (!conversation.inference && conversation.is_full(&out)).then_some((Self::IM_END, masked));
        Ok(conversation.finish(out, end))
    }
}
