//! A model that can learn learns a batch by heart.

use tensor::DType;
use train::Policy;

use crate::tiny::{Trainer, adamw, batch, rows, shape};

#[test]
fn one_batch_is_learnt_by_heart() {
    let dataset = rows(1, &[(12, 0), (9, 3), (16, 5)]);
    let window = [batch(&dataset, 0..3)];
    for (dtype, bound) in [(DType::F32, 0.02), (DType::Bf16, 0.05)] {
        let mut trainer = Trainer::new(shape(false), dtype, Policy::default(), adamw(), 2);
        let mut step = || trainer.step(&window, 1e-2).expect("tokens to train on").loss;
        let first = step();
        let chance = (crate::tiny::VOCAB as f64).ln();
        assert!((first - chance).abs() < 0.2, "{dtype}: the first loss is {first}, chance is {chance}");
        let last = (0..60).map(|_| step()).last().expect("steps");
        assert!(last < bound, "{dtype}: after 61 steps the loss is {last}, expected less than {bound}");
    }
}
