//! A folder with everything a run needs, small enough to write anew for every test: a model of random weights, a
//! tokenizer of single bytes, eight rows, and a config for each recipe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::common::{succeed, tune};

const RUN: &str = "\
output_dir: out
model:
  _component_: ferrotune.models.auto
tokenizer:
  _component_: ferrotune.tokenizers.auto
  max_seq_len: 64
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: json
  data_files: rows.jsonl
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: model
  output_dir: ${output_dir}
seed: 1
batch_size: 2
epochs: 1
optimizer:
  _component_: torch.optim.AdamW
  lr: 1e-3
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${output_dir}/logs
device: cpu
dtype: fp32
log_level: WARNING
";

const GENERATE: &str = "\
model:
  _component_: ferrotune.models.auto
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: model
  output_dir: out
prompt:
  user: Say hello
max_new_tokens: 4
temperature: 0
seed: 1
log_level: WARNING
";

const VOCAB: usize = 260;
const HIDDEN: usize = 16;
const FEED_FORWARD: usize = 32;
const KV_WIDTH: usize = 8;

/// Names and shapes of the weights.
pub(crate) type Shapes = Vec<(String, Vec<usize>)>;

/// The folder; deleted when dropped.
pub(crate) struct Tiny {
    dir: tempfile::TempDir,
}

impl Tiny {
    pub(crate) fn new() -> Self {
        let tiny = Self { dir: tempfile::tempdir().expect("a temporary folder") };
        tiny.write("run.yaml", RUN);
        tiny.write("generate.yaml", GENERATE);
        let rows = |i: usize| format!("{{\"input\": \"Question {i}?\", \"output\": \"Answer {i}.\"}}\n");
        tiny.write("rows.jsonl", (0..8).map(rows).collect::<String>());
        tiny.write("model/config.json", config_json().to_string());
        tiny.write("model/tokenizer.json", tokenizer_json().to_string());
        tiny.write("model/tokenizer_config.json", json!({"bos_token": "<s>", "eos_token": "</s>"}).to_string());
        tiny.write_weights("model/model.safetensors", &shapes());
        tiny
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Writes a file, and its folder if there is none.
    pub(crate) fn write(&self, file: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
        std::fs::write(path, contents).expect("written");
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.path(file)).expect("removed");
    }

    /// Replaces a piece of a text that must be there.
    pub(crate) fn edit(&self, file: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.path(file)).expect("readable");
        assert!(text.contains(from), "`{from}` is in `{file}`");
        self.write(file, text.replace(from, to));
    }

    /// Keeps the first bytes of a file; a negative count is how many to cut from its end.
    pub(crate) fn truncate(&self, file: &str, len: isize) {
        let mut bytes = std::fs::read(self.path(file)).expect("readable");
        let keep = if len < 0 { bytes.len() - len.unsigned_abs() } else { len.unsigned_abs() };
        bytes.truncate(keep);
        self.write(file, bytes);
    }

    /// Sets keys of the model's `config.json`; null removes one.
    pub(crate) fn describe(&self, changes: &Value) {
        let mut config = config_json();
        let map = config.as_object_mut().expect("an object");
        for (key, value) in changes.as_object().expect("an object") {
            match value {
                Value::Null => map.remove(key),
                value => map.insert(key.clone(), value.clone()),
            };
        }
        self.write("model/config.json", config.to_string());
    }

    /// Writes f32 weights of these names and shapes.
    pub(crate) fn write_weights(&self, file: &str, shapes: &Shapes) {
        let mut state = 1_u32;
        let mut small = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * 0.1 - 0.05
        };
        let mut bytes = |shape: &[usize]| -> Vec<u8> {
            (0..shape.iter().product::<usize>()).flat_map(|_| small().to_le_bytes()).collect()
        };
        let data: Vec<Vec<u8>> = shapes.iter().map(|(_, shape)| bytes(shape)).collect();
        let views = shapes.iter().zip(&data).map(|((name, shape), data)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), data).expect("as long as its shape says"))
        });
        self.write(file, safetensors::serialize(views, None).expect("serialised"));
    }

    /// `tune` with these arguments, in the folder.
    pub(crate) fn tune(&self, arguments: &[&str]) -> Command {
        let mut command = tune(self.dir.path());
        command.env("FERROTUNE_NUM_THREADS", "1").args(arguments);
        command
    }

    /// A training run that succeeds, with overrides.
    pub(crate) fn train(&self, overrides: &[&str]) {
        succeed(self.tune(&["run", "full_finetune_single_device", "--config", "run.yaml"]).args(overrides));
    }

    /// Every file with its bytes, and every folder.
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut all = BTreeMap::new();
        collect(self.dir.path(), &mut all);
        all
    }
}

fn collect(dir: &Path, all: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
    for entry in std::fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        if path.is_dir() {
            collect(&path, all);
            all.insert(path, None);
        } else {
            let bytes = std::fs::read(&path).expect("readable");
            all.insert(path, Some(bytes));
        }
    }
}

/// The weights of the model that [`config_json`] describes.
pub(crate) fn shapes() -> Shapes {
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for (name, shape) in [
        ("input_layernorm", vec![HIDDEN]),
        ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
        ("self_attn.k_proj", vec![KV_WIDTH, HIDDEN]),
        ("self_attn.v_proj", vec![KV_WIDTH, HIDDEN]),
        ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("mlp.gate_proj", vec![FEED_FORWARD, HIDDEN]),
        ("mlp.up_proj", vec![FEED_FORWARD, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, FEED_FORWARD]),
    ] {
        all.push((format!("model.layers.0.{name}.weight"), shape));
    }
    all.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    all.push(("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]));
    all
}

fn config_json() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
    })
}

/// A tokenizer without merges: one token a byte, in the alphabet of byte-level BPE, and two special ones.
fn tokenizer_json() -> Value {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256_u32..;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        let code = if printable(byte) { u32::from(byte) } else { others.next().expect("endless") };
        let symbol = char::from_u32(code).expect("below the surrogates");
        vocab.insert(symbol.to_string(), json!(byte));
    }
    let special = |id: usize, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    vocab.insert("<s>".to_owned(), json!(256));
    vocab.insert("</s>".to_owned(), json!(257));
    json!({
        "version": "1.0",
        "added_tokens": [special(256, "<s>"), special(257, "</s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}
