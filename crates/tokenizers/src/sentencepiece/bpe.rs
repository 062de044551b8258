//! Byte-pair segmentation: neighbours are merged, best score first, leftmost first among equals.
//!
//! Pieces marked unused take part in merging and are split again at the end.
//! Source: Sennrich et al. 2016, arXiv:1508.07909; order as in Google's library.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocabulary::{Kind, Segment, Vocabulary};

/// A stretch of text, linked to its neighbours; empty once merged into the one before it.
struct Symbol {
    start: usize,
    end: usize,
    prev: Option<usize>,
    next: Option<usize>,
    /// User-defined pieces are never merged.
    frozen: bool,
}

/// Two neighbours whose union is a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both; tells whether one of them has changed since.
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

struct Merger<'a> {
    vocabulary: &'a Vocabulary,
    text: &'a str,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// How an unused piece was put together.
    unmerge: HashMap<&'a str, usize>,
}

/// Splits normalised text.
pub fn segment(vocabulary: &Vocabulary, text: &str) -> Vec<Segment> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut merger = Merger {
        vocabulary,
        text,
        symbols: symbols(vocabulary, text),
        agenda: BinaryHeap::new(),
        unmerge: HashMap::new(),
    };
    for right in 1..merger.symbols.len() {
        merger.consider(Some(right - 1), Some(right));
    }
    while let Some(pair) = merger.agenda.pop() {
        merger.merge(&pair);
    }
    let mut segments = Vec::new();
    let mut at = Some(0);
    while let Some(index) = at {
        let symbol = &merger.symbols[index];
        merger.resegment(symbol.start, symbol.end, &mut segments);
        at = symbol.next;
    }
    segments
}

/// One symbol a character, or a user-defined piece.
fn symbols(vocabulary: &Vocabulary, text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut start = 0;
    while let Some(c) = text[start..].chars().next() {
        let piece = vocabulary.user_defined.longest_prefix(&text[start..]);
        let end = start + piece.map_or(c.len_utf8(), |(length, _)| length);
        let index = symbols.len();
        symbols.push(Symbol {
            start,
            end,
            prev: index.checked_sub(1),
            next: (end < text.len()).then_some(index + 1),
            frozen: piece.is_some(),
        });
        start = end;
    }
    symbols
}

impl<'a> Merger<'a> {
    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (a, b) = (&self.symbols[left], &self.symbols[right]);
        if a.frozen || b.frozen {
            return;
        }
        let piece: &'a str = &self.text[a.start..b.end];
        let Some(id) = self.vocabulary.normal_id(piece) else { return };
        if self.vocabulary.kind(id) == Kind::Unused {
            self.unmerge.insert(piece, a.end - a.start);
        }
        self.agenda.push(Pair { score: self.vocabulary.score(id), left, right, length: piece.len() });
    }

    fn merge(&mut self, pair: &Pair) {
        let (left, right) = (&self.symbols[pair.left], &self.symbols[pair.right]);
        let is_empty = left.start == left.end || right.start == right.end;
        if is_empty || left.end - left.start + right.end - right.start != pair.length {
            return;
        }
        let (end, next, prev) = (right.end, right.next, left.prev);
        let left = &mut self.symbols[pair.left];
        left.end = end;
        left.next = next;
        if let Some(next) = next {
            self.symbols[next].prev = Some(pair.left);
        }
        let right = &mut self.symbols[pair.right];
        right.start = right.end;
        self.consider(prev, Some(pair.left));
        self.consider(Some(pair.left), next);
    }

    /// Emits a symbol, split again as long as it is an unused piece.
    fn resegment(&self, start: usize, end: usize, out: &mut Vec<Segment>) {
        let piece = &self.text[start..end];
        let id = self.vocabulary.piece_to_id(piece).unwrap_or(self.vocabulary.unknown);
        let split = self.unmerge.get(piece).filter(|_| self.vocabulary.kind(id) == Kind::Unused);
        match split {
            Some(&length) => {
                self.resegment(start, start + length, out);
                self.resegment(start + length, end, out);
            }
            None => out.push(Segment { id, start, end }),
        }
    }
}
