//! Laws of packing and of batches made from packs.

use data::{Dataset, IGNORE_INDEX, collate};
use proptest::prelude::*;

/// Documents with distinct tokens 1, 2, 3, ..., so that a lost or doubled token shows.
fn dataset(lengths: &[usize]) -> Dataset {
    let mut all = Dataset::new();
    let mut next = 1;
    for &len in lengths {
        let tokens: Vec<i32> = (next..next + len as i32).collect();
        let labels: Vec<i32> = tokens[1..].iter().copied().chain([IGNORE_INDEX]).collect();
        all.push(&tokens, &labels);
        next += len as i32;
    }
    all
}

fn lengths_and_width() -> impl Strategy<Value = (Vec<usize>, usize)> {
    (1_usize..20).prop_flat_map(|width| (prop::collection::vec(1..=width, 0..30), Just(width)))
}

proptest! {
    #[test]
    fn every_token_stays_once_and_in_order(lengths in prop::collection::vec(1_usize..40, 0..30), width in 1_usize..20) {
        let packed = dataset(&lengths).pack(width, true).unwrap();
        let tokens: Vec<i32> = (0..packed.len()).flat_map(|row| packed.sample(row).tokens.to_vec()).collect();
        prop_assert_eq!(tokens, (1..=lengths.iter().sum::<usize>() as i32).collect::<Vec<_>>());
        // All rows but the last are full.
        for row in 0..packed.len() {
            let len = packed.sample(row).tokens.len();
            prop_assert!(len == width || row + 1 == packed.len());
        }
    }

    #[test]
    fn whole_documents_stay_whole((lengths, width) in lengths_and_width()) {
        let packed = dataset(&lengths).pack(width, false).unwrap();
        let documents: Vec<usize> =
            (0..packed.len()).flat_map(|row| packed.sample(row).documents.iter().map(|d| d.len).collect::<Vec<_>>()).collect();
        prop_assert_eq!(documents, lengths);
        for row in 0..packed.len() {
            let sample = packed.sample(row);
            prop_assert!(sample.tokens.len() <= width);
            prop_assert!(sample.documents.iter().all(|d| d.first_position == 0));
            // The next document would not have fitted.
            if row + 1 < packed.len() {
                prop_assert!(sample.tokens.len() + packed.sample(row + 1).documents[0].len > width);
            }
        }
    }

    #[test]
    fn labels_never_cross_documents(lengths in prop::collection::vec(1_usize..40, 1..30), width in 1_usize..20) {
        let packed = dataset(&lengths).pack(width, true).unwrap();
        let mut ends = lengths.iter().scan(0, |end, len| { *end += *len as i32; Some(*end) }).collect::<Vec<_>>();
        ends.sort_unstable();
        for row in 0..packed.len() {
            let sample = packed.sample(row);
            for (token, label) in sample.tokens.iter().zip(sample.labels) {
                let last_of_document = ends.binary_search(token).is_ok();
                prop_assert_eq!(*label, if last_of_document { IGNORE_INDEX } else { token + 1 });
            }
        }
    }

    #[test]
    fn batches_keep_documents_apart((lengths, width) in lengths_and_width(), split in any::<bool>()) {
        let packed = dataset(&lengths).pack(width, split).unwrap();
        let rows: Vec<usize> = (0..packed.len()).collect();
        let batch = collate(&packed, &rows, 7);
        let size = rows.len() * batch.tokens_per_row;
        for buffer in [&batch.tokens, &batch.labels, &batch.positions, &batch.doc_start] {
            prop_assert_eq!(buffer.len(), size);
        }
        prop_assert_eq!(batch.num_unmasked, batch.labels.iter().filter(|&&l| l != IGNORE_INDEX).count());
        for row in rows {
            let at = |t: usize| row * width + t;
            let sample = packed.sample(row);
            for t in 0..width {
                let start = batch.doc_start[at(t)] as usize;
                prop_assert!(start <= t && batch.doc_start[at(start)] as usize == start);
                // Positions count up inside a document and restart with it, except in the rest of a split one.
                if t > start && t < sample.tokens.len() {
                    prop_assert_eq!(batch.positions[at(t)], batch.positions[at(t - 1)] + 1);
                }
                if t == start && t > 0 && t < sample.tokens.len() {
                    prop_assert_eq!(batch.positions[at(t)], 0);
                }
                if t >= sample.tokens.len() {
                    prop_assert_eq!(start, sample.tokens.len());
                    prop_assert_eq!((batch.tokens[at(t)], batch.labels[at(t)]), (0, IGNORE_INDEX));
                    prop_assert!(batch.positions[at(t)] < width as i32);
                }
            }
        }
    }
}
