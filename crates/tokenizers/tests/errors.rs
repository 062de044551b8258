//! What a user reads when a tokenizer file is missing or wrong.

use std::error::Error as _;
use std::fs;
use std::path::Path;

use tokenizers::{Content, Error, FormatOptions, GgufVocab, HuggingFace, Message, Role, SentencePiece, open_auto};

fn open(path: &Path) -> Error {
    open_auto(Some(path), None, FormatOptions::default()).unwrap_err()
}

#[test]
fn a_missing_file_is_named() {
    let error = open(Path::new("/nowhere/tokenizer.model"));
    assert_eq!(error.to_string(), "cannot read tokenizer file `/nowhere/tokenizer.model`");
    assert!(error.source().is_some());
    assert!(error.hint().unwrap().contains("tokenizer.path"));
}

#[test]
fn a_folder_without_a_tokenizer_lists_what_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let message = open(folder.path()).to_string();
    assert!(message.starts_with("no tokenizer in folder `"), "{message}");
    assert!(message.contains("`tokenizer.json`, `tokenizer.model`"), "{message}");
}

#[test]
fn wrong_bytes_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.model");
    for (bytes, found) in [
        (&b"PK\x03\x04rest"[..], "found a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "found a Git LFS pointer"),
        (b"", "found nothing"),
        (b"hello there\nmore", "found text that begins with `hello there`"),
        (b"\xff\xfe\x00\x01", "found bytes that begin with [ff, fe, 00, 01]"),
        (b"<!DOCTYPE html>", "found a web page"),
    ] {
        fs::write(&path, bytes).unwrap();
        let message = open(&path).to_string();
        assert!(message.contains("is not a tokenizer file") && message.contains(found), "{message}");
    }
    fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    assert!(matches!(open(&path), Error::GgufFile { .. }));
}

#[test]
fn json_that_is_no_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, "{\"a\": 1}").unwrap();
    assert!(matches!(open(folder.path()), Error::NotATokenizer { .. }));
    fs::write(&path, "{\"model\": {\"type\": \"Magic\"}}").unwrap();
    assert!(matches!(open(folder.path()), Error::HuggingFace { .. }));
    fs::write(&path, "{\"model\": ").unwrap();
    assert!(matches!(HuggingFace::open(&path), Err(Error::Json { .. })));
}

#[test]
fn a_model_type_that_is_not_built_is_named() {
    // pieces { piece: "a", type: 2 }, trainer_spec { model_type: 4 }
    let bytes = b"\x0a\x05\x0a\x01a\x18\x02\x12\x02\x18\x04";
    let error = SentencePiece::from_bytes(bytes, Path::new("m.model")).unwrap_err();
    assert_eq!(error.to_string(), "cannot use SentencePiece model `m.model`");
    assert!(error.source().unwrap().to_string().contains("model type 4"));
    let bytes = b"\x0a\x05\x0a\x01a\x18\x01";
    let error = SentencePiece::from_bytes(bytes, Path::new("m.model")).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("expected one unknown piece, found 0"));
}

#[test]
fn a_model_with_too_few_rows_is_refused() {
    let vocab = GgufVocab {
        origin: "tiny.gguf".into(),
        model: "gpt2".into(),
        tokens: vec!["a".into(), "b".into()],
        ..GgufVocab::default()
    };
    let tokenizer = open_auto(None, Some(&vocab), FormatOptions::default()).unwrap();
    assert!(tokenizer.check_fits(2).is_ok());
    let error = tokenizer.check_fits(1).unwrap_err();
    assert!(error.to_string().contains("expected at least 2 rows for the ids of `tiny.gguf`, found vocab_size = 1"));
    assert!(matches!(open_auto(None, None, FormatOptions::default()), Err(Error::NoSource)));
    let none = FormatOptions { max_seq_len: Some(0), ..FormatOptions::default() };
    assert!(matches!(open_auto(None, Some(&vocab), none), Err(Error::ZeroMaxSeqLen)));

    let image = Message { content: vec![Content::Image("a.png".into())], ..Message::new(Role::User, "") };
    let error = tokenizer.tokenize_messages(&[image], false).unwrap_err();
    assert!(error.to_string().starts_with("message 0 (`user`) holds an image"), "{error}");
}
