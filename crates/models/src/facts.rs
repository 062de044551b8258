//! What different places say about a model's shape, and how they are brought together.
//!
//! A key the user wrote beats the folder's `config.json`, which beats the builder's default. Where they differ in something
//! that changes results there is a notice; where they differ in something that fixes the shapes of weights and weights are
//! to be read, an error.

use crate::common::{DecoderConfig, RopeScaling, SlidingWindow};
use crate::families::Family;
use crate::{Error, Result};

/// What one place says about a decoder; `None` = nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Facts {
    /// The family.
    pub family: Option<Family>,
    /// Rows of the embedding.
    pub vocab_size: Option<usize>,
    /// Width of the residual stream.
    pub hidden_size: Option<usize>,
    /// Width of the feed-forward layer.
    pub intermediate_size: Option<usize>,
    /// Number of blocks.
    pub num_hidden_layers: Option<usize>,
    /// Query heads.
    pub num_attention_heads: Option<usize>,
    /// Key/value heads.
    pub num_key_value_heads: Option<usize>,
    /// Elements of a head.
    pub head_dim: Option<usize>,
    /// Added to the mean square in norms.
    pub rms_norm_eps: Option<f64>,
    /// Base of the rotary frequencies.
    pub rope_theta: Option<f64>,
    /// Stretching of the rotary frequencies; `Some(None)` = known to be none.
    pub rope_scaling: Option<Option<RopeScaling>>,
    /// The longest row, in tokens.
    pub max_position_embeddings: Option<usize>,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: Option<bool>,
    /// Whether queries, keys and values have a bias.
    pub attention_bias: Option<bool>,
    /// Whether heads of queries and keys are normed.
    pub qk_norm: Option<bool>,
    /// A window on what tokens see; `Some(None)` = known to be none.
    pub sliding_window: Option<Option<SlidingWindow>>,
    /// Scores of attention are divided by the root of this.
    pub query_pre_attn_scalar: Option<f64>,
    /// Soft cap on scores of attention; infinity = known to be none.
    pub attn_logit_softcapping: Option<f64>,
    /// Soft cap on logits; infinity = known to be none.
    pub final_logit_softcapping: Option<f64>,
}

impl Facts {
    /// A key, in the builder's words, that says something of Gemma 2 alone.
    pub(crate) fn key_of_gemma2(&self) -> Option<&'static str> {
        let said = [
            ("hidden_capping_value", self.attn_logit_softcapping.is_some()),
            ("final_capping_value", self.final_logit_softcapping.is_some()),
            ("sliding_window_size", self.sliding_window.is_some()),
            ("query_pre_attn_scalar", self.query_pre_attn_scalar.is_some()),
        ];
        said.into_iter().find(|(_, is_said)| *is_said).map(|(key, _)| key)
    }
}

/// The three places, from strongest to weakest.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// Keys that the user wrote in the `model` section.
    pub user: &'a Facts,
    /// The checkpoint folder's `config.json` (or a GGUF file's metadata), if there is one.
    pub folder: Option<&'a Facts>,
    /// Defaults of the builder that the user named.
    pub builder: &'a Facts,
    /// The builder's name, for messages.
    pub builder_name: &'a str,
    /// Whether weights are read from the folder, so that shapes must agree with it.
    pub reads_weights: bool,
}

impl Sources<'_> {
    /// The decoder they describe, and one notice for each difference that matters.
    pub fn resolve(&self) -> Result<(DecoderConfig, Vec<String>)> {
        let mut merge = Merge { sources: self, notices: Vec::new() };
        let hidden_size = merge.size("hidden_size", "embed_dim", |f| f.hidden_size)?;
        let num_attention_heads = merge.size("num_attention_heads", "num_heads", |f| f.num_attention_heads)?;
        let head_dim = merge.optional_size("head_dim", |f| f.head_dim)?;
        if head_dim.is_none() && num_attention_heads > 0 && !hidden_size.is_multiple_of(num_attention_heads) {
            let expected = format!("a multiple of num_attention_heads = {num_attention_heads}");
            return Err(Error::Shape { key: "hidden_size", expected, found: hidden_size });
        }
        let family = merge.family()?;
        if let Some(key) = self.user.key_of_gemma2().filter(|_| family != Family::Gemma2) {
            let (of, found) = (Family::Gemma2.model_type(), family.model_type());
            return Err(Error::KeyOfFamily { key, of, found });
        }
        // For the notice; what is compared is the size.
        merge.value("sliding_window", "sliding_window_size", |f| Some(f.sliding_window??.tokens));
        let config = DecoderConfig {
            family,
            vocab_size: merge.size("vocab_size", "vocab_size", |f| f.vocab_size)?,
            hidden_size,
            intermediate_size: match merge.optional_size("intermediate_size", |f| f.intermediate_size)? {
                Some(size) => size,
                None => derived_intermediate_size(hidden_size),
            },
            num_hidden_layers: merge.size("num_hidden_layers", "num_layers", |f| f.num_hidden_layers)?,
            num_attention_heads,
            num_key_value_heads: merge.size("num_key_value_heads", "num_kv_heads", |f| f.num_key_value_heads)?,
            head_dim: head_dim.unwrap_or(hidden_size / num_attention_heads.max(1)),
            rms_norm_eps: merge.value("rms_norm_eps", "norm_eps", |f| f.rms_norm_eps).unwrap_or(1e-5),
            rope_theta: merge.value("rope_theta", "rope_base", |f| f.rope_theta).unwrap_or(10_000.0),
            rope_scaling: merge.value("rope_scaling", "scale_factor", |f| f.rope_scaling).flatten(),
            max_position_embeddings: merge
                .first(|f| f.max_position_embeddings)
                .ok_or_else(|| missing("max_seq_len"))?,
            tie_word_embeddings: merge.flag("tie_word_embeddings", |f| f.tie_word_embeddings)?,
            stacks_weights: family.stacks_weights(),
            attention_bias: merge.flag("attention_bias", |f| f.attention_bias)?,
            qk_norm: merge.flag("qk_norm", |f| f.qk_norm)?,
            sliding_window: merge.first(|f| f.sliding_window).flatten(),
            hidden_act: family.activation(),
            norm_weight: family.norm_weight(),
            post_norms: family.has_post_norms(),
            scales_embedding: family.scales_embedding(),
            query_pre_attn_scalar: merge
                .value("query_pre_attn_scalar", "query_pre_attn_scalar", |f| f.query_pre_attn_scalar),
            attn_logit_softcapping: merge
                .value("attn_logit_softcapping", "hidden_capping_value", |f| f.attn_logit_softcapping)
                .filter(|cap| cap.is_finite()),
            final_logit_softcapping: merge
                .value("final_logit_softcapping", "final_capping_value", |f| f.final_logit_softcapping)
                .filter(|cap| cap.is_finite()),
        };
        config.validate()?;
        Ok((config, merge.notices))
    }
}

/// The feed-forward width of Llama when none is given: 8/3 of the hidden size, rounded up to a multiple of 256.
fn derived_intermediate_size(hidden_size: usize) -> usize {
    (4 * (2 * hidden_size / 3)).next_multiple_of(256)
}

fn missing(key: &'static str) -> Error {
    Error::MissingKey { key }
}

struct Merge<'a> {
    sources: &'a Sources<'a>,
    notices: Vec<String>,
}

impl Merge<'_> {
    /// The strongest statement.
    fn first<T>(&self, get: impl Fn(&Facts) -> Option<T>) -> Option<T> {
        let Sources { user, folder, builder, .. } = self.sources;
        get(user).or_else(|| folder.and_then(&get)).or_else(|| get(builder))
    }

    /// A number that fixes shapes, which must be known.
    fn size(
        &mut self,
        key: &'static str,
        builder_key: &'static str,
        get: impl Fn(&Facts) -> Option<usize>,
    ) -> Result<usize> {
        self.optional_size(key, get)?.ok_or_else(|| missing(builder_key))
    }

    /// A number that fixes shapes; `Error::Conflict` if what was asked for is not what the folder holds.
    fn optional_size(&mut self, key: &'static str, get: impl Fn(&Facts) -> Option<usize>) -> Result<Option<usize>> {
        let Sources { user, folder, builder, builder_name, reads_weights } = *self.sources;
        let in_folder = folder.and_then(&get);
        let (asked, by) = match (get(user), get(builder)) {
            (Some(value), _) => (Some(value), "the `model` section"),
            (None, value) => (value, builder_name),
        };
        if let (Some(asked), Some(found), true) = (asked, in_folder, reads_weights)
            && asked != found
        {
            return Err(Error::Conflict { key, asked: asked.to_string(), by: by.to_owned(), found: found.to_string() });
        }
        Ok(self.first(get))
    }

    /// A value that changes results but no shapes.
    fn value<T: PartialEq + std::fmt::Debug>(
        &mut self,
        key: &'static str,
        builder_key: &'static str,
        get: impl Fn(&Facts) -> Option<T>,
    ) -> Option<T> {
        let Sources { user, folder, builder, builder_name, .. } = *self.sources;
        match (get(user), folder.and_then(&get), get(builder)) {
            (Some(asked), Some(found), _) if asked != found => self.notices.push(format!(
                "using `model.{builder_key}` as written: {asked:?} (`config.json` says {key} = {found:?})"
            )),
            (None, Some(found), Some(default)) if default != found => self
                .notices
                .push(format!("using {key} = {found:?} from `config.json` ({builder_name} has {default:?})")),
            _ => {}
        }
        self.first(get)
    }

    /// The family, which folder and builder must agree on: it decides what is computed.
    fn family(&self) -> Result<Family> {
        let Sources { folder, builder, builder_name, .. } = *self.sources;
        match (folder.and_then(|folder| folder.family), builder.family) {
            (Some(found), Some(asked)) if found != asked => Err(Error::Conflict {
                key: "model_type",
                asked: asked.model_type().to_owned(),
                by: builder_name.to_owned(),
                found: found.model_type().to_owned(),
            }),
            (found, asked) => Ok(found.or(asked).unwrap_or(Family::Llama)),
        }
    }

    /// A flag that fixes shapes; no if nobody says it.
    fn flag(&mut self, key: &'static str, get: impl Fn(&Facts) -> Option<bool>) -> Result<bool> {
        let as_size = |f: &Facts| get(f).map(usize::from);
        let conflict = |error| match error {
            Error::Conflict { key, asked, by, found } => {
                let word = |flag: &str| (flag == "1").to_string();
                Error::Conflict { key, asked: word(&asked), by, found: word(&found) }
            }
            other => other,
        };
        Ok(self.optional_size(key, as_size).map_err(conflict)? == Some(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Facts {
        Facts {
            vocab_size: Some(100),
            hidden_size: Some(64),
            num_hidden_layers: Some(2),
            num_attention_heads: Some(4),
            num_key_value_heads: Some(2),
            rope_theta: Some(10_000.0),
            max_position_embeddings: Some(128),
            ..Facts::default()
        }
    }

    fn sources<'a>(user: &'a Facts, folder: Option<&'a Facts>, builder: &'a Facts) -> Sources<'a> {
        Sources { user, folder, builder, builder_name: "llama2_7b", reads_weights: true }
    }

    #[test]
    fn user_beats_folder_beats_builder_with_a_notice() {
        let folder = Facts { rope_theta: Some(500.0), ..full() };
        let user = Facts { rms_norm_eps: Some(1e-6), ..Facts::default() };
        let (config, notices) = sources(&user, Some(&folder), &full()).resolve().expect("they fit");
        assert_eq!((config.rope_theta, config.rms_norm_eps, config.head_dim), (500.0, 1e-6, 16));
        assert_eq!(notices, ["using rope_theta = 500.0 from `config.json` (llama2_7b has 10000.0)"]);
    }

    #[test]
    fn a_shape_difference_is_an_error_when_weights_are_read() {
        let (folder, user) = (full(), Facts { num_hidden_layers: Some(3), ..Facts::default() });
        let both = sources(&user, Some(&folder), &folder);
        let error = both.resolve().expect_err("3 layers are not 2");
        assert_eq!(
            error.to_string(),
            "model shapes differ: the `model` section asks for num_hidden_layers = 3, `config.json` says 2"
        );
        let random = Sources { reads_weights: false, ..both };
        assert_eq!(random.resolve().expect("no weights, no conflict").0.num_hidden_layers, 3);
    }

    #[test]
    fn another_family_is_an_error_weights_or_not() {
        let (folder, builder) = (
            Facts { family: Some(Family::Qwen2), ..full() },
            Facts { family: Some(Family::Llama), ..Facts::default() },
        );
        let empty = Facts::default();
        let both = sources(&empty, Some(&folder), &builder);
        for reads_weights in [true, false] {
            let error = Sources { reads_weights, ..both }.resolve().expect_err("one of them is wrong");
            assert_eq!(
                error.to_string(),
                "model shapes differ: llama2_7b asks for model_type = llama, `config.json` says qwen2"
            );
        }
        assert_eq!(sources(&empty, Some(&folder), &empty).resolve().expect("fits").0.family, Family::Qwen2);
    }

    #[test]
    fn caps_and_windows_belong_to_gemma_2() {
        let folder = Facts {
            family: Some(Family::Gemma2),
            attn_logit_softcapping: Some(50.0),
            final_logit_softcapping: Some(f64::INFINITY),
            ..full()
        };
        let (user, empty) = (Facts { attn_logit_softcapping: Some(20.0), ..Facts::default() }, Facts::default());
        let (config, notices) = sources(&user, Some(&folder), &empty).resolve().expect("they fit");
        assert_eq!((config.attn_logit_softcapping, config.final_logit_softcapping), (Some(20.0), None));
        assert_eq!(
            notices,
            ["using `model.hidden_capping_value` as written: 20.0 (`config.json` says attn_logit_softcapping = 50.0)"]
        );
        let error = sources(&user, Some(&full()), &empty).resolve().expect_err("Llama has no caps");
        assert_eq!(
            error.to_string(),
            "`model.hidden_capping_value` belongs to models of `gemma2`, this one is of `llama`"
        );
        assert_eq!(error.hint().as_deref(), Some("remove `hidden_capping_value` from the `model` section"));
    }

    #[test]
    fn a_missing_size_is_named_in_the_builders_words() {
        let empty = Facts::default();
        let error = sources(&empty, None, &empty).resolve().expect_err("nothing is known");
        assert_eq!(error.to_string(), "missing key `model.embed_dim`: neither the builder nor `config.json` gives it");
    }

    #[test]
    fn the_derived_feed_forward_width_is_llama_2s() {
        assert_eq!(derived_intermediate_size(4096), 11_008);
    }
}
