//! What saves memory changes no bit: recomputed blocks, updates inside backward.

use data::Batch;
use optim::Optimizer;
use tensor::DType;
use train::Policy;

use crate::tiny::{Trainer, adamw, assert_same, batch, rows, sgd, shape};

const STEPS: usize = 3;

/// Windows of two micro-batches or one.
fn windows(micro_batches: usize) -> Vec<Vec<Batch>> {
    let dataset = rows(60, &[(9, 2), (14, 0), (5, 1), (11, 3), (16, 0), (7, 2)]);
    let batches: Vec<Batch> = (0..STEPS * 2).step_by(2).map(|row| batch(&dataset, row..row + 2)).collect();
    (0..STEPS).map(|step| (0..micro_batches).map(|i| batches[(step + i) % STEPS].clone()).collect()).collect()
}

fn trainer(tied: bool, dtype: DType, policy: Policy, optimizer: Optimizer) -> Trainer {
    Trainer::new(shape(tied), dtype, policy, optimizer, 2)
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for (tied, dtype, micro_batches) in
        [(false, DType::F32, 1), (true, DType::F32, 2), (false, DType::Bf16, 2), (true, DType::Bf16, 1)]
    {
        let accumulate_in_f32 = dtype == DType::Bf16 && micro_batches > 1;
        let new = |recompute_every| {
            trainer(tied, dtype, Policy { recompute_every, accumulate_in_f32, ..Policy::default() }, adamw())
        };
        let (mut kept, mut recomputed) = (new(0), new(1));
        for (step, window) in windows(micro_batches).iter().enumerate() {
            let what = format!("{dtype}, tied {tied}, step {step}");
            assert_eq!(recomputed.step(window, 1e-2), kept.step(window, 1e-2), "{what}: loss and norm");
            assert_same(&format!("{what}: gradients"), &recomputed.gradients(), &kept.gradients());
            assert_same(&format!("{what}: weights"), &recomputed.weights(), &kept.weights());
        }
    }
}

#[test]
fn updates_inside_backward_give_the_same_bits() {
    for optimizer in [adamw(), sgd(0.0), sgd(0.9)] {
        for (tied, recompute_every, dtype) in [
            (false, 0, DType::F32),
            (true, 0, DType::F32),
            (false, 1, DType::F32),
            (true, 1, DType::F32),
            (true, 1, DType::Bf16),
        ] {
            let new = |optimizer_in_bwd| {
                let policy = Policy { recompute_every, optimizer_in_bwd, ..Policy::default() };
                trainer(tied, dtype, policy, optimizer.clone())
            };
            let (mut plain, mut inside) = (new(false), new(true));
            let what = format!("{optimizer:?}, {dtype}, tied {tied}, recomputed {recompute_every}");
            for (window, lr) in windows(1).iter().zip([1e-2, 2e-2, 5e-3]) {
                let (found, expected) =
                    (inside.step(window, lr).expect("trains"), plain.step(window, lr).expect("trains"));
                assert_eq!(found.loss.to_bits(), expected.loss.to_bits(), "{what}: loss");
                assert_eq!((found.grad_norm, expected.grad_norm.is_some()), (None, true), "{what}: norms");
                assert!(inside.gradients().is_empty(), "{what}: gradients are freed");
                assert_same(&format!("{what}: weights"), &inside.weights(), &plain.weights());
            }
            assert_eq!(inside.states().len(), plain.states().len(), "{what}: states");
            if !plain.states().is_empty() {
                assert_same(&format!("{what}: states"), &inside.states(), &plain.states());
            }
        }
    }
}
