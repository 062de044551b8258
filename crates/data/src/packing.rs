//! Packing: documents laid end to end in rows of at most `max_seq_len` tokens.
//!
//! A pack is a run of consecutive documents, so packing moves no token: it only decides where rows end. Every document
//! keeps its own labels, the last of which is ignored, so no document predicts the first token of the next.
//!
//! Rules:   without splitting, a document that does not fit opens the next row; with splitting, it fills the row and
//!          goes on in the next, where its positions go on too. Positions count from 0 in each document, modulo
//!          `max_seq_len`. A full row is closed when the next document arrives.
//! Errors:  `Error::SampleTooLong` for a document over `max_seq_len` that may not be split. Panics: never.
//! Checked: packed cases of `conformance/data/datasets.jsonl`; the laws in `tests/packing.rs`.

use crate::{Error, Result};

/// A document, or the part of one that lies in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    /// Length in tokens, at least 1.
    pub len: usize,
    /// Position of the first token; above 0 only in the later parts of a split document.
    pub first_position: usize,
}

/// Groups documents of these lengths into rows; each inner list is one row.
pub fn pack_lengths(
    lengths: impl IntoIterator<Item = usize>,
    max_seq_len: usize,
    split_across_pack: bool,
) -> Result<Vec<Vec<Document>>> {
    let mut packs = Vec::new();
    let mut pack: Vec<Document> = Vec::new();
    let mut used = 0;
    for (document, len) in lengths.into_iter().enumerate() {
        if len > max_seq_len && !split_across_pack {
            return Err(Error::SampleTooLong { row: document + 1, len, max_seq_len });
        }
        let (mut position, mut left) = (0, len);
        while used + left > max_seq_len {
            let taken = if split_across_pack { max_seq_len - used } else { 0 };
            if taken > 0 {
                pack.push(Document { len: taken, first_position: position % max_seq_len });
            }
            packs.push(std::mem::take(&mut pack));
            used = 0;
            position += taken;
            left -= taken;
        }
        if left > 0 {
            pack.push(Document { len: left, first_position: position % max_seq_len });
            used += left;
        }
    }
    if !pack.is_empty() {
        packs.push(pack);
    }
    Ok(packs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(packs: &[Vec<Document>]) -> Vec<Vec<(usize, usize)>> {
        packs.iter().map(|pack| pack.iter().map(|d| (d.len, d.first_position)).collect()).collect()
    }

    #[test]
    fn split_documents_continue_their_positions() {
        let packs = pack_lengths([7, 10, 9], 10, true).unwrap();
        assert_eq!(pairs(&packs), [vec![(7, 0), (3, 0)], vec![(7, 3), (3, 0)], vec![(6, 3)]]);
    }

    #[test]
    fn whole_documents_open_the_next_row() {
        let packs = pack_lengths([4, 6, 1, 10, 3], 10, false).unwrap();
        assert_eq!(pairs(&packs), [vec![(4, 0), (6, 0)], vec![(1, 0)], vec![(10, 0)], vec![(3, 0)]]);
    }

    #[test]
    fn a_document_longer_than_two_rows_wraps_its_positions() {
        let packs = pack_lengths([2, 25], 10, true).unwrap();
        assert_eq!(pairs(&packs), [vec![(2, 0), (8, 0)], vec![(10, 8)], vec![(7, 8)]]);
    }

    #[test]
    fn nothing_packs_to_nothing() {
        assert!(pack_lengths([], 10, false).unwrap().is_empty());
    }

    #[test]
    fn a_long_document_that_may_not_be_split_is_refused() {
        let error = pack_lengths([3, 61], 60, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sample 2 is too long to pack: expected at most max_seq_len = 60 tokens, found 61"
        );
        assert_eq!(error.hint().unwrap(), "set `dataset.split_across_pack=True` or raise `tokenizer.max_seq_len`");
    }
}
