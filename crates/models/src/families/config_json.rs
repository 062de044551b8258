//! A folder's `config.json`: what it says about the shape, and what is written for a new folder.
//!
//! Both spellings of the rotary fields are read: `rope_theta` with `rope_scaling` beside it, and one `rope_parameters`
//! object holding `rope_theta`, `rope_type` and the factors.
//!
//! Source: Hugging Face `LlamaConfig`, `MistralConfig`, `Phi3Config`, `Qwen2Config`, `Qwen3Config`, `GemmaConfig`, `Gemma2Config`.

use serde_json::{Map, Value, json};

use super::{Family, GEMMA2_ATTENTION_CAP, GEMMA2_FINAL_CAP, GEMMA2_WINDOW};
use crate::common::{DecoderConfig, RopeScaling, SlidingWindow};
use crate::facts::Facts;
use crate::{Error, Result};

/// The head size of Qwen3 where `config.json` gives none.
const QWEN3_HEAD_DIM: usize = 128;

/// The head size of Gemma and Gemma 2 where `config.json` gives none.
const GEMMA_HEAD_DIM: usize = 256;

/// What Gemma 2's scores of attention are divided by the root of where `config.json` does not say.
const GEMMA2_QUERY_SCALAR: f64 = 256.0;

/// The first block with a window where a Qwen folder gives none.
const QWEN_MAX_WINDOW_LAYERS: usize = 28;

/// GELU by its tanh approximation.
const GELU_TANH: &str = "gelu_pytorch_tanh";

/// What a `config.json` says. `Error::Unsupported` for architectures and options that are not computed here.
pub fn from_config_json(text: &str) -> Result<Facts> {
    let root: Map<String, Value> = serde_json::from_str(text).map_err(|e| Error::Json { reason: e.to_string() })?;
    let get = |key: &str| root.get(key).filter(|v| !v.is_null());
    let family = family(&root)?;
    refuse_what_is_not_computed(&root, family)?;
    let rope = get("rope_parameters").or_else(|| get("rope_scaling"));
    let rope_theta = get("rope_theta").or_else(|| rope.and_then(|r| r.get("rope_theta")));
    let number = |key: &'static str| get(key).map(|v| as_usize(key, v)).transpose();
    let head_dim = number("head_dim")?.or(match family {
        Family::Qwen3 => Some(QWEN3_HEAD_DIM),
        Family::Gemma | Family::Gemma2 => Some(GEMMA_HEAD_DIM),
        _ => None,
    });
    let is_gemma2 = family == Family::Gemma2;
    let cap = |key, default| is_gemma2.then(|| soft_cap(&root, key, default)).transpose();
    Ok(Facts {
        family: Some(family),
        vocab_size: number("vocab_size")?,
        hidden_size: number("hidden_size")?,
        intermediate_size: number("intermediate_size")?,
        num_hidden_layers: number("num_hidden_layers")?,
        num_attention_heads: number("num_attention_heads")?,
        // Older folders leave it out when every query head has its own.
        num_key_value_heads: number("num_key_value_heads")?
            .map_or_else(|| number("num_attention_heads"), |n| Ok(Some(n)))?,
        head_dim,
        rms_norm_eps: get("rms_norm_eps").map(|v| as_f64("rms_norm_eps", v)).transpose()?,
        rope_theta: rope_theta.map(|v| as_f64("rope_theta", v)).transpose()?,
        rope_scaling: Some(rope.map(rope_scaling).transpose()?.flatten()),
        max_position_embeddings: number("max_position_embeddings")?,
        tie_word_embeddings: Some(get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(family.is_gemma())),
        attention_bias: Some(family.has_attention_bias()),
        qk_norm: Some(family.norms_heads()),
        sliding_window: Some(sliding_window(&root, family)?),
        query_pre_attn_scalar: if is_gemma2 {
            Some(positive(&root, "query_pre_attn_scalar")?.unwrap_or(GEMMA2_QUERY_SCALAR))
        } else {
            None
        },
        attn_logit_softcapping: cap("attn_logit_softcapping", GEMMA2_ATTENTION_CAP)?,
        final_logit_softcapping: cap("final_logit_softcapping", GEMMA2_FINAL_CAP)?,
    })
}

/// A `config.json` for a decoder, in the spelling that every version of transformers reads.
pub fn to_config_json(config: &DecoderConfig) -> Map<String, Value> {
    let scaling = config.rope_scaling.map(|s| {
        json!({
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "original_max_position_embeddings": s.original_max_position_embeddings,
        })
    });
    let shared = json!({
        "architectures": [config.family.architecture()],
        "model_type": config.family.model_type(),
        "attention_dropout": 0.0,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "use_cache": true,
        "vocab_size": config.vocab_size,
    });
    let window = config.sliding_window;
    let of_family = match config.family {
        Family::Llama => json!({ "attention_bias": false, "mlp_bias": false }),
        Family::Mistral | Family::Phi3 => json!({ "sliding_window": window.map(|window| window.tokens) }),
        Family::Qwen2 | Family::Qwen3 => json!({
            "attention_bias": config.attention_bias,
            "use_sliding_window": window.is_some(),
            "sliding_window": window.map(|window| window.tokens),
            "max_window_layers": window.map_or(config.num_hidden_layers, |window| window.first_layer),
        }),
        // Versions of transformers differ in the key that they read.
        Family::Gemma => json!({
            "attention_bias": false,
            "hidden_act": GELU_TANH,
            "hidden_activation": GELU_TANH,
        }),
        Family::Gemma2 => json!({
            "attention_bias": false,
            "hidden_act": GELU_TANH,
            "hidden_activation": GELU_TANH,
            "sliding_window": window.map(|window| window.tokens),
            "query_pre_attn_scalar": query_scalar(config),
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }),
    };
    let entries = |value| match value {
        Value::Object(map) => map,
        _ => unreachable!("the literals above are objects"),
    };
    entries(shared).into_iter().chain(entries(of_family)).collect()
}

/// A whole number where it is one: transformers expects that.
fn query_scalar(config: &DecoderConfig) -> Value {
    match config.query_pre_attn_scalar {
        None => json!(config.head_dim),
        Some(scalar) if scalar.fract() == 0.0 => json!(scalar as u64),
        Some(scalar) => json!(scalar),
    }
}

/// The family that `model_type` names; Llama where it is left out.
fn family(root: &Map<String, Value>) -> Result<Family> {
    let Some(found) = root.get("model_type").filter(|v| !v.is_null()) else { return Ok(Family::Llama) };
    let family = Family::ALL.into_iter().find(|family| found == family.model_type());
    family.ok_or_else(|| Error::Unsupported {
        key: "model_type",
        found: found.to_string(),
        expected: "`llama`, `mistral`, `phi3`, `qwen2`, `qwen3`, `gemma` or `gemma2`",
    })
}

/// The window that a folder gives its blocks.
fn sliding_window(root: &Map<String, Value>, family: Family) -> Result<Option<SlidingWindow>> {
    let number = |key: &'static str| root.get(key).filter(|v| !v.is_null()).map(|v| as_usize(key, v)).transpose();
    let is_used = root.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(false);
    let all = |tokens| Some(SlidingWindow { tokens: tokens?, first_layer: 0, every: 1 });
    let window = match family {
        Family::Llama | Family::Gemma => None,
        Family::Mistral | Family::Phi3 => all(number("sliding_window")?),
        Family::Qwen2 | Family::Qwen3 => {
            let first_layer = number("max_window_layers")?.unwrap_or(QWEN_MAX_WINDOW_LAYERS);
            let tokens = if is_used { number("sliding_window")? } else { None };
            tokens.map(|tokens| SlidingWindow { tokens, first_layer, every: 1 })
        }
        Family::Gemma2 if !root.contains_key("sliding_window") => Some(GEMMA2_WINDOW),
        Family::Gemma2 => number("sliding_window")?.map(|tokens| SlidingWindow { tokens, ..GEMMA2_WINDOW }),
    };
    // A list of every block's kind says the same again.
    let kinds = root.get("layer_types").and_then(Value::as_array);
    for (layer, kind) in kinds.into_iter().flatten().enumerate() {
        let has_window = window.is_some_and(|window| window.covers(layer));
        let expected = if has_window { "sliding_attention" } else { "full_attention" };
        if kind != expected {
            let found = format!("{kind} for block {layer}");
            let expected = if has_window {
                "`sliding_attention`, as the window's keys say"
            } else {
                "`full_attention`, as the window's keys say"
            };
            return Err(Error::Unsupported { key: "layer_types", found, expected });
        }
    }
    Ok(window)
}

/// A number above 0, if there is one.
fn positive(root: &Map<String, Value>, key: &'static str) -> Result<Option<f64>> {
    let Some(value) = root.get(key).filter(|v| !v.is_null()) else { return Ok(None) };
    match as_f64(key, value)? {
        number if number > 0.0 => Ok(Some(number)),
        _ => Err(Error::ConfigKey { key, expected: "a number above 0", found: value.to_string() }),
    }
}

/// A soft cap: a default where it is left out, infinity where it is `null`.
fn soft_cap(root: &Map<String, Value>, key: &'static str, default: f64) -> Result<f64> {
    let otherwise = if root.contains_key(key) { f64::INFINITY } else { default };
    Ok(positive(root, key)?.unwrap_or(otherwise))
}

/// Activations other than a family's, under the keys that versions of transformers read.
fn refuse_other_activations(root: &Map<String, Value>, family: Family) -> Result<()> {
    let get = |key: &str| root.get(key).filter(|v| !v.is_null());
    let wanted: &[(&str, &[&str])] = match family {
        // Early folders say `gelu` and mean the approximation.
        Family::Gemma => &[("hidden_act", &[GELU_TANH, "gelu"]), ("hidden_activation", &[GELU_TANH])],
        // What the other key says beside this one is left over from the first Gemma.
        Family::Gemma2 if get("hidden_activation").is_some() => &[("hidden_activation", &[GELU_TANH])],
        Family::Gemma2 => &[("hidden_act", &[GELU_TANH])],
        _ => &[("hidden_act", &["silu"])],
    };
    let expected = if family.is_gemma() { "`gelu_pytorch_tanh`" } else { "`silu`" };
    for (key, known) in wanted {
        if let Some(found) = get(key).filter(|found| known.iter().all(|known| found != known)) {
            return Err(Error::Unsupported { key, found: found.to_string(), expected });
        }
    }
    Ok(())
}

fn refuse_what_is_not_computed(root: &Map<String, Value>, family: Family) -> Result<()> {
    let unsupported = |key: &'static str, found: &Value, expected: &'static str| {
        Err(Error::Unsupported { key, found: found.to_string(), expected })
    };
    refuse_other_activations(root, family)?;
    for key in ["mlp_bias", "use_bidirectional_attention"] {
        if let Some(found) = root.get(key).filter(|v| !v.is_null() && **v != json!(false)) {
            return unsupported(key, found, "`false`");
        }
    }
    let rope = root.get("rope_parameters").filter(|v| !v.is_null()).or_else(|| root.get("rope_scaling"));
    let factor = root.get("partial_rotary_factor").or_else(|| rope.and_then(|rope| rope.get("partial_rotary_factor")));
    if let Some(found) = factor.filter(|v| v.as_f64().is_some_and(|factor| factor != 1.0)) {
        return unsupported("partial_rotary_factor", found, "1: heads that are rotated whole");
    }
    // Where queries, keys and values always have a bias the key says nothing.
    let is_free = root.get("model_type").is_some_and(|v| v == Family::Qwen2.model_type());
    if let Some(found) = root.get("attention_bias").filter(|v| !is_free && !v.is_null() && **v != json!(false)) {
        return unsupported("attention_bias", found, "`false`");
    }
    match root.get("quantization_config").filter(|v| !v.is_null()) {
        Some(found) => unsupported("quantization_config", found, "none: the original, unquantised model"),
        None => Ok(()),
    }
}

fn rope_scaling(rope: &Value) -> Result<Option<RopeScaling>> {
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
    match kind {
        "default" => Ok(None),
        "llama3" => {
            let number = |key: &'static str| match rope.get(key) {
                Some(value) => as_f64(key, value),
                None => Err(Error::ConfigKey { key, expected: "a number", found: "nothing".to_owned() }),
            };
            Ok(Some(RopeScaling {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: number("original_max_position_embeddings")? as usize,
            }))
        }
        other => {
            let found = format!("`{other}`");
            Err(Error::Unsupported { key: "rope_type", found, expected: "`default` or `llama3`" })
        }
    }
}

fn as_usize(key: &'static str, value: &Value) -> Result<usize> {
    let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
    number.ok_or_else(|| Error::ConfigKey { key, expected: "a whole number", found: value.to_string() })
}

fn as_f64(key: &'static str, value: &Value) -> Result<f64> {
    value.as_f64().ok_or_else(|| Error::ConfigKey { key, expected: "a number", found: value.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Sources;

    const SMALL: &str = r#"{"model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-6"#;

    fn with(rest: &str) -> Result<Facts> {
        from_config_json(&format!("{SMALL}{rest}}}"))
    }

    #[test]
    fn both_spellings_of_the_rotary_fields_say_the_same() {
        let factors = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192"#;
        let old = with(&format!(r#", "rope_theta": 5e5, "rope_scaling": {{"rope_type": "llama3", {factors}}}"#));
        let new = with(&format!(r#", "rope_parameters": {{"rope_theta": 5e5, "rope_type": "llama3", {factors}}}"#));
        let old = old.expect("valid");
        assert_eq!(old, new.expect("valid"));
        assert_eq!(old.rope_scaling.flatten().map(|s| s.factor), Some(8.0));
        assert_eq!(old.num_key_value_heads, Some(2));
    }

    #[test]
    fn what_is_written_reads_back() {
        for family in Family::ALL {
            for window in ["", r#", "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0"#] {
                let facts =
                    of(family, &format!(r#", "rope_theta": 1e5, "tie_word_embeddings": true, "head_dim": 6{window}"#));
                let (facts, empty) = (facts.expect("valid"), Facts::default());
                let sources = Sources {
                    user: &empty,
                    folder: Some(&facts),
                    builder: &empty,
                    builder_name: "auto",
                    reads_weights: true,
                };
                let (config, _) = sources.resolve().expect("complete");
                let text = serde_json::to_string(&to_config_json(&config)).expect("plain values");
                assert_eq!(from_config_json(&text).expect("our own"), facts, "{family:?} {window}");
            }
        }
    }

    #[test]
    fn other_architectures_are_refused_by_name() {
        let error = from_config_json(r#"{"model_type": "mamba"}"#).expect_err("no decoder of ours");
        assert_eq!(
            error.to_string(),
            "`config.json` has model_type = \"mamba\": expected `llama`, `mistral`, `phi3`, `qwen2`, `qwen3`, `gemma` or `gemma2`"
        );
    }

    #[test]
    fn gemma_s_activation_is_known_by_its_names() {
        for (family, accepted) in [
            (Family::Gemma, r#", "hidden_act": "gelu_pytorch_tanh""#),
            (Family::Gemma, r#", "hidden_act": "gelu""#),
            (Family::Gemma, r#", "hidden_act": "gelu", "hidden_activation": null"#),
            (Family::Gemma2, r#", "hidden_act": "relu", "hidden_activation": "gelu_pytorch_tanh""#),
            (Family::Gemma2, ""),
        ] {
            of(family, accepted).expect("Gemma's own");
        }
        for (family, key, found) in [
            (Family::Gemma, "hidden_act", "silu"),
            (Family::Gemma2, "hidden_act", "silu"),
            (Family::Gemma, "hidden_activation", "gelu"),
            (Family::Gemma2, "hidden_activation", "relu"),
            (Family::Llama, "hidden_act", "gelu_pytorch_tanh"),
        ] {
            let error = of(family, &format!(r#", "{key}": "{found}""#)).expect_err("not computed").to_string();
            let expected = if family == Family::Llama { "`silu`" } else { "`gelu_pytorch_tanh`" };
            assert_eq!(error, format!("`config.json` has {key} = \"{found}\": expected {expected}"));
        }
    }

    #[test]
    fn gemma_2_says_its_caps_or_means_its_own() {
        let facts = |rest: &str| {
            let facts = of(Family::Gemma2, rest).expect("valid");
            (facts.attn_logit_softcapping, facts.final_logit_softcapping, facts.query_pre_attn_scalar)
        };
        assert_eq!(facts(""), (Some(50.0), Some(30.0), Some(256.0)));
        let said = r#", "attn_logit_softcapping": 5, "final_logit_softcapping": null, "query_pre_attn_scalar": 144"#;
        assert_eq!(facts(said), (Some(5.0), Some(f64::INFINITY), Some(144.0)));
        assert_eq!(of(Family::Gemma, said).expect("valid").attn_logit_softcapping, None);
        for wrong in ["0", "-1.5", "\"30\""] {
            let error = of(Family::Gemma2, &format!(r#", "final_logit_softcapping": {wrong}"#)).expect_err("no cap");
            assert!(matches!(error, Error::ConfigKey { key: "final_logit_softcapping", .. }), "{error}");
        }
    }

    fn of(family: Family, rest: &str) -> Result<Facts> {
        from_config_json(&format!("{}{rest}}}", SMALL.replace("llama", family.model_type())))
    }

    #[test]
    fn families_differ_in_biases_norms_and_head_sizes() {
        for (family, bias, norms, head_dim) in [
            (Family::Llama, false, false, None),
            (Family::Mistral, false, false, None),
            (Family::Phi3, false, false, None),
            (Family::Qwen2, true, false, None),
            (Family::Qwen3, false, true, Some(128)),
            (Family::Gemma, false, false, Some(256)),
            (Family::Gemma2, false, false, Some(256)),
        ] {
            let facts = of(family, "").expect("valid");
            let found = (facts.family, facts.attention_bias, facts.qk_norm, facts.head_dim);
            assert_eq!(found, (Some(family), Some(bias), Some(norms), head_dim));
        }
        let error = of(Family::Qwen3, r#", "attention_bias": true"#).expect_err("not computed").to_string();
        assert!(error.contains("attention_bias = true"), "{error}");
        let error = of(Family::Phi3, r#", "partial_rotary_factor": 0.75"#).expect_err("not computed").to_string();
        assert!(error.contains("partial_rotary_factor = 0.75"), "{error}");
    }

    #[test]
    fn windows_are_read_as_each_family_writes_them() {
        let window = |family, rest: &str| of(family, rest).expect("valid").sliding_window.expect("said");
        let at = |tokens, first_layer| Some(SlidingWindow { tokens, first_layer, every: 1 });
        assert_eq!(window(Family::Llama, r#", "sliding_window": 8"#), None);
        assert_eq!(window(Family::Mistral, r#", "sliding_window": 8"#), at(8, 0));
        assert_eq!(window(Family::Mistral, r#", "sliding_window": null"#), None);
        let keys = r#", "sliding_window": 8, "max_window_layers": 2"#;
        assert_eq!(window(Family::Qwen2, keys), None);
        assert_eq!(window(Family::Qwen2, &format!(r#"{keys}, "use_sliding_window": true"#)), at(8, 2));
        assert_eq!(
            window(Family::Qwen3, r#", "sliding_window": 8, "use_sliding_window": true"#),
            at(8, QWEN_MAX_WINDOW_LAYERS)
        );
        let every_second = |tokens| Some(SlidingWindow { tokens, first_layer: 0, every: 2 });
        assert_eq!(window(Family::Gemma, r#", "sliding_window": 8"#), None);
        assert_eq!(window(Family::Gemma2, ""), every_second(4096));
        let kinds = r#", "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]"#;
        assert_eq!(window(Family::Gemma2, &format!(r#", "sliding_window": 8{kinds}"#)), every_second(8));
        assert_eq!(window(Family::Gemma2, r#", "sliding_window": null"#), None);
        let kinds = r#", "layer_types": ["full_attention"]"#;
        let error = of(Family::Gemma2, kinds).expect_err("a window").to_string();
        assert!(error.contains("\"full_attention\" for block 0"), "{error}");
        let kinds = r#", "layer_types": ["sliding_attention"]"#;
        assert_eq!(window(Family::Mistral, &format!(r#", "sliding_window": 8{kinds}"#)), at(8, 0));
        let error = of(Family::Qwen3, kinds).expect_err("no window").to_string();
        assert!(error.contains("\"sliding_attention\" for block 0"), "{error}");
    }
}
