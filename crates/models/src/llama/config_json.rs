//! A Llama folder's `config.json`: what it says about the shape, and what is written for a new folder.
//!
//! Both spellings of the rotary fields are read: `rope_theta` with `rope_scaling` beside it, and one `rope_parameters`
//! object holding `rope_theta`, `rope_type` and the factors.
//!
//! Source: Hugging Face `LlamaConfig`.

use serde_json::{Map, Value, json};

use crate::common::{DecoderConfig, RopeScaling};
use crate::facts::Facts;
use crate::{Error, Result};

/// What a `config.json` says. `Error::Unsupported` for architectures and options that this family's code does not compute.
pub fn from_config_json(text: &str) -> Result<Facts> {
    let root: Map<String, Value> = serde_json::from_str(text).map_err(|e| Error::Json { reason: e.to_string() })?;
    let get = |key: &str| root.get(key).filter(|v| !v.is_null());
    refuse_what_is_not_llama(&root)?;
    let rope = get("rope_parameters").or_else(|| get("rope_scaling"));
    let rope_theta = get("rope_theta").or_else(|| rope.and_then(|r| r.get("rope_theta")));
    let number = |key: &'static str| get(key).map(|v| as_usize(key, v)).transpose();
    Ok(Facts {
        vocab_size: number("vocab_size")?,
        hidden_size: number("hidden_size")?,
        intermediate_size: number("intermediate_size")?,
        num_hidden_layers: number("num_hidden_layers")?,
        num_attention_heads: number("num_attention_heads")?,
        // Older folders leave it out when every query head has its own.
        num_key_value_heads: number("num_key_value_heads")?
            .map_or_else(|| number("num_attention_heads"), |n| Ok(Some(n)))?,
        head_dim: number("head_dim")?,
        rms_norm_eps: get("rms_norm_eps").map(|v| as_f64("rms_norm_eps", v)).transpose()?,
        rope_theta: rope_theta.map(|v| as_f64("rope_theta", v)).transpose()?,
        rope_scaling: Some(rope.map(rope_scaling).transpose()?.flatten()),
        max_position_embeddings: number("max_position_embeddings")?,
        tie_word_embeddings: Some(get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false)),
    })
}

/// A `config.json` for a decoder of this family, in the spelling that every version of transformers reads.
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
    let value = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "mlp_bias": false,
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
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the literal above is an object"),
    }
}

fn refuse_what_is_not_llama(root: &Map<String, Value>) -> Result<()> {
    let unsupported = |key: &'static str, found: &Value, expected: &'static str| {
        Err(Error::Unsupported { key, found: found.to_string(), expected })
    };
    let wanted = [
        ("model_type", "`llama`", json!("llama")),
        ("hidden_act", "`silu`", json!("silu")),
        ("attention_bias", "`false`", json!(false)),
        ("mlp_bias", "`false`", json!(false)),
    ];
    for (key, expected, value) in wanted {
        if let Some(found) = root.get(key).filter(|v| !v.is_null() && **v != value) {
            return unsupported(key, found, expected);
        }
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
        let facts = with(r#", "rope_theta": 1e5, "tie_word_embeddings": true"#).expect("valid");
        let empty = Facts::default();
        let sources =
            Sources { user: &empty, folder: Some(&facts), builder: &empty, builder_name: "auto", reads_weights: true };
        let (config, _) = sources.resolve().expect("complete");
        let text = serde_json::to_string(&to_config_json(&config)).expect("plain values");
        let again = from_config_json(&text).expect("our own");
        assert_eq!(again, Facts { head_dim: Some(4), ..facts });
    }

    #[test]
    fn other_architectures_are_refused_by_name() {
        let error = from_config_json(r#"{"model_type": "mamba"}"#).expect_err("not llama");
        assert_eq!(error.to_string(), "`config.json` has model_type = \"mamba\": expected `llama`");
    }
}
