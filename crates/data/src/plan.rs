//! From rows to a tokenised dataset: what every builder comes down to.
//!
//! Messages: the row's transform, checks, tokens and mask from the tokenizer, labels shifted by one. The tokenizer cuts
//!           rows at its `max_seq_len`.
//! Text:     bos, the text, eos if asked for; cut at `max_seq_len - 1` tokens, as the reference does, whether or not that
//!           loses the eos. Rows of blank text are left out and counted.
//! Errors:   those of rows and transforms; `Error::Tokenize`, `Error::PackedWithoutLength`, `Error::NoTokens`.
//!           Panics: never.
//! Checked:  `conformance/data/datasets.jsonl`.

use std::sync::Arc;

use tokenizers::{Message, ModelTokenizer};

use crate::builders::{DatasetList, DatasetSection, PreferenceDatasetList};
use crate::collate::{Batch, collate};
use crate::dataset::{Dataset, IGNORE_INDEX, shifted_labels};
use crate::loader::Items;
use crate::row::Row;
use crate::rows::Rows;
use crate::source::SourceConfig;
use crate::transform::{PreferenceTransform, Transform};
use crate::{Error, Result};

/// How a dataset for supervised training is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Which rows.
    pub rows: SourceConfig,
    /// What a row holds.
    pub layout: Layout,
    /// Lay rows end to end up to the tokenizer's `max_seq_len`.
    pub packed: bool,
    /// Let a row that does not fit a pack go on in the next.
    pub split_across_pack: bool,
}

/// What a row holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// A conversation.
    Messages(Transform),
    /// Plain text.
    Text {
        /// Column of the text.
        column: String,
        /// End it with the tokenizer's eos.
        add_eos: bool,
    },
}

/// How a dataset of pairs is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreferencePlan {
    /// Which rows.
    pub rows: SourceConfig,
    /// What a row holds.
    pub transform: PreferenceTransform,
}

impl Plan {
    /// Reads and tokenises all rows.
    pub fn build(&self, tokenizer: &ModelTokenizer) -> Result<Dataset> {
        let pack_len = match (self.packed, tokenizer.max_seq_len()) {
            (true, None) => return Err(Error::PackedWithoutLength),
            (true, len) => len,
            (false, _) => None,
        };
        let rows = Rows::open(&self.rows)?;
        let mut dataset = Dataset::new();
        dataset.notices_mut().rows = rows.len();
        rows.for_each(|row| match &self.layout {
            Layout::Messages(transform) => push_messages(&mut dataset, row, transform, tokenizer),
            Layout::Text { column, add_eos } => push_text(&mut dataset, row, column, *add_eos, tokenizer),
        })?;
        if dataset.is_empty() {
            return Err(Error::NoTokens { file: rows.first_file().to_owned(), rows: rows.len() });
        }
        match pack_len {
            Some(max_seq_len) => dataset.pack(max_seq_len, self.split_across_pack),
            None => Ok(dataset),
        }
    }
}

impl DatasetSection {
    /// Reads and tokenises all datasets of the section, one after the other.
    pub fn build(&self, tokenizer: &ModelTokenizer) -> Result<Arc<dyn Items>> {
        Ok(match self {
            Self::Rows(list) => Arc::new(list.build(tokenizer)?),
            Self::Pairs(list) => Arc::new(list.build(tokenizer)?),
        })
    }
}

impl DatasetList {
    /// Reads and tokenises all datasets of the list, one after the other.
    pub fn build(&self, tokenizer: &ModelTokenizer) -> Result<Dataset> {
        // All plans are made first: a mistake in the last section shows before the first file is read.
        let plans = self.sections.iter().map(|(key, config)| Ok((key, config.plan().map_err(|e| e.within(key))?)));
        let plans = plans.collect::<Result<Vec<_>>>()?;
        let parts = plans.iter().map(|(key, plan)| plan.build(tokenizer).map_err(|error| error.within(key)));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Dataset::concat(parts)
    }
}

fn tokenize(row: &Row, messages: &[Message], tokenizer: &ModelTokenizer) -> Result<(Vec<i32>, Vec<bool>)> {
    let (tokens, mask) = tokenizer
        .tokenize_messages(messages, false)
        .map_err(|cause| Error::Tokenize { place: row.place().clone(), cause })?;
    Ok((tokens.into_iter().map(|token| token as i32).collect(), mask))
}

fn push_messages(dataset: &mut Dataset, row: &Row, transform: &Transform, tokenizer: &ModelTokenizer) -> Result<()> {
    let (tokens, mask) = tokenize(row, &transform.messages(row)?, tokenizer)?;
    let labels = shifted_labels(&tokens, Some(&mask));
    let notices = dataset.notices_mut();
    // The tokenizer does not say whether it cut; a row of exactly this length is rare enough.
    if tokenizer.max_seq_len() == Some(tokens.len()) {
        notices.truncated.add(row.place());
    }
    if labels.iter().all(|&label| label == IGNORE_INDEX) {
        notices.untrained.add(row.place());
    }
    dataset.push_from(row.place(), &tokens, &labels);
    Ok(())
}

fn push_text(dataset: &mut Dataset, row: &Row, column: &str, add_eos: bool, tokenizer: &ModelTokenizer) -> Result<()> {
    let text = row.text(column)?;
    if text.trim().is_empty() {
        dataset.notices_mut().blank.add(row.place());
        return Ok(());
    }
    let tokens = tokenizer
        .encode_text(text, true, add_eos)
        .map_err(|cause| Error::Tokenize { place: row.place().clone(), cause })?;
    let mut tokens: Vec<i32> = tokens.into_iter().map(|token| token as i32).collect();
    if let Some(max_seq_len) = tokenizer.max_seq_len()
        && tokens.len() >= max_seq_len
    {
        tokens.truncate(max_seq_len - 1);
        dataset.notices_mut().truncated.add(row.place());
    }
    dataset.push_from(row.place(), &tokens, &shifted_labels(&tokens, None));
    Ok(())
}

/// Pairs of tokenised conversations. Labels are shifted by one, as everywhere in this crate.
#[derive(Debug, Clone, Default)]
pub struct PreferenceDataset {
    /// Rows 2i and 2i + 1 are the chosen and the rejected side of pair i.
    sides: Dataset,
}

impl PreferenceDatasetList {
    /// Reads and tokenises all datasets of the list, one after the other.
    pub fn build(&self, tokenizer: &ModelTokenizer) -> Result<PreferenceDataset> {
        let plans = self.sections.iter().map(|(key, config)| Ok((key, config.plan().map_err(|e| e.within(key))?)));
        let plans = plans.collect::<Result<Vec<_>>>()?;
        let parts = plans.iter().map(|(key, plan)| plan.build(tokenizer).map_err(|error| error.within(key)));
        let sides = parts.map(|part| part.map(|part| part.sides)).collect::<Result<Vec<_>>>()?;
        Ok(PreferenceDataset { sides: Dataset::concat(sides)? })
    }
}

impl PreferencePlan {
    /// Reads and tokenises all rows.
    pub fn build(&self, tokenizer: &ModelTokenizer) -> Result<PreferenceDataset> {
        let rows = Rows::open(&self.rows)?;
        let mut sides = Dataset::new();
        sides.notices_mut().rows = rows.len();
        rows.for_each(|row| {
            let (chosen, rejected) = self.transform.messages(row)?;
            let (mut cut, mut trains) = (false, false);
            for messages in [chosen, rejected] {
                let (tokens, mask) = tokenize(row, &messages, tokenizer)?;
                if tokens.is_empty() {
                    return Err(row.bad_field("chosen, rejected", "at least one token on each side", "none"));
                }
                cut |= tokenizer.max_seq_len() == Some(tokens.len());
                let labels = shifted_labels(&tokens, Some(&mask));
                trains |= labels.iter().any(|&label| label != IGNORE_INDEX);
                sides.push_from(row.place(), &tokens, &labels);
            }
            let notices = sides.notices_mut();
            if cut {
                notices.truncated.add(row.place());
            }
            if !trains {
                notices.untrained.add(row.place());
            }
            Ok(())
        })?;
        if sides.is_empty() {
            return Err(Error::NoTokens { file: rows.first_file().to_owned(), rows: rows.len() });
        }
        Ok(PreferenceDataset { sides })
    }
}

impl PreferenceDataset {
    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.sides.len() / 2
    }

    /// True without pairs.
    pub fn is_empty(&self) -> bool {
        self.sides.is_empty()
    }

    /// Both sides as rows: 2i is the chosen, 2i + 1 the rejected side of pair i.
    pub fn sides(&self) -> &Dataset {
        &self.sides
    }

    /// A batch of 2B rows for B pairs: all chosen sides, then all rejected ones, padded together.
    ///
    /// Unlike in a batch of rows, padding sees its row: the reference logs the mean of all logits, those of padding too.
    pub fn collate(&self, pairs: &[usize], pad_id: i32) -> Batch {
        let rows: Vec<usize> = pairs.iter().map(|i| 2 * i).chain(pairs.iter().map(|i| 2 * i + 1)).collect();
        let mut batch = collate(&self.sides, &rows, pad_id);
        batch.doc_start.fill(0);
        batch
    }
}
