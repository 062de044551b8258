//! Configs of recipes that train nothing.

use super::Config;
use crate::configs::models::{
    GEMMA_2B, LLAMA2_7B, LLAMA2_7B_CHAT, LLAMA3_1_8B, LLAMA3_1_70B, LLAMA3_2_3B, LLAMA3_2_VISION_11B, LLAMA3_3_70B,
    LLAMA3_70B, LLAMA4_SCOUT, MISTRAL_7B, PHI3_MINI, PHI4_14B, QWEN2_5_0_5B, QWEN2_7B, QWEN3_0_6B,
};

pub(super) fn configs() -> Vec<Config> {
    [generate(), dev_generate_v2(), dev_generate_v2_distributed(), eleuther_eval(), quantize()].concat()
}

#[rustfmt::skip]
fn generate() -> Vec<Config> {
    let of = |name, model| Config::new("generate", name, model);
    vec![
        of("generation", &LLAMA2_7B).seed("1234"),
    ]
}

#[rustfmt::skip]
fn dev_generate_v2() -> Vec<Config> {
    let of = |name, model| Config::new("dev/generate_v2", name, model);
    vec![
        of("llama2/generation_v2", &LLAMA2_7B_CHAT).seed("1234").max_seq_len(2048),
        of("llama3_2_vision/11B_generation_v2", &LLAMA3_2_VISION_11B).seed("1234"),
    ]
}

#[rustfmt::skip]
fn dev_generate_v2_distributed() -> Vec<Config> {
    let of = |name, model| Config::new("dev/generate_v2_distributed", name, model);
    vec![
        of("llama3/70B_generation_distributed", &LLAMA3_70B).seed("1234").max_seq_len(8192),
        of("llama3_1/70B_generation_distributed", &LLAMA3_1_70B).seed("1234").max_seq_len(8192),
        of("llama3_3/70B_generation_distributed", &LLAMA3_3_70B).seed("1234").max_seq_len(8192),
        of("llama4/scout_17B_16E_generation_distributed", &LLAMA4_SCOUT).seed("1234"),
    ]
}

#[rustfmt::skip]
fn eleuther_eval() -> Vec<Config> {
    let of = |name, model| Config::new("eleuther_eval", name, model);
    vec![
        of("eleuther_evaluation", &LLAMA2_7B).batch(8, 1).seed("1234"),
        of("llama3_2_vision/11B_evaluation", &LLAMA3_2_VISION_11B).batch(1, 1).seed("1234"),
        of("qwen2/evaluation", &QWEN2_7B).batch(8, 1).seed("1234"),
        of("qwen2_5/evaluation", &QWEN2_5_0_5B).batch(8, 1).seed("1234"),
        of("gemma/evaluation", &GEMMA_2B).batch(8, 1).seed("1234"),
        of("phi4/evaluation", &PHI4_14B).batch(8, 1).seed("1234"),
        of("phi3/evaluation", &PHI3_MINI).batch(8, 1).seed("1234"),
        of("mistral/evaluation", &MISTRAL_7B).batch(8, 1).seed("1234"),
        of("llama3_2/evaluation", &LLAMA3_2_3B).batch(8, 1).seed("1234"),
        of("qwen3/evaluation", &QWEN3_0_6B).batch(8, 1).seed("1234"),
        of("llama3_1/evaluation", &LLAMA3_1_8B).batch(8, 1).seed("1234"),
    ]
}

#[rustfmt::skip]
fn quantize() -> Vec<Config> {
    let of = |name, model| Config::new("quantize", name, model);
    vec![
        of("quantization", &LLAMA2_7B).seed("1234"),
    ]
}
