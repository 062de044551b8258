//! The families that the decoder is configured for.
//!
//! | `model_type` | models | apart from Llama |
//! |---|---|---|
//! | `llama` | Llama 2, 3, 3.1, 3.2, 3.3, SmolLM2 | |
//! | `mistral` | Mistral | a window on what tokens see, where `config.json` gives one |
//! | `phi3` | Phi 3 mini, Phi 4 | the same; weights of queries, keys and values are one matrix, and so are gate and up |
//! | `qwen2` | Qwen2, Qwen2.5 | queries, keys and values have a bias |
//! | `qwen3` | Qwen3 | heads of queries and keys are normed; head size apart from the hidden size |
//!
//! Weight names are Hugging Face's, so there is nothing to rename here.

mod config_json;
mod sizes;

pub use config_json::{from_config_json, to_config_json};
pub use sizes::{BUILDERS, Builder, DecoderKeys};

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
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Mistral, Self::Phi3, Self::Qwen2, Self::Qwen3];

    /// Its name in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Phi3 => "phi3",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
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

    /// Whether heads of queries and keys are normed.
    const fn norms_heads(self) -> bool {
        matches!(self, Self::Qwen3)
    }
}
