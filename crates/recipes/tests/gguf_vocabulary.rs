//! The real vocabulary of SmolLM2 from its GGUF file, against `smollm2/tokens.json`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use testing::conformance::conformance_dir;
use tokenizers::{FormatOptions, GgufVocab, HuggingFace, Message, ModelTokenizer, Role, Tokenizer, open_auto};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("well formed here").iter().map(|id| id.as_u64().expect("well formed here") as u32).collect()
}

/// The GGUF file that the environment names.
#[expect(clippy::print_stderr, reason = "a skipped test says that it was skipped")]
fn gguf_file() -> Option<PathBuf> {
    let path = std::env::var_os("FERROTUNE_SMOLLM2_GGUF").map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: FERROTUNE_SMOLLM2_GGUF does not name SmolLM2's GGUF file");
    }
    path
}

fn vocabulary(path: &Path) -> GgufVocab {
    let source = checkpoint::WeightSource::open_gguf(path).expect("well formed here");
    let vocabulary = source.gguf().expect("well formed here").vocabulary.clone().expect("well formed here");
    GgufVocab {
        origin: path.display().to_string(),
        model: vocabulary.model,
        pre: vocabulary.pre,
        tokens: vocabulary.tokens,
        scores: Some(vocabulary.scores).filter(|scores| !scores.is_empty()),
        token_types: Some(vocabulary.token_types).filter(|types| !types.is_empty()),
        merges: vocabulary.merges,
        bos: vocabulary.bos_id,
        eos: vocabulary.eos_id,
        eot: vocabulary.eot_id,
        unknown: vocabulary.unknown_id,
        padding: vocabulary.padding_id,
        add_bos: vocabulary.add_bos,
        add_space_prefix: vocabulary.add_space_prefix,
        chat_template: vocabulary.chat_template,
    }
}

#[test]
fn awkward_strings_have_the_reference_ids() {
    let (Some(path), Some(dir)) = (gguf_file(), conformance_dir()) else { return };
    let vocab = vocabulary(&path);
    let engine = vocab.tokenizer().expect("well formed here");
    let folder = tempfile::tempdir().expect("well formed here");
    let saved = folder.path().join("tokenizer.json");
    std::fs::write(&saved, vocab.to_tokenizer_json().expect("well formed here")).expect("well formed here");
    let saved = HuggingFace::open(&saved).expect("well formed here");
    let cases: Value =
        serde_json::from_slice(&std::fs::read(dir.join("smollm2/tokens.json")).expect("well formed here"))
            .expect("well formed here");
    let cases = cases.as_array().expect("well formed here");
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().expect("well formed here");
        let expected = ids(&case["ids"]);
        assert_eq!(engine.encode(text).expect("well formed here"), expected, "{text:?}");
        assert_eq!(saved.encode(text).expect("well formed here"), expected, "{text:?}, saved");
        assert_eq!(engine.decode(&expected, false), text);
    }
}

#[test]
fn a_saved_folder_is_the_same_tokenizer() {
    let Some(path) = gguf_file() else { return };
    let vocab = vocabulary(&path);
    let folder = tempfile::tempdir().expect("well formed here");
    std::fs::write(folder.path().join("tokenizer.json"), vocab.to_tokenizer_json().expect("well formed here"))
        .expect("well formed here");
    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        vocab.to_tokenizer_config_json().expect("well formed here"),
    )
    .expect("well formed here");
    let ours = open_auto(None, Some(&vocab), FormatOptions::default()).expect("well formed here");
    let saved = open_auto(Some(folder.path()), None, FormatOptions::default()).expect("well formed here");
    assert_eq!(ours.pad_id(), saved.pad_id());
    assert!(ours.stop_tokens().starts_with(&saved.stop_tokens()));
    let conversation = [
        Message::new(Role::User, "What is 2+2?").with_masked(true),
        Message::new(Role::Assistant, "4"),
        Message::new(Role::User, "And 3+3?").with_masked(true),
        Message::new(Role::Assistant, "6"),
    ];
    for tokenizer in [&ours, &saved] {
        masks_follow_the_messages(tokenizer, &conversation);
    }
    let trained = ours.tokenize_messages(&conversation, false).expect("well formed here");
    assert_eq!(trained, saved.tokenize_messages(&conversation, false).expect("well formed here"));
}

/// Unmasked tokens are the answers with their header and end marker.
fn masks_follow_the_messages(tokenizer: &ModelTokenizer, conversation: &[Message]) {
    let (tokens, mask) = tokenizer.tokenize_messages(conversation, false).expect("well formed here");
    let trained: Vec<u32> = tokens.iter().zip(&mask).filter(|(_, masked)| !**masked).map(|(id, _)| *id).collect();
    let expected = "<|im_start|>assistant\n4<|im_end|>\n<|im_start|>assistant\n6<|im_end|>\n";
    assert_eq!(tokenizer.decode(&trained, false), expected);
    let text = tokenizer.decode(&tokens, false);
    assert_eq!(tokenizer.tokenizer().encode(&text).expect("well formed here"), tokens);
    let (prompt, _) = tokenizer.tokenize_messages(&conversation[..1], true).expect("well formed here");
    assert!(tokenizer.decode(&prompt, false).ends_with("What is 2+2?<|im_end|>\n<|im_start|>assistant\n"));
    assert!(tokens.starts_with(&prompt));
}
