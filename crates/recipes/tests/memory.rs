//! How much memory a run needs: what policies save, and that nothing grows.

use data::Batch;
use models::DecoderConfig;
use tensor::{DType, MemoryStats};
use train::Policy;

use crate::tiny::{Trainer, adamw, batch, rows, shape};

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
    let parameters = 4 * models::Decoder::new(deep()).expect("possible").layout().num_elements();
    let (lived, peaked) = (plain.live_bytes - inside.live_bytes, plain.peak_live_bytes - inside.peak_live_bytes);
    assert!(lived >= parameters, "between steps {lived} bytes less, gradients have {parameters}");
    // At the peak one unit of six has gradients.
    assert!(peaked > parameters / 2, "at the peak {peaked} bytes less, gradients have {parameters}");
}

#[test]
fn recomputed_blocks_free_activations() {
    let of_activations = |recompute_blocks| {
        let memory = memory_of(Policy { recompute_blocks, ..Policy::default() }, 64, 8);
        memory.peak_live_bytes - memory.live_bytes
    };
    let (kept, recomputed) = (of_activations(false), of_activations(true));
    assert!(2 * recomputed < kept, "{recomputed} bytes of activations at the peak, {kept} when they are kept");
}

#[test]
fn memory_does_not_grow() {
    let lengths: Vec<(usize, usize)> = (0..50).map(|i| (4 + (i * 29) % 61, 1)).collect();
    let dataset = rows(90, &lengths);
    for policy in [
        Policy::default(),
        Policy { recompute_blocks: true, ..Policy::default() },
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
