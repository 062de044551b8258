//! Sizes of the published models, under torchtune's builder names, and the builder that takes them as keys.
//!
//! Source: the `config.json` of each model's Hugging Face repository.

use crate::common::RopeScaling;
use crate::facts::Facts;

config::component! {
    /// Keys of the builders that take sizes (`torchtune.models.llama2.llama2` and its siblings). Keys that are not given
    /// come from the checkpoint folder's `config.json`.
    pub struct LlamaConfig {
        /// Rows of the embedding.
        pub vocab_size: Option<usize> [1..] = None,
        /// Number of blocks.
        pub num_layers: Option<usize> [1..] = None,
        /// Query heads.
        pub num_heads: Option<usize> [1..] = None,
        /// Key/value heads; divides the query heads.
        pub num_kv_heads: Option<usize> [1..] = None,
        /// Width of the residual stream.
        pub embed_dim: Option<usize> [1..] = None,
        /// The longest row, in tokens.
        pub max_seq_len: Option<usize> [1..] = None,
        /// Dropout on attention; only 0 is supported.
        pub attn_dropout: f64 = 0.0,
        /// Added to the mean square in norms.
        pub norm_eps: Option<f64> [positive] = None,
        /// Width of the feed-forward layer; `null` = 8/3 of embed_dim, rounded up to a multiple of 256.
        pub intermediate_dim: Option<usize> [1..] = None,
        /// Base of the rotary frequencies.
        pub rope_base: Option<f64> [positive] = None,
        /// Stretching factor of the rotary frequencies (Llama 3.1 and later).
        pub scale_factor: Option<f64> [positive] = None,
        /// Whether the head is the embedding.
        pub tie_word_embeddings: Option<bool> = None,
        /// `random` starts from N(0, 0.02) and ones instead of reading weights; `null` = read them.
        pub init: Option<String> [one_of("random")] = None,
    }
}

/// What a builder says about the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Builder {
    /// Vocabulary, layers, heads, key/value heads, hidden size, feed-forward size, longest row; zeros = taken as keys.
    sizes: [usize; 7],
    rope_theta: f64,
    /// Stretching factor of the rotary frequencies; 0 = none.
    rope_factor: f64,
    tied: bool,
}

/// What Llama 3.1 and its successors share; only the factor differs.
fn llama3_scaling(factor: f64) -> RopeScaling {
    RopeScaling { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 8192 }
}

impl Builder {
    /// A builder without defaults, for `ferrotune.models.auto`.
    pub const NONE: Self = Self { sizes: [0; 7], rope_theta: 0.0, rope_factor: 0.0, tied: false };

    /// What the builder says about the model.
    pub fn facts(&self) -> Facts {
        if self.rope_theta == 0.0 {
            return Facts::default();
        }
        let given = |i: usize| (self.sizes[i] > 0).then_some(self.sizes[i]);
        Facts {
            vocab_size: given(0),
            num_hidden_layers: given(1),
            num_attention_heads: given(2),
            num_key_value_heads: given(3),
            hidden_size: given(4),
            intermediate_size: given(5),
            max_position_embeddings: given(6),
            head_dim: None,
            rms_norm_eps: Some(1e-5),
            rope_theta: Some(self.rope_theta),
            rope_scaling: Some((self.rope_factor > 0.0).then(|| llama3_scaling(self.rope_factor))),
            // A builder that takes sizes has no opinion that could contradict a folder.
            tie_word_embeddings: (self.sizes[0] > 0).then_some(self.tied),
        }
    }
}

impl LlamaConfig {
    /// What the user wrote, as facts.
    pub fn facts(&self) -> Facts {
        Facts {
            vocab_size: self.vocab_size,
            hidden_size: self.embed_dim,
            intermediate_size: self.intermediate_dim,
            num_hidden_layers: self.num_layers,
            num_attention_heads: self.num_heads,
            num_key_value_heads: self.num_kv_heads,
            head_dim: None,
            rms_norm_eps: self.norm_eps,
            rope_theta: self.rope_base,
            rope_scaling: self.scale_factor.map(|factor| Some(llama3_scaling(factor))),
            max_position_embeddings: self.max_seq_len,
            tie_word_embeddings: self.tie_word_embeddings,
        }
    }
}

const fn keys(rope_theta: f64, rope_factor: f64) -> Builder {
    Builder { sizes: [0; 7], rope_theta, rope_factor, tied: false }
}

const fn sized(sizes: [usize; 7], rope_theta: f64, rope_factor: f64) -> Builder {
    Builder { sizes, rope_theta, rope_factor, tied: false }
}

const fn tied(sizes: [usize; 7], rope_theta: f64, rope_factor: f64) -> Builder {
    Builder { sizes, rope_theta, rope_factor, tied: true }
}

/// All builders of the family. Columns of sizes: vocabulary, layers, heads, key/value heads, hidden size, feed-forward size, longest
/// row; rotary base; stretching factor.
#[rustfmt::skip]
pub const BUILDERS: &[(&[&str], Builder)] = &[
    (&["ferrotune.models.auto"], Builder::NONE),
    (&["torchtune.models.llama2.llama2"], keys(1e4, 0.0)),
    (&["torchtune.models.llama3.llama3"], keys(5e5, 0.0)),
    (&["torchtune.models.llama3_1.llama3_1"], keys(5e5, 8.0)),
    (&["torchtune.models.llama3_2.llama3_2"], keys(5e5, 32.0)),
    (&["torchtune.models.smol.smollm2"], keys(1e5, 32.0)),
    (&["torchtune.models.llama2.llama2_7b"], sized([32_000, 32, 32, 32, 4096, 11_008, 4096], 1e4, 0.0)),
    (&["torchtune.models.llama2.llama2_13b"], sized([32_000, 40, 40, 40, 5120, 13_824, 4096], 1e4, 0.0)),
    (&["torchtune.models.llama2.llama2_70b"], sized([32_000, 80, 64, 8, 8192, 28_672, 4096], 1e4, 0.0)),
    (&["torchtune.models.llama3.llama3_8b"], sized([128_256, 32, 32, 8, 4096, 14_336, 8192], 5e5, 0.0)),
    (&["torchtune.models.llama3.llama3_70b"], sized([128_256, 80, 64, 8, 8192, 28_672, 8192], 5e5, 0.0)),
    (&["torchtune.models.llama3_1.llama3_1_8b"], sized([128_256, 32, 32, 8, 4096, 14_336, 131_072], 5e5, 8.0)),
    (&["torchtune.models.llama3_1.llama3_1_70b"], sized([128_256, 80, 64, 8, 8192, 28_672, 131_072], 5e5, 8.0)),
    (&["torchtune.models.llama3_1.llama3_1_405b"], sized([128_256, 126, 128, 8, 16_384, 53_248, 131_072], 5e5, 8.0)),
    (&["torchtune.models.llama3_3.llama3_3_70b"], sized([128_256, 80, 64, 8, 8192, 28_672, 131_072], 5e5, 8.0)),
    (&["torchtune.models.llama3_2.llama3_2_1b"], tied([128_256, 16, 32, 8, 2048, 8192, 131_072], 5e5, 32.0)),
    (&["torchtune.models.llama3_2.llama3_2_3b"], tied([128_256, 28, 24, 8, 3072, 8192, 131_072], 5e5, 32.0)),
    (&["torchtune.models.smol.smollm2_135m"], tied([49_152, 30, 9, 3, 576, 1536, 8192], 1e5, 32.0)),
    (&["torchtune.models.smol.smollm2_360m"], tied([49_152, 32, 15, 5, 960, 2560, 8192], 1e5, 32.0)),
    (&["torchtune.models.smol.smollm2_1_7b"], tied([49_152, 24, 32, 32, 2048, 8192, 8192], 1.3e5, 32.0)),
];
