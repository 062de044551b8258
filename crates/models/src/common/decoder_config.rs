//! The shape of a decoder, in the words of `config.json`.

use tensor::Init;
use tensor::ops::glu::Activation;
use tensor::ops::rms_norm::{NormWeight, RmsNorm};

use crate::families::Family;
use crate::{Error, Result};

/// The largest size that any part may have. No model comes near, and products of sizes stay far from overflow.
const MAX_SIZE: usize = 1 << 24;

/// The most blocks.
const MAX_LAYERS: usize = 10_000;

/// Rotary frequencies stretched for longer contexts, as Llama 3.1 does it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeScaling {
    /// How far long wavelengths are stretched.
    pub factor: f64,
    /// Wavelengths over `original_max_position_embeddings / low_freq_factor` are stretched fully.
    pub low_freq_factor: f64,
    /// Wavelengths under `original_max_position_embeddings / high_freq_factor` are left alone.
    pub high_freq_factor: f64,
    /// Context length of the first training, in tokens.
    pub original_max_position_embeddings: usize,
}

/// A window on the keys that a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Tokens that a query sees, itself the last.
    pub tokens: usize,
    /// Blocks before this one see everything.
    pub first_layer: usize,
    /// From there on every so-manieth block has the window, that one first; 1 = all of them.
    pub every: usize,
}

impl SlidingWindow {
    /// Whether a block has the window.
    pub fn covers(&self, layer: usize) -> bool {
        layer >= self.first_layer && (layer - self.first_layer).is_multiple_of(self.every)
    }
}

/// The shape of a decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The family, which names the architecture in `config.json`.
    pub family: Family,
    /// V: rows of the embedding.
    pub vocab_size: usize,
    /// D: width of the residual stream.
    pub hidden_size: usize,
    /// F: width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// N: query heads.
    pub num_attention_heads: usize,
    /// K: key/value heads; divides N.
    pub num_key_value_heads: usize,
    /// H: elements of a head, even.
    pub head_dim: usize,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Stretching of the rotary frequencies; `None` = none.
    pub rope_scaling: Option<RopeScaling>,
    /// The longest row, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether weights on one input are one matrix: queries, keys and values; gate and what it gates.
    pub stacks_weights: bool,
    /// Whether queries, keys and values have a bias.
    pub attention_bias: bool,
    /// Whether heads of queries and keys are normed, before they are rotated.
    pub qk_norm: bool,
    /// A window on what tokens see; `None` = everything before them.
    pub sliding_window: Option<SlidingWindow>,
    /// What gates of the feed-forward layer go through.
    pub hidden_act: Activation,
    /// What the weights of norms are.
    pub norm_weight: NormWeight,
    /// Whether what attention and the feed-forward layer add is normed before.
    pub post_norms: bool,
    /// Whether embeddings are multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    /// Scores of attention are divided by the root of this; `None` = by the root of H.
    pub query_pre_attn_scalar: Option<f64>,
    /// Soft cap on scores of attention; `None` = none.
    pub attn_logit_softcapping: Option<f64>,
    /// Soft cap on logits; `None` = none.
    pub final_logit_softcapping: Option<f64>,
}

impl DecoderConfig {
    /// Tokens that a query of a block sees, itself the last; `None` = all before it.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|window| window.covers(layer)).map(|window| window.tokens)
    }

    /// How its norms compute.
    pub(super) fn norm(&self) -> RmsNorm {
        RmsNorm { eps: self.rms_norm_eps as f32, weight: self.norm_weight }
    }

    /// What weights of norms begin with, so that they leave normed rows alone.
    pub(super) fn norm_init(&self) -> Init {
        match self.norm_weight {
            NormWeight::Plain => Init::Ones,
            NormWeight::FromOne => Init::Zeros,
        }
    }

    /// What embeddings are multiplied by.
    pub(super) fn embedding_scale(&self) -> f32 {
        if self.scales_embedding { (self.hidden_size as f64).sqrt() as f32 } else { 1.0 }
    }

    /// What scores of attention are multiplied by.
    pub(super) fn attention_scale(&self) -> f32 {
        1.0 / self.query_pre_attn_scalar.map_or(self.head_dim as f32, |scalar| scalar as f32).sqrt()
    }
}

impl DecoderConfig {
    /// `Error::Shape` for a shape that no decoder can have.
    pub fn validate(&self) -> Result<()> {
        let wrong = |key, expected: &str, found: usize| Err(Error::Shape { key, expected: expected.to_owned(), found });
        for (key, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if value == 0 {
                return wrong(key, "at least 1", value);
            }
            let most = if key == "num_hidden_layers" { MAX_LAYERS } else { MAX_SIZE };
            if value > most {
                return wrong(key, &format!("at most {most}"), value);
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads = {}", self.num_attention_heads);
            return wrong("num_key_value_heads", &expected, self.num_key_value_heads);
        }
        if self.sliding_window.is_some_and(|window| window.tokens == 0 || window.every == 0) {
            return wrong("sliding_window", "at least 1", 0);
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return wrong("head_dim", "an even number, at least 2", self.head_dim);
        }
        if self.head_dim > MAX_SIZE / self.num_attention_heads {
            let expected = format!("at most {MAX_SIZE} / num_attention_heads");
            return wrong("head_dim", &expected, self.head_dim);
        }
        Ok(())
    }
}
