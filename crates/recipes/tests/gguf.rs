//! A run that starts from a GGUF file ends in a Hugging Face folder.

use std::path::Path;

use checkpoint::gguf::permute::hugging_face_row;
use checkpoint::{CheckpointFiles, WeightSource};
use tensor::DType;
use tokenizers::{FormatOptions, open_auto};

use crate::gguf_builder::Builder;
use crate::tiny::{logits, open_folder, open_gguf, run_full_finetune};
use crate::tiny_folder::{row, tokens, write_rows};

const HIDDEN: u64 = 32;
const FEED_FORWARD: u64 = 48;
const HEAD_DIM: usize = 8;
const KEYS: u64 = 16;
const VOCAB: u64 = 30;

/// Tensors of the file: GGUF's name, Hugging Face's name, shape.
fn tensors(tied: bool) -> Vec<(String, String, Vec<u64>)> {
    let of_block = [
        ("attn_norm", "input_layernorm", vec![HIDDEN]),
        ("attn_q", "self_attn.q_proj", vec![HIDDEN, HIDDEN]),
        ("attn_k", "self_attn.k_proj", vec![KEYS, HIDDEN]),
        ("attn_v", "self_attn.v_proj", vec![KEYS, HIDDEN]),
        ("attn_output", "self_attn.o_proj", vec![HIDDEN, HIDDEN]),
        ("ffn_norm", "post_attention_layernorm", vec![HIDDEN]),
        ("ffn_gate", "mlp.gate_proj", vec![FEED_FORWARD, HIDDEN]),
        ("ffn_up", "mlp.up_proj", vec![FEED_FORWARD, HIDDEN]),
        ("ffn_down", "mlp.down_proj", vec![HIDDEN, FEED_FORWARD]),
    ];
    let mut all = vec![("token_embd".to_owned(), "model.embed_tokens".to_owned(), vec![VOCAB, HIDDEN])];
    for layer in 0..2 {
        let named = |(gguf, hf, shape): &(&str, &str, Vec<u64>)| {
            (format!("blk.{layer}.{gguf}"), format!("model.layers.{layer}.{hf}"), shape.clone())
        };
        all.extend(of_block.iter().map(named));
    }
    all.push(("output_norm".to_owned(), "model.norm".to_owned(), vec![HIDDEN]));
    if !tied {
        all.push(("output".to_owned(), "lm_head".to_owned(), vec![VOCAB, HIDDEN]));
    }
    all
}

/// Values of tensor number `index` in Hugging Face's row order.
fn values(index: usize, shape: &[u64]) -> Vec<f32> {
    let count = shape.iter().product::<u64>() as usize;
    let (mean, std_dev) = if shape.len() == 1 { (1.0, 0.1) } else { (0.0, 0.05) };
    testing::random::normal(index as u64, count, std_dev).into_iter().map(|v| (mean + v) as f32).collect()
}

/// Rows of a Hugging Face tensor in GGUF's order.
fn permuted(rows: &[f32]) -> Vec<f32> {
    let row_elements = HIDDEN as usize;
    let from = |row: usize| hugging_face_row(row, HEAD_DIM) * row_elements;
    (0..rows.len() / row_elements).flat_map(|row| rows[from(row)..from(row) + row_elements].to_vec()).collect()
}

fn write_gguf(path: &Path, tied: bool) {
    let tokens = tokens();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let kinds: Vec<i32> = (0..tokens.len()).map(|id| if id < 2 { 3 } else { 1 }).collect();
    let mut builder = Builder::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.feed_forward_length", FEED_FORWARD as u32)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 10_000.0)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1);
    for (index, (name, _, shape)) in tensors(tied).iter().enumerate() {
        let mut values = values(index, shape);
        if name.ends_with("attn_q") || name.ends_with("attn_k") {
            values = permuted(&values);
        }
        builder = builder.f32_tensor(&format!("{name}.weight"), shape, &values);
    }
    std::fs::write(path, builder.build()).expect("writable");
}

/// Where the file is in a prepared folder.
const FILE: &str = "base/tiny.gguf";

/// Trains two steps from the file in `dir` with the given learning rate; gives the saved folder.
fn train(dir: &Path, lr: f64, dtype: &str) -> std::path::PathBuf {
    let out = dir.join(format!("out_{lr}_{dtype}"));
    let yaml = format!(
        "output_dir: {}
dtype: {dtype}
seed: 1
batch_size: 3
log_level: ERROR
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: {}
  checkpoint_files: [tiny.gguf]
  output_dir: ${{output_dir}}
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: json
  data_files: {}
optimizer: {{_component_: torch.optim.AdamW, lr: {lr}}}
",
        out.display(),
        dir.join("base").display(),
        dir.join("rows.json").display(),
    );
    let config = config::Merged::from_text("run.yaml", yaml).expect("valid YAML");
    run_full_finetune(&config).expect("runs");
    out.join("epoch_0")
}

/// A folder with a GGUF file and rows.
fn prepare(tied: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir(dir.path().join("base")).expect("writable");
    write_gguf(&dir.path().join(FILE), tied);
    write_rows(&dir.path().join("rows.json"), (0..6).map(row));
    dir
}

const PROMPT: [i32; 9] = [0, 4, 9, 29, 3, 17, 2, 8, 1];

#[test]
fn an_untrained_run_saves_the_very_model() {
    for tied in [true, false] {
        let dir = prepare(tied);
        let saved = train(dir.path(), 0.0, "fp32");
        let weights = WeightSource::open_folder(&saved, &CheckpointFiles::Found).expect("readable");
        let expected = tensors(tied);
        assert_eq!(weights.tensors().len(), expected.len(), "every tensor and no other");
        for (index, (_, name, shape)) in expected.iter().enumerate() {
            let found = weights.read(&format!("{name}.weight"), DType::F32).expect("saved");
            let wanted: Vec<u8> = values(index, shape).iter().flat_map(|v| v.to_ne_bytes()).collect();
            testing::assert_same_bits(name, &found, &wanted);
        }
        let (model, mut store) = open_folder(&saved);
        let (original, mut original_store) = open_gguf(&dir.path().join(FILE));
        assert_eq!(model.config(), original.config());
        let (found, wanted) = (logits(&model, &mut store, &PROMPT), logits(&original, &mut original_store, &PROMPT));
        assert_eq!(found, wanted, "logits");
    }
}

#[test]
fn the_saved_folder_has_the_files_tokenizer() {
    let dir = prepare(true);
    let saved = train(dir.path(), 0.0, "bf16");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        assert!(saved.join(file).is_file(), "{file} is there");
    }
    let config = std::fs::read_to_string(saved.join("config.json")).expect("saved");
    assert!(config.contains(r#""torch_dtype": "bfloat16""#), "{config}");
    let tokenizer = open_auto(Some(&saved), None, FormatOptions::default()).expect("readable");
    assert_eq!(tokenizer.encode_text("ab z", true, true).expect("encodes"), [0, 4, 5, 3, 29, 1]);
}

#[test]
fn training_moves_every_tensor() {
    let dir = prepare(false);
    let saved = train(dir.path(), 1e-2, "fp32");
    let weights = WeightSource::open_folder(&saved, &CheckpointFiles::Found).expect("readable");
    for (index, (_, name, shape)) in tensors(false).iter().enumerate() {
        let found = weights.read(&format!("{name}.weight"), DType::F32).expect("saved");
        let before: Vec<u8> = values(index, shape).iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_ne!(found, before, "{name}");
    }
}
