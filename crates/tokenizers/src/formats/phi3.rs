//! The format of Phi 3: `<|role|>`, a line break, the text, `<|end|>`, a line break, for each message.
//!
//! Bos before each exchange, eos (`<|endoftext|>`) after each answer. Texts lose their trailing spaces and get no leading one.

use super::{Conversation, Output, Tokenized, texts};
use crate::{Error, Result, Role};

/// Phi 3's special tokens.
pub const PHI3_SPECIAL_TOKENS: &[(&str, u32)] = &[
    ("<|endoftext|>", 32000),
    ("<|assistant|>", 32001),
    ("<|placeholder1|>", 32002),
    ("<|placeholder2|>", 32003),
    ("<|placeholder3|>", 32004),
    ("<|placeholder4|>", 32005),
    ("<|system|>", 32006),
    ("<|end|>", 32007),
    ("<|placeholder5|>", 32008),
    ("<|placeholder6|>", 32009),
    ("<|user|>", 32010),
];

const ENDOFTEXT: u32 = 32000;
const ASSISTANT: u32 = 32001;
const SYSTEM: u32 = 32006;
const END: u32 = 32007;
const USER: u32 = 32010;

/// The format; its ids are fixed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phi3;

impl Phi3 {
    #[expect(clippy::unused_self, reason = "formats are called alike")]
    pub(super) fn tokenize(self, conversation: &Conversation<'_>) -> Result<Tokenized> {
        let tokenizer = conversation.tokenizer;
        let line_break = tokenizer.encode("\n")?;
        let mut out = Output::default();
        let (mut start_of_turn, mut masked) = (true, false);
        let last = conversation.messages.len().saturating_sub(1);
        for (index, message) in conversation.messages.iter().enumerate() {
            masked = message.masked;
            if start_of_turn {
                out.extend(tokenizer.specials().bos, masked);
            }
            let role = match message.role {
                Role::System => SYSTEM,
                Role::User => USER,
                Role::Assistant => ASSISTANT,
                Role::Ipython | Role::Tool => {
                    return Err(Error::UnsupportedRole { role: message.role, template: "phi3_mini_tokenizer" });
                }
            };
            out.push(role, masked);
            out.extend(line_break.iter().copied(), masked);
            for text in texts(message) {
                out.extend(tokenizer.encode_continuing(text.trim_end_matches(' '))?, masked);
            }
            start_of_turn = message.role == Role::Assistant;
            let open = conversation.inference && index == last && start_of_turn;
            if !open {
                out.push(END, masked);
                out.extend(line_break.iter().copied(), masked);
            }
            if start_of_turn && !conversation.inference {
                out.push(ENDOFTEXT, masked);
            }
            if conversation.is_full(&out) {
                break;
            }
        }
        let end = (!conversation.inference && conversation.is_full(&out)).then_some((ENDOFTEXT, masked));
        Ok(conversation.finish(out, end))
    }
}
