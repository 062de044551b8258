//! The format of Llama 2, Mistral and Gemma: texts, with bos before each exchange and eos after each answer.
//!
//! Every content item is encoded by itself, without its trailing spaces; one that continues an exchange, after text that
//! did not end in a space, is encoded without the space a model would put before it. Bos and eos carry their message's mask.

use super::{Conversation, Output, Tokenized, texts};
use crate::{Result, Role};

pub(super) fn tokenize(conversation: &Conversation<'_>, eos_at_inference: bool) -> Result<Tokenized> {
    let tokenizer = conversation.tokenizer;
    let specials = tokenizer.specials();
    let eos = specials.eos.filter(|_| !conversation.inference || eos_at_inference);
    let mut out = Output::default();
    let (mut start_of_turn, mut ends_with_space) = (true, false);
    let mut masked = false;
    for message in conversation.messages {
        masked = message.masked;
        if start_of_turn {
            out.extend(specials.bos, masked);
        }
        let continues = !start_of_turn && !ends_with_space;
        for text in texts(message) {
            let text = text.trim_end_matches(' ');
            let ids = if continues { tokenizer.encode_continuing(text) } else { tokenizer.encode(text) };
            out.extend(ids?, masked);
        }
        ends_with_space = texts(message).last().is_some_and(|text| text.ends_with(' '));
        start_of_turn = message.role == Role::Assistant;
        if start_of_turn {
            out.extend(eos, masked);
        }
        if conversation.is_full(&out) {
            break;
        }
    }
    Ok(conversation.finish(out, eos.map(|eos| (eos, masked))))
}
