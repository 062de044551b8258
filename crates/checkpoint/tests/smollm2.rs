//! A real GGUF file, where one is: set `FERROTUNE_SMOLLM2_GGUF` to SmolLM2-135M-Instruct in Q4_1.

use std::path::PathBuf;

use checkpoint::{Stored, WeightSource};
use tensor::DType;

#[test]
fn the_real_file_gives_every_tensor_the_config_and_the_vocabulary() {
    let Some(path) = std::env::var_os("FERROTUNE_SMOLLM2_GGUF").map(PathBuf::from) else {
        println!("skipped: FERROTUNE_SMOLLM2_GGUF is not set");
        return;
    };
    let source = WeightSource::open_gguf(&path).unwrap();
    let contents = source.gguf().unwrap();
    let config = &contents.config;
    for (key, value) in [
        ("hidden_size", 576),
        ("intermediate_size", 1536),
        ("num_hidden_layers", 30),
        ("num_attention_heads", 9),
        ("num_key_value_heads", 3),
        ("head_dim", 64),
        ("vocab_size", 49152),
        ("bos_token_id", 1),
        ("eos_token_id", 2),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    assert_eq!(config["rope_theta"], 100_000.0);
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["tie_word_embeddings"], true);

    assert_eq!(source.tensors().len(), 2 + 9 * 30);
    assert_eq!(source.get("model.embed_tokens.weight").unwrap().shape, [49152, 576]);
    assert_eq!(source.get("model.layers.29.self_attn.k_proj.weight").unwrap().shape, [192, 576]);
    let quantised = source.tensors().iter().filter(|tensor| matches!(tensor.stored, Stored::Block(_))).count();
    assert_eq!(quantised, 211);
    // CRC-32 of the f32 values as gguf-py dequantises them, q and k brought into Hugging Face's row order with numpy.
    for (name, expected) in [
        ("model.embed_tokens.weight", 0x3978_6908),
        ("model.layers.0.self_attn.q_proj.weight", 0x568c_15c3),
        ("model.layers.0.self_attn.k_proj.weight", 0xa784_e2e2),
        ("model.layers.29.self_attn.q_proj.weight", 0xecef_a4c5),
        ("model.layers.29.mlp.down_proj.weight", 0x975c_5ef1),
        ("model.layers.7.input_layernorm.weight", 0x6beb_4ef0),
        ("model.norm.weight", 0xc681_1e6c),
    ] {
        let found = crc32fast::hash(&source.read(name, DType::F32).unwrap());
        assert_eq!(found, expected, "{name}: {found:08x}");
    }
    let mut half = vec![0; 2 * 576];
    source.read_rows_into(&mut half, "model.embed_tokens.weight", 49151..49152, DType::Bf16).unwrap();

    let vocabulary = contents.vocabulary.as_ref().unwrap();
    assert_eq!((vocabulary.model.as_str(), vocabulary.pre.as_deref()), ("gpt2", Some("smollm")));
    assert_eq!((vocabulary.tokens.len(), vocabulary.token_types.len()), (49152, 49152));
    assert_eq!(vocabulary.tokens[1], "<|im_start|>");
    assert!(vocabulary.merges.len() > 48_000);
    assert!(vocabulary.chat_template.as_ref().unwrap().contains("<|im_start|>"));
}
