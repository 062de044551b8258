//! How much memory a config needs, as its first lines say it.
//!
//! A weight in bfloat16 takes 2 bytes, its gradient 2, and its two moments 4 (AdamW), 8 (paged, kept in 32 bits) or 2 (8 bits).
//! Quantised weights take 4.5 bits, scales included; embedding and head stay as they are. Activations depend on the length of
//! rows and are left out.

use super::models::{Head, Model, Size};
use super::table::{Adapter, Config, Optimizer};

/// Bits of a weight that is quantised to 4 bits with its share of the scales.
const QUANTISED_BITS: f64 = 4.5;

/// Weights of a model.
pub(super) fn num_weights(model: &Model) -> f64 {
    let (blocks, ends) = blocks_and_ends(model);
    blocks + ends
}

/// Weights in blocks, and weights of embedding and head. Norms and biases are too few to count.
fn blocks_and_ends(model: &Model) -> (f64, f64) {
    match model.size {
        Size::Decoder([vocab, layers, width, heads, kv_heads, head_dim, ffn], head) => {
            let attention = 2 * width * head_dim * (heads + kv_heads);
            let ends = if head == Head::Own { 2 } else { 1 };
            ((layers * (attention + 3 * width * ffn)) as f64, (ends * vocab * width) as f64)
        }
        Size::Weights(all) => (all as f64, 0.0),
    }
}

/// Weights of an adapter on queries, values, attention outputs and feed-forward layers; 0 where the sizes are not known.
fn adapter_weights(model: &Model, adapter: &Adapter) -> f64 {
    let Size::Decoder([vocab, layers, width, heads, kv_heads, head_dim, ffn], _) = model.size else { return 0.0 };
    let (query, value) = (heads * head_dim, kv_heads * head_dim);
    let block = 2 * (width + query) + (width + value) + 3 * (width + ffn);
    let output = if adapter.on_output { width + vocab } else { 0 };
    (adapter.rank * (layers * block + output)) as f64
}

/// Bytes of weights that are only read.
fn frozen(model: &Model, quantised: bool) -> f64 {
    let (blocks, ends) = blocks_and_ends(model);
    if quantised { blocks * QUANTISED_BITS / 8.0 + 2.0 * ends } else { 2.0 * (blocks + ends) }
}

/// Bytes of a weight that is trained: its value, its gradient and its moments.
fn per_trained_weight(config: &Config) -> f64 {
    let gradient = if config.optimizer_in_bwd { 0.0 } else { 2.0 };
    let moments = match config.optimizer {
        Optimizer::AdamW => 4.0,
        Optimizer::Paged => 8.0,
        Optimizer::Paged8bit => 2.0,
    };
    2.0 + gradient + moments
}

/// The sentence about memory.
pub(super) fn sentence(config: &Config) -> String {
    let model = config.model;
    let others: f64 = config.frozen.iter().map(|(model, _)| frozen(model, false)).sum();
    let trained = match (&config.adapter, config.is_training()) {
        (_, false) => frozen(model, false),
        (Some(adapter), true) => {
            frozen(model, adapter.quantised) + adapter_weights(model, adapter) * per_trained_weight(config)
        }
        (None, true) => {
            let models = config.trained_models as f64;
            models * num_weights(model) * per_trained_weight(config)
        }
    };
    let what = match (&config.adapter, config.is_training(), config.optimizer_in_bwd) {
        (_, false, _) => vec!["the weights"],
        (Some(_), true, _) => vec!["the frozen weights", "the adapter with its optimizer states"],
        (None, true, true) => vec!["weights", "optimizer states"],
        (None, true, false) => vec!["weights", "gradients", "optimizer states"],
    };
    let what = what.into_iter().chain(config.frozen.iter().map(|(_, what)| *what)).collect::<Vec<_>>();
    let on_top = if config.is_training() { "activations come" } else { "keys and values of the text come" };
    let (in_all, divided) = if config.is_distributed { (" in all", ", divided over the ranks") } else { ("", "") };
    let bytes = gigabytes(trained + others);
    format!("Memory: about {bytes}{in_all} for {}{divided}; {on_top} on top.", and(&what))
}

fn gigabytes(bytes: f64) -> String {
    let gb = bytes / 1e9;
    if gb < 10.0 { format!("{gb:.1} GB") } else { format!("{gb:.0} GB") }
}

/// `a`, `a and b`, `a, b and c`.
fn and(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::models;
    use super::*;

    #[test]
    fn weights_are_counted_as_the_hub_does() {
        let close = |model: &Model, billions: f64| {
            let found = num_weights(model) / 1e9;
            assert!((found - billions).abs() < 0.01 * billions, "{}: {found}", model.title);
        };
        close(&models::LLAMA3_2_1B, 1.236);
        close(&models::LLAMA3_8B, 8.03);
        close(&models::GEMMA_2B, 2.506);
        close(&models::QWEN2_0_5B, 0.494);
        close(&models::QWEN3_4B, 4.022);
        close(&models::PHI4_14B, 14.66);
        close(&models::LLAMA3_1_405B, 405.9);
    }

    #[test]
    fn a_run_is_summed_up_by_what_it_keeps() {
        let full = Config::new("full_finetune_single_device", "llama3_2/1B_full", &models::LLAMA3_2_1B).adamw("2e-5");
        assert_eq!(
            sentence(&full),
            "Memory: about 9.9 GB for weights, gradients and optimizer states; activations come on top."
        );
        let in_bwd = full.in_bwd();
        assert_eq!(
            sentence(&in_bwd),
            "Memory: about 7.4 GB for weights and optimizer states; activations come on top."
        );
        let qlora =
            Config::new("lora_finetune_distributed", "llama3/8B", &models::LLAMA3_8B).qlora(8, 16).adamw("3e-4");
        assert_eq!(
            sentence(&qlora),
            "Memory: about 6.2 GB in all for the frozen weights and the adapter with its optimizer states, divided over \
             the ranks; activations come on top."
        );
    }
}
