//! A tokenizer of bytes, small enough to work out by hand: id = byte, bos 256, eos 257, pad 258.

use tokenizers::formats::{Format, FormatOptions};
use tokenizers::{ModelTokenizer, Result, SpecialIds, Tokenizer};

/// First id of bos.
pub const BOS: i32 = 256;
/// Id of eos.
pub const EOS: i32 = 257;
/// Id of padding.
pub const PAD: i32 = 258;

#[derive(Debug)]
struct Bytes(SpecialIds);

impl Tokenizer for Bytes {
    fn encode_with_starts(&self, text: &str) -> Result<Vec<(u32, usize)>> {
        Ok(text.bytes().enumerate().map(|(start, byte)| (u32::from(byte), start)).collect())
    }

    fn decode(&self, ids: &[u32], _skip_special: bool) -> String {
        ids.iter().filter_map(|&id| u8::try_from(id).ok()).map(char::from).collect()
    }

    fn vocab_size(&self) -> usize {
        259
    }

    fn id_to_piece(&self, _id: u32) -> Option<String> {
        None
    }

    fn piece_to_id(&self, _piece: &str) -> Option<u32> {
        None
    }

    fn specials(&self) -> &SpecialIds {
        &self.0
    }

    fn origin(&self) -> &'static str {
        "bytes"
    }
}

/// The tokenizer in the format of Llama 2 without a template: bos, the texts, eos after each answer.
pub fn tokenizer(max_seq_len: Option<usize>) -> ModelTokenizer {
    let ids = |id: i32| Some(id as u32);
    let specials = SpecialIds { bos: ids(BOS), eos: ids(EOS), pad: ids(PAD), stop: Vec::new() };
    let options = FormatOptions { max_seq_len, ..FormatOptions::default() };
    ModelTokenizer::new(Box::new(Bytes(specials)), Format::SentencePiece { eos_at_inference: false }, options, None)
        .unwrap()
}

/// The ids of a text.
pub fn ids(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).collect()
}
