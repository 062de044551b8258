//! Configs of recipes that train every weight.

use super::Config;
use super::Data::{Alpaca, Cauldron, Commands, Gsm8k, Gsm8kSolutions, Reviews, StackExchange};
use crate::configs::models::{
    GEMMA_2B, GEMMA_7B, GEMMA2_2B, GEMMA2_9B, GEMMA2_27B, LLAMA2_7B, LLAMA2_13B, LLAMA3_1_8B, LLAMA3_1_70B,
    LLAMA3_2_1B, LLAMA3_2_3B, LLAMA3_2_3B_BASE, LLAMA3_2_VISION_11B, LLAMA3_2_VISION_90B, LLAMA3_3_70B, LLAMA3_8B,
    LLAMA3_8B_META, LLAMA3_70B, LLAMA4_MAVERICK, LLAMA4_SCOUT, MISTRAL_7B, MISTRAL_7B_INSTRUCT, MISTRAL_7B_REWARD,
    PHI3_MINI, PHI4_14B, QWEN2_0_5B, QWEN2_1_5B, QWEN2_5_0_5B, QWEN2_5_1_5B, QWEN2_5_3B, QWEN2_5_3B_BASE, QWEN2_5_7B,
    QWEN2_7B, QWEN3_0_6B, QWEN3_1_7B, QWEN3_4B, QWEN3_8B, TINY_LLAMA_1B, TINY_LLAMA_1B_REWARD,
};

pub(super) fn configs() -> Vec<Config> {
    [
        full_finetune_single_device(),
        full_finetune_distributed(),
        full_dpo_distributed(),
        ppo_full_finetune_single_device(),
        dev_grpo_full_finetune_distributed(),
        dev_async_grpo_full_finetune_distributed(),
        dev_early_exit_finetune_distributed(),
        qat_single_device(),
        qat_distributed(),
    ]
    .concat()
}

#[rustfmt::skip]
fn full_finetune_single_device() -> Vec<Config> {
    let of = |name, model| Config::new("full_finetune_single_device", name, model);
    vec![
        of("llama2/7B_full_low_memory", &LLAMA2_7B).paged("1e-5").batch(2, 1).warmup(100).in_bwd().recompute().offload().on(Alpaca),
        of("llama3/8B_full_single_device", &LLAMA3_8B).paged_8bit("1e-5").batch(2, 1).warmup(100).in_bwd().recompute().on(Alpaca),
        of("llama3_1/8B_full_single_device", &LLAMA3_1_8B).paged_8bit("2e-5").batch(2, 1).in_bwd().recompute().on(Alpaca),
        of("llama3_2/1B_full_single_device", &LLAMA3_2_1B).paged_8bit("2e-5").batch(4, 1).in_bwd().seed("123").keep_last(2),
        of("llama3_2/3B_full_single_device", &LLAMA3_2_3B).paged_8bit("2e-5").batch(4, 1).in_bwd().recompute(),
        of("mistral/7B_full_low_memory", &MISTRAL_7B).paged("5e-6").batch(2, 1).in_bwd().recompute().offload().on(Alpaca),
        of("phi3/mini_full_low_memory", &PHI3_MINI).paged("5e-6").batch(2, 1).in_bwd().recompute().offload(),
        of("phi4/14B_full_low_memory", &PHI4_14B).paged("5e-6").batch(2, 1).in_bwd().recompute().offload(),
        of("qwen2/7B_full_single_device", &QWEN2_7B).paged("5e-6").batch(2, 1).in_bwd().recompute(),
        of("qwen2/0.5B_full_single_device", &QWEN2_0_5B).adamw("2e-5").batch(2, 8).recompute(),
        of("qwen2/1.5B_full_single_device", &QWEN2_1_5B).paged("2e-5").batch(2, 1).in_bwd().recompute(),
        of("qwen2_5/0.5B_full_single_device", &QWEN2_5_0_5B).adamw("2e-5").batch(2, 8),
        of("qwen2_5/1.5B_full_single_device", &QWEN2_5_1_5B).paged("2e-5").batch(4, 1).in_bwd().recompute(),
        of("qwen2_5/3B_full_single_device", &QWEN2_5_3B).paged("5e-6").batch(2, 1).in_bwd().recompute().no_memory_stats(),
        of("qwen2_5/7B_full_single_device", &QWEN2_5_7B).paged("5e-6").batch(2, 1).in_bwd().recompute().no_memory_stats(),
        of("llama3_2_vision/11B_full_single_device", &LLAMA3_2_VISION_11B).paged_8bit("2e-5").batch(2, 8).recompute().clip("1.0").on(Cauldron),
        of("qwen3/0.6B_full_single_device", &QWEN3_0_6B).adamw("2e-5").batch(2, 8),
        of("qwen3/1.7B_full_single_device", &QWEN3_1_7B).adamw("2e-5").batch(4, 1),
        of("qwen3/4B_full_single_device", &QWEN3_4B).adamw("2e-5").batch(2, 1).recompute(),
        of("qwen3/8B_full_single_device", &QWEN3_8B).paged("5e-6").batch(2, 1).in_bwd().recompute(),
    ]
}

#[rustfmt::skip]
fn full_finetune_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("full_finetune_distributed", name, model);
    vec![
        of("llama2/7B_full", &LLAMA2_7B).adamw("2e-5").batch(2, 1).recompute().validate(),
        of("llama2/13B_full", &LLAMA2_13B).adamw("2e-5").batch(2, 1).recompute().validate(),
        of("llama3/8B_full", &LLAMA3_8B).adamw("2e-5").batch(2, 1).recompute().validate().shard("[tok_embeddings, output]"),
        of("llama3_1/8B_full", &LLAMA3_1_8B).adamw("2e-5").batch(2, 1).recompute().validate().shard("[tok_embeddings, output]"),
        of("llama3_2/1B_full", &LLAMA3_2_1B).adamw("2e-5").batch(4, 8).validate(),
        of("llama3_2/3B_full", &LLAMA3_2_3B).adamw("2e-5").batch(4, 8).recompute().validate(),
        of("llama3/70B_full", &LLAMA3_70B).adamw("2e-5").batch(2, 1).recompute().validate().cpu_offload(true)
            .shard("[tok_embeddings, output]").tensor_parallel(1),
        of("llama3_1/70B_full", &LLAMA3_1_70B).adamw("2e-5").batch(2, 1).recompute().validate().cpu_offload(true)
            .shard("[tok_embeddings, output]").tensor_parallel(1),
        of("llama3_3/70B_full", &LLAMA3_3_70B).adamw("2e-5").batch(2, 1).recompute().validate().cpu_offload(true)
            .shard("[tok_embeddings, output]").tensor_parallel(1),
        of("llama3_3/70B_full_multinode", &LLAMA3_3_70B).adamw("2e-5").batch(4, 1).recompute().compile().validate().cpu_offload(false)
            .shard("[tok_embeddings, output]").tensor_parallel(8).mesh().max_seq_len(1024),
        of("mistral/7B_full", &MISTRAL_7B).adamw("5e-6").batch(2, 1).recompute().validate(),
        of("gemma/2B_full", &GEMMA_2B).adamw("2e-5").batch(2, 1).recompute().validate(),
        of("gemma/7B_full", &GEMMA_7B).adamw("2e-5").batch(1, 1).recompute().validate(),
        of("gemma2/2B_full", &GEMMA2_2B).adamw("2e-5").batch(2, 1).recompute().validate(),
        of("gemma2/9B_full", &GEMMA2_9B).adamw("2e-5").batch(1, 1).recompute().validate(),
        of("gemma2/27B_full", &GEMMA2_27B).adamw("2e-5").batch(1, 1).recompute().validate(),
        of("phi3/mini_full", &PHI3_MINI).adamw("5e-6").batch(2, 8).recompute().validate(),
        of("phi4/14B_full", &PHI4_14B).adamw("5e-6").batch(2, 8).recompute().validate(),
        of("qwen2/7B_full", &QWEN2_7B).adamw("5e-6").batch(2, 8).recompute().validate(),
        of("qwen2/0.5B_full", &QWEN2_0_5B).adamw("2e-5").batch(2, 8).validate(),
        of("qwen2/1.5B_full", &QWEN2_1_5B).adamw("2e-5").batch(2, 1).validate(),
        of("qwen2_5/0.5B_full", &QWEN2_5_0_5B).adamw("2e-5").batch(2, 8).validate(),
        of("qwen2_5/1.5B_full", &QWEN2_5_1_5B).adamw("2e-5").batch(2, 1).recompute().validate(),
        of("qwen2_5/3B_full", &QWEN2_5_3B).adamw("5e-6").batch(2, 8).recompute().validate().no_memory_stats(),
        of("qwen2_5/7B_full", &QWEN2_5_7B).adamw("5e-6").batch(2, 8).recompute().validate().no_memory_stats(),
        of("llama3_2_vision/11B_full", &LLAMA3_2_VISION_11B).adamw("2e-5").batch(2, 8).recompute().clip("1.0").validate()
            .shard("[decoder.tok_embeddings]"),
        of("llama3_2_vision/90B_full", &LLAMA3_2_VISION_90B).adamw("2e-5").batch(2, 8).recompute().clip("1.0").validate()
            .shard("[decoder.tok_embeddings]"),
        of("llama4/scout_17B_16E_full", &LLAMA4_SCOUT).adamw("2e-5").batch(1, 1).recompute().validate().cpu_offload(true).tensor_parallel(2).mesh(),
        of("llama4/maverick_17B_128E_full", &LLAMA4_MAVERICK).adamw("2e-5").batch(1, 1).recompute().validate().cpu_offload(true)
            .tensor_parallel(8).mesh(),
        of("qwen3/0.6B_full", &QWEN3_0_6B).adamw("2e-5").batch(2, 8),
        of("qwen3/1.7B_full", &QWEN3_1_7B).adamw("2e-5").batch(2, 1),
        of("qwen3/4B_full", &QWEN3_4B).adamw("5e-6").batch(2, 8).recompute(),
        of("qwen3/8B_full", &QWEN3_8B).adamw("5e-6").batch(2, 8).recompute(),
        of("dev/3B_sft_for_grpo", &LLAMA3_2_3B_BASE).adamw("1e-5").batch(2, 1).recompute().on(Gsm8kSolutions),
        of("dev/8B_full_experimental", &LLAMA3_8B_META).adamw("2e-5").batch(2, 1).on(Alpaca),
    ]
}

#[rustfmt::skip]
fn full_dpo_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("full_dpo_distributed", name, model);
    vec![
        of("llama3_1/8B_full_dpo", &LLAMA3_1_8B).adamw("2e-5").decay("0.05").batch(4, 8).warmup(20).recompute().on(StackExchange)
            .max_seq_len(1024).beside(&LLAMA3_1_8B, "the reference model"),
    ]
}

#[rustfmt::skip]
fn ppo_full_finetune_single_device() -> Vec<Config> {
    let of = |name, model| Config::new("ppo_full_finetune_single_device", name, model);
    vec![
        of("mistral/7B_full_ppo_low_memory", &MISTRAL_7B_INSTRUCT).paged("3e-6").batch(128, 1).warmup(100).in_bwd().recompute().compile()
            .on(Reviews).max_seq_len(512).trains(2).beside(&MISTRAL_7B_INSTRUCT, "the reference policy")
            .beside(&MISTRAL_7B_REWARD, "the reward model"),
        of("llama2/1B_full_ppo_low_memory_single_device", &TINY_LLAMA_1B).adamw("3e-6").batch(16, 1).in_bwd().recompute().on(Reviews)
            .max_seq_len(512).trains(2).beside(&TINY_LLAMA_1B, "the reference policy").beside(&TINY_LLAMA_1B_REWARD, "the reward model"),
    ]
}

#[rustfmt::skip]
fn dev_grpo_full_finetune_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("dev/grpo_full_finetune_distributed", name, model);
    vec![
        of("dev/3B_full_grpo", &LLAMA3_2_3B_BASE).adamw("1e-5").batch(1, 1).warmup(50).recompute().clip("1.0").epochs(10).on(Gsm8k)
            .beside(&LLAMA3_2_3B_BASE, "the reference model"),
        of("dev/qwen3B_sync_grpo", &QWEN2_5_3B_BASE).adamw("1e-5").batch(1, 1).warmup(50).recompute().clip("1.0").max_seq_len(1024)
            .epochs(10).on(Gsm8k).beside(&QWEN2_5_3B_BASE, "the reference model"),
    ]
}

#[rustfmt::skip]
fn dev_async_grpo_full_finetune_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("dev/async_grpo_full_finetune_distributed", name, model);
    vec![
        of("dev/qwen3B_async_grpo", &QWEN2_5_3B_BASE).adamw("1e-5").batch(16, 1).recompute().offload().clip("1.0").on(Gsm8k)
            .max_seq_len(1024).beside(&QWEN2_5_3B_BASE, "the reference model"),
    ]
}

#[rustfmt::skip]
fn dev_early_exit_finetune_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("dev/early_exit_finetune_distributed", name, model);
    vec![of("llama2/7B_full_early_exit", &LLAMA2_7B).adamw("2e-5").batch(8, 1).recompute().on(Commands)]
}

#[rustfmt::skip]
fn qat_single_device() -> Vec<Config> {
    let of = |name, model| Config::new("qat_single_device", name, model);
    vec![
        of("qwen2_5/3B_qat_single_device", &QWEN2_5_3B).paged("5e-6").batch(2, 1).in_bwd().recompute().no_memory_stats(),
        of("qwen2_5/1.5B_qat_single_device", &QWEN2_5_1_5B).paged("5e-6").batch(1, 1).in_bwd().recompute().no_memory_stats(),
        of("llama2/1B_qat_single_device", &TINY_LLAMA_1B).paged("5e-6").batch(1, 1).in_bwd().recompute().no_memory_stats().max_seq_len(2048),
    ]
}

#[rustfmt::skip]
fn qat_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("qat_distributed", name, model);
    vec![
        of("llama2/7B_qat_full", &LLAMA2_7B).adamw("2e-5").batch(2, 1).recompute().validate(),
        of("llama3/8B_qat_full", &LLAMA3_8B).adamw("2e-5").batch(2, 1).recompute().validate().shard("[tok_embeddings, output]"),
        of("llama3_1/8B_qat_full", &LLAMA3_1_8B).adamw("2e-5").batch(2, 1).recompute().validate().shard("[tok_embeddings, output]"),
        of("llama3_2/3B_qat_full", &LLAMA3_2_3B).adamw("2e-5").batch(4, 8).recompute().validate(),
        of("qwen3/0.6B_qat_full", &QWEN3_0_6B).adamw("2e-5").batch(2, 8),
        of("qwen3/1.7B_qat_full", &QWEN3_1_7B).adamw("2e-5").batch(2, 1),
        of("qwen3/4B_qat_full", &QWEN3_4B).adamw("5e-6").batch(2, 8).recompute(),
        of("qwen3/8B_qat_full", &QWEN3_8B).adamw("5e-6").batch(2, 8).recompute(),
    ]
}
