//! Micro-batches in the order of an epoch, one accumulation window a step, from any position.
//!
//! Counts:  an epoch has floor(rows / (ranks * batch_size)) micro-batches and
//!          floor(rows / (ranks * batch_size * gradient_accumulation_steps)) steps, from the rows of all ranks, so every
//!          rank makes as many. The remainder is dropped (`dropped_rows`), and no row is seen twice in an epoch.
//!          With `drop_last: false` (evaluation) the last micro-batch and window are shorter instead.
//! Ranks:   the rows of a step are the same for any ranks x batch_size x accumulation of the same product.
//! Resume:  the order depends on seed and epoch only, so (epoch, step) is the whole position.
//! Errors:  `Error::Zero`, `Error::TooFewRows`. Panics: never.
//! Checked: unit tests here; the laws in `tests/loader.rs`.

use std::fmt::Debug;
use std::sync::Arc;

use crate::collate::{Batch, collate};
use crate::dataset::Dataset;
use crate::order::Sampler;
use crate::plan::PreferenceDataset;
use crate::{Error, Result};

/// What batches are made of: rows, or pairs of them. `batch_size` and everything that counts rows here counts these.
pub trait Items: Debug + Send + Sync {
    /// How many there are.
    fn num_items(&self) -> usize;
    /// All rows that they are made of.
    fn rows(&self) -> &Dataset;
    /// Some of them as one batch; `pad_id` fills shorter rows.
    fn collate(&self, items: &[usize], pad_id: i32) -> Batch;
}

impl Items for Dataset {
    fn num_items(&self) -> usize {
        self.len()
    }

    fn rows(&self) -> &Dataset {
        self
    }

    fn collate(&self, items: &[usize], pad_id: i32) -> Batch {
        collate(self, items, pad_id)
    }
}

impl Items for PreferenceDataset {
    fn num_items(&self) -> usize {
        self.len()
    }

    fn rows(&self) -> &Dataset {
        self.sides()
    }

    fn collate(&self, items: &[usize], pad_id: i32) -> Batch {
        self.collate(items, pad_id)
    }
}

/// How rows become batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Rows of a micro-batch on each rank, at least 1.
    pub batch_size: usize,
    /// Micro-batches of a window, at least 1.
    pub gradient_accumulation_steps: usize,
    /// Order of rows and this rank's share.
    pub sampler: Sampler,
    /// Leave out the rows that fill no micro-batch or window.
    pub drop_last: bool,
    /// Token put after shorter rows.
    pub pad_id: i32,
}

/// A dataset with an order: gives the batches of any epoch.
#[derive(Debug, Clone)]
pub struct Loader {
    items: Arc<dyn Items>,
    options: LoaderOptions,
}

impl Loader {
    /// A loader that makes at least one step an epoch.
    pub fn new(items: Arc<dyn Items>, options: LoaderOptions) -> Result<Self> {
        if options.batch_size == 0 {
            return Err(Error::Zero { key: "batch_size" });
        }
        if options.gradient_accumulation_steps == 0 {
            return Err(Error::Zero { key: "gradient_accumulation_steps" });
        }
        let loader = Self { items, options };
        if loader.steps_per_epoch() == 0 {
            return Err(Error::TooFewRows {
                found: loader.items.num_items(),
                num_replicas: options.sampler.num_replicas,
                batch_size: options.batch_size,
                gradient_accumulation_steps: options.gradient_accumulation_steps,
            });
        }
        Ok(loader)
    }

    /// Micro-batches of an epoch on each rank.
    pub fn batches_per_epoch(&self) -> usize {
        let LoaderOptions { batch_size, sampler, drop_last, .. } = self.options;
        if drop_last {
            self.items.num_items() / sampler.num_replicas.saturating_mul(batch_size)
        } else {
            self.items.num_items().div_ceil(sampler.num_replicas).div_ceil(batch_size)
        }
    }

    /// Accumulation windows, hence optimizer steps, of an epoch.
    pub fn steps_per_epoch(&self) -> usize {
        let window = self.options.gradient_accumulation_steps;
        if self.options.drop_last {
            self.batches_per_epoch() / window
        } else {
            self.batches_per_epoch().div_ceil(window)
        }
    }

    /// Rows of all ranks that no step of an epoch trains on.
    pub fn dropped_rows(&self) -> usize {
        let LoaderOptions { batch_size, gradient_accumulation_steps, sampler, drop_last, .. } = self.options;
        let step = sampler.num_replicas * batch_size * gradient_accumulation_steps;
        if drop_last { self.items.num_items() % step } else { 0 }
    }

    /// The micro-batches of an epoch from number `start` on.
    pub fn batches(&self, epoch: usize, start: usize) -> Batches<'_> {
        let mut order = self.options.sampler.epoch_order(self.items.num_items(), epoch);
        order.truncate(self.batches_per_epoch() * self.options.batch_size);
        Batches { loader: self, order, next: start }
    }

    /// The accumulation windows of an epoch from step `start_step` on.
    pub fn windows(&self, epoch: usize, start_step: usize) -> Windows<'_> {
        let window = self.options.gradient_accumulation_steps;
        Windows {
            batches: self.batches(epoch, start_step * window),
            left: self.steps_per_epoch().saturating_sub(start_step),
        }
    }
}

/// Iterator over the micro-batches of one epoch.
#[derive(Debug)]
pub struct Batches<'a> {
    loader: &'a Loader,
    order: Vec<usize>,
    next: usize,
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let LoaderOptions { batch_size, pad_id, .. } = self.loader.options;
        let rows = self.order.chunks(batch_size).nth(self.next)?;
        self.next += 1;
        Some(self.loader.items.collate(rows, pad_id))
    }
}

/// Iterator over the accumulation windows of one epoch: all micro-batches of an optimizer step at once, so that their
/// unmasked tokens can be counted before the first forward pass.
#[derive(Debug)]
pub struct Windows<'a> {
    batches: Batches<'a>,
    left: usize,
}

impl Iterator for Windows<'_> {
    type Item = Vec<Batch>;

    fn next(&mut self) -> Option<Vec<Batch>> {
        self.left = self.left.checked_sub(1)?;
        let window = self.batches.loader.options.gradient_accumulation_steps;
        Some(self.batches.by_ref().take(window).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(batch_size: usize, gradient_accumulation_steps: usize) -> LoaderOptions {
        let sampler = Sampler { shuffle: false, ..Sampler::default() };
        LoaderOptions { batch_size, gradient_accumulation_steps, sampler, drop_last: true, pad_id: 0 }
    }

    /// Rows of one token, row i holding i.
    fn rows(n: i32) -> Arc<Dataset> {
        let mut all = Dataset::new();
        (0..n).for_each(|i| all.push(&[i], &[-100]));
        Arc::new(all)
    }

    fn tokens(window: &[Batch]) -> Vec<Vec<i32>> {
        window.iter().map(|batch| batch.tokens.clone()).collect()
    }

    #[test]
    fn the_remainder_is_dropped() {
        let loader = Loader::new(rows(11), options(2, 2)).unwrap();
        assert_eq!((loader.batches_per_epoch(), loader.steps_per_epoch(), loader.dropped_rows()), (5, 2, 3));
        let windows: Vec<_> = loader.windows(0, 0).map(|w| tokens(&w)).collect();
        assert_eq!(windows, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]);
        assert_eq!(loader.batches(0, 0).count(), 5);
    }

    #[test]
    fn without_drop_last_the_end_is_shorter() {
        let loader = Loader::new(rows(5), LoaderOptions { drop_last: false, ..options(2, 2) }).unwrap();
        assert_eq!((loader.batches_per_epoch(), loader.steps_per_epoch(), loader.dropped_rows()), (3, 2, 0));
        let windows: Vec<_> = loader.windows(0, 0).map(|w| tokens(&w)).collect();
        assert_eq!(windows, [vec![vec![0, 1], vec![2, 3]], vec![vec![4]]]);
    }

    #[test]
    fn a_started_epoch_goes_on() {
        let shuffled = LoaderOptions { sampler: Sampler::default(), ..options(2, 2) };
        let loader = Loader::new(rows(23), shuffled).unwrap();
        let all: Vec<_> = loader.windows(3, 0).collect();
        assert_eq!(all.len(), 5);
        assert_eq!(loader.windows(3, 2).collect::<Vec<_>>(), all[2..]);
        assert_eq!(loader.windows(3, 5).count(), 0);
        assert_eq!(loader.windows(3, 6).count(), 0);
        assert_eq!(loader.batches(3, 3).next().unwrap(), all[1][1]);
    }

    #[test]
    fn too_few_rows_for_a_step() {
        let error = Loader::new(rows(7), options(2, 4)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "too few rows for one optimizer step\n  expected at least 8 = ranks 1 * batch_size 2 * gradient_accumulation_steps 4, found 7"
        );
        assert_eq!(error.hint().unwrap(), "lower `batch_size` or `gradient_accumulation_steps`, or add rows");
    }

    #[test]
    fn zero_sizes_are_refused() {
        let error =
            |batch_size, accumulation| Loader::new(rows(7), options(batch_size, accumulation)).unwrap_err().to_string();
        assert_eq!(error(0, 1), "`batch_size`: expected an integer >= 1, found `0`");
        assert_eq!(error(1, 0), "`gradient_accumulation_steps`: expected an integer >= 1, found `0`");
    }
}
