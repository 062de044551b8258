//! tiktoken `.model` files, the kind Llama 3 ships: byte-level BPE where a token's rank is both its id and its merge order.
//!
//! Bytes: one token a line, `<base64 of its bytes> <rank>`. Text is cut by Llama 3's pattern, after runs of more than 25000
//! characters of white space, or of none, are split (the pattern's cost grows with them). Special tokens in text are ordinary text.
//!
//! Errors: `Error::Tiktoken` with the line number. Source: the format of openai/tiktoken.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hf_tokenizers::utils::SysRegex;

use crate::huggingface::cl100k_pattern;
use crate::{Error, Result, SpecialIds, Tokenizer};

const MAX_CHUNK_CHARS: usize = 400_000;
const MAX_RUN_CHARS: usize = 25_000;

/// A byte-level BPE vocabulary by rank.
#[derive(Debug)]
pub struct Tiktoken {
    ranks: HashMap<Vec<u8>, u32>,
    tokens: HashMap<u32, Vec<u8>>,
    pattern: SysRegex,
    vocab_size: usize,
    specials: SpecialIds,
    origin: String,
}

impl Tiktoken {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes, path)
    }

    /// Whether the bytes look like a file of this kind: a first line of base64, a space and a number.
    pub(crate) fn recognises(bytes: &[u8]) -> bool {
        let first = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        std::str::from_utf8(first).is_ok_and(|line| parse_line(line).is_some())
    }

    /// A vocabulary from the bytes of a file; `path` is for messages.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|_| Self::recognises(bytes));
        let text = text.ok_or_else(|| Error::NotATokenizer {
            path: path.to_owned(),
            expected: "a tiktoken file, lines of base64 and rank",
            found: crate::auto::describe(bytes),
        })?;
        let (mut ranks, mut tokens, mut vocab_size) = (HashMap::new(), HashMap::new(), 0);
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let bad = |expected| Error::Tiktoken {
                path: path.to_owned(),
                line: index + 1,
                expected,
                found: line.chars().take(60).collect(),
            };
            let (token, rank) = parse_line(line).ok_or_else(|| bad("a token in base64, a space and its rank"))?;
            if tokens.insert(rank, token.clone()).is_some() {
                return Err(bad("a rank that no earlier line has"));
            }
            if ranks.insert(token, rank).is_some() {
                return Err(bad("a token that no earlier line has"));
            }
            vocab_size = vocab_size.max(rank as usize + 1);
        }
        if let Some(byte) = (0..=255u8).find(|&byte| !ranks.contains_key(&[byte][..])) {
            return Err(Error::Tiktoken {
                path: path.to_owned(),
                line: text.lines().count(),
                expected: "a token for each of the 256 bytes before the end",
                found: format!("none for byte {byte:#04x}"),
            });
        }
        let pattern = SysRegex::new(&cl100k_pattern(3)).expect("the pattern is a constant that compiles");
        let origin = path.display().to_string();
        Ok(Self { ranks, tokens, pattern, vocab_size, specials: SpecialIds::default(), origin })
    }

    /// Merges the bytes of one piece, lowest rank first, leftmost among equals.
    fn merge(&self, piece: &[u8], start: usize, ids: &mut Vec<(u32, usize)>) {
        if let Some(&id) = self.ranks.get(piece) {
            ids.push((id, start));
            return;
        }
        // Where the part that starts at a byte ends; 0 for a byte that starts no part.
        let mut end_of: Vec<usize> = (1..=piece.len()).collect();
        let mut start_before: Vec<usize> = (0..piece.len()).map(|at| at.saturating_sub(1)).collect();
        let mut agenda = BinaryHeap::new();
        let consider = |agenda: &mut BinaryHeap<_>, end_of: &[usize], left: usize| {
            let Some(&end) = end_of.get(end_of[left]) else { return };
            if let Some(&rank) = self.ranks.get(&piece[left..end]) {
                agenda.push(Reverse((rank, left, end)));
            }
        };
        for left in 0..piece.len() {
            consider(&mut agenda, &end_of, left);
        }
        while let Some(Reverse((_, left, end))) = agenda.pop() {
            let right = end_of[left];
            if right == 0 || end_of.get(right) != Some(&end) {
                continue;
            }
            end_of[left] = end;
            end_of[right] = 0;
            if let Some(before) = start_before.get_mut(end) {
                *before = left;
            }
            consider(&mut agenda, &end_of, left);
            if left > 0 {
                consider(&mut agenda, &end_of, start_before[left]);
            }
        }
        let mut at = 0;
        while at < piece.len() {
            let id = self.ranks.get(&piece[at..end_of[at]]);
            ids.push((*id.expect("every byte is a token, and merges make tokens"), start + at));
            at = end_of[at];
        }
    }
}

fn parse_line(line: &str) -> Option<(Vec<u8>, u32)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    let token = STANDARD.decode(token).ok().filter(|token| !token.is_empty())?;
    Some((token, rank.parse().ok()?))
}

/// Cuts text so that no part is longer than a chunk or holds too long a run of white space, or of none.
fn split_runs(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut chars, mut run, mut run_is_space) = (0, 0, 0, false);
    for (at, c) in text.char_indices() {
        let is_space = c.is_whitespace();
        run = if is_space == run_is_space { run + 1 } else { 1 };
        run_is_space = is_space;
        if at > start && (run > MAX_RUN_CHARS || chars == MAX_CHUNK_CHARS) {
            parts.push((start, &text[start..at]));
            (start, run) = (at, 1);
            chars = if chars == MAX_CHUNK_CHARS { 0 } else { chars };
        }
        chars += 1;
    }
    parts.push((start, &text[start..]));
    parts
}

impl Tokenizer for Tiktoken {
    fn encode_with_starts(&self, text: &str) -> Result<Vec<(u32, usize)>> {
        let mut ids = Vec::new();
        for (offset, part) in split_runs(text) {
            let mut reached = 0;
            for (start, end) in self.pattern.find_iter(part) {
                self.merge(&part.as_bytes()[start..end], offset + start, &mut ids);
                reached = end;
            }
            // The pattern covers every character; an early end is the engine giving up.
            if reached < part.len() {
                return Err(Error::Encode {
                    origin: self.origin.clone(),
                    bytes: text.len(),
                    reason: format!("the pattern engine gave up at byte {}", offset + reached),
                });
            }
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32], _skip_special: bool) -> String {
        let unknown = "\u{fffd}".as_bytes();
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| self.tokens.get(id).map_or(unknown, Vec::as_slice)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn id_to_piece(&self, id: u32) -> Option<String> {
        Some(String::from_utf8_lossy(self.tokens.get(&id)?).into_owned())
    }

    fn piece_to_id(&self, piece: &str) -> Option<u32> {
        self.ranks.get(piece.as_bytes()).copied()
    }

    fn specials(&self) -> &SpecialIds {
        &self.specials
    }

    fn origin(&self) -> &str {
        &self.origin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_cut() {
        let text = format!("{}b{}", "a".repeat(MAX_RUN_CHARS), " ".repeat(10));
        let parts = split_runs(&text);
        assert_eq!(parts.iter().map(|(at, p)| (*at, p.len())).collect::<Vec<_>>(), [(0, 25_000), (25_000, 11)]);
        assert_eq!(split_runs(""), [(0, "")]);
    }

    #[test]
    fn bad_lines_are_named() {
        let path = Path::new("t.model");
        let error = Tiktoken::from_bytes(b"AA== 0\nAQ== one\n", path).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("AQ== one"), "{error}");
        let error = Tiktoken::from_bytes(b"AA== 0\nAQ== 0\n", path).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("no earlier line"), "{error}");
        let error = Tiktoken::from_bytes(b"AA== 0\n", path).unwrap_err().to_string();
        assert!(error.contains("0x01"), "{error}");
        assert!(matches!(Tiktoken::from_bytes(b"{}", path), Err(Error::NotATokenizer { .. })));
    }
}
