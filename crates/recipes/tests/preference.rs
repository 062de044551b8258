//! Preference optimisation with an adapter: what padding, policies, ranks and the split of a step must not change.

use data::Batch;
use dist::Mesh;
use models::{Decoder, LoraConfig, LoraModule};
use recipes::objectives::{Averages, DpoConfig, Preference, PreferenceLoss};
use recipes::train_step::StepReport;
use tensor::DType;
use train::Policy;

use crate::tiny::{Trainer, assert_each_close, assert_same, backend, batch, rows, sgd, shape};

fn loss() -> PreferenceLoss {
    DpoConfig { beta: 0.5, label_smoothing: 0.1 }.into()
}

fn trainer(dropout: f64, dtype: DType, policy: Policy, mesh: &Mesh) -> Trainer {
    let modules = vec![LoraModule::Q, LoraModule::V, LoraModule::Down];
    let lora = LoraConfig { rank: 4, alpha: 8.0, dropout, modules, use_dora: false, quantize_base: false };
    let model = Decoder::with_adapters(shape(false), Some(&lora)).expect("possible");
    let mut trainer = Trainer::of_model(model, dtype, policy, sgd(0.9), backend(2), mesh, None);
    trainer.objective = Box::new(Preference::new(loss(), Averages::All, None));
    trainer
}

/// Lengths of rows and of their masked beginnings: four chosen ones, then what was rejected.
const LENGTHS: [(usize, usize); 8] = [(9, 4), (14, 5), (5, 2), (11, 3), (12, 4), (7, 5), (6, 2), (13, 3)];

/// Pairs of the eight rows: chosen sides first.
fn pairs(pairs: impl Iterator<Item = usize> + Clone) -> Batch {
    let dataset = rows(60, &LENGTHS);
    batch(&dataset, pairs.clone().chain(pairs.map(|pair| pair + 4)))
}

/// The value of a metric.
fn metric(report: &StepReport, name: &str) -> f64 {
    report.metrics.iter().find(|(of, _)| *of == name).expect("measured").1
}

#[test]
fn a_policy_that_is_the_reference_has_no_reward() {
    for dtype in [DType::F32, DType::Bf16] {
        // Nothing is dropped of what is zero.
        let mut trainer = trainer(0.3, dtype, Policy::default(), &Mesh::alone());
        let report = trainer.step(&[pairs(0..4)], 0.1).expect("pairs");
        assert!((report.loss - std::f64::consts::LN_2).abs() < 1e-7, "{report:?}");
        for name in ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"] {
            assert_eq!(metric(&report, name), 0.0, "{name}");
        }
        let report = trainer.step(&[pairs(0..4)], 0.1).expect("pairs");
        assert!(report.loss < std::f64::consts::LN_2 - 1e-4 && metric(&report, "rewards/margins") > 0.0, "{report:?}");
    }
}

#[test]
fn padding_is_no_answer() {
    // The same pair, as it is and beside a row that is longer.
    let short = pairs(0..1);
    let dataset = rows(60, &[&LENGTHS[..], &[(16, 0)]].concat());
    let wide = batch(&dataset, [0, 4, 8]);
    let first = |all: &[i32]| all[..2 * wide.tokens_per_row].to_vec();
    let padded = Batch {
        batch: 2,
        tokens: first(&wide.tokens),
        labels: first(&wide.labels),
        positions: first(&wide.positions),
        doc_start: first(&wide.doc_start),
        num_unmasked: short.num_unmasked,
        ..wide
    };
    assert!(padded.tokens_per_row > short.tokens_per_row);
    let mut trainers = [(); 2].map(|()| trainer(0.0, DType::F32, Policy::default(), &Mesh::alone()));
    for step in 0..3 {
        let [found, expected] = [(&padded, 0), (&short, 1)]
            .map(|(batch, of)| trainers[of].step(std::slice::from_ref(batch), 0.1).expect("pairs"));
        assert!((found.loss - expected.loss).abs() < 1e-6, "step {step}: {found:?}, expected {expected:?}");
        for name in ["log_probs/chosen", "log_probs/rejected", "rewards/margins"] {
            let (found, expected) = (metric(&found, name), metric(&expected, name));
            assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{name}: {found}, expected {expected}");
        }
    }
    let [padded, short] = &mut trainers;
    assert_each_close("gradients", &padded.gradients(), &short.gradients(), 1e-4);
}

#[test]
fn the_split_of_a_step_changes_nothing() {
    let steps = |trainer: &mut Trainer, windows: &[Batch]| -> Vec<StepReport> {
        (0..3).map(|_| trainer.step(windows, 0.05).expect("pairs")).collect()
    };
    let mut whole = trainer(0.0, DType::F32, Policy::default(), &Mesh::alone());
    let expected = steps(&mut whole, &[pairs(0..4)]);
    let close = |what: &str, found: &[StepReport]| {
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let what = format!("{what}, step {step}: {found:?}, expected {expected:?}");
            assert!((found.loss - expected.loss).abs() < 1e-6, "{what}");
            let (norm, of_whole) = (found.grad_norm.expect("computed"), expected.grad_norm.expect("computed"));
            assert!((norm - of_whole).abs() < 1e-5 * of_whole, "{what}");
            // Means over all pairs: parts of equal size average to them.
            let margin = metric(found, "rewards/margins") - metric(expected, "rewards/margins");
            assert!(margin.abs() < 1e-5, "{what}");
        }
    };
    let mut parts = trainer(0.0, DType::F32, Policy::default(), &Mesh::alone());
    let found = steps(&mut parts, &[pairs(0..1), pairs(1..2), pairs(2..3), pairs(3..4)]);
    close("in four parts", &found);
    assert_each_close("in four parts", &parts.weights(), &whole.weights(), 1e-5);

    let on_ranks = dist::run_threads(2, |world: dist::Communicator| {
        let rank = world.rank();
        let mesh = Mesh::new(world.clone(), 1, 2)?;
        let mut trainer = trainer(0.0, DType::F32, Policy { recompute_every: 1, ..Policy::default() }, &mesh);
        let found = steps(&mut trainer, &[pairs(2 * rank..2 * rank + 2)]);
        world.barrier().wait()?;
        Ok::<_, dist::Error>(found)
    });
    for found in on_ranks.expect("all ranks end") {
        close("on two ranks", &found);
    }
}

#[test]
fn policies_give_the_same_bits() {
    for dtype in [DType::F32, DType::Bf16] {
        let mut trainers = [(0, false), (1, false), (2, true)].map(|(recompute_every, optimizer_in_bwd)| {
            let policy = Policy { recompute_every, optimizer_in_bwd, ..Policy::default() };
            trainer(0.2, dtype, policy, &Mesh::alone())
        });
        for step in 0..3 {
            let losses = trainers.each_mut().map(|t| t.step(&[pairs(0..4)], 0.05).expect("pairs").loss.to_bits());
            assert!(losses.iter().all(|loss| *loss == losses[0]), "{dtype}, step {step}: {losses:?}");
        }
        for other in &trainers[1..] {
            assert_same(&format!("{dtype}"), &other.weights(), &trainers[0].weights());
        }
    }
}
