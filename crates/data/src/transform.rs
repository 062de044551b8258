//! Rows to messages: one transform a dataset layout, with the masks that `train_on_input` asks for.
//!
//! Masks:   a masked message gives no labels. System messages are always masked and the assistant's never; all others
//!          are trained on if `train_on_input` is set.
//! Errors:  `Error::MissingColumn`, `Error::Field`. Panics: never.
//! Source:  layouts and prompt texts of torchtune's message transforms; Taori et al. 2023, Stanford Alpaca, for the
//!          Alpaca prompts.
//! Checked: `conformance/data/datasets.jsonl`; unit tests here.

use serde_json::Value;
use tokenizers::{Content, Message, Role};

use crate::Result;
use crate::row::{Row, describe, quoted};
use crate::validate::validate;

/// How a row of a supervised dataset becomes a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transform {
    /// Two columns: what the user says and what the assistant answers.
    InputOutput {
        /// Column of the user's text.
        input: String,
        /// Column of the assistant's text.
        output: String,
        /// Who is trained on, and the system prompt.
        options: TransformOptions,
    },
    /// Instruction, optional input and output, put into the Alpaca prompt.
    Alpaca {
        /// Column of the instruction.
        instruction: String,
        /// Column of the input; absent, null and empty values count as no input, as does `None`.
        input: Option<String>,
        /// Column of the answer.
        output: String,
        /// Who is trained on; Alpaca takes no system prompt.
        options: TransformOptions,
    },
    /// A list of `{from, value}` with the speakers `system`, `human` and `gpt`.
    ShareGpt {
        /// Column of the list.
        column: String,
        /// Who is trained on, and the system prompt.
        options: TransformOptions,
    },
    /// A list of `{role, content}`.
    OpenAi {
        /// Column of the list.
        column: String,
        /// Who is trained on, and the system prompt.
        options: TransformOptions,
    },
}

/// How a row of a preference dataset becomes two conversations, the chosen one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreferenceTransform {
    /// Two columns with lists of `{role, content}`.
    ChosenRejected {
        /// Column of the better conversation.
        chosen: String,
        /// Column of the worse one.
        rejected: String,
        /// Who is trained on, and the system prompt.
        options: TransformOptions,
    },
    /// A prompt and two answers, all plain text.
    Paired {
        /// Column of the prompt.
        prompt: String,
        /// Column of the better answer.
        chosen: String,
        /// Column of the worse one.
        rejected: String,
        /// Who is trained on; there is no system prompt.
        options: TransformOptions,
    },
}

/// What all transforms take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransformOptions {
    /// Train on the user's messages too.
    pub train_on_input: bool,
    /// System message put first, in place of the row's own; `None` keeps those.
    pub new_system_prompt: Option<String>,
}

impl TransformOptions {
    fn masked(&self, role: Role) -> bool {
        match role {
            Role::System => true,
            Role::Assistant => false,
            Role::User | Role::Ipython | Role::Tool => !self.train_on_input,
        }
    }

    fn message(&self, role: Role, content: Vec<Content>) -> Message {
        Message { role, content, masked: self.masked(role), ipython: false, eot: true }
    }

    fn text(&self, role: Role, text: impl Into<String>) -> Message {
        self.message(role, vec![Content::Text(text.into())])
    }

    fn system(&self) -> Option<Message> {
        self.new_system_prompt.as_ref().map(|prompt| self.text(Role::System, prompt))
    }

    /// Puts the system prompt in place of the conversation's own. Each message carries its index in the row's list.
    fn replace_system(&self, turns: &mut Vec<(usize, Message)>) {
        if let Some(system) = self.system() {
            turns.retain(|(_, message)| message.role != Role::System);
            turns.insert(0, (0, system));
        }
    }
}

impl Transform {
    /// The conversation of a row, checked for an order of speakers that can be trained on.
    pub fn messages(&self, row: &Row) -> Result<Vec<Message>> {
        match self {
            Self::InputOutput { input, output, options } => {
                let turns =
                    [options.text(Role::User, row.text(input)?), options.text(Role::Assistant, row.text(output)?)];
                Ok(options.system().into_iter().chain(turns).collect())
            }
            Self::Alpaca { instruction, input, output, options } => {
                let input = input.as_ref().map_or(Ok(None), |column| row.optional_text(column))?;
                let prompt = alpaca_prompt(row.text(instruction)?, input.unwrap_or_default());
                Ok(vec![options.text(Role::User, prompt), options.text(Role::Assistant, row.text(output)?)])
            }
            Self::ShareGpt { column, options } => checked(row, column, options, share_gpt(row, column, options)?),
            Self::OpenAi { column, options } => checked(row, column, options, open_ai(row, column, options)?),
        }
    }
}

impl PreferenceTransform {
    /// The chosen and the rejected conversation of a row. As in the reference, their order of speakers is not checked.
    pub fn messages(&self, row: &Row) -> Result<(Vec<Message>, Vec<Message>)> {
        match self {
            Self::ChosenRejected { chosen, rejected, options } => {
                let side = |column| -> Result<Vec<Message>> {
                    let mut turns = open_ai(row, column, options)?;
                    options.replace_system(&mut turns);
                    // Here every turn ends where it ends, also one that a tool answers.
                    Ok(turns.into_iter().map(|(_, message)| Message { eot: true, ..message }).collect())
                };
                Ok((side(chosen)?, side(rejected)?))
            }
            Self::Paired { prompt, chosen, rejected, options } => {
                let user = options.text(Role::User, row.text(prompt)?);
                let side = |column| -> Result<Vec<Message>> {
                    Ok(vec![user.clone(), options.text(Role::Assistant, row.text(column)?)])
                };
                Ok((side(chosen)?, side(rejected)?))
            }
        }
    }
}

fn checked(
    row: &Row,
    column: &str,
    options: &TransformOptions,
    mut turns: Vec<(usize, Message)>,
) -> Result<Vec<Message>> {
    options.replace_system(&mut turns);
    validate(row, column, &turns)?;
    Ok(turns.into_iter().map(|(_, message)| message).collect())
}

/// The prompt that Alpaca's rows were made for, up to the answer.
fn alpaca_prompt(instruction: &str, input: &str) -> String {
    let (context, input) = match input {
        "" => ("", String::new()),
        _ => (", paired with an input that provides further context", format!("### Input:\n{input}\n\n")),
    };
    format!(
        "Below is an instruction that describes a task{context}. \
         Write a response that appropriately completes the request.\n\n\
         ### Instruction:\n{instruction}\n\n{input}### Response:\n"
    )
}

fn share_gpt(row: &Row, column: &str, options: &TransformOptions) -> Result<Vec<(usize, Message)>> {
    let turn = |(index, item): (usize, &Value)| {
        let path = format!("{column}[{index}]");
        let role = match row.member_text(item, &path, "from")? {
            "system" => Role::System,
            "human" => Role::User,
            "gpt" => Role::Assistant,
            other => {
                let expected = format!("one of {}", quoted(["system", "human", "gpt"]));
                return Err(row.bad_field(&format!("{path}.from"), &expected, &format!("`{other}`")));
            }
        };
        Ok((index, options.text(role, row.member_text(item, &path, "value")?)))
    };
    row.list(column)?.iter().enumerate().map(turn).collect()
}

fn open_ai(row: &Row, column: &str, options: &TransformOptions) -> Result<Vec<(usize, Message)>> {
    let turn = |(index, item): (usize, &Value)| {
        let path = format!("{column}[{index}]");
        let name = row.member_text(item, &path, "role")?;
        let Ok(role) = name.parse::<Role>() else {
            let expected = format!("one of {}", quoted(["system", "user", "assistant", "ipython", "tool"]));
            return Err(row.bad_field(&format!("{path}.role"), &expected, &format!("`{name}`")));
        };
        if item.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
            let expected = "a message without tool calls, which cannot be trained on yet in this version";
            return Err(row.bad_field(&format!("{path}.tool_calls"), expected, "a list of calls"));
        }
        let content = content(row, &format!("{path}.content"), row.member(item, &path, "content")?)?;
        Ok((index, options.message(role, content)))
    };
    let mut turns = row.list(column)?.iter().enumerate().map(turn).collect::<Result<Vec<_>>>()?;
    let is_tool = |role| matches!(role, Role::Ipython | Role::Tool);
    for index in 0..turns.len() {
        let answered_by_tool = turns.get(index + 1).is_some_and(|(_, next)| is_tool(next.role));
        let message = &mut turns[index].1;
        message.eot = !(is_tool(message.role) || message.role == Role::Assistant && answered_by_tool);
    }
    Ok(turns)
}

/// The content of a message: text, or a list of text parts.
fn content(row: &Row, path: &str, value: &Value) -> Result<Vec<Content>> {
    let parts = match value {
        Value::String(text) => return Ok(vec![Content::Text(text.clone())]),
        Value::Array(parts) => parts,
        other => return Err(row.bad_field(path, "a string or a list of parts", &describe(other))),
    };
    let part = |(index, part): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        match row.member_text(part, &path, "type")? {
            // `content` is the key in the reference's own message objects.
            "text" if part.get("text").is_none() && part.get("content").is_some() => {
                Ok(Content::Text(row.member_text(part, &path, "content")?.to_owned()))
            }
            "text" => Ok(Content::Text(row.member_text(part, &path, "text")?.to_owned())),
            other => Err(row.bad_field(&format!("{path}.type"), "`text`", &format!("`{other}`"))),
        }
    };
    parts.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Place;
    use std::path::Path;

    fn row(json: &str) -> Row {
        let place = Place { file: Path::new("data/train.jsonl").into(), line: 1873, row: None };
        let Value::Object(columns) = serde_json::from_str(json).unwrap() else { panic!("an object") };
        Row::new(place, columns)
    }

    fn options(train_on_input: bool, system: Option<&str>) -> TransformOptions {
        TransformOptions { train_on_input, new_system_prompt: system.map(str::to_owned) }
    }

    fn share_gpt(system: Option<&str>) -> Transform {
        Transform::ShareGpt { column: "conversations".to_owned(), options: options(false, system) }
    }

    fn open_ai() -> Transform {
        Transform::OpenAi { column: "messages".to_owned(), options: options(false, None) }
    }

    fn input_output(system: Option<&str>) -> Transform {
        Transform::InputOutput {
            input: "input".to_owned(),
            output: "output".to_owned(),
            options: options(true, system),
        }
    }

    fn alpaca() -> Transform {
        let [instruction, input, output] = ["instruction", "input", "output"].map(str::to_owned);
        Transform::Alpaca { instruction, input: Some(input), output, options: options(true, None) }
    }

    fn brief(messages: &[Message]) -> Vec<(&'static str, String, bool)> {
        messages.iter().map(|m| (m.role.as_str(), m.text(), m.masked)).collect()
    }

    fn error(transform: &Transform, json: &str) -> String {
        let error = transform.messages(&row(json)).unwrap_err().to_string();
        error.strip_prefix("bad record in `data/train.jsonl`, line 1873: ").unwrap().to_owned()
    }

    #[test]
    fn input_and_output() {
        let json = r#"{"input":"Hi","output":"Ho","other":3}"#;
        let messages = input_output(Some("Be brief.")).messages(&row(json)).unwrap();
        assert_eq!(
            brief(&messages),
            [
                ("system", "Be brief.".to_owned(), true),
                ("user", "Hi".to_owned(), false),
                ("assistant", "Ho".to_owned(), false)
            ]
        );
    }

    #[test]
    fn alpaca_with_and_without_input() {
        let prompt = |json| alpaca().messages(&row(json)).unwrap()[0].text();
        let without = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n";
        assert_eq!(prompt(r#"{"instruction":"Add.","output":"3"}"#), without);
        assert_eq!(prompt(r#"{"instruction":"Add.","input":"","output":"3"}"#), without);
        assert_eq!(prompt(r#"{"instruction":"Add.","input":null,"output":"3"}"#), without);
        assert_eq!(
            prompt(r#"{"instruction":"Add.","input":"1 2","output":"3"}"#),
            "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n"
        );
    }

    #[test]
    fn a_new_system_prompt_replaces_the_old() {
        let json = r#"{"conversations":[{"from":"system","value":"Old."},{"from":"human","value":"Hi"},{"from":"gpt","value":""}]}"#;
        let roles = |system| share_gpt(system).messages(&row(json)).unwrap();
        assert_eq!(roles(None)[0].text(), "Old.");
        assert_eq!(
            brief(&roles(Some("New."))),
            [("system", "New.".to_owned(), true), ("user", "Hi".to_owned(), true), ("assistant", String::new(), false)]
        );
    }

    #[test]
    fn openai_parts_and_turn_ends() {
        let json = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"c","tool_calls":null}]}"#;
        let messages = open_ai().messages(&row(json)).unwrap();
        assert_eq!(messages[0].content, [Content::Text("a".to_owned()), Content::Text("b".to_owned())]);
        assert!(messages.iter().all(|m| m.eot));
        let json = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"tool","content":"c"},{"role":"assistant","content":"d"}]}"#;
        let turns = super::open_ai(&row(json), "messages", &options(false, None)).unwrap();
        assert_eq!(turns.iter().map(|(_, m)| m.eot).collect::<Vec<_>>(), [true, false, false, true]);
    }

    #[test]
    fn preference_pairs() {
        let [prompt, chosen, rejected] = ["question", "good", "bad"].map(str::to_owned);
        let paired = PreferenceTransform::Paired { prompt, chosen, rejected, options: options(false, None) };
        let (good, bad) = paired.messages(&row(r#"{"question":"q","good":"g","bad":"b"}"#)).unwrap();
        assert_eq!(brief(&good), [("user", "q".to_owned(), true), ("assistant", "g".to_owned(), false)]);
        assert_eq!(bad[1].text(), "b");

        let [chosen, rejected] = ["chosen", "rejected"].map(str::to_owned);
        let lists = PreferenceTransform::ChosenRejected { chosen, rejected, options: options(true, Some("S")) };
        let json = r#"{"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"g"}],"rejected":[{"role":"system","content":"x"},{"role":"user","content":"q"}]}"#;
        let (good, bad) = lists.messages(&row(json)).unwrap();
        assert_eq!(good.len(), 3);
        assert_eq!(brief(&bad), [("system", "S".to_owned(), true), ("user", "q".to_owned(), false)]);
    }

    #[test]
    fn missing_columns() {
        let error = alpaca().messages(&row(r#"{"prompt":"a","response":"b"}"#)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bad record in `data/train.jsonl`, line 1873: no column `instruction`\n  found columns `prompt`, `response` in {\"prompt\":\"a\",\"response\":\"b\"}"
        );
        assert!(error.hint().unwrap().starts_with("name the file's columns in `dataset.column_map`"));
    }

    #[test]
    fn wrong_types() {
        assert_eq!(
            error(&alpaca(), r#"{"instruction":"a","input":["x"],"output":"b"}"#),
            "field `input`\n  expected a string or null, found a list"
        );
        assert_eq!(
            error(&input_output(None), r#"{"input":"a","output":7}"#),
            "field `output`\n  expected a string, found the number `7`"
        );
        assert_eq!(
            error(&input_output(None), r#"{"input":null,"output":"a"}"#),
            "field `input`\n  expected a string, found null"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":"a"}"#),
            "field `messages`\n  expected a list of messages, found the string `a`"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":["a"]}"#),
            "field `messages[0]`\n  expected an object, found the string `a`"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":[{"content":"a"}]}"#),
            "field `messages[0]`\n  expected a key `role`, found `content`"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":[{}]}"#),
            "field `messages[0]`\n  expected a key `role`, found none"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":[{"role":"assistant","content":null}]}"#),
            "field `messages[0].content`\n  expected a string or a list of parts, found null"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}"#),
            "field `messages[0].content[0].type`\n  expected `text`, found `image_url`"
        );
        assert_eq!(
            error(&open_ai(), r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{}]}]}"#),
            "field `messages[0].tool_calls`\n  expected a message without tool calls, which cannot be trained on yet in this version, found a list of calls"
        );
    }

    #[test]
    fn unknown_speakers() {
        assert_eq!(
            error(&open_ai(), r#"{"messages":[{"role":"user","content":"a"},{"role":"asistant","content":"a"}]}"#),
            "field `messages[1].role`\n  expected one of `system`, `user`, `assistant`, `ipython`, `tool`, found `asistant`"
        );
        assert_eq!(
            error(&share_gpt(None), r#"{"conversations":[{"from":"function_call","value":"a"}]}"#),
            "field `conversations[0].from`\n  expected one of `system`, `human`, `gpt`, found `function_call`"
        );
    }
}
