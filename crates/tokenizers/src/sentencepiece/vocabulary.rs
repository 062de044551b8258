//! The vocabulary of a SentencePiece model: pieces, scores and kinds, checked once.

use std::collections::HashMap;

use super::pieces::PieceIndex;
use crate::SentencePieceProblem;

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ordinary text.
    Normal,
    /// Stands for what the vocabulary does not cover.
    Unknown,
    /// Never text: bos, eos, pad.
    Control,
    /// Always kept whole.
    UserDefined,
    /// Takes part in merging, never emitted.
    Unused,
    /// One byte.
    Byte,
}

impl Kind {
    fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// A stretch of normalised text and its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The piece, or the unknown id.
    pub id: u32,
    /// First byte in the normalised text.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// Pieces with everything that is looked up while encoding.
#[derive(Debug)]
pub struct Vocabulary {
    pieces: Vec<(String, f32, Kind)>,
    /// Normal, user-defined and unused pieces.
    normal: HashMap<String, u32>,
    /// Unknown, control and byte pieces.
    reserved: HashMap<String, u32>,
    /// The same pieces as `normal`, for prefix search; filled for unigram models only.
    pub index: PieceIndex,
    /// User-defined pieces.
    pub user_defined: PieceIndex,
    /// The unknown id.
    pub unknown: u32,
    /// The id of each byte, when unknown characters become bytes.
    pub bytes: Option<Box<[u32; 256]>>,
    /// Lowest score of a normal piece.
    pub min_score: f32,
    /// Highest score of a normal piece, at least the smallest positive number, as the reference has it.
    pub max_score: f32,
}

impl Vocabulary {
    /// Checks and indexes pieces given as text, score and kind number.
    pub fn new(
        pieces: Vec<(String, f32, i32)>,
        byte_fallback: bool,
        with_index: bool,
    ) -> Result<Self, SentencePieceProblem> {
        if pieces.is_empty() {
            return Err(SentencePieceProblem::Empty);
        }
        let mut vocabulary = Self {
            pieces: Vec::with_capacity(pieces.len()),
            normal: HashMap::with_capacity(pieces.len()),
            reserved: HashMap::new(),
            index: PieceIndex::default(),
            user_defined: PieceIndex::default(),
            unknown: 0,
            bytes: None,
            min_score: f32::MAX,
            max_score: f32::MIN_POSITIVE,
        };
        let (mut unknown, mut bytes) = (Vec::new(), [None; 256]);
        for (id, (piece, score, kind)) in pieces.into_iter().enumerate() {
            let kind = Kind::from_number(kind).ok_or(SentencePieceProblem::PieceType { id, found: kind })?;
            match kind {
                Kind::Normal => {
                    vocabulary.min_score = vocabulary.min_score.min(score);
                    vocabulary.max_score = vocabulary.max_score.max(score);
                }
                Kind::Unknown => unknown.push(id as u32),
                Kind::Byte => {
                    let byte = parse_byte_piece(&piece)
                        .ok_or_else(|| SentencePieceProblem::BytePieceName { id, piece: piece.clone() })?;
                    bytes[usize::from(byte)] = Some(id as u32);
                }
                Kind::Control | Kind::UserDefined | Kind::Unused => {}
            }
            vocabulary.insert(id, piece, score, kind)?;
        }
        let [only] = unknown[..] else {
            return Err(SentencePieceProblem::UnknownPieces { found: unknown.len() });
        };
        vocabulary.unknown = only;
        if byte_fallback {
            let found: Vec<u32> = bytes.into_iter().flatten().collect();
            let count = found.len();
            vocabulary.bytes = Some(found.try_into().map_err(|_| SentencePieceProblem::BytePieces { found: count })?);
        }
        vocabulary.user_defined = vocabulary.index_of(|kind| kind == Kind::UserDefined);
        if with_index {
            vocabulary.index = vocabulary.index_of(|_| true);
        }
        Ok(vocabulary)
    }

    fn insert(&mut self, id: usize, piece: String, score: f32, kind: Kind) -> Result<(), SentencePieceProblem> {
        if piece.is_empty() {
            return Err(SentencePieceProblem::EmptyPiece { id });
        }
        let is_normal = matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused);
        let map = if is_normal { &mut self.normal } else { &mut self.reserved };
        if let Some(first) = map.insert(piece.clone(), id as u32) {
            return Err(SentencePieceProblem::DuplicatePiece { piece, first, second: id as u32 });
        }
        self.pieces.push((piece, score, kind));
        Ok(())
    }

    fn index_of(&self, wanted: impl Fn(Kind) -> bool) -> PieceIndex {
        let pieces = self.normal.iter().filter(|(_, id)| wanted(self.kind(**id)));
        PieceIndex::new(pieces.map(|(piece, id)| (piece.clone(), *id)))
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The text of a piece.
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(|(piece, ..)| piece.as_str())
    }

    /// The kind of a piece of this vocabulary.
    pub fn kind(&self, id: u32) -> Kind {
        self.pieces[id as usize].2
    }

    /// The score of a piece of this vocabulary.
    pub fn score(&self, id: u32) -> f32 {
        self.pieces[id as usize].1
    }

    /// The id of a piece that is text.
    pub fn normal_id(&self, piece: &str) -> Option<u32> {
        self.normal.get(piece).copied()
    }

    /// The id of any piece; reserved ones win.
    pub fn piece_to_id(&self, piece: &str) -> Option<u32> {
        self.reserved.get(piece).or_else(|| self.normal.get(piece)).copied()
    }
}

/// The byte of a piece written `<0xHH>`.
pub fn parse_byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || digits.starts_with('+') {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
