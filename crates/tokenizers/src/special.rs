//! Special tokens: the ids with a role, and a tokenizer wrapper that knows special tokens beside its vocabulary.

use crate::{Result, Tokenizer};

/// The ids with a role of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Fills a batch.
    pub pad: Option<u32>,
    /// Further ids at which generation stops, beside `eos`.
    pub stop: Vec<u32>,
}

impl SpecialIds {
    /// Every id at which generation stops, eos first, none twice.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.eos.into_iter().collect();
        for &id in &self.stop {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

/// A tokenizer with special tokens beside its vocabulary: their ids decode to their text, and where
/// `recognise` says so, their text in the input becomes their id.
#[derive(Debug)]
pub struct WithSpecials {
    inner: Box<dyn Tokenizer>,
    /// Longest text first, so that a token that begins with another one wins.
    tokens: Vec<(String, u32)>,
    recognise: bool,
    specials: SpecialIds,
    /// Whether some token begins with a byte.
    begins: Box<[bool; 256]>,
}

impl WithSpecials {
    /// Adds `tokens` to `inner`, with `specials` as the ids that have a role.
    pub fn new(
        inner: Box<dyn Tokenizer>,
        mut tokens: Vec<(String, u32)>,
        recognise: bool,
        specials: SpecialIds,
    ) -> Self {
        tokens.retain(|(text, _)| !text.is_empty());
        tokens.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        let mut begins = Box::new([false; 256]);
        for (text, _) in &tokens {
            begins[usize::from(text.as_bytes()[0])] = true;
        }
        Self { inner, tokens, recognise, specials, begins }
    }

    fn text_of(&self, id: u32) -> Option<&str> {
        self.tokens.iter().find(|(_, token)| *token == id).map(|(text, _)| text.as_str())
    }

    /// The first special token in `text`: where it starts, its length and its id.
    fn find(&self, text: &str) -> Option<(usize, usize, u32)> {
        let bytes = text.as_bytes().iter().enumerate();
        bytes.filter(|(_, byte)| self.begins[usize::from(**byte)]).find_map(|(at, _)| {
            let rest = &text.as_bytes()[at..];
            let (token, id) = self.tokens.iter().find(|(token, _)| rest.starts_with(token.as_bytes()))?;
            Some((at, token.len(), *id))
        })
    }
}

impl Tokenizer for WithSpecials {
    fn encode_with_starts(&self, text: &str) -> Result<Vec<(u32, usize)>> {
        if !self.recognise {
            return self.inner.encode_with_starts(text);
        }
        let mut ids = Vec::new();
        let mut from = 0;
        while from < text.len() {
            let found = self.find(&text[from..]);
            let until = found.map_or(text.len(), |(at, ..)| from + at);
            if until > from {
                let part = self.inner.encode_with_starts(&text[from..until])?;
                ids.extend(part.into_iter().map(|(id, start)| (id, from + start)));
            }
            from = until;
            if let Some((_, length, id)) = found {
                ids.push((id, from));
                from += length;
            }
        }
        Ok(ids)
    }

    fn encode_continuing(&self, text: &str) -> Result<Vec<u32>> {
        if self.recognise { self.encode(text) } else { self.inner.encode_continuing(text) }
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut run_start = 0;
        for (at, &id) in ids.iter().enumerate() {
            let Some(token) = self.text_of(id) else { continue };
            text.push_str(&self.inner.decode(&ids[run_start..at], skip_special));
            run_start = at + 1;
            if !skip_special {
                text.push_str(token);
            }
        }
        text.push_str(&self.inner.decode(&ids[run_start..], skip_special));
        text
    }

    fn vocab_size(&self) -> usize {
        let highest = self.tokens.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        highest.max(self.inner.vocab_size())
    }

    fn id_to_piece(&self, id: u32) -> Option<String> {
        self.text_of(id).map(str::to_owned).or_else(|| self.inner.id_to_piece(id))
    }

    fn piece_to_id(&self, piece: &str) -> Option<u32> {
        let special = self.tokens.iter().find(|(text, _)| text == piece).map(|(_, id)| *id);
        special.or_else(|| self.inner.piece_to_id(piece))
    }

    fn specials(&self) -> &SpecialIds {
        &self.specials
    }

    fn origin(&self) -> &str {
        self.inner.origin()
    }
}
