//! SentencePiece models: unigram and byte-pair, with their normaliser and byte fallback.
//!
//! A `.model` file is one protobuf message (see `proto`); the `llama` vocabulary of a GGUF file is the same engine.
//! Encoding: normalise, split (`unigram` or `bpe`), then a run of unknown pieces becomes one unknown id, or, with byte
//! fallback, the ids of its bytes. Decoding: pieces joined, U+2581 back to spaces, the dummy space removed, byte pieces
//! joined to UTF-8 (a byte that is no character becomes U+FFFD), unknown ids as ` U+2047 `, control pieces as nothing.
//!
//! Errors: `Error::SentencePiece` for a model that contradicts itself. Special tokens in text are ordinary text.
//! Source: google/sentencepiece, behaviour of version 0.2.

mod bpe;
mod charsmap;
mod normalizer;
mod pieces;
mod proto;
mod unigram;
mod vocabulary;

use std::path::Path;

use prost::Message as _;

use self::normalizer::{Normalizer, SPACE};
use self::pieces::PieceIndex;
use self::proto::{ModelProto, NormalizerSpec};
use self::vocabulary::{Kind, Vocabulary};
use crate::{Error, Result, SentencePieceProblem, SpecialIds, Tokenizer};

const UNKNOWN_SURFACE: &str = " \u{2047} ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Unigram,
    Bpe,
}

/// A SentencePiece model.
#[derive(Debug)]
pub struct SentencePiece {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    normalizer: Normalizer,
    denormalizer: Option<Normalizer>,
    unknown_surface: String,
    specials: SpecialIds,
    origin: String,
    /// The ids of a line break, when the model has ids for white space at all; dropped by `encode_continuing`.
    line_break: Option<usize>,
}

/// What a GGUF file says about a vocabulary of this kind.
pub(crate) struct BpeParts {
    /// Text, score and kind number of each piece.
    pub pieces: Vec<(String, f32, i32)>,
    /// Whether a space is put before the text.
    pub add_dummy_prefix: bool,
    /// The ids with a role.
    pub specials: SpecialIds,
    /// The file the vocabulary came from.
    pub origin: String,
}

impl SentencePiece {
    /// Reads a `.model` file.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes, path)
    }

    /// A model from the bytes of a `.model` file; `path` is for messages.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        let model = ModelProto::decode(bytes).ok().filter(|model| !model.pieces.is_empty());
        let model = model.ok_or_else(|| Error::NotATokenizer {
            path: path.to_owned(),
            expected: "a SentencePiece model",
            found: crate::auto::describe(bytes),
        })?;
        let origin = path.display().to_string();
        Self::from_proto(model, origin.clone()).map_err(|problem| Error::SentencePiece { origin, problem })
    }

    fn from_proto(model: ModelProto, origin: String) -> Result<Self, SentencePieceProblem> {
        let trainer = model.trainer_spec.unwrap_or_default();
        let algorithm = match trainer.model_type() {
            1 => Algorithm::Unigram,
            2 => Algorithm::Bpe,
            found => return Err(SentencePieceProblem::ModelType { found }),
        };
        let pieces = model.pieces.iter().map(|p| (p.text().to_owned(), p.score(), p.kind())).collect::<Vec<_>>();
        let vocabulary = Vocabulary::new(pieces, trainer.byte_fallback(), algorithm == Algorithm::Unigram)?;
        let normalizer =
            Normalizer::new(&model.normalizer_spec.unwrap_or_default(), trainer.treat_whitespace_as_suffix())?;
        let denormalizer = match model.denormalizer_spec {
            Some(spec) if !spec.precompiled_charsmap().is_empty() => {
                let plain = NormalizerSpec {
                    add_dummy_prefix: Some(false),
                    remove_extra_whitespaces: Some(false),
                    escape_whitespaces: Some(false),
                    ..spec
                };
                Some(Normalizer::new(&plain, false)?)
            }
            _ => None,
        };
        let control = |piece: Option<&str>, default: &str| {
            let id = vocabulary.piece_to_id(piece.unwrap_or(default))?;
            (vocabulary.kind(id) == Kind::Control).then_some(id)
        };
        let specials = SpecialIds {
            bos: control(trainer.bos_piece.as_deref(), "<s>"),
            eos: control(trainer.eos_piece.as_deref(), "</s>"),
            pad: control(trainer.pad_piece.as_deref(), "<pad>"),
            stop: Vec::new(),
        };
        let unknown_surface = trainer.unk_surface.unwrap_or_else(|| UNKNOWN_SURFACE.to_owned());
        let model = Self {
            vocabulary,
            algorithm,
            normalizer,
            denormalizer,
            unknown_surface,
            specials,
            origin,
            line_break: None,
        };
        Ok(model.with_line_break())
    }

    /// A byte-pair model from the lists of a GGUF file; bytes are used when all 256 are there.
    pub(crate) fn from_parts(parts: BpeParts) -> Result<Self> {
        let BpeParts { pieces, add_dummy_prefix, specials, origin } = parts;
        let byte_fallback = pieces.iter().filter(|(.., kind)| *kind == 6).count() == 256;
        let vocabulary = Vocabulary::new(pieces, byte_fallback, false)
            .map_err(|problem| Error::SentencePiece { origin: origin.clone(), problem })?;
        let normalizer = Normalizer {
            charsmap: None,
            add_dummy_prefix,
            remove_extra_whitespaces: false,
            escape_whitespaces: true,
            whitespace_as_suffix: false,
        };
        let model = Self {
            vocabulary,
            algorithm: Algorithm::Bpe,
            normalizer,
            denormalizer: None,
            unknown_surface: UNKNOWN_SURFACE.to_owned(),
            specials,
            origin,
            line_break: None,
        };
        Ok(model.with_line_break())
    }

    fn with_line_break(mut self) -> Self {
        let encodes_whitespace = [" ", "\n", "\t", "\r", "\u{b}"].iter().any(|c| !self.segments(c).is_empty());
        self.line_break = encodes_whitespace.then(|| self.segments("\n").len());
        self
    }

    /// The control pieces (bos, eos and the like) with their ids.
    pub fn control_pieces(&self) -> Vec<(String, u32)> {
        let ids = 0..self.vocabulary.len() as u32;
        let control = ids.filter(|&id| self.vocabulary.kind(id) == Kind::Control);
        control.filter_map(|id| Some((self.vocabulary.piece(id)?.to_owned(), id))).collect()
    }

    /// Ids and the bytes of `text` where they start.
    fn segments(&self, text: &str) -> Vec<(u32, usize)> {
        let normalized = self.normalizer.normalize(text, &self.vocabulary.user_defined);
        let segments = match self.algorithm {
            Algorithm::Unigram => unigram::segment(&self.vocabulary, &normalized.text),
            Algorithm::Bpe => bpe::segment(&self.vocabulary, &normalized.text),
        };
        let mut ids = Vec::with_capacity(segments.len());
        let mut after_unknown = false;
        for segment in segments {
            let is_unknown = segment.id == self.vocabulary.unknown;
            match &self.vocabulary.bytes {
                Some(bytes) if is_unknown => {
                    let range = segment.start..segment.end;
                    let surface = normalized.text[range.clone()].bytes();
                    ids.extend(surface.zip(range).map(|(b, at)| (bytes[usize::from(b)], normalized.origin[at])));
                }
                _ if is_unknown && after_unknown => {}
                _ => ids.push((segment.id, normalized.origin[segment.start])),
            }
            after_unknown = is_unknown;
        }
        ids
    }

    /// The text of one piece that is not a byte, and whether the dummy space was removed from it.
    fn surface(&self, id: u32, at_start: bool) -> (String, bool) {
        let mut piece = match self.vocabulary.kind(id) {
            Kind::Control => return (String::new(), false),
            Kind::Unknown => return (self.unknown_surface.clone(), false),
            _ => self.vocabulary.piece(id).unwrap_or_default(),
        };
        let mut removed = false;
        let normalizer = &self.normalizer;
        if at_start
            && (normalizer.add_dummy_prefix || normalizer.remove_extra_whitespaces)
            && let Some(rest) = piece.strip_prefix(SPACE)
        {
            piece = rest;
            // A model that removes extra spaces removes every leading one.
            removed = !normalizer.remove_extra_whitespaces;
        }
        (piece.replace(SPACE, " "), removed)
    }
}

impl Tokenizer for SentencePiece {
    fn encode_with_starts(&self, text: &str) -> Result<Vec<(u32, usize)>> {
        Ok(self.segments(text))
    }

    fn encode_continuing(&self, text: &str) -> Result<Vec<u32>> {
        let Some(skip) = self.line_break else { return self.encode(text) };
        let ids = self.segments(&format!("\n{text}"));
        Ok(ids.into_iter().skip(skip).map(|(id, _)| id).collect())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut bytes = Vec::new();
        let (mut at_start, mut removed) = (true, false);
        for &id in ids {
            let known = (id as usize) < self.vocabulary.len();
            if known && self.vocabulary.kind(id) == Kind::Byte {
                let piece = self.vocabulary.piece(id).unwrap_or_default();
                bytes.extend(vocabulary::parse_byte_piece(piece));
                continue;
            }
            push_bytes(&mut text, &mut bytes);
            if !known {
                text.push(char::REPLACEMENT_CHARACTER);
                continue;
            }
            if removed || !text.is_empty() {
                at_start = false;
            }
            if self.vocabulary.kind(id) == Kind::Control && !skip_special {
                text.push_str(self.vocabulary.piece(id).unwrap_or_default());
                continue;
            }
            let (surface, took_space) = self.surface(id, at_start);
            removed = took_space;
            text.push_str(&surface);
        }
        push_bytes(&mut text, &mut bytes);
        match &self.denormalizer {
            Some(denormalizer) => denormalizer.normalize(&text, &PieceIndex::default()).text,
            None => text,
        }
    }

    fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    fn id_to_piece(&self, id: u32) -> Option<String> {
        self.vocabulary.piece(id).map(str::to_owned)
    }

    fn piece_to_id(&self, piece: &str) -> Option<u32> {
        self.vocabulary.piece_to_id(piece)
    }

    fn specials(&self) -> &SpecialIds {
        &self.specials
    }

    fn origin(&self) -> &str {
        &self.origin
    }
}

/// Moves bytes over to the text; each byte that starts no character becomes U+FFFD.
fn push_bytes(text: &mut String, bytes: &mut Vec<u8>) {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let longest = rest.len().min(4);
        let valid = (1..=longest).find_map(|n| Some((std::str::from_utf8(&rest[..n]).ok()?, n)));
        let (c, length) = valid.unwrap_or(("\u{fffd}", 1));
        text.push_str(c);
        rest = &rest[length..];
    }
    bytes.clear();
}
