//! How much memory a run needs: what policies save, and that nothing grows.

use checkpoint::{CheckpointDir, CheckpointName};
use data::Batch;
use dist::Mesh;
use models::{Decoder, DecoderConfig, LoraConfig, LoraModule};
use optim::{Moments, Optimizer};
use recipes::memory_plan::{Goal, MemoryPlan, MeshShape, Shape};
use recipes::objectives::NextToken;
use tensor::ops::fake_quantise::{FakeQuant, Scheme};
use tensor::{DType, MemoryStats};
use train::Policy;

use crate::tiny::{Trainer, adamw, adamw_in, backend, batch, rows, sgd, shape};

/// Six blocks: each is small beside the whole.
fn deep() -> DecoderConfig {
    DecoderConfig { num_hidden_layers: 6, hidden_size: 64, intermediate_size: 160, head_dim: 16, ..shape(false) }
}

/// Memory after three steps on rows of `len` tokens.
fn memory_of(policy: Policy, len: usize, num_rows: usize) -> MemoryStats {
    let dataset = rows(80, &vec![(len, 0); num_rows]);
    let mut trainer = Trainer::new(deep(), DType::F32, policy, adamw(), 2);
    for _ in 0..3 {
        trainer.step(&[batch(&dataset, 0..num_rows)], 1e-3).expect("tokens to train on");
    }
    trainer.backend.memory()
}

#[test]
fn updates_inside_backward_free_gradients() {
    // Few tokens, so that activations weigh nothing.
    let plain = memory_of(Policy::default(), 4, 1);
    let inside = memory_of(Policy { optimizer_in_bwd: true, ..Policy::default() }, 4, 1);
    let parameters = 4 * Decoder::new(deep()).expect("possible").layout().num_elements();
    let (lived, peaked) = (plain.live_bytes - inside.live_bytes, plain.peak_live_bytes - inside.peak_live_bytes);
    assert!(lived >= parameters, "between steps {lived} bytes less, gradients have {parameters}");
    // At the peak one unit of six has gradients.
    assert!(peaked > parameters / 2, "at the peak {peaked} bytes less, gradients have {parameters}");
}

#[test]
fn recomputed_blocks_free_activations() {
    let of_activations = |recompute_every| {
        let memory = memory_of(Policy { recompute_every, ..Policy::default() }, 64, 8);
        memory.peak_live_bytes - memory.live_bytes
    };
    let (kept, recomputed) = (of_activations(0), of_activations(1));
    assert!(2 * recomputed < kept, "{recomputed} bytes of activations at the peak, {kept} when they are kept");
}

#[test]
fn more_micro_batches_need_no_more_memory() {
    let dataset = rows(75, &[(60, 0); 4]);
    for (dtype, accumulate_in_f32) in [(DType::F32, false), (DType::Bf16, true)] {
        let peak = |micro_batches: usize| {
            let policy = Policy { accumulate_in_f32, ..Policy::default() };
            let mut trainer = Trainer::new(deep(), dtype, policy, adamw(), 2);
            for _ in 0..2 {
                trainer.step(&vec![batch(&dataset, 0..4); micro_batches], 1e-3).expect("tokens to train on");
            }
            trainer.backend.memory().peak_live_bytes
        };
        let (few, many) = (peak(1), peak(16));
        assert!(many <= few + few / 20, "{dtype}: {many} bytes with 16 micro-batches, {few} with one");
    }
}

#[test]
fn the_size_of_a_checkpoint_is_known_before_the_first_step() {
    // The safetensors files below a folder, without their headers: length (8 bytes) and text.
    fn data_bytes(dir: &std::path::Path) -> u64 {
        let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries
            .map(|path| match path.extension() {
                _ if path.is_dir() => data_bytes(&path),
                Some(extension) if extension == "safetensors" => {
                    let bytes = std::fs::read(&path).expect("readable");
                    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                    bytes.len() as u64 - 8 - header
                }
                _ => 0,
            })
            .sum()
    }
    let dataset = rows(90, &[(12, 0); 2]);
    for (dtype, optimizer) in [
        (DType::F32, adamw()),
        (DType::Bf16, adamw()),
        (DType::Bf16, adamw_in(Moments::EightBits { min_elements: 1000 })),
        (DType::F32, sgd(0.9)),
        (DType::F32, sgd(0.0)),
    ] {
        let what = format!("{dtype}, {optimizer:?}");
        let mut trainer = Trainer::new(deep(), dtype, Policy::default(), optimizer, 1);
        let told = trainer.store.checkpoint_bytes(true);
        trainer.step(&[batch(&dataset, 0..2)], 1e-3).expect("tokens to train on");
        let output = tempfile::tempdir().expect("a folder");
        let mut dir = CheckpointDir::begin(output.path(), CheckpointName::Epoch(0), told).expect("room");
        trainer.store.write_weights(Some(&mut dir)).expect("written");
        trainer.store.write_optimizer(Some(&mut dir)).expect("written");
        assert_eq!(told, data_bytes(output.path()), "{what}");
    }
}

/// Three steps of a training, the plan of which must be within a share of what they held; gives the plan.
fn plan_and_compare(
    what: &str,
    trainer: &mut Trainer,
    (dtype, policy): (DType, Policy),
    window: &[Batch],
    (goal, optimizer): (NextToken, &Optimizer),
    share: usize,
) -> MemoryPlan {
    // What loading takes is gone before training begins.
    let loaded = trainer.backend.memory().peak_held_bytes;
    for _ in 0..3 {
        trainer.step(window, 1e-3).expect("tokens to train on");
    }
    let (batch, tokens) = (window[0].batch, window[0].tokens_per_row);
    let mesh = MeshShape { replicate: 1, shard: 1 };
    let shape = Shape { mesh, policy, dtype, batch, tokens, accumulation: window.len(), files: None };
    let plan = MemoryPlan::new(&Goal::NextToken(goal), &trainer.model, optimizer, &shape, &*trainer.backend);
    let (plan, held) = (plan.expect("planned"), trainer.backend.memory());
    assert!(held.peak_held_bytes > loaded, "{what}: training needs more than loading");
    let (found, expected) = (held.peak_held_bytes + held.scratch_bytes, plan.total() as usize);
    assert!(
        found.abs_diff(expected) <= expected / share,
        "{what}: planned {expected}, held {found}: {plan:?}, {held:?}"
    );
    plan
}

#[test]
fn a_plan_is_what_a_run_holds() {
    let wide = DecoderConfig { vocab_size: 3000, ..deep() };
    let dataset = rows(70, &[(60, 0); 4]);
    for (config, dtype, policy, micro_batches) in [
        (deep(), DType::F32, Policy::default(), 1),
        (wide.clone(), DType::F32, Policy { recompute_every: 1, ..Policy::default() }, 2),
        (wide.clone(), DType::Bf16, Policy { accumulate_in_f32: true, ..Policy::default() }, 3),
        (wide.clone(), DType::Bf16, Policy { recompute_every: 2, optimizer_in_bwd: true, ..Policy::default() }, 1),
        (DecoderConfig { tie_word_embeddings: true, ..wide }, DType::Bf16, Policy::default(), 1),
    ] {
        let what = format!("{dtype}, {policy:?}");
        let mut trainer = Trainer::new(config, dtype, policy, adamw(), 2);
        let window = vec![batch(&dataset, 0..4); micro_batches];
        let of_run = (NextToken::default(), &adamw());
        let plan = plan_and_compare(&what, &mut trainer, (dtype, policy), &window, of_run, 20);
        let elements = trainer.model.layout().num_elements() as u64;
        let bytes = elements * dtype.size_bytes() as u64;
        assert!(plan.parameters >= bytes && plan.parameters < bytes + bytes / 10, "{what}: {plan:?}");
        assert_eq!(plan.optimizer, 2 * plan.parameters, "{what}");
    }
}

#[test]
fn a_plan_of_quantised_layers_is_what_a_run_holds() {
    let config = DecoderConfig { vocab_size: 3000, ..deep() };
    let window = [batch(&rows(70, &[(60, 0); 4]), 0..4)];
    let quant = FakeQuant { scheme: Scheme::Int8Int4, group_size: 32 };
    for (dtype, recompute_every) in [(DType::F32, 0), (DType::Bf16, 0), (DType::Bf16, 1)] {
        let policy = Policy { recompute_every, ..Policy::default() };
        let model = Decoder::new(config.clone()).expect("possible").quantised(quant).expect("groups fit");
        let mut trainer = Trainer::of_model(model, dtype, policy, adamw(), backend(2), &Mesh::alone(), None);
        // Whatever comes first, what needs more is planned.
        let of_run = (NextToken { exact_steps: 1000 }, &adamw());
        let what = format!("{dtype}, {recompute_every}");
        plan_and_compare(&what, &mut trainer, (dtype, policy), &window, of_run, 20);
    }
}

#[test]
fn a_plan_of_adapters_is_what_a_run_holds() {
    let config = DecoderConfig { vocab_size: 3000, hidden_size: 128, head_dim: 32, intermediate_size: 320, ..deep() };
    let (window, dtype) = ([batch(&rows(70, &[(60, 0); 4]), 0..4)], DType::Bf16);
    let modules =
        LoraModule::ALL.into_iter().filter(|module| ![LoraModule::K, LoraModule::Head].contains(module)).collect();
    let plain = LoraConfig { rank: 8, alpha: 16.0, dropout: 0.0, modules, use_dora: false, quantize_base: false };
    let mut parameters = Vec::new();
    for (lora, recompute_every) in [
        (plain.clone(), 0),
        (LoraConfig { use_dora: true, dropout: 0.1, ..plain.clone() }, 1),
        (LoraConfig { quantize_base: true, ..plain.clone() }, 0),
        (LoraConfig { quantize_base: true, ..plain }, 1),
    ] {
        let what = format!("{lora:?}, {recompute_every}");
        let policy = Policy { recompute_every, ..Policy::default() };
        let model = Decoder::with_adapters(config.clone(), Some(&lora)).expect("possible");
        let mut trainer = Trainer::of_model(model, dtype, policy, adamw(), backend(2), &Mesh::alone(), None);
        let of_run = (NextToken::default(), &adamw());
        let plan = plan_and_compare(&what, &mut trainer, (dtype, policy), &window, of_run, 10);
        let trained = 2 * trainer.model.layout().num_trained() as u64;
        assert!(plan.optimizer >= 2 * trained && plan.optimizer < 3 * trained, "{what}: {plan:?}");
        assert!(plan.gradients >= trained && plan.gradients < 2 * trained, "{what}: {plan:?}");
        parameters.push(plan.parameters);
    }
    // The embedding and the head stay as they are.
    let of_ends = 2 * 2 * 3000 * 128;
    assert!(parameters[2] - of_ends < (parameters[0] - of_ends) * 2 / 5, "{parameters:?}");
}

#[test]
fn shards_divide_what_a_rank_holds() {
    let backend = backend(1);
    let model = Decoder::new(deep()).expect("possible");
    let plan = |shard: usize| {
        let mesh = MeshShape { replicate: 1, shard };
        let (policy, dtype) = (Policy::default(), DType::Bf16);
        let shape = Shape { mesh, policy, dtype, batch: 1, tokens: 16, accumulation: 1, files: None };
        MemoryPlan::new(&Goal::NextToken(NextToken::default()), &model, &adamw(), &shape, &*backend).expect("planned")
    };
    let (whole, quarter) = (plan(1), plan(4));
    for (name, of_whole, of_quarter) in
        [("parameters", whole.parameters, quarter.parameters), ("states", whole.optimizer, quarter.optimizer)]
    {
        assert!(of_quarter < of_whole / 3 && of_quarter >= of_whole / 4, "{name}: {of_quarter} of {of_whole}");
    }
    assert_eq!(whole.gathered, 0);
    assert!(quarter.gathered > 0 && quarter.gathered < whole.parameters, "{quarter:?}");
}

#[test]
fn memory_does_not_grow() {
    let lengths: Vec<(usize, usize)> = (0..50).map(|i| (4 + (i * 29) % 61, 1)).collect();
    let dataset = rows(90, &lengths);
    for policy in [
        Policy::default(),
        Policy { recompute_every: 1, ..Policy::default() },
        Policy { optimizer_in_bwd: true, ..Policy::default() },
    ] {
        let mut trainer = Trainer::new(shape(true), DType::F32, policy, adamw(), 2);
        // The longest batch comes in the warm-up, as it may in any run.
        let mut windows: Vec<Vec<Batch>> = vec![vec![batch(&dataset, 0..50)]];
        windows.extend((0..50).map(|step| vec![batch(&dataset, [step, (step + 7) % 50])]));
        let mut after = Vec::new();
        for window in windows.iter().chain(&windows[1..]) {
            trainer.step(window, 1e-3).expect("tokens to train on");
            after.push(trainer.backend.memory());
        }
        let (warm_up, rest) = after.split_at(51);
        for (step, memory) in rest.iter().enumerate() {
            assert_eq!(memory.live_bytes, warm_up[0].live_bytes, "{policy:?}: live after step {step}");
            assert_eq!(memory.peak_live_bytes, warm_up[0].peak_live_bytes, "{policy:?}: peak after step {step}");
        }
        let cached = |all: &[MemoryStats]| all.iter().map(|memory| memory.cached_bytes).max().expect("steps");
        let (before, later) = (cached(warm_up), cached(rest));
        assert!(later <= before, "{policy:?}: {later} bytes kept for reuse, {before} at most in the warm-up");
    }
}

#[test]
fn moments_in_8_bits_are_planned_and_held_in_two_bytes_a_parameter() {
    // Every matrix has 4096 elements at least, and norms weigh nothing.
    let config = DecoderConfig { vocab_size: 3000, hidden_size: 128, head_dim: 32, ..deep() };
    let window = [batch(&rows(70, &[(20, 0); 2]), 0..2)];
    for dtype in [DType::F32, DType::Bf16] {
        let policy = Policy::default();
        let bytes_of = |moments: Moments| {
            let optimizer = adamw_in(moments);
            let mut trainer = Trainer::new(config.clone(), dtype, policy, optimizer.clone(), 2);
            let of_run = (NextToken::default(), &optimizer);
            let plan = plan_and_compare(&dtype.to_string(), &mut trainer, (dtype, policy), &window, of_run, 20);
            assert_eq!(plan.optimizer, trainer.store.most_held().optimizer, "{dtype}: planned and held");
            plan.optimizer as f64 / trainer.model.layout().num_elements() as f64
        };
        let (eight, wide) = (bytes_of(Moments::EightBits { min_elements: 4096 }), bytes_of(Moments::F32));
        assert!((2.03..=2.1).contains(&eight), "{dtype}: {eight} bytes a parameter in 8 bits");
        assert!((8.0..8.1).contains(&wide), "{dtype}: {wide} bytes a parameter in f32");
        let same = bytes_of(Moments::LikeParameter) / 2.0 / dtype.size_bytes() as f64;
        assert!((1.0..1.02).contains(&same), "{dtype}: as the parameter, {same} of it");
    }
}
