//! The `auto` tokenizer on folders: chat templates, masks, special tokens, prompts.

use std::fs;

use serde_json::{Value, json};
use tokenizers::{Error, FormatOptions, Message, ModelTokenizer, PromptTemplate, Role, TruncationType, open_auto};

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}\
                        {% if add_generation_prompt %}[assistant]{% endif %}";

/// A folder with one token a character of a small alphabet, `<s>` as bos and `</s>` as eos.
fn folder(chat_template: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let letters = "abcdefghijklmnopqrstuvwxyz[]0123456789";
    let mut vocab: serde_json::Map<String, Value> =
        letters.chars().enumerate().map(|(id, c)| (c.to_string(), json!(id + 10))).collect();
    vocab.insert("\u{10a}".into(), json!(3));
    vocab.insert("\u{120}".into(), json!(4));
    vocab.insert("ab".into(), json!(5));
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    vocab.insert("<s>".into(), json!(0));
    vocab.insert("</s>".into(), json!(1));
    let bos = json!({"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<s>"), special(1, "</s>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": bos},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": chat_template});
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("generation_config.json"), json!({"eos_token_id": [1, 12]}).to_string()).unwrap();
    folder
}

fn open(chat_template: Option<&str>, options: FormatOptions) -> ModelTokenizer {
    open_auto(Some(folder(chat_template).path()), None, options).unwrap()
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new(Role::User, "hi a").with_masked(true),
        Message::new(Role::Assistant, "yes"),
        Message::new(Role::User, "b").with_masked(true),
        Message::new(Role::Assistant, "no"),
    ]
}

fn trained(tokenizer: &ModelTokenizer, messages: &[Message]) -> String {
    let (tokens, mask) = tokenizer.tokenize_messages(messages, false).unwrap();
    let ids: Vec<u32> = tokens.iter().zip(mask).filter(|(_, masked)| !masked).map(|(id, _)| *id).collect();
    tokenizer.decode(&ids, false)
}

#[test]
fn bos_stands_once_and_ids_are_those_of_the_whole_text() {
    let tokenizer = open(Some(TEMPLATE), FormatOptions::default());
    let (tokens, _) = tokenizer.tokenize_messages(&conversation(), false).unwrap();
    assert_eq!(tokens.iter().filter(|id| **id == 0).count(), 1);
    let text = "<s>[user]hi a</s>[assistant]yes</s>[user]b</s>[assistant]no</s>";
    assert_eq!(tokenizer.decode(&tokens, false), text);
    assert_eq!(tokenizer.tokenizer().encode(text).unwrap(), tokens);
    assert_eq!(trained(&tokenizer, &conversation()), "[assistant]yes</s>[assistant]no</s>");
    assert_eq!(tokenizer.stop_tokens(), [1, 12]);
    assert_eq!(tokenizer.pad_id(), 1);
    assert_eq!(tokenizer.encode_text("ab", true, true).unwrap(), [0, 5, 1]);
}

#[test]
fn prompts_end_where_the_model_goes_on() {
    let tokenizer = open(Some(TEMPLATE), FormatOptions::default());
    let prompt =
        |messages: &[Message]| tokenizer.decode(&tokenizer.tokenize_messages(messages, true).unwrap().0, false);
    let user = Message::new(Role::User, "hi");
    assert_eq!(prompt(std::slice::from_ref(&user)), "<s>[user]hi</s>[assistant]");
    assert_eq!(prompt(&[user.clone(), Message::new(Role::Assistant, "")]), "<s>[user]hi</s>[assistant]");
    assert_eq!(prompt(&[user, Message::new(Role::Assistant, "ye")]), "<s>[user]hi</s>[assistant]ye");
}

#[test]
fn a_prompt_template_goes_inside_the_chat_template() {
    let template = PromptTemplate::Roles(vec![(Role::User, "q ".into(), " a".into())]);
    let options = FormatOptions { prompt_template: Some(template), ..FormatOptions::default() };
    let tokenizer = open(Some(TEMPLATE), options);
    let (tokens, _) = tokenizer.tokenize_messages(&conversation()[..2], false).unwrap();
    assert_eq!(tokenizer.decode(&tokens, false), "<s>[user]q hi a a</s>[assistant]yes</s>");
    let options = FormatOptions { prompt_template: Some(PromptTemplate::ChatMl), ..FormatOptions::default() };
    let refused = open_auto(Some(folder(Some(TEMPLATE)).path()), None, options);
    assert!(matches!(refused, Err(Error::DoubleTemplate { .. })));
}

#[test]
fn long_conversations_are_cut_and_end_with_eos() {
    for (truncation, expected) in [(TruncationType::Right, "<s>[user]</s>"), (TruncationType::Left, "istant]no</s>")] {
        let max = if truncation == TruncationType::Right { 8 } else { 10 };
        let options = FormatOptions { max_seq_len: Some(max), truncation, ..FormatOptions::default() };
        let tokenizer = open(Some(TEMPLATE), options);
        let (tokens, mask) = tokenizer.tokenize_messages(&conversation(), false).unwrap();
        assert_eq!(tokenizer.decode(&tokens, false), expected);
        assert_eq!((tokens.len(), mask.len(), mask.last()), (max, max, Some(&true)));
    }
}

#[test]
fn a_template_that_rewrites_earlier_messages_is_refused() {
    let template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let tokenizer = open(Some(template), FormatOptions::default());
    let error = tokenizer.tokenize_messages(&conversation(), false).unwrap_err();
    assert!(matches!(error, Error::ChatTemplateOrder { index: 0, role: Role::User, .. }), "{error}");
    assert!(error.hint().is_some());
    // Without a border between masks there is nothing to tell apart.
    let all: Vec<Message> = conversation().into_iter().map(|message| message.with_masked(false)).collect();
    assert!(tokenizer.tokenize_messages(&all, false).is_ok());
}

#[test]
fn without_a_template_texts_are_joined() {
    let tokenizer = open(None, FormatOptions::default());
    let (tokens, mask) = tokenizer.tokenize_messages(&conversation(), false).unwrap();
    assert_eq!(tokenizer.decode(&tokens, false), "<s>hi a\nyes</s>b\nno</s>");
    assert!(mask[0]);
    assert_eq!(trained(&tokenizer, &conversation()), "yes</s>no</s>");
    let (prompt, _) = tokenizer.tokenize_messages(&conversation()[..1], true).unwrap();
    assert_eq!(tokenizer.decode(&prompt, false), "<s>hi a");
}

#[test]
fn a_jinja_file_wins_and_a_list_of_templates_has_a_default() {
    let folder = folder(None);
    let list =
        json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "d{{ messages[0].content }}"}]);
    fs::write(folder.path().join("tokenizer_config.json"), json!({"chat_template": list}).to_string()).unwrap();
    let text = |expected: &str| {
        let tokenizer = open_auto(Some(folder.path()), None, FormatOptions::default()).unwrap();
        let (tokens, _) = tokenizer.tokenize_messages(&[Message::new(Role::User, "b")], false).unwrap();
        assert_eq!(tokenizer.decode(&tokens, false), expected);
    };
    text("db");
    fs::write(folder.path().join("chat_template.jinja"), "j{{ messages[0].content }}").unwrap();
    text("jb");
}
