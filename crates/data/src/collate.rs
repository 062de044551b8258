//! Rows side by side: a batch padded on the right.
//!
//! Shapes:  every buffer of a `Batch` is (B, T), row-major; T is the longest row, or max_seq_len for packs.
//! Padding: `pad_id` (0 in packs, as in the reference) with label -100. It is a document of its own, so no real token
//!          sees it, and its positions go on after the last token's, up to T - 1.
//! Panics:  a row that does not exist.
//! Checked: unit tests here; packed cases of `conformance/data/datasets.jsonl`.

use crate::dataset::{Dataset, IGNORE_INDEX};

/// What the padding of a pack holds, whatever the tokenizer's padding id is.
const PACK_PAD_ID: i32 = 0;

/// One micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// B, rows.
    pub batch: usize,
    /// T, tokens a row, padding included.
    pub tokens_per_row: usize,
    /// Token ids.
    pub tokens: Vec<i32>,
    /// Shifted labels, -100 where nothing is to be learnt.
    pub labels: Vec<i32>,
    /// Position of each token in its document, for the rotary embedding.
    pub positions: Vec<i32>,
    /// Index in the row, 0..T, at which the token's document begins.
    pub doc_start: Vec<i32>,
    /// Labels that are not -100.
    pub num_unmasked: usize,
}

/// Puts these rows of a dataset into one batch.
pub fn collate(dataset: &Dataset, rows: &[usize], pad_id: i32) -> Batch {
    let longest = rows.iter().map(|&row| dataset.sample(row).tokens.len()).max().unwrap_or(0);
    let (width, pad_id) = dataset.packed_len().map_or((longest, pad_id), |width| (width, PACK_PAD_ID));
    let size = rows.len() * width;
    let mut batch = Batch {
        batch: rows.len(),
        tokens_per_row: width,
        tokens: Vec::with_capacity(size),
        labels: Vec::with_capacity(size),
        positions: Vec::with_capacity(size),
        doc_start: Vec::with_capacity(size),
        num_unmasked: 0,
    };
    for (index, &row) in rows.iter().enumerate() {
        let sample = dataset.sample(row);
        let end = (index + 1) * width;
        batch.tokens.extend_from_slice(sample.tokens);
        batch.tokens.resize(end, pad_id);
        batch.labels.extend_from_slice(sample.labels);
        batch.labels.resize(end, IGNORE_INDEX);
        batch.num_unmasked += sample.labels.iter().filter(|&&label| label != IGNORE_INDEX).count();

        batch.positions.extend(sample.positions().map(|position| position as i32));
        let next = sample.positions().last().map_or(0, |position| position as i32 + 1);
        let padding = width - sample.tokens.len();
        batch.positions.extend((next..).take(padding).map(|position| position.min(width as i32 - 1)));

        let mut start = 0;
        for document in sample.documents {
            batch.doc_start.resize(index * width + start + document.len, start as i32);
            start += document.len;
        }
        batch.doc_start.resize(end, start as i32);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::shifted_labels;

    fn dataset(lengths: &[usize]) -> Dataset {
        let mut all = Dataset::new();
        for (index, &len) in lengths.iter().enumerate() {
            let row: Vec<i32> = (1..=len as i32).map(|i| 100 * (index as i32 + 1) + i).collect();
            all.push(&row, &shifted_labels(&row, None));
        }
        all
    }

    #[test]
    fn rows_are_padded_to_the_longest() {
        let batch = collate(&dataset(&[2, 4, 1]), &[2, 0], 9);
        assert_eq!((batch.batch, batch.tokens_per_row, batch.num_unmasked), (2, 2, 1));
        assert_eq!(batch.tokens, [301, 9, 101, 102]);
        assert_eq!(batch.labels, [-100, -100, 102, -100]);
        assert_eq!(batch.positions, [0, 1, 0, 1]);
        assert_eq!(batch.doc_start, [0, 1, 0, 0]);
    }

    #[test]
    fn packs_are_padded_to_their_width_and_keep_documents_apart() {
        let packed = dataset(&[7, 10, 9]).pack(10, true).unwrap();
        let batch = collate(&packed, &[1, 2], 9);
        assert_eq!((batch.batch, batch.tokens_per_row), (2, 10));
        assert_eq!(batch.positions[..10], [3, 4, 5, 6, 7, 8, 9, 0, 1, 2]);
        assert_eq!(batch.doc_start[..10], [0, 0, 0, 0, 0, 0, 0, 7, 7, 7]);
        assert_eq!(batch.positions[10..], [3, 4, 5, 6, 7, 8, 9, 9, 9, 9]);
        assert_eq!(batch.doc_start[10..], [0, 0, 0, 0, 0, 0, 6, 6, 6, 6]);
        assert_eq!(batch.tokens[16..], [0, 0, 0, 0]);
        // A split document still predicts the token that opens the next row.
        assert_eq!(batch.labels[9], 304);
    }

    #[test]
    fn a_batch_without_rows_is_empty() {
        assert_eq!(collate(&dataset(&[]), &[], 0), Batch::default());
    }
}
