//! Text as SentencePiece sees it: replacements applied, spaces written as U+2581, each byte knowing where it came from.

use super::charsmap::CharsMap;
use super::pieces::PieceIndex;
use super::proto::NormalizerSpec;
use crate::SentencePieceProblem;

/// How a space is written inside pieces.
pub const SPACE: &str = "\u{2581}";

/// The normaliser of a model.
#[derive(Debug, Clone)]
pub struct Normalizer {
    /// Longest-prefix replacements, if the model has any.
    pub charsmap: Option<CharsMap>,
    /// Whether a space is put before (or after) the text.
    pub add_dummy_prefix: bool,
    /// Whether spaces at both ends and repeated spaces are removed.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces are written as U+2581.
    pub escape_whitespaces: bool,
    /// Whether the dummy space goes to the end.
    pub whitespace_as_suffix: bool,
}

/// Normalised text and, for each of its bytes and its end, the byte of the input it came from.
#[derive(Debug, Default)]
pub struct Normalized {
    /// The text that is split into pieces.
    pub text: String,
    /// One more entry than `text` has bytes.
    pub origin: Vec<usize>,
}

impl Normalized {
    fn push(&mut self, text: &str, from: usize) {
        self.text.push_str(text);
        self.origin.resize(self.text.len(), from);
    }
}

impl Normalizer {
    /// The normaliser a model file describes.
    pub fn new(spec: &NormalizerSpec, whitespace_as_suffix: bool) -> Result<Self, SentencePieceProblem> {
        let charsmap = match spec.precompiled_charsmap() {
            [] => None,
            bytes => Some(CharsMap::parse(bytes)?),
        };
        Ok(Self {
            charsmap,
            add_dummy_prefix: spec.add_dummy_prefix(),
            remove_extra_whitespaces: spec.remove_extra_whitespaces(),
            escape_whitespaces: spec.escape_whitespaces(),
            whitespace_as_suffix,
        })
    }

    /// Normalises `text`; `user_defined` pieces pass unchanged.
    pub fn normalize(&self, text: &str, user_defined: &PieceIndex) -> Normalized {
        let mut at = 0;
        if self.remove_extra_whitespaces {
            while at < text.len() {
                let (replacement, length) = self.step(&text[at..], user_defined);
                if replacement != " " {
                    break;
                }
                at += length;
            }
        }
        let mut out = Normalized::default();
        if at == text.len() {
            return out;
        }
        let space = if self.escape_whitespaces { SPACE } else { " " };
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            out.push(space, at);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while at < text.len() {
            let (mut replacement, length) = self.step(&text[at..], user_defined);
            if after_space {
                replacement = replacement.trim_start_matches(' ');
            }
            for c in replacement.split_inclusive(' ') {
                match c.strip_suffix(' ') {
                    Some(word) => {
                        out.push(word, at);
                        out.push(space, at);
                    }
                    None => out.push(c, at),
                }
            }
            if !replacement.is_empty() {
                after_space = replacement.ends_with(' ');
            }
            after_space &= self.remove_extra_whitespaces;
            at += length;
        }
        let mut end = text.len();
        if self.remove_extra_whitespaces {
            while out.text.ends_with(space) {
                let length = out.text.len() - space.len();
                end = out.origin[length];
                out.text.truncate(length);
                out.origin.truncate(length);
            }
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            out.push(space, end);
        }
        out.origin.push(end);
        out
    }

    /// What the start of `text` becomes, and how many bytes of it that takes.
    fn step<'a>(&'a self, text: &'a str, user_defined: &PieceIndex) -> (&'a str, usize) {
        if let Some((length, _)) = user_defined.longest_prefix(text) {
            return (&text[..length], length);
        }
        if let Some((length, replacement)) = self.charsmap.as_ref().and_then(|map| map.longest_prefix(text)) {
            return (replacement, length);
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        (&text[..length], length)
    }
}
