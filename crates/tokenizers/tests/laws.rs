//! Laws: decoding undoes encoding, starts point into the text, damaged files are errors and never panics.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use testing::conformance::conformance_dir;
use tokenizers::{GgufVocab, HuggingFace, SentencePiece, Tiktoken, Tokenizer};

/// GPT-2's way to write a byte as a character.
pub fn byte_char(byte: u8) -> char {
    let shown = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let byte = u32::from(byte);
    let code = if shown(byte) { byte } else { 256 + (0..byte).filter(|b| !shown(*b)).count() as u32 };
    char::from_u32(code).unwrap()
}

fn byte_level() -> GgufVocab {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let merges = ["t h", "th e", "\u{120} the", "\u{120} \u{120}", "i n", "1 2"];
    tokens.extend(merges.iter().map(|rule| rule.replace(' ', "")));
    GgufVocab {
        origin: "bytes".into(),
        model: "gpt2".into(),
        tokens,
        merges: merges.map(str::to_owned).to_vec(),
        ..GgufVocab::default()
    }
}

static BYTE_LEVEL: LazyLock<Vec<Box<dyn Tokenizer>>> = LazyLock::new(|| {
    let with = |pre: &str| GgufVocab { pre: Some(pre.into()), ..byte_level() }.tokenizer().unwrap();
    ["gpt-2", "smollm", "llama-bpe", "stablelm2"].map(with).into()
});

/// Byte fallback with a few words, the kind a GGUF file of Llama 2 holds.
fn byte_fallback() -> GgufVocab {
    let mut pieces = vec![("<unk>".to_owned(), 2), ("<s>".to_owned(), 3), ("</s>".to_owned(), 3)];
    pieces.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 6)));
    let words = ["\u{2581}", "t", "h", "e", "th", "the", "\u{2581}the", "\u{2581}\u{2581}", "\u{e9}"];
    pieces.extend(words.iter().map(|word| ((*word).to_owned(), 1)));
    GgufVocab {
        origin: "fallback".into(),
        model: "llama".into(),
        scores: Some((0..pieces.len()).map(|id| -(id as f32)).collect()),
        token_types: Some(pieces.iter().map(|(_, kind)| *kind).collect()),
        tokens: pieces.into_iter().map(|(piece, _)| piece).collect(),
        ..GgufVocab::default()
    }
}

static BYTE_FALLBACK: LazyLock<Box<dyn Tokenizer>> = LazyLock::new(|| byte_fallback().tokenizer().unwrap());

/// Texts of words, digits, spaces, line breaks and anything else.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => "[ the12]{0,6}",
        1 => "[ \t\n\r\u{a0}]{1,4}",
        1 => "\\PC{0,4}",
        1 => any::<String>().prop_map(|s| s.chars().take(4).collect()),
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn byte_level_decoding_undoes_encoding(text in text()) {
        for tokenizer in BYTE_LEVEL.iter() {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids, false), &text);
        }
    }

    #[test]
    fn byte_fallback_decoding_undoes_encoding(text in text()) {
        // The model writes spaces as U+2581, so that one character does not come back; special tokens are one id.
        let text = text.replace(['\u{2581}', '<'], "");
        let ids = BYTE_FALLBACK.encode(&text).unwrap();
        prop_assert_eq!(BYTE_FALLBACK.decode(&ids, false), text);
    }

    #[test]
    fn starts_point_into_the_text(text in text()) {
        for tokenizer in BYTE_LEVEL.iter().chain([&*BYTE_FALLBACK]) {
            let ids = tokenizer.encode_with_starts(&text).unwrap();
            prop_assert!(ids.is_sorted_by_key(|(_, start)| *start));
            prop_assert!(ids.iter().all(|(_, start)| *start <= text.len()));
            let without: Vec<u32> = ids.iter().map(|(id, _)| *id).collect();
            prop_assert_eq!(tokenizer.encode(&text).unwrap(), without);
        }
    }

    #[test]
    fn unknown_ids_decode_to_something(ids in proptest::collection::vec(0u32..1000, 0..20)) {
        for tokenizer in BYTE_LEVEL.iter().chain([&*BYTE_FALLBACK]) {
            let strange = ids.iter().filter(|id| **id as usize >= tokenizer.vocab_size()).count();
            let text = tokenizer.decode(&ids, false);
            prop_assert!(text.matches(char::REPLACEMENT_CHARACTER).count() >= strange);
        }
    }

    #[test]
    fn any_bytes_are_a_tokenizer_or_an_error(bytes: Vec<u8>) {
        let path = Path::new("some.file");
        let _ = SentencePiece::from_bytes(&bytes, path);
        let _ = Tiktoken::from_bytes(&bytes, path);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn damaged_models_never_panic(at: prop::sample::Index, value: u8, cut: prop::sample::Index, is_cut: bool) {
        let Some(dir) = conformance_dir() else { return Ok(()) };
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(dir.join("assets")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_model = path.extension().is_some_and(|extension| extension == "model");
            if !is_model && !name.ends_with("tokenizer.json") {
                continue;
            }
            let mut bytes = std::fs::read(&path).unwrap();
            // The start of a file holds its structure.
            let reach = bytes.len().min(20_000);
            bytes[at.index(reach)] = value;
            if is_cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if is_model {
                for tokenizer in [
                    SentencePiece::from_bytes(&bytes, &path).map(|t| Box::new(t) as Box<dyn Tokenizer>),
                    Tiktoken::from_bytes(&bytes, &path).map(|t| Box::new(t) as Box<dyn Tokenizer>),
                ].into_iter().flatten() {
                    let ids = tokenizer.encode("a \u{e9} test 12").unwrap();
                    tokenizer.decode(&ids, true);
                }
            } else {
                let damaged = folder.path().join(&name);
                std::fs::write(&damaged, &bytes).unwrap();
                let _ = HuggingFace::open(&damaged);
            }
        }
    }
}
