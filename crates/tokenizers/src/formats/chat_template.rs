//! The format of a model folder with a chat template: the text that the template renders, encoded as a whole.
//!
//! The conversation is rendered once and encoded once, so the ids are those of the rendered text: a bos that the template writes
//! stands once, and no message gets one of its own. Masks follow from rendering the first one, two, ... messages: where the
//! text of the first k ends, message k ends. A token belongs to the message in which it starts.
//!
//! The template runs with the block trimming, filters and functions that Hugging Face gives it, and Python's methods of
//! strings, lists and mappings. `strftime_now` exists only for templates that do not ask whether it does, because training
//! data should not depend on the day; it gives 26 Jul 2024, the day that Llama 3's template falls back to.
//!
//! Errors: `Error::ChatTemplate` where parsing or rendering fails, `Error::ChatTemplateOrder` where the text of the first
//! messages changes with what follows, so that no mask can be told.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind, State, context};

use super::plain::Spans;
use super::{Conversation, Output, Tokenized};
use crate::{Error, Message, Result, Role};

const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the like, as the template sees them.
    tokens: BTreeMap<String, String>,
    origin: String,
}

impl ChatTemplate {
    /// Compiles a template; `tokens` are names and texts of special tokens, `origin` is the file for messages.
    pub fn new(source: &str, tokens: Vec<(String, String)>, origin: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters do not clash"));
        environment.set_unknown_method_callback(python_method);
        environment.add_filter("tojson", |value: &Value, kwargs: Kwargs| to_json(value, &kwargs));
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        if source.contains("strftime_now") && !source.contains("strftime_now is defined") {
            environment.add_function("strftime_now", |format: String| fixed_day(&format));
        }
        let failed = |source| Error::ChatTemplate { origin: origin.to_owned(), source: Box::new(source) };
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(failed)?;
        Ok(Self { environment, tokens: tokens.into_iter().collect(), origin: origin.to_owned() })
    }

    /// The text of a conversation.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let failed = |source| Error::ChatTemplate { origin: self.origin.clone(), source: Box::new(source) };
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role.as_str(), content => message.text() })
            .collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            tools => (),
            documents => (),
            ..Value::from(self.tokens.clone())
        };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(context).map_err(failed)
    }

    pub(super) fn tokenize(&self, conversation: &Conversation<'_>) -> Result<Tokenized> {
        let mut out = Output::default();
        if conversation.inference {
            let text = self.prompt(conversation.messages)?;
            out.extend(conversation.tokenizer.encode(&text)?, true);
        } else {
            self.spans(conversation.messages)?.encode(conversation, &mut out)?;
        }
        let is_cut = conversation.max_seq_len.is_some_and(|max| out.tokens.len() > max);
        let end = conversation.tokenizer.specials().eos.filter(|_| is_cut && !conversation.inference);
        Ok(conversation.finish(out, end.map(|eos| (eos, true))))
    }

    /// The text for the model to go on from: after the header of an answer, or inside the last answer.
    fn prompt(&self, messages: &[Message]) -> Result<String> {
        let Some((last, before)) = messages.split_last().filter(|(last, _)| last.role == Role::Assistant) else {
            return self.render(messages, true);
        };
        let content = last.text();
        if content.is_empty() {
            return self.render(before, true);
        }
        let mut text = self.render(messages, false)?;
        let shown = content.trim();
        if let Some(at) = text.rfind(shown) {
            text.truncate(at + shown.len());
        }
        Ok(text)
    }

    fn spans(&self, messages: &[Message]) -> Result<Spans> {
        let text = self.render(messages, false)?;
        let mut ends = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            let is_border = messages.get(index + 1).is_none_or(|next| next.masked != message.masked);
            if !is_border {
                continue;
            }
            let rendered;
            let first = if index + 1 == messages.len() {
                &text
            } else {
                rendered = self.render(&messages[..=index], false)?;
                &rendered
            };
            if !text.starts_with(first.as_str()) {
                return Err(Error::ChatTemplateOrder { origin: self.origin.clone(), index, role: message.role });
            }
            ends.push((first.len(), message.masked));
        }
        Ok(Spans { text, ends })
    }
}

/// Hugging Face's marks around what the assistant generated are no part of the template language here.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let end = rest[at..].find("%}").map_or(rest.len(), |length| at + length + 2);
        let tag = &rest[at..end];
        let word = tag.trim_matches(|c: char| "{%-+}".contains(c) || c.is_whitespace());
        out.push_str(&rest[..at]);
        out.push_str(&match word {
            "generation" => tag.replace(word, "if true"),
            "endgeneration" => tag.replace(word, "endif"),
            _ => tag.to_owned(),
        });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// 26 July 2024 in a `strftime` format.
fn fixed_day(format: &str) -> String {
    let parts =
        [("%d", "26"), ("%b", "Jul"), ("%B", "July"), ("%m", "07"), ("%Y", "2024"), ("%y", "24"), ("%A", "Friday")];
    parts.iter().fold(format.to_owned(), |text, (mark, value)| text.replace(mark, value))
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` writes it.
fn to_json(value: &Value, kwargs: &Kwargs) -> Result<String, minijinja::Error> {
    let indent = kwargs.get::<Option<usize>>("indent")?;
    // Further keywords change how non-ASCII text is written, which stays readable here.
    let mut out = String::new();
    write_json(value, indent, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), minijinja::Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let is_map = value.kind() == ValueKind::Map;
            let (open, close) = if is_map { ('{', '}') } else { ('[', ']') };
            out.push(open);
            let mut is_empty = true;
            for item in value.try_iter()? {
                if !is_empty {
                    out.push_str(separator);
                }
                is_empty = false;
                line(out, depth + 1);
                if is_map {
                    out.push_str(&json_string(&item.to_string()));
                    out.push_str(": ");
                    write_json(&value.get_item(&item)?, indent, depth + 1, out)?;
                } else {
                    write_json(&item, indent, depth + 1, out)?;
                }
            }
            if !is_empty {
                line(out, depth);
            }
            out.push(close);
        }
        _ => out.push_str(&json_string(&value.to_string())),
    }
    Ok(())
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Python's methods, as far as chat templates call them.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, minijinja::Error> {
    let unknown = || minijinja::Error::from(ErrorKind::UnknownMethod);
    match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args).ok_or_else(unknown),
        ValueKind::Map => match (method, args) {
            ("items", []) => state.apply_filter("items", std::slice::from_ref(value)),
            ("keys", []) => Ok(value.try_iter()?.collect()),
            ("values", []) => {
                let values = value.try_iter()?.map(|key| value.get_item(&key));
                Ok(values.collect::<Result<Vec<_>, _>>()?.into())
            }
            ("get", [key, default @ ..]) => {
                let item = value.get_item(key)?;
                let default = default.first().cloned().unwrap_or(Value::from(()));
                Ok(if item.is_undefined() { default } else { item })
            }
            _ => Err(unknown()),
        },
        ValueKind::Seq => match (method, args) {
            ("count", [wanted]) => Ok(value.try_iter()?.filter(|item| item == wanted).count().into()),
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

/// `None` for a method or arguments that are not known.
fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Value> {
    let chars = || args.first().and_then(Value::as_str);
    let cut = |c: char| chars().map_or(c.is_whitespace(), |chars| chars.contains(c));
    Some(match method {
        "strip" => text.trim_matches(cut).into(),
        "lstrip" => text.trim_start_matches(cut).into(),
        "rstrip" => text.trim_end_matches(cut).into(),
        "upper" => text.to_uppercase().into(),
        "lower" => text.to_lowercase().into(),
        "title" => title(text).into(),
        "capitalize" => {
            let mut chars = text.chars();
            let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
            (first + &chars.as_str().to_lowercase()).into()
        }
        "startswith" => any_of(args, |part| text.starts_with(part))?.into(),
        "endswith" => any_of(args, |part| text.ends_with(part))?.into(),
        "find" => {
            let at = text.find(chars()?).map(|at| text[..at].chars().count());
            at.map_or(Value::from(-1), Value::from)
        }
        "count" => text.matches(chars()?).count().into(),
        "replace" => text.replace(chars()?, args.get(1)?.as_str()?).into(),
        "split" => {
            let most = args.get(1).and_then(|most| usize::try_from(most.clone()).ok());
            let parts: Vec<&str> = match (chars(), most) {
                (Some(mark), Some(most)) => text.splitn(most + 1, mark).collect(),
                (Some(mark), None) => text.split(mark).collect(),
                (None, _) => text.split_whitespace().collect(),
            };
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => text.lines().map(Value::from).collect(),
        "join" => {
            let parts = args.first()?.try_iter().ok()?.map(|part| part.to_string());
            parts.collect::<Vec<_>>().join(text).into()
        }
        _ => return None,
    })
}

/// Whether a test holds for the argument, or for one of them where it is a tuple.
fn any_of(args: &[Value], test: impl Fn(&str) -> bool) -> Option<bool> {
    let [arg] = args else { return None };
    match arg.as_str() {
        Some(part) => Some(test(part)),
        None => Some(arg.try_iter().ok()?.any(|part| part.as_str().is_some_and(&test))),
    }
}

fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if after_letter {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        after_letter = c.is_alphabetic();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> String {
        let messages = [Message::new(Role::User, "  Hi <b>\n"), Message::new(Role::Assistant, "42")];
        let tokens = vec![("bos_token".to_owned(), "<s>".to_owned())];
        ChatTemplate::new(source, tokens, "folder").unwrap().render(&messages, true).unwrap()
    }

    #[test]
    fn templates_see_what_hugging_face_gives_them() {
        assert_eq!(render("{{ bos_token }}{{ messages[0].content.strip() }}"), "<s>Hi <b>");
        assert_eq!(render("{{ messages[1] | tojson }}"), r#"{"role": "assistant", "content": "42"}"#);
        assert_eq!(render("{% if tools is not none %}t{% endif %}{% if add_generation_prompt %}g{% endif %}"), "g");
        assert_eq!(render("{% if messages[1]['content'].startswith('4') %}\n  yes\n{% endif %}\n"), "  yes\n");
        assert_eq!(render("{%- generation -%} a {%- endgeneration %}"), "a");
        assert_eq!(render("{{ 'a,b,c'.split(',')[-1] }}{{ 'ab cd'.title() }}"), "cAb Cd");
        assert_eq!(
            render("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}"),
            "user"
        );
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}"), "26 Jul 2024");
        assert_eq!(render("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}"), "");
        assert_eq!(
            render("{{ messages[0].get('name', 'x') }}{{ {'a': [1, true]} | tojson(indent=1) }}"),
            "x{\n \"a\": [\n  1,\n  true\n ]\n}"
        );
    }

    #[test]
    fn bad_templates_are_errors() {
        let error = ChatTemplate::new("{% if %}", Vec::new(), "some/folder").unwrap_err();
        assert!(error.to_string().contains("some/folder"), "{error}");
        let template = ChatTemplate::new("{{ raise_exception('no system') }}", Vec::new(), "f").unwrap();
        let error = template.render(&[], false).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("no system"), "{cause}");
        let template = ChatTemplate::new("{{ 'a'.nothing() }}", Vec::new(), "f").unwrap();
        assert!(template.render(&[], false).is_err());
    }
}
