//! A steady run takes no memory from the system: a binary of its own, because its allocator counts.

use cpu::counting_alloc::CountingAllocator;
use data::{Loader, LoaderOptions, Sampler};
use models::DecoderConfig;
use tensor::DType;
use train::Policy;

#[expect(dead_code, reason = "the other tests of the folder use the rest")]
mod tiny;

const THRESHOLD_BYTES: usize = 64 << 10;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new(THRESHOLD_BYTES);

/// A model whose activations, gradients and states are over the threshold and under the size from which regions are
/// mapped, so that the allocator would see each of them.
fn shape(tied: bool) -> DecoderConfig {
    DecoderConfig {
        vocab_size: 512,
        hidden_size: 96,
        intermediate_size: 256,
        num_key_value_heads: 4,
        head_dim: 24,
        ..tiny::shape(tied)
    }
}

/// With more threads it is chance which of them takes a task first and grows its scratch memory.
const THREADS: usize = 1;

/// Rows of one optimizer step: 8 rows of 64 tokens, as one micro-batch or two.
const ROWS: usize = 8;

fn check(dtype: DType, policy: Policy, micro_batches: usize) {
    let dataset = tiny::rows(100, &[(64, 3); 8 * ROWS]);
    let options = LoaderOptions {
        batch_size: ROWS / micro_batches,
        gradient_accumulation_steps: micro_batches,
        sampler: Sampler::default(),
        drop_last: true,
        pad_id: 0,
    };
    let loader = Loader::new(std::sync::Arc::new(dataset), options).expect("enough rows");
    let mut trainer = tiny::Trainer::new(shape(false), dtype, policy, tiny::adamw(), THREADS);
    let mut steps = 0;
    for window in loader.windows(0, 0) {
        steps += 1;
        trainer.step(&window, 1e-3).expect("tokens to train on");
        let what = format!("{dtype}, {policy:?}, {micro_batches} micro-batches, step {steps}");
        if steps <= 2 {
            assert!(steps > 1 || ALLOCATOR.count() > 0, "{what}: the first step allocates, or nothing is counted");
            ALLOCATOR.reset();
        }
        let (count, largest) = (ALLOCATOR.count(), ALLOCATOR.largest_bytes());
        assert_eq!(count, 0, "{what}: allocations over {THRESHOLD_BYTES} bytes, the largest of {largest}");
    }
    assert_eq!(steps, 8);
}

#[test]
fn steps_3_to_8_allocate_nothing_large() {
    ALLOCATOR.reset();
    drop(std::hint::black_box(vec![1u8; THRESHOLD_BYTES]));
    assert_eq!(ALLOCATOR.count(), 0, "an allocation of the threshold's size");
    drop(std::hint::black_box(vec![1u8; THRESHOLD_BYTES + 1]));
    assert_eq!((ALLOCATOR.count(), ALLOCATOR.largest_bytes()), (1, THRESHOLD_BYTES + 1), "a larger one");

    let (plain, recompute_every) = (Policy::default(), 1);
    check(DType::F32, plain, 1);
    check(DType::F32, Policy { recompute_every, ..plain }, 2);
    check(DType::F32, Policy { optimizer_in_bwd: true, ..plain }, 1);
    check(DType::Bf16, Policy { accumulate_in_f32: true, ..plain }, 2);
    check(DType::Bf16, Policy { recompute_every, optimizer_in_bwd: true, ..plain }, 1);
}
