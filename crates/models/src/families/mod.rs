//! The families that the decoder is configured for.
//!
//! | `model_type` | models | apart from Llama |
//! |---|---|---|
//! | `llama` | Llama 2, 3, 3.1, 3.2, 3.3, SmolLM2 | |
//! | `mistral` | Mistral | a window on what tokens see, where `config.json` gives one |
//! | `phi3` | Phi 3 mini, Phi 4 | the same; weights of queries, keys and values are one matrix, and so are gate and up |
//! | `qwen2` | Qwen2, Qwen2.5 | queries, keys and values have a bias |
//! | `qwen3` | Qwen3 | heads of queries and keys are normed; head size apart from the hidden size |
//! | `gemma` | Gemma | embeddings times the root of the hidden size, weights of norms from one, GELU; head size apart |
//! | `gemma2` | Gemma 2 | the same; norms after attention and feed-forward too, soft caps on scores and logits, a window in every second block |
//!
//! Weight names are Hugging Face's, so there is nothing to rename here.

mod config_json;
mod sizes;

pub use config_json::{from_config_json, to_config_json};
pub use sizes::{AttentionModule, BUILDERS, Builder, DecoderKeys, Trains};

use tensor::ops::glu::Activation;
use tensor::ops::rms_norm::NormWeight;

use crate::common::SlidingWindow;

/// The window of Gemma 2 where nothing else is said.
const GEMMA2_WINDOW: SlidingWindow = SlidingWindow { tokens: 4096, first_layer: 0, every: 2 };

/// Gemma 2's soft cap on scores of attention where nothing else is said.
const GEMMA2_ATTENTION_CAP: f64 = 50.0;

/// Gemma 2's soft cap on logits where nothing else is said.
const GEMMA2_FINAL_CAP: f64 = 30.0;

/// A family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama and what is built like it.
    Llama,
    /// Mistral.
    Mistral,
    /// Phi 3 and Phi 4.
    Phi3,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Gemma.
    Gemma,
    /// Gemma 2.
    Gemma2,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Llama, Self::Mistral, Self::Phi3, Self::Qwen2, Self::Qwen3, Self::Gemma, Self::Gemma2];

    /// Its name in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Phi3 => "phi3",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
        }
    }

    /// The class that other programs load it with.
    const fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Phi3 => "Phi3ForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Gemma => "GemmaForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
        }
    }

    /// Whether weights on one input are one matrix.
    pub(crate) const fn stacks_weights(self) -> bool {
        matches!(self, Self::Phi3)
    }

    /// Whether queries, keys and values have a bias.
    const fn has_attention_bias(self) -> bool {
        matches!(self, Self::Qwen2)
    }

    /// Whether a base in 4 bits holds every linear layer of a block so; otherwise only those with an adapter, as the reference does.
    pub(crate) const fn quantises_all(self) -> bool {
        !matches!(self, Self::Qwen2 | Self::Qwen3)
    }

    /// Whether heads of queries and keys are normed.
    const fn norms_heads(self) -> bool {
        matches!(self, Self::Qwen3)
    }

    /// Whether it is one of Gemma's.
    const fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2)
    }

    /// What gates of the feed-forward layer go through.
    pub(crate) const fn activation(self) -> Activation {
        if self.is_gemma() { Activation::GeluTanh } else { Activation::Silu }
    }

    /// What the weights of norms are.
    pub(crate) const fn norm_weight(self) -> NormWeight {
        if self.is_gemma() { NormWeight::FromOne } else { NormWeight::Plain }
    }

    /// Whether embeddings are multiplied by the root of the hidden size.
    pub(crate) const fn scales_embedding(self) -> bool {
        self.is_gemma()
    }

    /// Whether what attention and the feed-forward layer add is normed before.
    pub(crate) const fn has_post_norms(self) -> bool {
        matches!(self, Self::Gemma2)
    }
}
