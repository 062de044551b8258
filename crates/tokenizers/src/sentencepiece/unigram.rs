//! Unigram segmentation: the split with the highest sum of log-probabilities, found with one pass over the text.
//!
//! Numbers: scores are added and compared in f32, as the reference library does, and the first of equal paths stays;
//! an unknown character costs the lowest score minus 10; a user-defined piece scores so high that it always wins.
//! Source: Kudo 2018, arXiv:1804.10959; tie and rounding behaviour as in Google's library.

use super::vocabulary::{Kind, Segment, Vocabulary};

const UNKNOWN_PENALTY: f32 = 10.0;

#[derive(Clone, Copy)]
struct Path {
    id: u32,
    score: f32,
    /// Where the last piece of the path starts.
    start: usize,
}

/// Splits normalised text.
pub fn segment(vocabulary: &Vocabulary, text: &str) -> Vec<Segment> {
    let unknown_score = vocabulary.min_score - UNKNOWN_PENALTY;
    let mut best: Vec<Option<Path>> = vec![None; text.len() + 1];
    for (start, c) in text.char_indices() {
        let so_far = best[start].map_or(0.0, |path| path.score);
        let mut offer = |end: usize, id: u32, score: f32| {
            let score = score + so_far;
            if best[end].is_none_or(|path| score > path.score) {
                best[end] = Some(Path { id, score, start });
            }
        };
        let mut has_single = false;
        for (length, id) in vocabulary.index.prefixes(&text[start..]) {
            let score = match vocabulary.kind(id) {
                Kind::Unused => continue,
                Kind::UserDefined => length as f32 * vocabulary.max_score - 0.1,
                _ => vocabulary.score(id),
            };
            offer(start + length, id, score);
            has_single |= length == c.len_utf8();
        }
        if !has_single {
            offer(start + c.len_utf8(), vocabulary.unknown, unknown_score);
        }
    }
    let mut segments = Vec::new();
    let mut end = text.len();
    while end > 0 {
        let path = best[end].expect("every character boundary is reached, by a piece or as unknown");
        segments.push(Segment { id: path.id, start: path.start, end });
        end = path.start;
    }
    segments.reverse();
    segments
}
