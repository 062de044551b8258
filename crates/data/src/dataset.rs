//! A tokenised dataset: rows of tokens and shifted labels, in two flat buffers.
//!
//! Shapes:  tokens, labels: (sum of row lengths). labels[i] is the token that follows tokens[i], or -100 where nothing is
//!          to be learnt; the last label of a document is -100.
//! Errors:  `Error::MixedPacking`, and those of packing. Panics: `sample` of a row that does not exist.
//! Checked: `conformance/data/datasets.jsonl`.

use crate::packing::{Document, pack_lengths};
use crate::{Error, Notices, Place, Result};

/// The label of a position that adds nothing to the loss.
pub const IGNORE_INDEX: i32 = -100;

/// Rows ready to be batched.
#[derive(Debug, Clone, Default)]
pub struct Dataset {
    tokens: Vec<i32>,
    labels: Vec<i32>,
    documents: Vec<Document>,
    /// Per row: where its tokens and its documents end.
    ends: Vec<(usize, usize)>,
    packed_len: Option<usize>,
    /// Length of the longest document that was read from a file, and where it stands.
    longest: Option<(usize, Place)>,
    notices: Notices,
}

/// One row of a dataset: a single document, or a pack of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Token ids.
    pub tokens: &'a [i32],
    /// Shifted labels, as long as `tokens`.
    pub labels: &'a [i32],
    /// The documents that make up the row, in order; their lengths add up to the row's.
    pub documents: &'a [Document],
    /// Width of a pack, null for a row that is not packed.
    packed_len: Option<usize>,
}

impl Dataset {
    /// A dataset without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a document as a row of its own. `labels` are shifted and as long as `tokens`; an empty one is no row.
    pub fn push(&mut self, tokens: &[i32], labels: &[i32]) {
        debug_assert_eq!(tokens.len(), labels.len(), "one label a token");
        if tokens.is_empty() {
            return;
        }
        self.tokens.extend_from_slice(tokens);
        self.labels.extend_from_slice(labels);
        self.documents.push(Document { len: tokens.len(), first_position: 0 });
        self.ends.push((self.tokens.len(), self.documents.len()));
    }

    /// [`Dataset::push`] of a document read from `place`.
    pub(crate) fn push_from(&mut self, place: &Place, tokens: &[i32], labels: &[i32]) {
        if self.longest.as_ref().is_none_or(|(len, _)| *len < tokens.len()) {
            self.longest = Some((tokens.len(), place.clone()));
        }
        self.push(tokens, labels);
    }

    /// Where the longest row stands in its file; `None` if rows are packs, or were not read from files.
    pub fn longest_row(&self) -> Option<&Place> {
        self.longest.as_ref().filter(|_| self.packed_len.is_none()).map(|(_, place)| place)
    }

    /// Number of rows: documents, or packs.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of tokens, padding not counted.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The largest token id, for a check against the model's vocabulary; `None` without rows.
    pub fn max_token(&self) -> Option<i32> {
        self.tokens.iter().copied().max()
    }

    /// Whether there is a token to learn in any row.
    pub fn has_labels(&self) -> bool {
        self.labels.iter().any(|&label| label != IGNORE_INDEX)
    }

    /// Length of the longest row in tokens; packs count as full.
    pub fn max_row_len(&self) -> usize {
        self.packed_len.unwrap_or_else(|| (0..self.len()).map(|row| self.sample(row).tokens.len()).max().unwrap_or(0))
    }

    /// `Some(max_seq_len)` if rows are packs, which batches pad to that length.
    pub fn packed_len(&self) -> Option<usize> {
        self.packed_len
    }

    /// What the user should know about how the rows were read.
    pub fn notices(&self) -> &Notices {
        &self.notices
    }

    pub(crate) fn notices_mut(&mut self) -> &mut Notices {
        &mut self.notices
    }

    /// Row number `row`, from 0.
    pub fn sample(&self, row: usize) -> Sample<'_> {
        let (end, document_end) = self.ends[row];
        let (start, document_start) = if row == 0 { (0, 0) } else { self.ends[row - 1] };
        Sample {
            tokens: &self.tokens[start..end],
            labels: &self.labels[start..end],
            documents: &self.documents[document_start..document_end],
            packed_len: self.packed_len,
        }
    }

    /// The same documents in rows of up to `max_seq_len` tokens (see [`crate::packing`]).
    pub fn pack(mut self, max_seq_len: usize, split_across_pack: bool) -> Result<Self> {
        let packs = pack_lengths(self.documents.iter().map(|d| d.len), max_seq_len, split_across_pack)?;
        self.documents.clear();
        self.ends.clear();
        let mut end = 0;
        for pack in packs {
            end += pack.iter().map(|d| d.len).sum::<usize>();
            self.documents.extend(pack);
            self.ends.push((end, self.documents.len()));
        }
        self.packed_len = Some(max_seq_len);
        Ok(self)
    }

    /// Datasets one after the other, as a `dataset:` list in the config means.
    pub fn concat(parts: Vec<Self>) -> Result<Self> {
        let mut parts = parts.into_iter();
        let Some(mut all) = parts.next() else { return Ok(Self::new()) };
        for (index, part) in parts.enumerate() {
            if part.packed_len != all.packed_len {
                return Err(Error::MixedPacking { index: index + 1, first: all.packed_len, found: part.packed_len });
            }
            let (tokens, documents) = (all.tokens.len(), all.documents.len());
            all.tokens.extend(part.tokens);
            all.labels.extend(part.labels);
            all.documents.extend(part.documents);
            all.ends.extend(part.ends.iter().map(|(t, d)| (t + tokens, d + documents)));
            if let Some((len, _)) = &part.longest
                && all.longest.as_ref().is_none_or(|(longest, _)| longest < len)
            {
                all.longest = part.longest;
            }
            all.notices.merge(part.notices);
        }
        Ok(all)
    }
}

impl Sample<'_> {
    /// Position of each token in its document, for the rotary embedding.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        let modulus = self.packed_len.unwrap_or(usize::MAX);
        self.documents.iter().flat_map(move |d| (d.first_position..d.first_position + d.len).map(move |p| p % modulus))
    }
}

/// Shifted labels of a document: each position predicts the next token unless `mask` is true there; the last
/// predicts nothing.
pub(crate) fn shifted_labels(tokens: &[i32], mask: Option<&[bool]>) -> Vec<i32> {
    let next = (1..tokens.len()).map(|i| if mask.is_some_and(|m| m[i]) { IGNORE_INDEX } else { tokens[i] });
    next.chain((!tokens.is_empty()).then_some(IGNORE_INDEX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(rows: &[&[i32]]) -> Dataset {
        let mut all = Dataset::new();
        for row in rows {
            all.push(row, &shifted_labels(row, None));
        }
        all
    }

    #[test]
    fn labels_are_the_next_tokens() {
        assert_eq!(shifted_labels(&[5, 6, 7], None), [6, 7, -100]);
        assert_eq!(shifted_labels(&[5, 6, 7], Some(&[true, true, false])), [-100, 7, -100]);
        assert!(shifted_labels(&[], None).is_empty());
    }

    #[test]
    fn the_end_of_a_document_does_not_predict_the_next_document() {
        let packed = dataset(&[&[1, 2, 3], &[7, 8, 9]]).pack(8, false).unwrap();
        assert_eq!(packed.len(), 1);
        let row = packed.sample(0);
        assert_eq!(row.tokens, [1, 2, 3, 7, 8, 9]);
        assert_eq!(row.labels, [2, 3, -100, 8, 9, -100]);
        assert_eq!(row.positions().collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn concat_keeps_order_and_rows() {
        let all = Dataset::concat(vec![dataset(&[&[1, 2], &[3]]), dataset(&[&[4, 5, 6]])]).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all.sample(1).tokens, [3]);
        assert_eq!(all.sample(2).tokens, [4, 5, 6]);
        assert_eq!(all.sample(2).documents, [Document { len: 3, first_position: 0 }]);
        assert_eq!((all.num_tokens(), all.max_token(), all.max_row_len()), (6, Some(6), 3));
        assert!(Dataset::concat(vec![]).unwrap().is_empty());
    }

    #[test]
    fn packed_and_unpacked_do_not_mix() {
        let error = Dataset::concat(vec![dataset(&[&[1]]), dataset(&[&[1]]).pack(8, false).unwrap()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`dataset[1]` cannot be joined to `dataset[0]`: expected `packed: False`, found `packed: True` with max_seq_len = 8"
        );
    }
}
