//! The same inputs and number of threads give the same bits; other numbers of threads nearly the same.

use models::DecoderConfig;
use tensor::DType;
use train::Policy;

use crate::tiny::{Named, Trainer, adamw, assert_same, batch, relative_error, rows, shape};

/// Losses and weights of some steps of a model large enough to be shared among threads.
fn run(dtype: DType, threads: usize) -> (Vec<f64>, Named) {
    let dataset = rows(70, &[(40, 2), (64, 0), (33, 1), (64, 30), (17, 0), (50, 2)]);
    let config = DecoderConfig { hidden_size: 64, intermediate_size: 160, head_dim: 16, ..shape(true) };
    let mut trainer = Trainer::new(config, dtype, Policy::default(), adamw(), threads);
    let losses = (0..6).map(|step| {
        let window = [batch(&dataset, [step, (step + 1) % 6, (step + 3) % 6])];
        trainer.step(&window, 3e-3).expect("tokens to train on").loss
    });
    (losses.collect(), trainer.weights())
}

#[test]
fn two_runs_give_the_same_bits() {
    for dtype in [DType::F32, DType::Bf16] {
        for threads in [1, 2, 3] {
            let (first, again) = (run(dtype, threads), run(dtype, threads));
            assert_eq!(first.0, again.0, "{dtype}, {threads} threads: losses");
            assert_same(&format!("{dtype}, {threads} threads: weights"), &again.1, &first.1);
        }
    }
}

#[test]
fn another_number_of_threads_is_close() {
    for (dtype, loss_bound, weight_bound) in [(DType::F32, 1e-4, 1e-3), (DType::Bf16, 2e-2, 5e-2)] {
        let one = run(dtype, 1);
        for threads in [2, 3] {
            let found = run(dtype, threads);
            for (step, (loss, expected)) in found.0.iter().zip(&one.0).enumerate() {
                let what = format!("{dtype}, {threads} threads, step {step}");
                assert!((loss - expected).abs() < loss_bound, "{what}: loss {loss}, expected {expected}");
            }
            let error = relative_error(&found.1, &one.1);
            assert!(error < weight_bound, "{dtype}, {threads} threads: weights are off by {error:e}");
        }
    }
}
