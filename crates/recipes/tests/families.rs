//! What families add to Llama's block (biases, normed heads, windows, weights in one matrix, Gemma's norms, scales and caps) under
//! every policy, on ranks, and with a cache. That the numbers are right, the conformance pack's models show.

use data::Batch;
use dist::{Communicator, Mesh};
use models::families::Family;
use models::{Decoder, DecoderConfig, KvCache, SlidingWindow};
use tensor::ops::glu::Activation;
use tensor::ops::rms_norm::NormWeight;
use tensor::{Cx, DType};
use train::Policy;

use crate::tiny::{Trainer, adamw, assert_same, backend, batch, logits, rows, sgd, shape};

/// All that may be together: Phi's, Qwen's and Mistral's.
fn rich() -> DecoderConfig {
    DecoderConfig {
        num_hidden_layers: 3,
        stacks_weights: true,
        attention_bias: true,
        qk_norm: true,
        sliding_window: Some(SlidingWindow { tokens: 4, first_layer: 1, every: 1 }),
        ..shape(false)
    }
}

/// A tied head, heads apart from the hidden size.
fn gemma() -> DecoderConfig {
    DecoderConfig {
        family: Family::Gemma,
        num_key_value_heads: 1,
        head_dim: 12,
        hidden_act: Activation::GeluTanh,
        norm_weight: NormWeight::FromOne,
        scales_embedding: true,
        ..shape(true)
    }
}

/// Caps so low that random weights feel them.
fn gemma2() -> DecoderConfig {
    DecoderConfig {
        family: Family::Gemma2,
        num_hidden_layers: 4,
        num_key_value_heads: 2,
        sliding_window: Some(SlidingWindow { tokens: 4, first_layer: 0, every: 2 }),
        post_norms: true,
        query_pre_attn_scalar: Some(18.0),
        attn_logit_softcapping: Some(0.5),
        final_logit_softcapping: Some(0.25),
        ..gemma()
    }
}

fn shapes() -> [(&'static str, DecoderConfig); 3] {
    [("rich", rich()), ("gemma", gemma()), ("gemma2", gemma2())]
}

fn batches() -> Vec<Batch> {
    let dataset = rows(40, &[(9, 2), (14, 0), (5, 1), (11, 3), (16, 0), (7, 2), (12, 0), (13, 1)]);
    (0..8).step_by(2).map(|row| batch(&dataset, row..row + 2)).collect()
}

#[test]
fn policies_give_the_same_bits() {
    for ((name, shape), dtype) in shapes().iter().flat_map(|shape| [(shape, DType::F32), (shape, DType::Bf16)]) {
        let policies = [(0, false), (1, false), (2, true), (1, true)];
        let mut trainers = policies.map(|(recompute_every, optimizer_in_bwd)| {
            Trainer::new(
                shape.clone(),
                dtype,
                Policy { recompute_every, optimizer_in_bwd, ..Policy::default() },
                adamw(),
                2,
            )
        });
        for (step, window) in batches().into_iter().enumerate() {
            let reports = trainers.each_mut().map(|trainer| trainer.step(std::slice::from_ref(&window), 1e-2));
            let losses = reports.map(|report| report.expect("tokens to train on").loss.to_bits());
            assert!(losses.iter().all(|loss| *loss == losses[0]), "{name}, {dtype}, step {step}: {losses:?}");
            let [plain, others @ ..] = &trainers;
            for (other, policy) in others.iter().zip(&policies[1..]) {
                assert_same(&format!("{name}, {dtype}, step {step}, {policy:?}"), &other.weights(), &plain.weights());
            }
        }
    }
}

#[test]
fn ranks_are_one_rank_with_all_rows() {
    for (name, shape) in shapes() {
        check_ranks(name, &shape);
    }
}

fn check_ranks(name: &str, shape: &DecoderConfig) {
    let steps = batches();
    let mut alone = Trainer::new(shape.clone(), DType::F32, Policy::default(), sgd(0.9), 1);
    // Two micro-batches of one rank are one of each of two.
    let expected: Vec<_> = steps.chunks(2).map(|window| alone.step(window, 0.1).expect("tokens to train on")).collect();
    for num_ranks in [2, 3] {
        let reports = dist::run_threads(num_ranks, |world: Communicator| {
            let rank = world.rank();
            let mesh = Mesh::new(world.clone(), 1, num_ranks)?;
            let mut trainer =
                Trainer::on_mesh(shape.clone(), DType::F32, Policy::default(), sgd(0.9), backend(1), &mesh, None);
            let dataset = rows(1, &[(4, 4); 2]);
            let nothing = batch(&dataset, 0..2);
            // A third rank has only masked rows.
            let window =
                |step: usize| vec![steps.get(2 * step + rank).filter(|_| rank < 2).unwrap_or(&nothing).clone()];
            let reports: Vec<_> = (0..2).map(|step| trainer.step(&window(step), 0.1).expect("tokens")).collect();
            world.barrier().wait()?;
            Ok::<_, dist::Error>(reports)
        });
        for found in reports.expect("all ranks end") {
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{name}, {num_ranks} ranks, step {step}: {found:?}, expected {expected:?}");
                assert!((found.loss - expected.loss).abs() < 1e-5, "{what}");
                let (norm, of_one) = (found.grad_norm.expect("computed"), expected.grad_norm.expect("computed"));
                assert!((norm - of_one).abs() < 1e-5 * of_one, "{what}");
            }
        }
    }
}

#[test]
fn a_cache_gives_the_logits_of_the_whole_row() {
    for (name, shape) in shapes() {
        check_cache(name, &shape);
    }
}

fn check_cache(name: &str, shape: &DecoderConfig) {
    let trainer = Trainer::new(shape.clone(), DType::F32, Policy::default(), sgd(0.0), 1);
    let (backend, mut store) = (trainer.backend, trainer.store);
    let model = Decoder::new(shape.clone()).expect("possible");
    let tokens: Vec<i32> = testing::random::indices(3, 13, shape.vocab_size);
    let whole = logits(&model, &mut store, &tokens);
    let vocab = whole.len() / tokens.len();
    let mut cache = KvCache::new(&*backend, model.config(), DType::F32, tokens.len()).expect("fits");
    let mut seen = 0;
    // A prompt, then token by token past the window's end.
    for fresh in [&tokens[..5]].into_iter().chain(tokens[5..].chunks(1)) {
        let next = model.next_logits(&mut Cx::inference(&*backend, &mut store), fresh, &mut cache).expect("runs");
        seen += fresh.len();
        let (found, expected) = (backend.to_f32(&next).expect("f32"), &whole[(seen - 1) * vocab..seen * vocab]);
        let worst = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0f32, f32::max);
        assert!(worst < 1e-5, "{name}, after {seen} tokens logits differ by {worst}");
    }
}
