//! Message formats on vocabularies of single bytes, made on the spot: the text of a conversation is what its ids decode to.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::{Error, Message, ModelTokenizer, Role};

use super::chats::{build, try_build};
use super::laws::byte_char;

/// The 256 bytes as a tiktoken file and as `vocab.json` with `merges.txt`.
fn files(folder: &Path) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let base64 = |byte: usize| format!("{}{}==", char::from(DIGITS[byte >> 2]), char::from(DIGITS[(byte & 3) << 4]));
    let ranks: Vec<String> = (0..256).map(|byte| format!("{} {byte}", base64(byte))).collect();
    fs::write(folder.join("tokenizer.model"), ranks.join("\n")).unwrap();
    let vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    fs::write(folder.join("vocab.json"), json!(vocab).to_string()).unwrap();
    fs::write(folder.join("merges.txt"), "#version: 0.2\n").unwrap();
}

fn llama3(folder: &Path, extra: &Value) -> ModelTokenizer {
    files(folder);
    let mut section = json!({
        "_component_": "torchtune.models.llama3.llama3_tokenizer",
        "path": folder.join("tokenizer.model"),
    });
    section.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    build(&section)
}

fn qwen(folder: &Path, kind: &str) -> ModelTokenizer {
    files(folder);
    build(&json!({
        "_component_": format!("torchtune.models.{kind}.{kind}_tokenizer"),
        "path": folder.join("vocab.json"),
        "merges_file": folder.join("merges.txt"),
    }))
}

fn text(tokenizer: &ModelTokenizer, messages: &[Message], inference: bool) -> String {
    let (tokens, mask) = tokenizer.tokenize_messages(messages, inference).unwrap();
    assert_eq!(tokens.len(), mask.len());
    tokenizer.decode(&tokens, false)
}

/// A question, a tool call, two results and an answer.
fn tool_conversation() -> Vec<Message> {
    let mut call = Message::new(Role::Assistant, "f()");
    call.ipython = true;
    call.eot = false;
    vec![
        Message::new(Role::User, " q "),
        call,
        Message::new(Role::Ipython, "1"),
        Message::new(Role::Ipython, "2"),
        Message::new(Role::Assistant, "a"),
    ]
}

#[test]
fn llama3_writes_headers_and_end_markers() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = llama3(folder.path(), &json!({}));
    let header = |role: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n");
    let (user, assistant, ipython) = (header("user"), header("assistant"), header("ipython"));
    let expected = format!(
        "<|begin_of_text|>{user}q<|eot_id|>{assistant}<|python_tag|>f()<|eom_id|>{ipython}1<|eot_id|>{ipython}2<|eot_id|>\
         {assistant}a<|eot_id|><|end_of_text|>"
    );
    assert_eq!(text(&tokenizer, &tool_conversation(), false), expected);
    let prompt = [Message::new(Role::User, "q"), Message::new(Role::Assistant, "")];
    assert_eq!(text(&tokenizer, &prompt, true), format!("<|begin_of_text|>{user}q<|eot_id|>{assistant}"));
    assert_eq!(tokenizer.stop_tokens(), [128001, 128009, 128008]);
    assert_eq!(tokenizer.pad_id(), 128004);
    // Special tokens in text are text.
    let ids = tokenizer.encode_text("<|eot_id|>", false, false).unwrap();
    assert_eq!(ids, "<|eot_id|>".bytes().map(u32::from).collect::<Vec<_>>());
    assert_eq!(tokenizer.decode(&[128000, 72, 105, 128009], true), "Hi");
}

#[test]
fn truncation_keeps_one_end_and_eos() {
    let folder = tempfile::tempdir().unwrap();
    let conversation = [Message::new(Role::User, "hello"), Message::new(Role::Assistant, "there")];
    let whole = llama3(folder.path(), &json!({})).tokenize_messages(&conversation, false).unwrap().0;
    for (kind, max) in [("right", 12), ("left", 12), ("right", 1000), ("left", 1)] {
        let tokenizer = llama3(folder.path(), &json!({"max_seq_len": max, "truncation_type": kind}));
        let (tokens, mask) = tokenizer.tokenize_messages(&conversation, false).unwrap();
        assert_eq!(tokens.len(), max.min(whole.len()), "{kind} {max}");
        assert_eq!((tokens.last(), mask.last()), (Some(&128001), Some(&true)));
        if kind == "right" {
            assert_eq!(tokens[..tokens.len() - 1], whole[..tokens.len() - 1]);
        }
    }
}

#[test]
fn special_tokens_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let special = folder.path().join("tokenizer.json");
    let token = |(id, content): (usize, &str)| json!({"id": 300 + id, "content": content});
    let names = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|finetune_right_pad_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ];
    let write = |names: &[&str]| {
        let tokens: Vec<Value> = names.iter().copied().enumerate().map(token).collect();
        fs::write(&special, json!({"added_tokens": tokens}).to_string()).unwrap();
    };
    write(&names);
    let tokenizer = llama3(folder.path(), &json!({"special_tokens_path": special}));
    assert_eq!(tokenizer.pad_id(), 302);
    assert_eq!(tokenizer.tokenizer().vocab_size(), 308);
    write(&names[..7]);
    let section = json!({
        "_component_": "torchtune.models.llama3.llama3_tokenizer",
        "path": folder.path().join("tokenizer.model"),
        "special_tokens_path": special,
    });
    let error = try_build(&section).unwrap_err();
    assert!(matches!(&error, Error::MissingSpecialToken { token, .. } if token == "<|python_tag|>"), "{error}");
    fs::write(&special, "{\"added_tokens\": [{\"id\": \"x\", \"content\": \"y\"}]}").unwrap();
    let error = try_build(&section).unwrap_err().to_string();
    assert!(error.contains("`added_tokens[0].id`") && error.contains("found a string"), "{error}");
}

#[test]
fn qwen_writes_chat_marks() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = qwen(folder.path(), "qwen2_5");
    let expected = "<|im_start|>user\n q <|im_end|>\n<|im_start|>assistant\n<tool_call>\nf()\n</tool_call><|im_end|>\n\
                    <|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n\
                    <|im_start|>assistant\na<|im_end|>";
    assert_eq!(text(&tokenizer, &tool_conversation(), false), expected);
    let prompt = [Message::new(Role::User, "q"), Message::new(Role::Assistant, "")];
    assert_eq!(text(&tokenizer, &prompt, true), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    // Special tokens in text are special.
    assert_eq!(tokenizer.encode_text("a<|im_end|>", true, true).unwrap(), [97, 151645, 151645]);
    assert_eq!((tokenizer.pad_id(), tokenizer.stop_tokens()), (151643, vec![151645, 151643]));

    let tokenizer = qwen(folder.path(), "qwen2");
    let expected =
        "<|im_start|>user\n q <|im_end|>\n<|im_start|>assistant\nf()<|im_end|>\n12<|im_start|>assistant\na<|im_end|>";
    assert_eq!(text(&tokenizer, &tool_conversation(), false), expected);
}

#[test]
fn bad_merges_are_named() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    fs::write(folder.path().join("merges.txt"), "#version: 0.2\na b\nabc\n").unwrap();
    let section = json!({
        "_component_": "torchtune.models.qwen2.qwen2_tokenizer",
        "path": folder.path().join("vocab.json"),
        "merges_file": folder.path().join("merges.txt"),
    });
    let error = try_build(&section).unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("`abc`"), "{error}");
    fs::write(folder.path().join("merges.txt"), "a b\n").unwrap();
    assert!(matches!(try_build(&section), Err(Error::HuggingFace { .. })));
    fs::write(folder.path().join("vocab.json"), "{\"a\": -1}").unwrap();
    let error = try_build(&section).unwrap_err().to_string();
    assert!(error.contains("wrong value for `a`"), "{error}");
}
