//! Phi 4's tokenizer. The expected ids are what torchtune 0.6.1's `Phi4Tokenizer` gives (`encode`, and `tokenize_messages` with `add_eos`) on
//! the vocabulary that [`tokenizer`] writes: single bytes, and every pair of eleven of them, so that ids show where text is cut.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::{Error, Message, ModelTokenizer, Role};

use super::chats::{build, try_build};
use super::laws::byte_char;

fn section(folder: &Path, extra: &Value) -> Value {
    let alphabet = b"aB1_ !.\n'ts";
    let mut vocab: Map<String, Value> = (0..=255u8).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    let mut merges = vec!["#version: 0.2".to_owned()];
    for left in alphabet.map(byte_char) {
        for right in alphabet.map(byte_char) {
            merges.push(format!("{left} {right}"));
            vocab.insert(format!("{left}{right}"), json!(vocab.len()));
        }
    }
    fs::write(folder.join("vocab.json"), json!(vocab).to_string()).unwrap();
    fs::write(folder.join("merges.txt"), merges.join("\n") + "\n").unwrap();
    let mut section = json!({
        "_component_": "torchtune.models.phi4.phi4_tokenizer",
        "vocab_path": folder.join("vocab.json"),
        "merges_path": folder.join("merges.txt"),
    });
    section.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    section
}

fn tokenizer(extra: &Value) -> ModelTokenizer {
    build(&section(tempfile::tempdir().unwrap().path(), extra))
}

fn conversation() -> Vec<Message> {
    let mut question = Message::new(Role::User, " aa!");
    question.masked = true;
    vec![Message::new(Role::System, "a1 "), question, Message::new(Role::Assistant, "a1_a ")]
}

#[test]
fn text_is_cut_as_the_reference_cuts_it() {
    let tokenizer = tokenizer(&json!({}));
    let cases: &[(&str, &[u32])] = &[
        ("aa1_B", &[256, 281, 66]),
        ("a a1  a", &[97, 32, 258, 32, 300]),
        ("a!!a  ", &[97, 316, 97, 304]),
        ("  aa", &[32, 32, 256]),
        ("a\n\n  a\n", &[97, 10, 337, 300, 10]),
        ("a't a's_'", &[97, 353, 300, 354, 95, 39]),
        ("1a.1_!.", &[278, 46, 281, 317]),
        ("aé1ñ_a", &[97, 195, 169, 49, 195, 177, 289]),
        ("aa\u{301}a", &[256, 204, 129, 97]),
        ("a\u{2028}\u{a0}a", &[97, 226, 128, 168, 194, 160, 97]),
        ("a\u{1c}a", &[97, 28, 97]),
        ("½a٣ a²", &[194, 189, 97, 217, 163, 300, 194, 178]),
        ("aa漢字1_", &[256, 230, 188, 162, 229, 173, 151, 281]),
        (" _a _!", &[32, 289, 303, 33]),
        ("a\t a", &[97, 9, 300]),
        ("'S a'Sa", &[39, 83, 300, 39, 83, 97]),
        ("", &[]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.encode_text(text, false, false).unwrap(), *expected, "{text:?}");
        assert_eq!(tokenizer.decode(expected, true), *text);
    }
    // Special tokens in text are text.
    assert!(tokenizer.encode_text("<|im_end|>", false, false).unwrap().iter().all(|&id| id < 1000));
}

#[test]
fn a_conversation_is_that_of_the_reference() {
    let expected = [
        100_264, 115, 121, 375, 101, 109, 100_266, 258, 100_265, 100_264, 117, 115, 101, 114, 100_266, 32, 256, 33,
        100_265, 100_264, 266, 115, 105, 115, 355, 110, 116, 100_266, 258, 289, 100_265,
    ];
    let of_the_user = 9..19;
    let (tokens, mask) = tokenizer(&json!({})).tokenize_messages(&conversation(), false).unwrap();
    assert_eq!(tokens, expected);
    assert_eq!(mask, (0..31).map(|at| of_the_user.contains(&at)).collect::<Vec<_>>());

    let (tokens, mask) = tokenizer(&json!({"max_seq_len": 14})).tokenize_messages(&conversation(), false).unwrap();
    assert_eq!(tokens, [&expected[..13], &[100_265]].concat());
    assert_eq!(mask, (0..14).map(|at| of_the_user.contains(&at)).collect::<Vec<_>>());
}

#[test]
fn a_prompt_ends_where_the_answer_begins() {
    let tokenizer = tokenizer(&json!({}));
    let messages = [Message::new(Role::User, "a"), Message::new(Role::Assistant, "")];
    let (tokens, _) = tokenizer.tokenize_messages(&messages, true).unwrap();
    assert_eq!(tokens[..7], [100_264, 117, 115, 101, 114, 100_266, 97]);
    assert_eq!(tokens[7..9], [100_265, 100_264]);
    assert_eq!(tokens.last(), Some(&100_266));
    assert_eq!((tokenizer.stop_tokens(), tokenizer.pad_id()), (vec![100_265], 100_349));
    assert_eq!(tokenizer.tokenizer().piece_to_id("<|dummy_85|>"), Some(100_349));
    assert_eq!(tokenizer.tokenizer().piece_to_id("<|dummy_13|>"), Some(100_277));
    assert_eq!(tokenizer.decode(&[100_264, 97, 100_265], true), "a");
    assert!(tokenizer.check_fits(100_352).is_ok());
    assert!(tokenizer.check_fits(100_300).is_err());
}

#[test]
fn markers_are_not_written_twice() {
    let folder = tempfile::tempdir().unwrap();
    let section = section(folder.path(), &json!({"prompt_template": "torchtune.data.ChatMLTemplate"}));
    assert!(matches!(try_build(&section), Err(Error::DoubleTemplate { format: "phi4_tokenizer", .. })));
}
