//! Adapters (LoRA, DoRA, on a base in 4 bits) under every policy, on ranks, and worked into the weights. That the numbers are right, the
//! conformance pack's adapters and curves show.

use std::sync::Arc;

use checkpoint::{CheckpointDir, CheckpointName, RecipeState};
use data::Batch;
use dist::{Communicator, Mesh};
use models::{Decoder, DecoderConfig, LoraConfig, LoraModule};
use tensor::{Cx, DType};
use train::{ParamStore, Policy};

use crate::tiny::{Trainer, adamw, assert_each_close, assert_same, backend, batch, logits, rows, sgd, shape};

/// All layers but one, on one block more than usual.
fn lora() -> LoraConfig {
    let modules =
        LoraModule::ALL.into_iter().filter(|module| ![LoraModule::K, LoraModule::Head].contains(module)).collect();
    LoraConfig { rank: 4, alpha: 6.0, dropout: 0.0, modules, use_dora: false, quantize_base: false }
}

/// Adapters of every kind.
fn kinds() -> [(&'static str, LoraConfig); 5] {
    let with_head = [lora().modules, vec![LoraModule::Head]].concat();
    [
        ("LoRA", lora()),
        ("DoRA with dropout", LoraConfig { use_dora: true, dropout: 0.3, ..lora() }),
        ("QLoRA", LoraConfig { quantize_base: true, ..lora() }),
        ("QDoRA", LoraConfig { quantize_base: true, use_dora: true, ..lora() }),
        ("LoRA with a head, with dropout", LoraConfig { modules: with_head, dropout: 0.3, ..lora() }),
    ]
}

/// Weights of a layer in one matrix, biases, and three blocks.
fn stacked() -> DecoderConfig {
    DecoderConfig { num_hidden_layers: 3, stacks_weights: true, attention_bias: true, ..shape(false) }
}

fn trainer(config: DecoderConfig, lora: &LoraConfig, dtype: DType, policy: Policy, mesh: &Mesh) -> Trainer {
    let model = Decoder::with_adapters(config, Some(lora)).expect("possible");
    let optimizer = if dtype == DType::F32 { sgd(0.9) } else { adamw() };
    Trainer::of_model(model, dtype, policy, optimizer, backend(2), mesh, None)
}

fn batches() -> Vec<Batch> {
    let dataset = rows(40, &[(9, 2), (14, 0), (5, 1), (11, 3), (16, 0), (7, 2), (12, 0), (13, 1)]);
    (0..8).step_by(2).map(|row| batch(&dataset, row..row + 2)).collect()
}

const TOKENS: [i32; 7] = [3, 14, 15, 9, 26, 5, 35];

#[test]
fn a_new_adapter_changes_nothing() {
    for tied in [false, true] {
        let mut whole = Trainer::new(shape(tied), DType::F32, Policy::default(), sgd(0.0), 2);
        let expected = logits(&whole.model, &mut whole.store, &TOKENS);
        for (kind, lora) in &kinds()[..2] {
            let mut trainer = trainer(shape(tied), lora, DType::F32, Policy::default(), &Mesh::alone());
            let found = logits(&trainer.model, &mut trainer.store, &TOKENS);
            let worst = found.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0f32, f32::max);
            assert!(worst < 1e-6, "{kind}: logits differ by {worst}");
        }
    }
}

#[test]
fn only_adapters_change_and_have_states() {
    let mut trainer = trainer(stacked(), &lora(), DType::F32, Policy::default(), &Mesh::alone());
    let before = trainer.weights();
    for window in batches() {
        trainer.step(&[window], 0.1);
    }
    let is_adapter = |name: &str| name.contains("lora_");
    for ((name, before), (_, after)) in before.iter().zip(&trainer.weights()) {
        assert_eq!(before != after, is_adapter(name), "{name}");
    }
    let (gradients, states) = (trainer.gradients(), trainer.states());
    assert_eq!(gradients.len(), 3 * 6 * 2, "A and B of six layers in three blocks");
    assert_eq!(states.len(), gradients.len());
    assert!(gradients.iter().chain(&states).all(|(name, _)| is_adapter(name)));
}

#[test]
fn policies_give_the_same_bits() {
    for ((kind, lora), dtype) in kinds().iter().flat_map(|kind| [(kind, DType::F32), (kind, DType::Bf16)]) {
        let policies = [(0, false), (1, false), (2, true), (1, true)];
        let mut trainers = policies.map(|(recompute_every, optimizer_in_bwd)| {
            let policy = Policy { recompute_every, optimizer_in_bwd, ..Policy::default() };
            trainer(stacked(), lora, dtype, policy, &Mesh::alone())
        });
        for (step, window) in batches().into_iter().enumerate() {
            let reports = trainers.each_mut().map(|trainer| trainer.step(std::slice::from_ref(&window), 1e-2));
            let losses = reports.map(|report| report.expect("tokens to train on").loss.to_bits());
            assert!(losses.iter().all(|loss| *loss == losses[0]), "{kind}, {dtype}, step {step}: {losses:?}");
            let [plain, others @ ..] = &trainers;
            for (other, policy) in others.iter().zip(&policies[1..]) {
                assert_same(&format!("{kind}, {dtype}, step {step}, {policy:?}"), &other.weights(), &plain.weights());
            }
        }
    }
}

#[test]
fn ranks_are_one_rank_with_all_rows() {
    let steps = batches();
    for (kind, lora) in kinds() {
        // What is dropped depends on the rank.
        let lora = LoraConfig { dropout: 0.0, ..lora };
        let mut alone = trainer(stacked(), &lora, DType::F32, Policy::default(), &Mesh::alone());
        let expected: Vec<_> =
            steps.chunks(2).map(|window| alone.step(window, 0.1).expect("tokens to train on")).collect();
        let merged = saved(&mut alone.store);
        for (num_ranks, reshard_after_forward) in [(2, true), (2, false), (3, true)] {
            let reports = dist::run_threads(num_ranks, |world: Communicator| {
                let rank = world.rank();
                let mesh = Mesh::new(world.clone(), 1, num_ranks)?;
                let policy = Policy { reshard_after_forward, recompute_every: 2, ..Policy::default() };
                let mut trainer = trainer(stacked(), &lora, DType::F32, policy, &mesh);
                let nothing = batch(&rows(1, &[(4, 4); 2]), 0..2);
                // A third rank has only masked rows.
                let window =
                    |step: usize| vec![steps.get(2 * step + rank).filter(|_| rank < 2).unwrap_or(&nothing).clone()];
                let reports: Vec<_> = (0..2).map(|step| trainer.step(&window(step), 0.1).expect("tokens")).collect();
                let merged = if rank == 0 {
                    Some(saved(&mut trainer.store))
                } else {
                    trainer.store.write_merged_weights(None).expect("helps");
                    trainer.store.write_adapter(None).expect("helps");
                    None
                };
                world.barrier().wait()?;
                Ok::<_, dist::Error>((reports, merged))
            });
            for (found, weights) in reports.expect("all ranks end") {
                for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let what = format!("{kind}, {num_ranks} ranks, step {step}: {found:?}, expected {expected:?}");
                    assert!((found.loss - expected.loss).abs() < 1e-5, "{what}");
                    let (norm, of_one) = (found.grad_norm.expect("computed"), expected.grad_norm.expect("computed"));
                    assert!((norm - of_one).abs() < 1e-5 * of_one, "{what}");
                }
                if let Some(weights) = weights {
                    assert_each_close(&format!("{kind}, {num_ranks} ranks"), &weights, &merged, 1e-5);
                }
            }
        }
    }
}

/// The weights and the adapters as a checkpoint has them.
fn saved(store: &mut ParamStore) -> Vec<(String, Vec<f32>)> {
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut dir = CheckpointDir::begin(out.path(), CheckpointName::Epoch(0), 0).expect("begun");
    store.write_merged_weights(Some(&mut dir)).expect("written");
    store.write_adapter(Some(&mut dir)).expect("written");
    let saved = dir.commit(&RecipeState::default()).expect("complete");
    let sources = [saved.weights().expect("readable"), saved.adapter().expect("readable").expect("there")];
    let mut all = Vec::new();
    for source in &sources {
        let mut names: Vec<String> = source.names().map(str::to_owned).collect();
        names.sort();
        for name in names {
            let bytes = source.read(&name, DType::F32).expect("present");
            let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            all.push((name, values));
        }
    }
    all
}

#[test]
fn merged_weights_compute_what_the_adapter_does() {
    for (kind, lora) in kinds() {
        let mut trainer = trainer(stacked(), &lora, DType::F32, Policy::default(), &Mesh::alone());
        for window in batches() {
            trainer.step(&[window], 0.3);
        }
        let expected = logits(&trainer.model, &mut trainer.store, &TOKENS);
        let out = tempfile::tempdir().expect("a temporary folder");
        let mut dir = CheckpointDir::begin(out.path(), CheckpointName::Epoch(0), 0).expect("begun");
        trainer.store.write_merged_weights(Some(&mut dir)).expect("written");
        let saved = dir.commit(&RecipeState::default()).expect("complete");

        let mut merged = Trainer::new(stacked(), DType::F32, Policy::default(), sgd(0.0), 2);
        let before = logits(&merged.model, &mut merged.store, &TOKENS);
        merged.store.load_weights(&saved.weights().expect("readable")).expect("fits");
        let found = logits(&merged.model, &mut merged.store, &TOKENS);
        let worst = |of: &[f32]| of.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0f32, f32::max);
        assert!(worst(&found) < 2e-5, "{kind}: logits differ by {}", worst(&found));
        assert!(worst(&before) > 1e-2, "{kind}: the adapter changes something");
    }
}

#[test]
fn dropout_changes_losses_and_is_drawn_by_the_seed() {
    let losses = |dropout: f64, threads: usize| {
        let model = Decoder::with_adapters(shape(false), Some(&LoraConfig { dropout, ..lora() })).expect("possible");
        let policy = Policy::default();
        let mut trainer =
            Trainer::of_model(model, DType::F32, policy, sgd(0.0), backend(threads), &Mesh::alone(), None);
        let steps = batches().into_iter().map(|window| trainer.step(&[window], 0.5).expect("tokens").loss);
        steps.collect::<Vec<_>>()
    };
    let plain = losses(0.0, 2);
    let dropped = losses(0.5, 2);
    assert_eq!(plain[0].to_bits(), dropped[0].to_bits(), "B is zero at first");
    assert!(plain.iter().zip(&dropped).skip(1).all(|(p, d)| (p - d).abs() > 1e-6), "{plain:?} {dropped:?}");
    assert_eq!(losses(0.5, 2), dropped, "the same seed");
    for (one, two) in losses(0.5, 1).iter().zip(&dropped) {
        assert!((one - two).abs() < 1e-5, "the same elements on another number of threads");
    }
}

#[test]
fn a_model_without_its_adapters_is_its_base() {
    let mut whole = Trainer::new(shape(false), DType::F32, Policy::default(), sgd(0.0), 2);
    let expected = logits(&whole.model, &mut whole.store, &TOKENS);
    let mut trainer = trainer(shape(false), &lora(), DType::F32, Policy::default(), &Mesh::alone());
    trainer.step(&batches()[..1], 0.5);
    let backend = Arc::clone(&trainer.backend);
    let row = |values: &[i32]| backend.from_i32([1, values.len()], values).expect("fits");
    let positions: Vec<i32> = (0..TOKENS.len() as i32).collect();
    let inputs =
        models::ModelBatch { tokens: row(&TOKENS), positions: row(&positions), doc_start: row(&[0; TOKENS.len()]) };
    let mut cx = Cx::inference(&*backend, &mut trainer.store).without_adapters();
    let found = backend.to_f32(&trainer.model.logits(&mut cx, &inputs).expect("runs")).expect("f32");
    assert_eq!(found, expected);
}

#[test]
fn an_adapter_on_the_head_has_the_gradient_of_what_it_changes() {
    let head = LoraConfig { modules: vec![LoraModule::Head], ..lora() };
    let policy = Policy::default();
    let window = &batches()[..1];
    let mut adapted = trainer(shape(false), &head, DType::F32, policy, &Mesh::alone());
    // B is zero at first, so that A has no gradient: a step later both have.
    adapted.step(window, 0.5);
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut dir = CheckpointDir::begin(out.path(), CheckpointName::Epoch(0), 0).expect("begun");
    adapted.store.write_merged_weights(Some(&mut dir)).expect("written");
    let saved = dir.commit(&RecipeState::default()).expect("complete");
    let mut whole = Trainer::new(shape(false), DType::F32, policy, sgd(0.0), 2);
    whole.store.load_weights(&saved.weights().expect("readable")).expect("fits");

    let values = |trainer: &Trainer, end: &str| {
        trainer.weights().into_iter().find(|(name, _)| name.ends_with(end)).expect("there").1
    };
    let (a, b) = (values(&adapted, "lora_A.weight"), values(&adapted, "lora_B.weight"));
    let (of_adapter, of_whole) = (adapted.step(window, 0.0).expect("tokens"), whole.step(window, 0.0).expect("tokens"));
    assert!((of_adapter.loss - of_whole.loss).abs() < 1e-5, "{of_adapter:?} {of_whole:?}");
    let gradient = |trainer: &mut Trainer, end: &str| {
        trainer.gradients().into_iter().find(|(name, _)| name.ends_with(end)).expect("there")
    };
    // W' = W + s B A: dB = s dW' A^T, dA = s B^T dW'.
    let dw = gradient(&mut whole, "lm_head.weight").1;
    let (rank, dim, scale) = (head.rank, 32, head.scale());
    let vocab = dw.len() / dim;
    let db: Vec<f32> = (0..vocab * rank)
        .map(|i| scale * (0..dim).map(|k| dw[i / rank * dim + k] * a[i % rank * dim + k]).sum::<f32>())
        .collect();
    let da: Vec<f32> = (0..rank * dim)
        .map(|i| scale * (0..vocab).map(|v| b[v * rank + i / dim] * dw[v * dim + i % dim]).sum::<f32>())
        .collect();
    for (end, expected) in [("lora_A.weight", da), ("lora_B.weight", db)] {
        let found = gradient(&mut adapted, end);
        let expected = (found.0.clone(), expected);
        assert_each_close("head", &vec![found], &vec![expected], 1e-4);
    }
}

#[test]
fn an_adapter_on_a_tied_head_is_refused() {
    let head = LoraConfig { modules: vec![LoraModule::Head], ..lora() };
    let error = Decoder::with_adapters(shape(true), Some(&head)).expect_err("the embedding would change too");
    assert!(error.to_string().contains("apply_lora_to_output"), "{error}");
}
