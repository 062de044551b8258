//! GGUF files: what is read from good ones, what is said of bad ones.

use checkpoint::gguf::{GgufProblem, Vocabulary, llama_config, llama_tensors, parse};
use checkpoint::{CheckpointFiles, Error, WeightSource};
use proptest::prelude::*;
use serde_json::json;
use tensor::DType;

use crate::gguf_builder::{Builder, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB, tiny_metadata, tiny_model, values};
use crate::{floats, read_floats};

fn problem(file: &[u8]) -> GgufProblem {
    parse(file).expect_err("the file is malformed")
}

fn open(builder: &Builder) -> WeightSource {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, builder.build()).unwrap();
    WeightSource::open_gguf(&path).unwrap()
}

fn refusal(builder: &Builder) -> GgufProblem {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, builder.build()).unwrap();
    match WeightSource::open_gguf(&path) {
        Err(Error::Gguf { path: named, problem }) => {
            assert_eq!(named, path);
            problem
        }
        other => panic!("expected a GGUF problem, found {other:?}"),
    }
}

#[test]
fn tensors_come_under_hugging_face_names_with_their_rows_in_order() {
    let source = open(&tiny_model());
    let names: Vec<&str> = source.names().collect();
    assert_eq!(names[0], "model.embed_tokens.weight");
    assert!(names.contains(&"model.layers.0.post_attention_layernorm.weight"));
    assert_eq!(source.get("model.layers.0.mlp.down_proj.weight").unwrap().shape, [HIDDEN, 6]);
    assert_eq!(read_floats(&source, "model.layers.0.self_attn.q_proj.weight"), values(1, HEADS * HEAD_DIM * HIDDEN));
    assert_eq!(read_floats(&source, "model.layers.0.self_attn.k_proj.weight"), values(2, KV_HEADS * HEAD_DIM * HIDDEN));
    assert_eq!(read_floats(&source, "model.norm.weight"), values(10, HIDDEN));
}

#[test]
fn both_versions_read_alike_and_other_alignments_too() {
    let mut builder = tiny_model();
    builder.version = 2;
    assert_eq!(read_floats(&open(&builder), "model.norm.weight"), values(10, HIDDEN));
    let mut builder = tiny_model().u32("general.alignment", 128);
    builder.alignment = 128;
    assert_eq!(read_floats(&open(&builder), "model.norm.weight"), values(10, HIDDEN));
}

#[test]
fn metadata_becomes_a_config_json() {
    let source = open(&tiny_model());
    let expected = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "silu",
        "vocab_size": 5, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
        "rope_scaling": null, "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": null,
    });
    assert_eq!(serde_json::Value::Object(source.gguf().unwrap().config.clone()), expected);
}

#[test]
fn a_head_of_its_own_unties_the_model() {
    let builder = tiny_model().f32_tensor("output.weight", &[VOCAB as u64, 8], &values(20, VOCAB * 8));
    let source = open(&builder);
    assert_eq!(source.gguf().unwrap().config["tie_word_embeddings"], false);
    assert_eq!(read_floats(&source, "lm_head.weight"), values(20, VOCAB * 8));
}

#[test]
fn the_vocabulary_is_handed_out_as_it_stands() {
    let source = open(&tiny_model());
    let vocabulary = source.gguf().unwrap().vocabulary.clone().unwrap();
    assert_eq!(
        vocabulary,
        Vocabulary {
            model: "gpt2".into(),
            pre: Some("smollm".into()),
            tokens: ["<s>", "</s>", "a", "b", "ab"].map(Into::into).to_vec(),
            token_types: vec![3, 3, 1, 1, 1],
            merges: vec!["a b".into()],
            bos_id: Some(0),
            eos_id: Some(1),
            add_space_prefix: Some(false),
            chat_template: Some("{{ messages }}".into()),
            ..Vocabulary::default()
        }
    );
}

#[test]
fn rope_factors_are_no_weight_but_become_the_scaling() {
    let builder = tiny_model().f32_tensor("rope_freqs.weight", &[2], &[1.0, 1.0]);
    let source = open(&builder);
    assert!(source.names().all(|name| !name.contains("rope")));
    assert_eq!(source.gguf().unwrap().config["rope_scaling"], json!(null));
    let strange = tiny_model().f32_tensor("rope_freqs.weight", &[2], &[3.0, 7.0]);
    assert_eq!(refusal(&strange), GgufProblem::RopeFactors);
}

#[test]
fn scaling_in_the_metadata_is_kept() {
    let builder = tiny_model()
        .string("llama.rope.scaling.type", "linear")
        .f32("llama.rope.scaling.factor", 2.0)
        .u32("llama.rope.scaling.original_context_length", 32);
    assert_eq!(
        open(&builder).gguf().unwrap().config["rope_scaling"],
        json!({"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 32})
    );
}

#[test]
fn one_gguf_in_a_folder_is_found_and_two_are_not_guessed_between() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.gguf"), tiny_model().build()).unwrap();
    let source = WeightSource::open_folder(dir.path(), &CheckpointFiles::Found).unwrap();
    assert_eq!(source.notices(), ["weights, configuration and vocabulary come from `a.gguf`"]);
    std::fs::write(dir.path().join("b.gguf"), tiny_model().build()).unwrap();
    let error = WeightSource::open_folder(dir.path(), &CheckpointFiles::Found).unwrap_err();
    assert_eq!(error.hint().unwrap(), "name the files: `checkpointer.checkpoint_files=[a.gguf,b.gguf]`");
    let listed = CheckpointFiles::Listed(vec!["b.gguf".into()]);
    assert!(WeightSource::open_folder(dir.path(), &listed).unwrap().gguf().is_some());
    let both = CheckpointFiles::Listed(vec!["a.gguf".into(), "b.gguf".into()]);
    assert!(matches!(WeightSource::open_folder(dir.path(), &both), Err(Error::GgufNotAlone { .. })));
}

#[test]
fn what_is_no_gguf_is_told_apart() {
    assert_eq!(problem(b""), GgufProblem::Magic { found: vec![] });
    assert_eq!(problem(b"PK\x03\x04...."), GgufProblem::Magic { found: b"PK\x03\x04".to_vec() });
    let mut builder = tiny_model();
    builder.version = 1;
    assert_eq!(problem(&builder.build()), GgufProblem::Version { found: 1 });
    builder.version = 3u32.swap_bytes();
    assert_eq!(problem(&builder.build()), GgufProblem::BigEndian);
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let file = tiny_model().build();
    for length in 0..file.len() {
        parse(&file[..length]).expect_err("part of a file is no file");
    }
    parse(&file).unwrap();
}

#[test]
fn impossible_counts_are_refused_before_any_allocation() {
    let builder = tiny_model();
    for huge in [u64::MAX, 1 << 40] {
        assert!(
            matches!(problem(&builder.build_with_counts(huge, 18)), GgufProblem::Count { count, .. } if count == huge)
        );
        assert!(
            matches!(problem(&builder.build_with_counts(11, huge)), GgufProblem::Count { count, .. } if count == huge)
        );
    }
    let array = |kind: u32| [&kind.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    for kind in [0, 4, 7, 12] {
        let file = Builder::new().raw_key("k", 9, &array(kind)).build();
        assert!(matches!(problem(&file), GgufProblem::Truncated { .. }), "{kind}");
    }
    for kind in [8, 9] {
        let file = Builder::new().raw_key("k", 9, &array(kind)).build();
        assert!(matches!(problem(&file), GgufProblem::Count { .. }), "{kind}");
    }
    let text = Builder::new().raw_key("k", 8, &u64::MAX.to_le_bytes()).build();
    assert!(matches!(problem(&text), GgufProblem::Truncated { .. }));
}

#[test]
fn bad_metadata_is_told_apart() {
    let unknown = Builder::new().raw_key("k", 13, &[0]).build();
    assert_eq!(problem(&unknown), GgufProblem::ValueType { key: "k".into(), found: 13 });
    let twice = Builder::new().u32("k", 1).u32("k", 1).build();
    assert_eq!(problem(&twice), GgufProblem::Duplicate { what: "key", name: "k".into() });
    let not_text = Builder::new().raw_key("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).build();
    assert!(matches!(problem(&not_text), GgufProblem::Utf8 { .. }));
    let alignment = Builder::new().u32("general.alignment", 24).build();
    assert_eq!(problem(&alignment), GgufProblem::Alignment { found: 24 });
    let zero = Builder::new().u32("general.alignment", 0).build();
    assert_eq!(problem(&zero), GgufProblem::Alignment { found: 0 });
    let one = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat();
    let nested = Builder::new().raw_key("k", 9, &one.repeat(9)).build();
    assert_eq!(problem(&nested), GgufProblem::Nesting { key: "k".into() });
}

#[test]
fn bad_tensors_are_told_apart() {
    let twice = tiny_metadata().f32_tensor("a", &[1], &[0.0]).f32_tensor("a", &[1], &[0.0]);
    assert_eq!(problem(&twice.build()), GgufProblem::Duplicate { what: "tensor", name: "a".into() });
    let exotic = tiny_metadata().tensor("a", &[256], 16, &[0; 66]);
    assert_eq!(problem(&exotic.build()), GgufProblem::TensorType { tensor: "a".into(), found: "IQ2_XXS".into() });
    let unheard = tiny_metadata().tensor("a", &[256], 99, &[0; 66]);
    assert_eq!(problem(&unheard.build()), GgufProblem::TensorType { tensor: "a".into(), found: "number 99".into() });
    let part = tiny_metadata().tensor("a", &[2, 33], 8, &[0; 70]);
    assert!(matches!(problem(&part.build()), GgufProblem::PartBlock { row: 33, block: 32, .. }));
    let large = tiny_metadata().tensor("a", &[u64::MAX, 2], 0, &[]);
    assert!(matches!(problem(&large.build()), GgufProblem::Shape { .. }));
    let axes = tiny_metadata().tensor("a", &[1; 5], 0, &[0; 4]);
    assert_eq!(problem(&axes.build()), GgufProblem::Axes { tensor: "a".into(), found: 5 });
    let mut unaligned = tiny_metadata().f32_tensor("a", &[1], &[0.0]).f32_tensor("b", &[1], &[0.0]);
    unaligned.alignment = 4;
    assert!(matches!(problem(&unaligned.build()), GgufProblem::Offset { offset: 4, alignment: 32, .. }));
}

#[test]
fn models_of_other_kinds_are_refused_by_name() {
    let other = Builder::new().string("general.architecture", "mamba");
    assert_eq!(refusal(&other), GgufProblem::Architecture { found: "mamba".into() });
    assert_eq!(refusal(&Builder::new()), GgufProblem::KeyMissing { key: "general.architecture".into() });
    let experts = tiny_model().u32("llama.expert_count", 8);
    assert_eq!(refusal(&experts), GgufProblem::Architecture { found: "llama with 8 experts".into() });
    for name in ["blk.0.ffn_gate_inp.weight", "blk.00.attn_q.weight", "blk.x.attn_q.weight", "blk.0.attn_q.scale", "a"]
    {
        let strange = tiny_model().f32_tensor(name, &[1], &[0.0]);
        assert!(matches!(refusal(&strange), GgufProblem::TensorName { tensor, .. } if tensor == name));
    }
}

#[test]
fn sizes_that_contradict_each_other_are_refused() {
    let without = Builder::new().string("general.architecture", "llama");
    assert_eq!(refusal(&without), GgufProblem::KeyMissing { key: "llama.embedding_length".into() });
    let rotary = tiny_model().u32("llama.rope.dimension_count", 2);
    assert!(matches!(refusal(&rotary), GgufProblem::KeyValue { key, .. } if key == "llama.rope.dimension_count"));
    let odd = tiny_model().u32("llama.attention.key_length", 3);
    assert!(matches!(refusal(&odd), GgufProblem::KeyValue { key, .. } if key == "llama.attention.key_length"));
    let rows = tiny_metadata().f32_tensor("blk.0.attn_q.weight", &[4, 8], &[0.0; 32]);
    assert!(matches!(refusal(&rows), GgufProblem::Rows { expected: 8, found: 4, .. }));
    let id = tiny_model().u32("tokenizer.ggml.padding_token_id", 5);
    assert!(matches!(refusal(&id), GgufProblem::KeyValue { key, .. } if key == "tokenizer.ggml.padding_token_id"));
    let kind = tiny_model().string("tokenizer.ggml.scores", "x");
    assert!(matches!(refusal(&kind), GgufProblem::KeyType { key, .. } if key == "tokenizer.ggml.scores"));
}

fn digest(file: &[u8]) {
    let Ok(parsed) = parse(file) else { return };
    let _ = llama_config(&parsed);
    let _ = Vocabulary::read(&parsed);
    if let Ok(tensors) = llama_tensors(&parsed) {
        for named in tensors {
            assert!(named.tensor.span.end <= file.len());
        }
    }
}

proptest! {
    #[test]
    fn damage_never_panics(damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4), cut: usize) {
        let mut file = tiny_model().build();
        for (position, byte) in damage {
            let length = file.len();
            file[position % length] = byte;
        }
        digest(&file);
        digest(&file[..cut % file.len()]);
    }

    #[test]
    fn rows_read_in_any_pieces_are_the_rows_of_the_whole(start in 0usize..64, count in 0usize..64) {
        let source = open(&tiny_model());
        let name = "model.layers.0.self_attn.q_proj.weight";
        let end = (start + count).min(64);
        let mut bytes = vec![0; 4 * (end - start)];
        source.read_range_into(&mut bytes, name, start..end, DType::F32).unwrap();
        prop_assert_eq!(&floats(&bytes)[..], &values(1, 64)[start..end]);
    }
}
