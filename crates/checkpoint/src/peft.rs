//! Adapters as PEFT keeps them: `adapter_model.safetensors` and `adapter_config.json`.
//!
//! Tensors: `base_model.model.<layer>.lora_A.weight` (R, K), `.lora_B.weight` (N, R), with DoRA `.lora_magnitude_vector` (N).
//! Config:  one object. Read: `r`, `lora_alpha`, `use_rslora`, and what this program cannot honour, which is refused by name.
//!          Written: what describes the adapter to PEFT, so that `PeftModel.from_pretrained` loads it.
//! Errors:  text that is no such object; features that would change what the adapter computes. Panics: never.
//! Source:  PEFT 0.21, `LoraConfig`.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use crate::error::{Error, IoAction, Result};
use crate::source::{RowOrder, WeightSource};

/// The tensors of an adapter.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// What they mean.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";

/// What an adapter's config says.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// Rank.
    pub rank: usize,
    /// `B A` is multiplied by alpha / rank.
    pub alpha: f64,
    /// Share of the inputs that training dropped.
    pub dropout: f64,
    /// The layers that have one, by the last part of their names.
    pub target_modules: Vec<String>,
    /// Whether there are magnitudes.
    pub use_dora: bool,
    /// Whether torchtune wrote it: it says nothing of what PEFT always says.
    pub by_torchtune: bool,
}

/// How torchtune keeps the rows of queries and keys in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TorchtuneRows {
    /// Elements of a head.
    pub head_dim: usize,
    /// The two halves of a head are interleaved, as in the Llama, Mistral and Gemma families.
    pub interleaved: bool,
}

/// An adapter's tensors, and what lies beside them.
#[derive(Debug)]
pub struct OpenAdapter {
    /// The tensors.
    pub tensors: WeightSource,
    /// What they mean, if there is a config.
    pub config: Option<AdapterConfig>,
    /// What to tell about how they are read.
    pub notice: Option<String>,
}

/// Opens an adapter's tensors, and its config if one lies beside them.
///
/// When torchtune writes an adapter it takes interleaved rows apart in B of q and k, in every family, and leaves magnitudes as they are. So
/// magnitudes stay interleaved where it keeps rows so, and B is taken apart for nothing where it does not. Such adapters are known by their
/// config, which says less than PEFT's, and are brought into order.
pub fn open_adapter(file: &Path, rows: TorchtuneRows) -> Result<OpenAdapter> {
    let mut tensors = WeightSource::open_safetensors(file)?;
    let config = AdapterConfig::read(&file.with_file_name(ADAPTER_CONFIG_FILE))?;
    let mut notice = None;
    if config.as_ref().is_some_and(|config| config.by_torchtune) {
        let (part, order) = if rows.interleaved {
            ("lora_magnitude_vector", RowOrder::Interleaved(rows.head_dim))
        } else {
            ("lora_B.weight", RowOrder::TakenApart(rows.head_dim))
        };
        let concerned = ["q_proj", "k_proj"].map(|layer| format!(".{layer}.{part}"));
        let reordered = tensors.reorder(|name| concerned.iter().any(|end| name.ends_with(end)).then_some(order));
        notice = (reordered > 0).then(|| {
            format!(
                "`{}` is read as torchtune writes adapters: rows of `{part}` of q and k are reordered",
                file.display()
            )
        });
    }
    Ok(OpenAdapter { tensors, config, notice })
}

#[derive(Deserialize)]
struct Written {
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: Option<f64>,
    #[serde(default)]
    target_modules: Json,
    #[serde(default)]
    use_dora: Option<bool>,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(default)]
    peft_type: Option<String>,
}

/// Keys that change what an adapter computes; a value other than these means something that is not honoured.
const MUST_BE_EMPTY: &[&str] = &[
    "alpha_pattern",
    "rank_pattern",
    "modules_to_save",
    "fan_in_fan_out",
    "lora_bias",
    "layer_replication",
    "use_qalora",
    "trainable_token_indices",
    "target_parameters",
];

impl AdapterConfig {
    /// Reads a config; `None` if the file is not there.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { action: IoAction::Read, path: path.to_path_buf(), source }),
        };
        let json = |source| Error::Json { path: path.to_path_buf(), source };
        let all: Map<String, Json> = serde_json::from_slice(&bytes).map_err(json)?;
        let unsupported = |feature: String| Error::UnsupportedAdapter { path: path.to_path_buf(), feature };
        if let Some(key) = MUST_BE_EMPTY.iter().find(|key| all.get(**key).is_some_and(|value| !is_empty(value))) {
            return Err(unsupported(format!("{key}: {}", all[*key])));
        }
        if let Some(bias) = all.get("bias").filter(|bias| !bias.is_null() && *bias != "none") {
            return Err(unsupported(format!("bias: {bias}")));
        }
        let by_torchtune = !all.contains_key("bias") && !all.contains_key("use_dora");
        let written: Written = serde_json::from_value(Json::Object(all)).map_err(json)?;
        if let Some(kind) = written.peft_type.filter(|kind| kind != "LORA") {
            return Err(unsupported(format!("peft_type: {kind}")));
        }
        // Rank-stabilised adapters are scaled by alpha / sqrt(rank).
        let stabilised = written.use_rslora == Some(true);
        let alpha = if stabilised { written.lora_alpha * (written.r as f64).sqrt() } else { written.lora_alpha };
        let target_modules = match written.target_modules {
            Json::Array(names) => names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            Json::String(pattern) => vec![pattern],
            _ => Vec::new(),
        };
        Ok(Some(Self {
            rank: written.r,
            alpha,
            dropout: written.lora_dropout.unwrap_or(0.0),
            target_modules,
            use_dora: written.use_dora == Some(true),
            by_torchtune,
        }))
    }

    /// What `B A` is multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// The config as PEFT reads it; `base` names the model that the adapter belongs to.
    pub fn to_json(&self, base: &str) -> Map<String, Json> {
        let alpha = if self.alpha.fract() == 0.0 { json!(self.alpha as i64) } else { json!(self.alpha) };
        let all = json!({
            "base_model_name_or_path": base,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "lora_alpha": alpha,
            "lora_dropout": self.dropout,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": self.target_modules,
            "task_type": "CAUSAL_LM",
            "use_dora": self.use_dora,
            "use_rslora": false,
        });
        match all {
            Json::Object(map) => map,
            _ => unreachable!("it is written as an object"),
        }
    }
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<AdapterConfig>> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join(ADAPTER_CONFIG_FILE);
        std::fs::write(&path, text).expect("written");
        AdapterConfig::read(&path)
    }

    #[test]
    fn what_is_written_is_read() {
        let config = AdapterConfig {
            rank: 8,
            alpha: 12.5,
            dropout: 0.1,
            target_modules: vec!["q_proj".into(), "down_proj".into()],
            use_dora: true,
            by_torchtune: false,
        };
        let text = Json::Object(config.to_json("some/model")).to_string();
        assert_eq!(read(&text).expect("valid"), Some(config));
        assert_eq!(AdapterConfig::read(Path::new("/nowhere/adapter_config.json")).expect("no error"), None);
    }

    #[test]
    fn adapters_of_torchtune_are_brought_into_order() {
        use crate::writer::{TensorSpec, write_safetensors};
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join(ADAPTER_FILE);
        let of = |layer: &str, part: &str| format!("base_model.model.model.layers.0.self_attn.{layer}.{part}");
        let names = ["q_proj", "v_proj"].map(|layer| [of(layer, "lora_B.weight"), of(layer, "lora_magnitude_vector")]);
        let specs: Vec<TensorSpec> = names
            .iter()
            .flatten()
            .map(|name| TensorSpec { name: name.clone(), dtype: tensor::DType::F32, shape: vec![6] })
            .collect();
        write_safetensors::<Error>(&file, &specs, &mut |_, sink| {
            sink.write(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0].map(f32::to_le_bytes).concat())
        })
        .expect("written");
        let read = |config: &str, interleaved: bool| {
            std::fs::write(dir.path().join(ADAPTER_CONFIG_FILE), config).expect("written");
            let open = open_adapter(&file, TorchtuneRows { head_dim: 6, interleaved }).expect("readable");
            let values = |name: &String| {
                let bytes = open.tensors.read(name, tensor::DType::F32).expect("there");
                bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")) as u8).collect::<Vec<_>>()
            };
            let all: Vec<Vec<u8>> = names.iter().flatten().map(values).collect();
            (all, open.notice.is_some())
        };
        let (plain, torchtunes) = (vec![0, 1, 2, 3, 4, 5], r#"{"r": 1, "lora_alpha": 1, "peft_type": "LORA"}"#);
        let pefts = r#"{"r": 1, "lora_alpha": 1, "peft_type": "LORA", "bias": "none", "use_dora": true}"#;
        for interleaved in [true, false] {
            assert_eq!(read(pefts, interleaved), (vec![plain.clone(); 4], false));
        }
        let mut expected = vec![plain.clone(); 4];
        // Pairs 0 1 | 2 3 | 4 5 become halves.
        expected[1] = vec![0, 2, 4, 1, 3, 5];
        assert_eq!(read(torchtunes, true), (expected, true));
        let mut expected = vec![plain; 4];
        // Rows 0 to 5 were written as 0 2 4 1 3 5: row 1 is the fourth of the file.
        expected[0] = vec![0, 3, 1, 4, 2, 5];
        assert_eq!(read(torchtunes, false), (expected, true));
    }

    #[test]
    fn stabilised_ranks_are_scaled_by_the_root() {
        let config = read(r#"{"r": 16, "lora_alpha": 8, "use_rslora": true}"#).expect("valid").expect("there");
        assert!((config.scale() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (more, feature) in [
            (r#""rank_pattern": {"q_proj": 4}"#, "rank_pattern"),
            (r#""modules_to_save": ["lm_head"]"#, "modules_to_save"),
            (r#""bias": "all""#, "bias"),
            (r#""peft_type": "IA3""#, "peft_type"),
            (r#""fan_in_fan_out": true"#, "fan_in_fan_out"),
        ] {
            let error = read(&format!(r#"{{"r": 4, "lora_alpha": 8, {more}}}"#)).expect_err(feature).to_string();
            assert!(error.contains(feature), "{error}");
        }
        assert!(read("[]").is_err() && read(r#"{"lora_alpha": 8}"#).is_err());
    }
}
