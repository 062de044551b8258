//! Laws of the epoch's order: ranks, batch sizes and accumulation only cut it differently.

use std::sync::Arc;

use data::{Dataset, Loader, LoaderOptions, Sampler};
use proptest::prelude::*;

/// Rows of one token, row i holding i.
fn dataset(rows: usize) -> Arc<Dataset> {
    let mut all = Dataset::new();
    (0..rows as i32).for_each(|i| all.push(&[i], &[-100]));
    Arc::new(all)
}

/// The rows of each step of an epoch, all ranks together, sorted.
fn steps(rows: usize, epoch: usize, ranks: usize, batch_size: usize, accumulation: usize) -> Vec<Vec<i32>> {
    let mut steps: Vec<Vec<i32>> = Vec::new();
    for rank in 0..ranks {
        let sampler = Sampler { num_replicas: ranks, rank, ..Sampler::default() };
        let options = LoaderOptions {
            batch_size,
            gradient_accumulation_steps: accumulation,
            sampler,
            drop_last: true,
            pad_id: 0,
        };
        let loader = Loader::new(dataset(rows), options).unwrap();
        assert_eq!(loader.dropped_rows(), rows - loader.steps_per_epoch() * ranks * batch_size * accumulation);
        let windows: Vec<_> = loader.windows(epoch, 0).collect();
        assert_eq!(windows.len(), loader.steps_per_epoch());
        steps.resize(windows.len(), Vec::new());
        for (step, window) in steps.iter_mut().zip(windows) {
            assert_eq!(window.len(), accumulation);
            step.extend(window.iter().flat_map(|batch| batch.tokens.clone()));
        }
    }
    for step in &mut steps {
        step.sort_unstable();
    }
    steps
}

proptest! {
    #[test]
    fn a_step_has_the_same_rows_however_they_are_shared(
        ranks in 1_usize..4, batch_size in 1_usize..4, accumulation in 1_usize..4, extra in 0_usize..60, epoch in 0_usize..3,
    ) {
        let step = ranks * batch_size * accumulation;
        let expected = steps(step + extra, epoch, 1, step, 1);
        prop_assert_eq!(steps(step + extra, epoch, ranks, batch_size, accumulation), expected.clone());
        let mut seen: Vec<i32> = expected.concat();
        seen.sort_unstable();
        let count = seen.len();
        seen.dedup();
        prop_assert_eq!(seen.len(), count, "no row twice in an epoch");
    }

    #[test]
    fn a_resumed_epoch_is_the_rest_of_it(rows in 4_usize..50, start in 0_usize..6, epoch in 0_usize..3) {
        let options = LoaderOptions {
            batch_size: 2, gradient_accumulation_steps: 2, sampler: Sampler::default(), drop_last: true, pad_id: 0,
        };
        let loader = Loader::new(dataset(rows), options).unwrap();
        let rest: Vec<_> = loader.windows(epoch, start).collect();
        prop_assert_eq!(rest, loader.windows(epoch, 0).skip(start).collect::<Vec<_>>());
    }
}
