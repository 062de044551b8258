//! How rows are put into batches changes nothing but time: micro-batches, packs, padding, masked rows.

use data::Batch;
use tensor::DType;
use train::Policy;

use crate::tiny::{Named, Trainer, adamw, assert_each_close, assert_same, batch, relative_error, rows, sgd, shape};

/// Sums over other numbers of tokens round otherwise, by some units in the last place of f32.
const ROUNDING: f64 = 2e-6;

/// Loss, gradients and weights after one SGD step of the tiny model.
fn one_step(dtype: DType, policy: Policy, window: &[Batch]) -> (f64, Named, Named) {
    let mut trainer = Trainer::new(shape(false), dtype, policy, sgd(0.0), 2);
    let report = trainer.step(window, 0.5).expect("tokens to train on");
    (report.loss, trainer.gradients(), trainer.weights())
}

fn f32_step(window: &[Batch]) -> (f64, Named, Named) {
    one_step(DType::F32, Policy::default(), window)
}

#[track_caller]
fn assert_steps_close(what: &str, found: &(f64, Named, Named), expected: &(f64, Named, Named)) {
    let ((loss, gradients, weights), (wanted, wanted_gradients, wanted_weights)) = (found, expected);
    assert!((loss - wanted).abs() < ROUNDING * wanted, "{what}: loss {loss}, expected {wanted}");
    assert_each_close(&format!("{what}, gradients"), gradients, wanted_gradients, ROUNDING);
    assert_each_close(&format!("{what}, weights"), weights, wanted_weights, ROUNDING);
}

/// Rows with unlike numbers of tokens to train on: 6, 3, 1, 3, 1, 10.
const UNEVEN: [(usize, usize); 6] = [(9, 2), (4, 0), (12, 10), (7, 3), (3, 1), (11, 0)];

#[test]
fn micro_batches_equal_one_batch() {
    let dataset = rows(10, &UNEVEN);
    let one = f32_step(&[batch(&dataset, 0..6)]);
    for size in [1, 2, 3] {
        let window: Vec<Batch> = (0..6).step_by(size).map(|start| batch(&dataset, start..start + size)).collect();
        let counts: Vec<usize> = window.iter().map(|batch| batch.num_unmasked).collect();
        assert!(counts.iter().any(|&n| n != counts[0]), "uneven micro-batches tell a mean of means apart");
        assert_steps_close(&format!("{} micro-batches", window.len()), &f32_step(&window), &one);
    }
}

#[test]
fn the_loss_of_a_window_is_the_mean_over_its_tokens() {
    let dataset = rows(10, &UNEVEN);
    let window: Vec<Batch> = (0..6).map(|row| batch(&dataset, [row])).collect();
    let (mut sum, mut tokens) = (0.0, 0);
    for micro_batch in &window {
        sum += f32_step(std::slice::from_ref(micro_batch)).0 * micro_batch.num_unmasked as f64;
        tokens += micro_batch.num_unmasked;
    }
    let (found, expected) = (f32_step(&window).0, sum / tokens as f64);
    assert!((found - expected).abs() < ROUNDING * expected, "loss {found}, expected {expected}");
}

#[test]
fn bf16_gradients_add_up_better_in_f32() {
    let dataset = rows(20, &[(12, 0); 32]);
    let window: Vec<Batch> = (0..32).map(|row| batch(&dataset, [row])).collect();
    let gradients = |dtype, accumulate_in_f32| {
        let start = Trainer::new(shape(false), DType::Bf16, Policy::default(), sgd(0.0), 2);
        let policy = Policy { accumulate_in_f32, ..Policy::default() };
        let mut trainer = Trainer::new(shape(false), dtype, policy, sgd(0.0), 2);
        trainer.copy_weights(&start);
        trainer.step(&window, 0.0).expect("tokens to train on");
        trainer.gradients()
    };
    let exact = gradients(DType::F32, false);
    let in_f32 = relative_error(&gradients(DType::Bf16, true), &exact);
    let in_bf16 = relative_error(&gradients(DType::Bf16, false), &exact);
    assert!(in_f32 < 0.7 * in_bf16, "off by {in_f32:e} when added in f32, by {in_bf16:e} when added in bf16");
    assert!(in_f32 < 0.02, "off by {in_f32:e} when added in f32");
}

#[test]
fn packs_equal_their_documents() {
    let documents = rows(30, &[(5, 0), (7, 2), (4, 0), (6, 5), (9, 1), (3, 0)]);
    let apart: Vec<Batch> = (0..6).map(|row| batch(&documents, [row])).collect();
    let packs = documents.pack(16, false).expect("documents fit");
    assert_eq!(packs.len(), 3, "16, 15 and 3 tokens");
    assert!(packs.sample(0).documents.len() == 3, "documents share a pack");
    assert_steps_close("packed", &f32_step(&[batch(&packs, 0..3)]), &f32_step(&apart));
}

/// The batch with its rows made longer by masked tokens `pad_id`.
fn padded(batch: &Batch, width: usize, pad_id: i32) -> Batch {
    let old = batch.tokens_per_row;
    let longer = |values: &[i32], fill: &dyn Fn(usize) -> i32| -> Vec<i32> {
        values.chunks(old).flat_map(|row| row.iter().copied().chain((old..width).map(fill))).collect()
    };
    Batch {
        tokens_per_row: width,
        tokens: longer(&batch.tokens, &|_| pad_id),
        labels: longer(&batch.labels, &|_| data::IGNORE_INDEX),
        positions: longer(&batch.positions, &|position| position as i32),
        doc_start: longer(&batch.doc_start, &|_| old as i32),
        ..batch.clone()
    }
}

#[test]
fn padding_changes_nothing() {
    let dataset = rows(40, &[(9, 2), (9, 0), (5, 1)]);
    let equal = batch(&dataset, 0..2);
    let plain = f32_step(std::slice::from_ref(&equal));
    for width in [10, 16, 33] {
        assert_steps_close(&format!("padded to {width}"), &f32_step(&[padded(&equal, width, 0)]), &plain);
    }
    // A short row beside a long one, and both alone.
    let beside = f32_step(&[batch(&dataset, [0, 2])]);
    assert_steps_close("side by side", &beside, &f32_step(&[batch(&dataset, [0]), batch(&dataset, [2])]));
}

#[test]
fn nothing_is_learnt_of_the_padding_token() {
    let dataset = rows(40, &[(9, 2), (5, 1)]);
    let with = |pad_id| f32_step(&[padded(&batch(&dataset, 0..2), 12, pad_id)]);
    let (first, second) = (with(3), with(17));
    assert_eq!(first.0.to_bits(), second.0.to_bits(), "loss");
    // A zero may carry either sign.
    assert_eq!(first.1, second.1, "gradients");
    assert_eq!(first.2, second.2, "weights");
}

#[test]
fn a_masked_micro_batch_adds_nothing() {
    let dataset = rows(50, &[(9, 2), (8, 8), (6, 0)]);
    let [first, masked, last] = [0, 1, 2].map(|row| batch(&dataset, [row]));
    assert_eq!(masked.num_unmasked, 0);
    for policy in [Policy::default(), Policy { recompute_every: 1, ..Policy::default() }] {
        for dtype in [DType::F32, DType::Bf16] {
            let step =
                |window: &[&Batch]| one_step(dtype, policy, &window.iter().copied().cloned().collect::<Vec<_>>());
            let expected = step(&[&first, &last]);
            for window in [[&masked, &first, &last], [&first, &masked, &last], [&first, &last, &masked]] {
                assert_eq!(step(&window), expected, "{dtype} {policy:?}");
            }
        }
    }
}

#[test]
fn a_masked_window_changes_nothing() {
    let dataset = rows(50, &[(9, 2), (8, 8), (6, 0)]);
    let [first, masked, last] = [0, 1, 2].map(|row| batch(&dataset, [row]));
    let new = || Trainer::new(shape(true), DType::F32, Policy::default(), adamw(), 2);
    let (mut skipping, mut plain) = (new(), new());
    let skip = |trainer: &mut Trainer| assert_eq!(trainer.step(&[masked.clone(), masked.clone()], 0.1), None);
    skip(&mut skipping);
    assert_eq!(skipping.store.step(), 0, "a skipped window is no step of the optimizer");
    skipping.step(std::slice::from_ref(&first), 0.1);
    skip(&mut skipping);
    skipping.step(std::slice::from_ref(&last), 0.1);
    plain.step(std::slice::from_ref(&first), 0.1);
    plain.step(std::slice::from_ref(&last), 0.1);
    assert_same("weights", &skipping.weights(), &plain.weights());
    assert_same("states", &skipping.states(), &plain.states());
}
