//! Configs of recipes that train an adapter.

use super::Config;
use super::Data::{Alpaca, Cauldron, CauldronMix, StackExchange};
use crate::configs::models::{
    GEMMA_2B, GEMMA_7B, GEMMA2_2B, GEMMA2_9B, GEMMA2_27B, LLAMA2_7B, LLAMA2_13B, LLAMA2_70B, LLAMA3_1_8B, LLAMA3_1_70B,
    LLAMA3_1_405B, LLAMA3_2_1B, LLAMA3_2_3B, LLAMA3_2_VISION_11B, LLAMA3_2_VISION_90B, LLAMA3_3_70B, LLAMA3_8B,
    LLAMA3_70B, LLAMA4_SCOUT, MISTRAL_7B, PHI3_MINI, PHI4_14B, QWEN2_0_5B, QWEN2_1_5B, QWEN2_5_0_5B, QWEN2_5_1_5B,
    QWEN2_5_3B, QWEN2_5_7B, QWEN2_5_14B, QWEN2_5_32B, QWEN2_5_72B, QWEN2_7B, QWEN3_0_6B, QWEN3_1_7B, QWEN3_4B,
    QWEN3_8B, QWEN3_8B_BASE, QWEN3_14B, QWEN3_32B,
};

pub(super) fn configs() -> Vec<Config> {
    [
        lora_finetune_single_device(),
        lora_finetune_distributed(),
        lora_dpo_single_device(),
        lora_dpo_distributed(),
        dev_lora_finetune_distributed_multi_dataset(),
        qat_lora_finetune_distributed(),
        knowledge_distillation_single_device(),
        knowledge_distillation_distributed(),
    ]
    .concat()
}

#[rustfmt::skip]
fn lora_finetune_single_device() -> Vec<Config> {
    let of = |name, model| Config::new("lora_finetune_single_device", name, model);
    vec![
        of("llama2/7B_lora_single_device", &LLAMA2_7B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("llama2/7B_qlora_single_device", &LLAMA2_7B).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute().low_cpu_ram(),
        of("llama3/8B_lora_single_device", &LLAMA3_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("llama3_1/8B_lora_single_device", &LLAMA3_1_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("llama3/8B_qlora_single_device", &LLAMA3_8B).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute().low_cpu_ram(),
        of("llama3_2/1B_lora_single_device", &LLAMA3_2_1B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100),
        of("llama3_2/3B_lora_single_device", &LLAMA3_2_3B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100).recompute(),
        of("llama3/8B_dora_single_device", &LLAMA3_8B).dora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("llama3/8B_qdora_single_device", &LLAMA3_8B).qdora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("llama3_1/8B_qlora_single_device", &LLAMA3_1_8B).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .low_cpu_ram(),
        of("llama3_2/1B_qlora_single_device", &LLAMA3_2_1B).qlora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100),
        of("llama3_2/3B_qlora_single_device", &LLAMA3_2_3B).qlora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100).recompute(),
        of("llama2/13B_qlora_single_device", &LLAMA2_13B).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("mistral/7B_lora_single_device", &MISTRAL_7B).lora(64, 16).on_output().adamw("2e-5").batch(4, 8).warmup(100).recompute().on(Alpaca),
        of("mistral/7B_qlora_single_device", &MISTRAL_7B).qlora(64, 16).adamw("2e-5").batch(4, 8).warmup(100).recompute().on(Alpaca).low_cpu_ram(),
        of("gemma/2B_lora_single_device", &GEMMA_2B).lora(64, 128).adamw("2e-5").batch(4, 8).warmup(10).recompute().on(Alpaca),
        of("gemma/2B_qlora_single_device", &GEMMA_2B).qlora(64, 128).adamw("2e-5").batch(4, 8).warmup(10).recompute().on(Alpaca),
        of("gemma/7B_lora_single_device", &GEMMA_7B).lora(8, 16).adamw("5e-5").batch(8, 8).warmup(10).recompute().on(Alpaca),
        of("gemma/7B_qlora_single_device", &GEMMA_7B).qlora(64, 128).adamw("2e-5").batch(4, 8).warmup(10).recompute().on(Alpaca).low_cpu_ram(),
        of("gemma2/2B_lora_single_device", &GEMMA2_2B).lora(64, 128).adamw("2e-5").batch(8, 8).warmup(10).recompute().on(Alpaca),
        of("gemma2/2B_qlora_single_device", &GEMMA2_2B).qlora(64, 128).adamw("2e-5").batch(4, 8).warmup(10).recompute().on(Alpaca),
        of("gemma2/9B_lora_single_device", &GEMMA2_9B).lora(8, 16).adamw("5e-5").batch(8, 8).warmup(10).recompute().on(Alpaca),
        of("gemma2/9B_qlora_single_device", &GEMMA2_9B).qlora(64, 128).adamw("2e-5").batch(4, 8).warmup(10).recompute().on(Alpaca).low_cpu_ram(),
        of("gemma2/27B_lora_single_device", &GEMMA2_27B).lora(8, 16).adamw("5e-5").batch(2, 8).warmup(10).recompute().on(Alpaca),
        of("gemma2/27B_qlora_single_device", &GEMMA2_27B).qlora(64, 128).adamw("2e-5").batch(4, 8).warmup(10).recompute().on(Alpaca).low_cpu_ram(),
        of("phi3/mini_lora_single_device", &PHI3_MINI).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("phi3/mini_qlora_single_device", &PHI3_MINI).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute().low_cpu_ram(),
        of("phi4/14B_lora_single_device", &PHI4_14B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("phi4/14B_qlora_single_device", &PHI4_14B).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute().low_cpu_ram(),
        of("qwen2/7B_lora_single_device", &QWEN2_7B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("qwen2/0.5B_lora_single_device", &QWEN2_0_5B).lora(32, 64).adamw("2e-3").decay("0.01").batch(4, 8).warmup(100).recompute(),
        of("qwen2/1.5B_lora_single_device", &QWEN2_1_5B).lora(32, 64).adamw("2e-3").batch(2, 8).warmup(100).recompute(),
        of("qwen2_5/0.5B_lora_single_device", &QWEN2_5_0_5B).lora(32, 64).adamw("2e-3").decay("0.01").batch(2, 8).warmup(100),
        of("qwen2_5/1.5B_lora_single_device", &QWEN2_5_1_5B).lora(32, 64).adamw("2e-3").batch(2, 8).warmup(100),
        of("qwen2_5/3B_lora_single_device", &QWEN2_5_3B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .no_memory_stats(),
        of("qwen2_5/7B_lora_single_device", &QWEN2_5_7B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .no_memory_stats(),
        of("qwen2_5/14B_lora_single_device", &QWEN2_5_14B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .no_memory_stats(),
        of("llama3_2_vision/11B_lora_single_device", &LLAMA3_2_VISION_11B).lora(8, 16).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100)
            .recompute().clip("1.0").on(Cauldron),
        of("llama3_2_vision/11B_qlora_single_device", &LLAMA3_2_VISION_11B).qlora(8, 16).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100)
            .recompute().clip("1.0").on(Cauldron),
        of("qwen3/0.6B_lora_single_device", &QWEN3_0_6B).lora(32, 64).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/1.7B_lora_single_device", &QWEN3_1_7B).lora(32, 64).adamw("1e-4").batch(2, 8).warmup(100),
        of("qwen3/4B_lora_single_device", &QWEN3_4B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("qwen3/8B_lora_single_device", &QWEN3_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
        of("qwen3/14B_lora_single_device", &QWEN3_14B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute(),
    ]
}

#[rustfmt::skip]
fn lora_finetune_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("lora_finetune_distributed", name, model);
    vec![
        of("llama2/7B_lora", &LLAMA2_7B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("llama2/13B_lora", &LLAMA2_13B).lora(8, 16).on_output().adamw("2e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("llama2/70B_lora", &LLAMA2_70B).lora(16, 32).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate(),
        of("llama2/7B_qlora", &LLAMA2_7B).qlora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).recompute().validate(),
        of("llama2/70B_qlora", &LLAMA2_70B).qlora(16, 32).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate(),
        of("llama3/8B_dora", &LLAMA3_8B).dora(8, 16).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100),
        of("llama3/70B_lora", &LLAMA3_70B).lora(16, 32).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate(),
        of("llama3_1/70B_lora", &LLAMA3_1_70B).lora(16, 32).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate().only_adapter(),
        of("llama3_3/70B_lora", &LLAMA3_3_70B).lora(16, 32).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate().only_adapter(),
        of("llama3_3/70B_qlora", &LLAMA3_3_70B).qlora(16, 32).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate()
            .only_adapter(),
        of("llama3/8B_lora", &LLAMA3_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("llama3_1/8B_lora", &LLAMA3_1_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("llama3_2/1B_lora", &LLAMA3_2_1B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100).validate(),
        of("llama3_2/3B_lora", &LLAMA3_2_3B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100).validate(),
        of("llama3_1/405B_qlora", &LLAMA3_1_405B).qlora(16, 32).adamw("3e-4").decay("0.01").batch(1, 8).warmup(100).recompute().validate()
            .only_adapter(),
        of("mistral/7B_lora", &MISTRAL_7B).lora(64, 16).on_output().adamw("2e-5").batch(4, 1).warmup(100).recompute().validate(),
        of("gemma/2B_lora", &GEMMA_2B).lora(64, 128).adamw("2e-5").batch(4, 1).warmup(10).recompute().validate(),
        of("gemma/7B_lora", &GEMMA_7B).lora(64, 128).adamw("2e-5").batch(4, 1).warmup(10).recompute().validate(),
        of("gemma2/2B_lora", &GEMMA2_2B).lora(64, 128).adamw("2e-5").batch(4, 1).warmup(10).recompute().validate(),
        of("gemma2/9B_lora", &GEMMA2_9B).lora(64, 128).adamw("2e-5").batch(4, 1).warmup(10).recompute().validate(),
        of("gemma2/27B_lora", &GEMMA2_27B).lora(64, 128).adamw("2e-5").batch(4, 1).warmup(10).recompute().validate(),
        of("phi3/mini_lora", &PHI3_MINI).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("phi4/14B_lora", &PHI4_14B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("qwen2/7B_lora", &QWEN2_7B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("qwen2/0.5B_lora", &QWEN2_0_5B).lora(32, 64).adamw("2e-3").decay("0.01").batch(4, 8).warmup(100).recompute().validate(),
        of("qwen2/1.5B_lora", &QWEN2_1_5B).lora(32, 64).adamw("2e-5").batch(2, 8).warmup(100).recompute().validate(),
        of("qwen2_5/0.5B_lora", &QWEN2_5_0_5B).lora(32, 64).adamw("2e-3").decay("0.01").batch(2, 8).warmup(100).validate(),
        of("qwen2_5/1.5B_lora", &QWEN2_5_1_5B).lora(32, 64).adamw("2e-5").batch(2, 8).warmup(100).validate(),
        of("qwen2_5/3B_lora", &QWEN2_5_3B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate().no_memory_stats(),
        of("qwen2_5/7B_lora", &QWEN2_5_7B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate().no_memory_stats(),
        of("qwen2_5/32B_lora", &QWEN2_5_32B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).validate().no_memory_stats(),
        of("qwen2_5/72B_lora", &QWEN2_5_72B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 1).warmup(100).recompute().validate().no_memory_stats(),
        of("llama3_2_vision/11B_lora", &LLAMA3_2_VISION_11B).lora(8, 16).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .clip("1.0").validate(),
        of("llama3_2_vision/11B_qlora", &LLAMA3_2_VISION_11B).qlora(8, 16).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .clip("1.0").validate(),
        of("llama3_2_vision/90B_lora", &LLAMA3_2_VISION_90B).lora(8, 16).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .clip("1.0").validate(),
        of("llama3_2_vision/90B_qlora", &LLAMA3_2_VISION_90B).qlora(8, 16).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100).recompute()
            .clip("1.0").validate(),
        of("llama4/scout_17B_16E_lora", &LLAMA4_SCOUT).lora(16, 32).adamw("2e-5").batch(2, 1).warmup(100).recompute().validate()
            .cpu_offload(false).shard("[tok_embeddings]").only_adapter(),
        of("qwen3/0.6B_lora", &QWEN3_0_6B).lora(32, 64).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/1.7B_lora", &QWEN3_1_7B).lora(32, 64).adamw("2e-5").batch(2, 8).warmup(100),
        of("qwen3/4B_lora", &QWEN3_4B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/8B_lora", &QWEN3_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/32B_lora", &QWEN3_32B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
    ]
}

#[rustfmt::skip]
fn lora_dpo_single_device() -> Vec<Config> {
    let of = |name, model| Config::new("lora_dpo_single_device", name, model);
    vec![
        of("llama2/7B_lora_dpo_single_device", &LLAMA2_7B).lora(8, 16).adamw("5e-4").decay("0.05").batch(4, 8).warmup(100).recompute()
            .on(StackExchange).max_seq_len(1024),
        of("llama3_1/8B_lora_dpo_single_device", &LLAMA3_1_8B).lora(8, 16).adamw("5e-4").decay("0.05").batch(4, 8).warmup(100).recompute()
            .on(StackExchange).max_seq_len(1024),
    ]
}

#[rustfmt::skip]
fn lora_dpo_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("lora_dpo_distributed", name, model);
    vec![
        of("llama2/7B_lora_dpo", &LLAMA2_7B).lora(8, 16).adamw("5e-4").decay("0.05").batch(4, 8).warmup(100).recompute().on(StackExchange)
            .max_seq_len(1024),
        of("llama3_1/8B_lora_dpo", &LLAMA3_1_8B).lora(8, 16).adamw("5e-4").decay("0.05").batch(4, 8).warmup(100).recompute()
            .on(StackExchange).max_seq_len(1024),
    ]
}

#[rustfmt::skip]
fn dev_lora_finetune_distributed_multi_dataset() -> Vec<Config> {
    let of = |name, model| Config::new("dev/lora_finetune_distributed_multi_dataset", name, model);
    vec![
        of("dev/11B_lora_multi_dataset", &LLAMA3_2_VISION_11B).lora(8, 16).adamw("1e-4").decay("0.01").batch(4, 1).warmup(100).recompute()
            .compile().clip("1.0").on(CauldronMix),
    ]
}

#[rustfmt::skip]
fn qat_lora_finetune_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("qat_lora_finetune_distributed", name, model);
    vec![
        of("llama3/8B_qat_lora", &LLAMA3_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
        of("llama3_1/8B_qat_lora", &LLAMA3_1_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
        of("llama3_2/1B_qat_lora", &LLAMA3_2_1B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100).hold_out(),
        of("llama3_2/3B_qat_lora", &LLAMA3_2_3B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100).hold_out(),
        of("qwen3/0.6B_qat_lora", &QWEN3_0_6B).lora(32, 64).adamw("1e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/1.7B_qat_lora", &QWEN3_1_7B).lora(32, 64).adamw("2e-5").batch(2, 8).warmup(100),
        of("qwen3/32B_qat_lora", &QWEN3_32B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/4B_qat_lora", &QWEN3_4B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
        of("qwen3/8B_qat_lora", &QWEN3_8B).lora(8, 16).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100),
    ]
}

#[rustfmt::skip]
fn knowledge_distillation_single_device() -> Vec<Config> {
    let of = |name, model| Config::new("knowledge_distillation_single_device", name, model);
    vec![
        of("qwen2/1.5_to_0.5B_KD_lora_single_device", &QWEN2_0_5B).lora(32, 64).adamw("3e-4").decay("0.01").batch(8, 8).warmup(100)
            .beside(&QWEN2_1_5B, "the teacher"),
        of("llama3_2/8B_to_1B_KD_lora_single_device", &LLAMA3_2_1B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100)
            .beside(&LLAMA3_1_8B, "the teacher").model_type("LLAMA3"),
        of("qwen3/14B_to_8B_KD_lora_single_device", &QWEN3_8B_BASE).lora(64, 128).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).log_every(2)
            .recompute().beside(&QWEN3_14B, "the teacher"),
        of("qwen2_5/14B_to_7B_KD_lora_single_device", &QWEN2_5_7B).lora(64, 128).adamw("3e-4").decay("0.01").batch(2, 8).warmup(100).log_every(2)
            .recompute().epochs(5).beside(&QWEN2_5_14B, "the teacher"),
    ]
}

#[rustfmt::skip]
fn knowledge_distillation_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("knowledge_distillation_distributed", name, model);
    vec![
        of("qwen2/1.5_to_0.5B_KD_lora_distributed", &QWEN2_0_5B).lora(32, 64).adamw("3e-4").decay("0.01").batch(8, 8).warmup(100)
            .no_memory_stats().beside(&QWEN2_1_5B, "the teacher"),
        of("llama3_2/8B_to_1B_KD_lora_distributed", &LLAMA3_2_1B).lora(64, 128).adamw("3e-4").decay("0.01").batch(4, 8).warmup(100)
            .no_memory_stats().beside(&LLAMA3_1_8B, "the teacher").model_type("LLAMA3"),
    ]
}
