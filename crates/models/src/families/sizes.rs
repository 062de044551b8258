//! Sizes of the published models, under torchtune's builder names, and the builder that takes them as keys.
//!
//! Source: the `config.json` of each model's Hugging Face repository.

use super::{Family, GEMMA2_ATTENTION_CAP, GEMMA2_FINAL_CAP, GEMMA2_WINDOW};
use crate::common::{RopeScaling, SlidingWindow};
use crate::facts::Facts;

config::choice! {
    /// An attention layer that may get an adapter.
    pub enum AttentionModule {
        /// Queries.
        Q = "q_proj",
        /// Keys.
        K = "k_proj",
        /// Values.
        V = "v_proj",
        /// What heads give together.
        Output = "output_proj",
    }
}

config::component! {
    /// Keys of the builders that take sizes (`torchtune.models.llama2.llama2` and its siblings). Keys that are not given
    /// come from the checkpoint folder's `config.json`.
    pub struct DecoderKeys {
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
        /// Elements of a head; `null` = embed_dim / num_heads.
        pub head_dim: Option<usize> [1..] = None,
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
        /// Whether queries have a bias, as keys and values do then (Qwen2).
        pub q_proj_bias: Option<bool> = None,
        /// As `q_proj_bias`.
        pub k_proj_bias: Option<bool> = None,
        /// As `q_proj_bias`.
        pub v_proj_bias: Option<bool> = None,
        /// Whether heads of queries are normed, as those of keys are then (Qwen3).
        pub q_norm: Option<bool> = None,
        /// As `q_norm`.
        pub k_norm: Option<bool> = None,
        /// Attention layers that get an adapter: `q_proj`, `k_proj`, `v_proj`, `output_proj`.
        pub lora_attn_modules: Option<Vec<AttentionModule>> = None,
        /// Whether the feed-forward layers get an adapter.
        pub apply_lora_to_mlp: Option<bool> = None,
        /// Whether the output head gets an adapter; not of DoRA, and not where it is the embedding.
        pub apply_lora_to_output: Option<bool> = None,
        /// Rank of the adapters; `null` = 8.
        pub lora_rank: Option<usize> [1..] = None,
        /// Adapters are multiplied by lora_alpha / lora_rank; `null` = 16.
        pub lora_alpha: Option<f64> [positive] = None,
        /// Share of an adapter's inputs that is set to zero in training, below 1; `null` = 0.
        pub lora_dropout: Option<f64> [0.0..] = None,
        /// Whether adapters train the lengths of weight rows apart from their directions (DoRA).
        pub use_dora: Option<bool> = None,
        /// Whether the weights under adapters are held in 4 bits (QLoRA); `null` = as the builder's name says.
        pub quantize_base: Option<bool> = None,
        /// Soft cap on scores of attention, `.inf` = none (Gemma 2).
        pub hidden_capping_value: Option<f64> [positive_or_inf] = None,
        /// Soft cap on logits, `.inf` = none (Gemma 2).
        pub final_capping_value: Option<f64> [positive_or_inf] = None,
        /// Tokens that a query sees in every second block, the first included (Gemma 2).
        pub sliding_window_size: Option<usize> [1..] = None,
        /// Scores of attention are divided by the root of this; `null` = by the root of head_dim (Gemma 2).
        pub query_pre_attn_scalar: Option<f64> [positive] = None,
        /// `random` starts from N(0, 0.02), factors of norms from 1, instead of reading weights; `null` = read them.
        pub init: Option<String> [one_of("random")] = None,
    }
}

/// What a builder trains of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trains {
    /// Every weight.
    All,
    /// An adapter.
    Adapter,
    /// An adapter on weights that are held in 4 bits.
    AdapterOnNf4,
}

/// What a builder says about the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Builder {
    family: Family,
    /// What it trains.
    pub trains: Trains,
    /// Vocabulary, layers, heads, key/value heads, hidden size, feed-forward size, longest row; zeros = taken as keys.
    sizes: [usize; 7],
    /// Elements of a head; 0 = hidden size / heads.
    head_dim: usize,
    rms_norm_eps: f64,
    /// Base of the rotary frequencies; 0 = the builder says nothing at all.
    rope_theta: f64,
    /// Stretching factor of the rotary frequencies; 0 = none.
    rope_factor: f64,
    tied: bool,
    /// Scores of attention are divided by the root of this; 0 = by the root of a head's elements.
    query_scalar: usize,
}

/// What Llama 3.1 and its successors share; only the factor differs.
fn llama3_scaling(factor: f64) -> RopeScaling {
    RopeScaling { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 8192 }
}

impl Builder {
    /// A builder without defaults, for `ferrotune.models.auto`.
    pub const NONE: Self = Self::new(Family::Llama, [0; 7], 0.0);

    const fn new(family: Family, sizes: [usize; 7], rope_theta: f64) -> Self {
        Self {
            family,
            trains: Trains::All,
            sizes,
            head_dim: 0,
            rms_norm_eps: 1e-5,
            rope_theta,
            rope_factor: 0.0,
            tied: false,
            query_scalar: 0,
        }
    }

    const fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    const fn stretched(mut self, rope_factor: f64) -> Self {
        self.rope_factor = rope_factor;
        self
    }

    const fn training(mut self, trains: Trains) -> Self {
        self.trains = trains;
        self
    }

    const fn with_eps(mut self, rms_norm_eps: f64) -> Self {
        self.rms_norm_eps = rms_norm_eps;
        self
    }

    const fn with_head_dim(mut self, head_dim: usize) -> Self {
        self.head_dim = head_dim;
        self
    }

    const fn with_query_scalar(mut self, query_scalar: usize) -> Self {
        self.query_scalar = query_scalar;
        self
    }

    /// What the builder says about the model.
    pub fn facts(&self) -> Facts {
        if self.rope_theta == 0.0 {
            return Facts::default();
        }
        let given = |i: usize| (self.sizes[i] > 0).then_some(self.sizes[i]);
        let is_gemma2 = self.family == Family::Gemma2;
        Facts {
            family: Some(self.family),
            vocab_size: given(0),
            num_hidden_layers: given(1),
            num_attention_heads: given(2),
            num_key_value_heads: given(3),
            hidden_size: given(4),
            intermediate_size: given(5),
            max_position_embeddings: given(6),
            head_dim: (self.head_dim > 0).then_some(self.head_dim),
            rms_norm_eps: Some(self.rms_norm_eps),
            rope_theta: Some(self.rope_theta),
            rope_scaling: Some((self.rope_factor > 0.0).then(|| llama3_scaling(self.rope_factor))),
            // A builder that takes sizes has no opinion that could contradict a folder.
            tie_word_embeddings: (self.sizes[0] > 0 || self.tied).then_some(self.tied),
            attention_bias: Some(self.family.has_attention_bias()),
            qk_norm: Some(self.family.norms_heads()),
            // A folder's window is one that its weights were trained with.
            sliding_window: is_gemma2.then_some(Some(GEMMA2_WINDOW)),
            query_pre_attn_scalar: (self.query_scalar > 0).then_some(self.query_scalar as f64),
            attn_logit_softcapping: is_gemma2.then_some(GEMMA2_ATTENTION_CAP),
            final_logit_softcapping: is_gemma2.then_some(GEMMA2_FINAL_CAP),
        }
    }
}

impl DecoderKeys {
    /// What the user wrote, as facts.
    pub fn facts(&self) -> Facts {
        Facts {
            family: None,
            vocab_size: self.vocab_size,
            hidden_size: self.embed_dim,
            intermediate_size: self.intermediate_dim,
            num_hidden_layers: self.num_layers,
            num_attention_heads: self.num_heads,
            num_key_value_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            rms_norm_eps: self.norm_eps,
            rope_theta: self.rope_base,
            rope_scaling: self.scale_factor.map(|factor| Some(llama3_scaling(factor))),
            max_position_embeddings: self.max_seq_len,
            tie_word_embeddings: self.tie_word_embeddings,
            attention_bias: self.q_proj_bias.or(self.k_proj_bias).or(self.v_proj_bias),
            qk_norm: self.q_norm.or(self.k_norm),
            sliding_window: self.sliding_window_size.map(|tokens| Some(SlidingWindow { tokens, ..GEMMA2_WINDOW })),
            query_pre_attn_scalar: self.query_pre_attn_scalar,
            attn_logit_softcapping: self.hidden_capping_value,
            final_logit_softcapping: self.final_capping_value,
        }
    }
}

const fn llama(sizes: [usize; 7], rope_theta: f64) -> Builder {
    Builder::new(Family::Llama, sizes, rope_theta)
}

const fn mistral(sizes: [usize; 7]) -> Builder {
    Builder::new(Family::Mistral, sizes, 1e4)
}

const fn phi3(sizes: [usize; 7]) -> Builder {
    Builder::new(Family::Phi3, sizes, 1e4)
}

/// Qwen2 and Qwen2.5; a norm's epsilon, which differs.
const fn qwen2(sizes: [usize; 7], eps: f64) -> Builder {
    Builder::new(Family::Qwen2, sizes, 1e6).with_eps(eps)
}

const fn qwen3(sizes: [usize; 7]) -> Builder {
    Builder::new(Family::Qwen3, sizes, 1e6).with_eps(1e-6).with_head_dim(128)
}

const fn gemma(sizes: [usize; 7]) -> Builder {
    Builder::new(Family::Gemma, sizes, 1e4).with_eps(1e-6).tied()
}

const fn gemma2(sizes: [usize; 7]) -> Builder {
    Builder::new(Family::Gemma2, sizes, 1e4).with_eps(1e-6).tied()
}

/// Sizes of builders that take them as keys.
const KEYS: [usize; 7] = [0; 7];

/// Each builder under three names: as it is, with an adapter, and with an adapter on a quantised base.
macro_rules! builders {
    ($($package:ident.$name:ident => $builder:expr;)+) => {
        &[
            (&["ferrotune.models.auto"], Builder::NONE),
            $((&[concat!("torchtune.models.", stringify!($package), ".", stringify!($name))], $builder),)+
            $((
                &[concat!("torchtune.models.", stringify!($package), ".lora_", stringify!($name))],
                $builder.training(Trains::Adapter),
            ),)+
            $((
                &[concat!("torchtune.models.", stringify!($package), ".qlora_", stringify!($name))],
                $builder.training(Trains::AdapterOnNf4),
            ),)+
        ]
    };
}

/// All builders. Columns of sizes: vocabulary, layers, heads, key/value heads, hidden size, feed-forward size, longest row.
#[rustfmt::skip]
pub const BUILDERS: &[(&[&str], Builder)] = builders! {
    llama2.llama2 => llama(KEYS, 1e4);
    llama3.llama3 => llama(KEYS, 5e5);
    llama3_1.llama3_1 => llama(KEYS, 5e5).stretched(8.0);
    llama3_2.llama3_2 => llama(KEYS, 5e5).stretched(32.0);
    smol.smollm2 => llama(KEYS, 1e5).stretched(32.0);
    mistral.mistral => mistral(KEYS);
    gemma.gemma => gemma(KEYS);
    gemma2.gemma2 => gemma2(KEYS);
    phi3.phi3 => phi3(KEYS);
    qwen2.qwen2 => qwen2(KEYS, 1e-5);
    qwen3.qwen3 => Builder::new(Family::Qwen3, KEYS, 1e6);

    llama2.llama2_7b => llama([32_000, 32, 32, 32, 4096, 11_008, 4096], 1e4);
    llama2.llama2_13b => llama([32_000, 40, 40, 40, 5120, 13_824, 4096], 1e4);
    llama2.llama2_70b => llama([32_000, 80, 64, 8, 8192, 28_672, 4096], 1e4);
    llama3.llama3_8b => llama([128_256, 32, 32, 8, 4096, 14_336, 8192], 5e5);
    llama3.llama3_70b => llama([128_256, 80, 64, 8, 8192, 28_672, 8192], 5e5);
    llama3_1.llama3_1_8b => llama([128_256, 32, 32, 8, 4096, 14_336, 131_072], 5e5).stretched(8.0);
    llama3_1.llama3_1_70b => llama([128_256, 80, 64, 8, 8192, 28_672, 131_072], 5e5).stretched(8.0);
    llama3_1.llama3_1_405b => llama([128_256, 126, 128, 8, 16_384, 53_248, 131_072], 5e5).stretched(8.0);
    llama3_3.llama3_3_70b => llama([128_256, 80, 64, 8, 8192, 28_672, 131_072], 5e5).stretched(8.0);
    llama3_2.llama3_2_1b => llama([128_256, 16, 32, 8, 2048, 8192, 131_072], 5e5).stretched(32.0).tied();
    llama3_2.llama3_2_3b => llama([128_256, 28, 24, 8, 3072, 8192, 131_072], 5e5).stretched(32.0).tied();
    smol.smollm2_135m => llama([49_152, 30, 9, 3, 576, 1536, 8192], 1e5).stretched(32.0).tied();
    smol.smollm2_360m => llama([49_152, 32, 15, 5, 960, 2560, 8192], 1e5).stretched(32.0).tied();
    smol.smollm2_1_7b => llama([49_152, 24, 32, 32, 2048, 8192, 8192], 1.3e5).stretched(32.0).tied();

    mistral.mistral_7b => mistral([32_000, 32, 32, 8, 4096, 14_336, 32_768]);

    gemma.gemma_2b => gemma([256_000, 18, 8, 1, 2048, 16_384, 8192]).with_head_dim(256);
    gemma.gemma_7b => gemma([256_000, 28, 16, 16, 3072, 24_576, 8192]).with_head_dim(256);
    gemma2.gemma2_2b => gemma2([256_000, 26, 8, 4, 2304, 9216, 8192]).with_head_dim(256);
    gemma2.gemma2_9b => gemma2([256_000, 42, 16, 8, 3584, 14_336, 8192]).with_head_dim(256);
    gemma2.gemma2_27b => gemma2([256_000, 46, 32, 16, 4608, 36_864, 8192]).with_head_dim(128).with_query_scalar(144);

    phi3.phi3_mini => phi3([32_064, 32, 32, 32, 3072, 8192, 4096]);
    phi4.phi4_14b => phi3([100_352, 40, 40, 10, 5120, 17_920, 16_384]);

    qwen2.qwen2_0_5b => qwen2([151_936, 24, 14, 2, 896, 4864, 32_768], 1e-6).tied();
    qwen2.qwen2_1_5b => qwen2([151_936, 28, 12, 2, 1536, 8960, 32_768], 1e-6).tied();
    qwen2.qwen2_7b => qwen2([152_064, 28, 28, 4, 3584, 18_944, 32_768], 1e-6);
    qwen2_5.qwen2_5_0_5b => qwen2([151_936, 24, 14, 2, 896, 4864, 32_768], 1e-6).tied();
    qwen2_5.qwen2_5_1_5b_base => qwen2([151_936, 28, 12, 2, 1536, 8960, 131_072], 1e-6).tied();
    qwen2_5.qwen2_5_1_5b_instruct => qwen2([151_936, 28, 12, 2, 1536, 8960, 32_768], 1e-6).tied();
    qwen2_5.qwen2_5_3b => qwen2([151_936, 36, 16, 2, 2048, 11_008, 32_768], 1e-6).tied();
    qwen2_5.qwen2_5_7b_base => qwen2([152_064, 28, 28, 4, 3584, 18_944, 131_072], 1e-6);
    qwen2_5.qwen2_5_7b_instruct => qwen2([152_064, 28, 28, 4, 3584, 18_944, 32_768], 1e-6);
    qwen2_5.qwen2_5_14b_base => qwen2([152_064, 48, 40, 8, 5120, 13_824, 131_072], 1e-5);
    qwen2_5.qwen2_5_14b_instruct => qwen2([152_064, 48, 40, 8, 5120, 13_824, 32_768], 1e-6);
    qwen2_5.qwen2_5_32b_base => qwen2([152_064, 64, 40, 8, 5120, 27_648, 131_072], 1e-5);
    qwen2_5.qwen2_5_32b_instruct => qwen2([152_064, 64, 40, 8, 5120, 27_648, 32_768], 1e-6);
    qwen2_5.qwen2_5_72b_base => qwen2([152_064, 80, 64, 8, 8192, 29_568, 131_072], 1e-5);
    qwen2_5.qwen2_5_72b_instruct => qwen2([152_064, 80, 64, 8, 8192, 29_568, 32_768], 1e-6);

    qwen3.qwen3_0_6b_base => qwen3([151_936, 28, 16, 8, 1024, 3072, 32_768]).tied();
    qwen3.qwen3_0_6b_instruct => qwen3([151_936, 28, 16, 8, 1024, 3072, 40_960]).tied();
    qwen3.qwen3_1_7b_base => qwen3([151_936, 28, 16, 8, 2048, 6144, 32_768]).tied();
    qwen3.qwen3_1_7b_instruct => qwen3([151_936, 28, 16, 8, 2048, 6144, 40_960]).tied();
    qwen3.qwen3_4b_base => qwen3([151_936, 36, 32, 8, 2560, 9728, 32_768]).tied();
    qwen3.qwen3_4b_instruct => qwen3([151_936, 36, 32, 8, 2560, 9728, 40_960]).tied();
    qwen3.qwen3_8b_base => qwen3([151_936, 36, 32, 8, 4096, 12_288, 32_768]);
    qwen3.qwen3_8b_instruct => qwen3([151_936, 36, 32, 8, 4096, 12_288, 40_960]);
    qwen3.qwen3_14b_base => qwen3([151_936, 40, 40, 8, 5120, 17_408, 32_768]);
    qwen3.qwen3_14b_instruct => qwen3([151_936, 40, 40, 8, 5120, 17_408, 40_960]);
    qwen3.qwen3_32b => qwen3([151_936, 64, 64, 8, 5120, 25_600, 40_960]);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decoder;
    use crate::facts::Sources;

    fn model(name: &str, user: &Facts) -> Decoder {
        let name = format!("torchtune.models.{name}");
        let (_, builder) = BUILDERS.iter().find(|(names, _)| names.contains(&&*name)).expect("a builder");
        let sources =
            Sources { user, folder: None, builder: &builder.facts(), builder_name: &name, reads_weights: false };
        Decoder::new(sources.resolve().expect("complete").0).expect("possible")
    }

    #[test]
    fn builders_have_the_published_numbers_of_parameters() {
        for (name, expected) in [
            ("llama2.llama2_7b", 6_738_415_616),
            ("llama3_2.llama3_2_1b", 1_235_814_400),
            ("mistral.mistral_7b", 7_241_732_096),
            ("gemma.gemma_2b", 2_506_172_416),
            ("gemma.gemma_7b", 8_537_680_896),
            ("gemma2.gemma2_2b", 2_614_341_888),
            ("gemma2.gemma2_9b", 9_241_705_984),
            ("gemma2.gemma2_27b", 27_227_128_320),
        ] {
            assert_eq!(model(name, &Facts::default()).layout().num_elements(), expected, "{name}");
        }
    }

    #[test]
    fn gemma_2_takes_caps_window_and_scalar_as_keys() {
        let config = |name, user: &DecoderKeys| model(name, &user.facts()).config().clone();
        let own = config("gemma2.gemma2_27b", &DecoderKeys::default());
        assert_eq!((own.attn_logit_softcapping, own.final_logit_softcapping), (Some(50.0), Some(30.0)));
        assert_eq!((own.query_pre_attn_scalar, own.window_of(0), own.window_of(1)), (Some(144.0), Some(4096), None));
        let keys = DecoderKeys {
            hidden_capping_value: Some(20.0),
            final_capping_value: Some(f64::INFINITY),
            sliding_window_size: Some(64),
            query_pre_attn_scalar: Some(100.0),
            ..DecoderKeys::default()
        };
        let changed = config("gemma2.gemma2_27b", &keys);
        assert_eq!((changed.attn_logit_softcapping, changed.final_logit_softcapping), (Some(20.0), None));
        assert_eq!(
            (changed.query_pre_attn_scalar, changed.window_of(2), changed.window_of(3)),
            (Some(100.0), Some(64), None)
        );
        assert!(changed.tie_word_embeddings);
    }
}
