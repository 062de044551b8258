//! Architecture `llama` of GGUF: tensors under Hugging Face's names, metadata as a `config.json`.
//!
//! Tensors: `token_embd` -> `model.embed_tokens`; `blk.N.attn_{q,k,v,output}` -> `model.layers.N.self_attn.{q,k,v,o}_proj`;
//!          `blk.N.ffn_{gate,up,down}` -> `model.layers.N.mlp.{gate,up,down}_proj`; `blk.N.{attn,ffn}_norm` ->
//!          `model.layers.N.{input,post_attention}_layernorm`; `output_norm` -> `model.norm`; `output` -> `lm_head`.
//!          q and k are permuted (see `permute`). `rope_freqs` is no weight: its factors become `rope_scaling`.
//! Errors:  `GgufProblem::{Architecture, TensorName, KeyMissing, KeyType, KeyValue, RopeFactors}`. Panics: never.
//! Checked: round trips of the row order, a real file (test `smollm2`), conformance `smollm2` through a whole model.

use serde_json::{Map, Value as Json, json};

use super::problem::GgufProblem;
use super::reader::{GgufFile, GgufTensor};
use super::value::{Value, shortest};
use super::vocabulary::{Vocabulary, wrong_type};

type Result<T> = std::result::Result<T, GgufProblem>;

/// A tensor under its Hugging Face name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LlamaTensor {
    /// The Hugging Face name.
    pub name: String,
    /// The tensor as the file has it.
    pub tensor: GgufTensor,
    /// The head dim, for q and k, whose rows have GGUF's order.
    pub rotary_head_dim: Option<usize>,
}

/// The file's tensors under Hugging Face's names.
pub fn llama_tensors(file: &GgufFile) -> Result<Vec<LlamaTensor>> {
    let dims = Dims::read(file)?;
    let mut named = Vec::with_capacity(file.tensors.len());
    for tensor in &file.tensors {
        if tensor.name == ROPE_FACTORS {
            continue;
        }
        let (name, rotary_heads) = dims
            .hugging_face_name(&tensor.name)
            .ok_or_else(|| GgufProblem::TensorName { tensor: tensor.name.clone(), architecture: "llama".into() })?;
        let rotary_head_dim = rotary_heads.map(|_| dims.head_dim);
        if let Some(heads) = rotary_heads {
            let rows = tensor.shape.first().copied().unwrap_or(1);
            let expected = heads * dims.head_dim;
            if rows != expected {
                return Err(GgufProblem::Rows { tensor: tensor.name.clone(), expected, found: rows });
            }
        }
        named.push(LlamaTensor { name, tensor: tensor.clone(), rotary_head_dim });
    }
    Ok(named)
}

/// What the file says about its model, in the words of a Hugging Face `config.json`.
pub fn llama_config(file: &GgufFile) -> Result<Map<String, Json>> {
    let dims = Dims::read(file)?;
    let vocabulary = Vocabulary::read(file)?;
    let rope_theta = file.number("llama.rope.freq_base")?.unwrap_or(10_000.0);
    let has = |name: &str| file.tensors.iter().any(|tensor| tensor.name == name);
    let embedding_rows = file.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    let vocab_size = match embedding_rows {
        Some(tensor) => tensor.shape.first().copied().unwrap_or(0),
        None => file.count("llama.vocab_size")?,
    };
    let id = |pick: fn(&Vocabulary) -> Option<u32>| vocabulary.as_ref().and_then(pick);
    let mut config = Map::new();
    for (key, value) in [
        ("architectures", json!(["LlamaForCausalLM"])),
        ("model_type", json!("llama")),
        ("hidden_size", json!(dims.hidden_size)),
        ("intermediate_size", json!(file.count("llama.feed_forward_length")?)),
        ("num_hidden_layers", json!(dims.layers)),
        ("num_attention_heads", json!(dims.heads)),
        ("num_key_value_heads", json!(dims.kv_heads)),
        ("head_dim", json!(dims.head_dim)),
        ("hidden_act", json!("silu")),
        ("vocab_size", json!(vocab_size)),
        ("max_position_embeddings", json!(file.count("llama.context_length")?)),
        ("rms_norm_eps", json!(file.number("llama.attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5))),
        ("rope_theta", json!(rope_theta)),
        ("rope_scaling", rope_scaling(file, dims.head_dim, rope_theta)?),
        ("tie_word_embeddings", json!(!has("output.weight"))),
        ("attention_bias", json!(has("blk.0.attn_q.bias"))),
        ("mlp_bias", json!(has("blk.0.ffn_up.bias"))),
        ("bos_token_id", json!(id(|v| v.bos_id))),
        ("eos_token_id", json!(id(|v| v.eos_id))),
        ("pad_token_id", json!(id(|v| v.padding_id))),
    ] {
        config.insert(key.into(), value);
    }
    Ok(config)
}

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The sizes that names and permutations depend on.
struct Dims {
    hidden_size: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Dims {
    fn read(file: &GgufFile) -> Result<Self> {
        let architecture = file.text("general.architecture")?;
        let architecture =
            architecture.ok_or_else(|| GgufProblem::KeyMissing { key: "general.architecture".into() })?;
        if architecture != "llama" {
            return Err(GgufProblem::Architecture { found: architecture });
        }
        let experts = file.optional_count("llama.expert_count")?.unwrap_or(0);
        if experts != 0 {
            return Err(GgufProblem::Architecture { found: format!("llama with {experts} experts") });
        }
        let hidden_size = file.count("llama.embedding_length")?;
        let heads = file.count("llama.attention.head_count")?;
        let kv_heads = file.optional_count("llama.attention.head_count_kv")?.unwrap_or(heads);
        let bad = |key: &str, expected: String, found: usize| GgufProblem::KeyValue {
            key: key.into(),
            expected,
            found: found.to_string(),
        };
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            let expected = format!("a divisor of {heads}, the number of heads");
            return Err(bad("llama.attention.head_count_kv", expected, kv_heads));
        }
        let key_length = file.optional_count("llama.attention.key_length")?;
        if key_length.is_none() && hidden_size % heads != 0 {
            return Err(bad("llama.embedding_length", format!("a multiple of {heads} heads"), hidden_size));
        }
        let head_dim = key_length.unwrap_or(hidden_size / heads);
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(bad("llama.attention.key_length", "an even number".into(), head_dim));
        }
        let rotary = file.optional_count("llama.rope.dimension_count")?.unwrap_or(head_dim);
        if rotary != head_dim {
            return Err(bad("llama.rope.dimension_count", format!("{head_dim}, the head dim"), rotary));
        }
        Ok(Self { hidden_size, layers: file.count("llama.block_count")?, heads, kv_heads, head_dim })
    }

    /// The Hugging Face name of a tensor, and its number of heads if its rows are permuted.
    fn hugging_face_name(&self, name: &str) -> Option<(String, Option<usize>)> {
        let top = match name {
            "token_embd.weight" => Some("model.embed_tokens.weight"),
            "output_norm.weight" => Some("model.norm.weight"),
            "output.weight" => Some("lm_head.weight"),
            _ => None,
        };
        if let Some(top) = top {
            return Some((top.into(), None));
        }
        let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, field @ ("weight" | "bias")) = rest.split_once('.')? else { return None };
        let (part, heads) = match part {
            "attn_q" => ("self_attn.q_proj", Some(self.heads)),
            "attn_k" => ("self_attn.k_proj", Some(self.kv_heads)),
            "attn_v" => ("self_attn.v_proj", None),
            "attn_output" => ("self_attn.o_proj", None),
            "ffn_gate" => ("mlp.gate_proj", None),
            "ffn_up" => ("mlp.up_proj", None),
            "ffn_down" => ("mlp.down_proj", None),
            "attn_norm" => ("input_layernorm", None),
            "ffn_norm" => ("post_attention_layernorm", None),
            _ => return None,
        };
        // Written with leading zeros a number would be another block's second name.
        let canonical = block.parse::<usize>().ok().is_some_and(|number| number.to_string() == block);
        canonical.then(|| (format!("model.layers.{block}.{part}.{field}"), heads))
    }
}

/// `rope_scaling` as `config.json` has it, `null` for none.
fn rope_scaling(file: &GgufFile, head_dim: usize, rope_theta: f64) -> Result<Json> {
    if let Some(factors) = &file.rope_factors {
        return llama3_scaling(factors, head_dim, rope_theta);
    }
    let Some(kind) = file.text("llama.rope.scaling.type")? else { return Ok(Json::Null) };
    if kind == "none" {
        return Ok(Json::Null);
    }
    let mut scaling = json!({ "rope_type": kind, "factor": file.number("llama.rope.scaling.factor")?.unwrap_or(1.0) });
    if let Some(length) = file.optional_count("llama.rope.scaling.original_context_length")? {
        scaling["original_max_position_embeddings"] = json!(length);
    }
    Ok(scaling)
}

/// Llama 3's scaling from the factor each frequency is divided by.
///
/// The file stores only the factors. All Llama 3 models scale between wavelengths 8192 / 4 and 8192 / 1; the largest
/// factor is the scaling's own, and the rest must follow from it.
fn llama3_scaling(factors: &[f32], head_dim: usize, rope_theta: f64) -> Result<Json> {
    const ORIGINAL_LENGTH: f64 = 8192.0;
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    if factors.len() != head_dim / 2 {
        return Err(GgufProblem::RopeFactors);
    }
    let factor = factors.iter().copied().map(shortest).fold(1.0, f64::max);
    let expected = (0..head_dim / 2).map(|i| {
        let wavelength = std::f64::consts::TAU * rope_theta.powf(2.0 * i as f64 / head_dim as f64);
        let turns = ORIGINAL_LENGTH / wavelength;
        if turns > HIGH {
            1.0
        } else if turns < LOW {
            factor
        } else {
            let smooth = (turns - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    });
    if factors.iter().all(|factor| *factor == 1.0) {
        return Ok(Json::Null);
    }
    for (found, expected) in factors.iter().zip(expected) {
        let close = (f64::from(*found) - expected).abs() <= 1e-3 * expected;
        if !close {
            return Err(GgufProblem::RopeFactors);
        }
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL_LENGTH as u64,
    }))
}

/// Numbers under a key.
impl GgufFile {
    fn count(&self, key: &str) -> Result<usize> {
        self.optional_count(key)?.ok_or_else(|| GgufProblem::KeyMissing { key: key.into() })
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        // Some writers give one count a block; a model of this architecture has the same in each.
        let uniform = |values: &[u64]| values.first().filter(|first| values.iter().all(|v| v == *first)).copied();
        let found = match value {
            Value::Uints(values) => uniform(values),
            Value::Ints(values) => {
                let counts: Option<Vec<u64>> = values.iter().map(|v| u64::try_from(*v).ok()).collect();
                counts.as_deref().and_then(uniform)
            }
            single => single.as_u64(),
        };
        // Sizes are multiplied later; none of this architecture comes near the limit.
        match found.filter(|count| *count < 1 << 31) {
            Some(count) => Ok(Some(count as usize)),
            None => Err(wrong_type(key, "a count, the same in every block", value)),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| wrong_type(key, "a number", value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors that a converter stores for Llama 3 scaling of `factor`.
    fn factors(factor: f64, head_dim: usize, rope_theta: f64) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| {
                let wavelength = std::f64::consts::TAU * rope_theta.powf(2.0 * i as f64 / head_dim as f64);
                if wavelength < 8192.0 / 4.0 {
                    1.0
                } else if wavelength > 8192.0 {
                    factor as f32
                } else {
                    let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                    (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
                }
            })
            .collect()
    }

    #[test]
    fn llama_3_scaling_is_recovered_from_its_factors() {
        for factor in [8.0, 32.0] {
            let scaling = llama3_scaling(&factors(factor, 64, 500_000.0), 64, 500_000.0).unwrap();
            assert_eq!(scaling["rope_type"], "llama3");
            assert_eq!(scaling["factor"], factor);
        }
    }

    #[test]
    fn factors_of_one_are_no_scaling_and_others_are_refused() {
        assert_eq!(llama3_scaling(&[1.0; 32], 64, 500_000.0).unwrap(), Json::Null);
        let mut wrong = factors(8.0, 64, 500_000.0);
        wrong[0] = 2.0;
        assert_eq!(llama3_scaling(&wrong, 64, 500_000.0), Err(GgufProblem::RopeFactors));
        wrong[0] = f32::NAN;
        assert_eq!(llama3_scaling(&wrong, 64, 500_000.0), Err(GgufProblem::RopeFactors));
        assert_eq!(llama3_scaling(&[8.0], 64, 500_000.0), Err(GgufProblem::RopeFactors));
    }
}
