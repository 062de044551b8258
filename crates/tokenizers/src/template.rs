//! Prompt templates: text put around the messages before they are tokenised.
//!
//! A template is a name (`torchtune.data.SummarizeTemplate`) or, in a config, a mapping from role to prefix and suffix.
//! Prefix and suffix become content items of their own, so each is tokenised by itself.

use crate::{Content, Error, Message, Result, Role};

const NAMES: &[&str] = &[
    "torchtune.data.ChatMLTemplate",
    "torchtune.data.GrammarErrorCorrectionTemplate",
    "torchtune.data.QuestionAnswerTemplate",
    "torchtune.data.SummarizeTemplate",
    "torchtune.models.llama2.Llama2ChatTemplate",
    "torchtune.models.mistral.MistralChatTemplate",
];

/// Text around messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptTemplate {
    /// Prefix and suffix by role; roles that are not listed stay as they are, empty strings add nothing.
    Roles(Vec<(Role, String, String)>),
    /// `<|im_start|>role` and `<|im_end|>` around every message.
    ChatMl,
    /// `[INST]` around user messages, the system text inside each of them.
    Llama2Chat,
    /// `[INST]` around user messages, no system text.
    MistralChat,
}

impl PromptTemplate {
    /// The template with this dotted name.
    pub fn from_name(name: &str) -> Result<Self> {
        let user = |prefix: &str, suffix: &str| Self::Roles(vec![(Role::User, prefix.into(), suffix.into())]);
        let unknown = || Error::UnknownTemplate { found: name.to_owned(), known: NAMES };
        let (_, last) = name.rsplit_once('.').ok_or_else(unknown)?;
        if !NAMES.contains(&name) {
            return Err(unknown());
        }
        Ok(match last {
            "ChatMLTemplate" => Self::ChatMl,
            "GrammarErrorCorrectionTemplate" => user("Correct this to standard English: ", "\n---\nCorrected: "),
            "QuestionAnswerTemplate" => user("Question: ", "\n\nAnswer: "),
            "SummarizeTemplate" => user("Summarize this dialogue:\n", "\n---\nSummary:\n"),
            "Llama2ChatTemplate" => Self::Llama2Chat,
            "MistralChatTemplate" => Self::MistralChat,
            _ => return Err(unknown()),
        })
    }

    /// The template's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Roles(_) => "prompt_template",
            Self::ChatMl => "ChatMLTemplate",
            Self::Llama2Chat => "Llama2ChatTemplate",
            Self::MistralChat => "MistralChatTemplate",
        }
    }

    /// The messages with the template's text in them.
    pub fn apply(&self, messages: &[Message]) -> Result<Vec<Message>> {
        match self {
            Self::Roles(roles) => Ok(messages.iter().map(|message| around_role(roles, message)).collect()),
            Self::ChatMl => chat_ml(messages),
            Self::Llama2Chat => Ok(llama2_chat(messages)),
            Self::MistralChat => {
                if messages.iter().any(|message| message.role == Role::System) {
                    return Err(Error::UnsupportedRole { role: Role::System, template: self.name() });
                }
                Ok(llama2_chat(messages))
            }
        }
    }
}

fn text(text: impl Into<String>) -> Content {
    Content::Text(text.into())
}

fn with_content(message: &Message, content: Vec<Content>) -> Message {
    Message { content, ..message.clone() }
}

fn around_role(roles: &[(Role, String, String)], message: &Message) -> Message {
    let mut content = message.content.clone();
    if let Some((_, prefix, suffix)) = roles.iter().find(|(role, ..)| *role == message.role) {
        if !prefix.is_empty() {
            content.insert(0, text(prefix));
        }
        if !suffix.is_empty() {
            content.push(text(suffix));
        }
    }
    with_content(message, content)
}

/// An empty last assistant message gets no end marker: the model is to go on from there.
fn chat_ml(messages: &[Message]) -> Result<Vec<Message>> {
    let last = messages.len().saturating_sub(1);
    let one = |(index, message): (usize, &Message)| {
        let (prefix, suffix) = match message.role {
            Role::System | Role::User | Role::Assistant => (format!("<|im_start|>{}\n", message.role), "<|im_end|>\n"),
            Role::Ipython => (String::new(), ""),
            Role::Tool => return Err(Error::UnsupportedRole { role: message.role, template: "ChatMLTemplate" }),
        };
        let mut content = vec![text(prefix)];
        content.extend(message.content.iter().cloned());
        let goes_on = index == last && message.role == Role::Assistant && message.text().is_empty();
        if !goes_on {
            content.push(text(suffix));
        }
        Ok(with_content(message, content))
    };
    messages.iter().enumerate().map(one).collect()
}

/// System messages vanish; the last one seen stands inside every user message after it.
fn llama2_chat(messages: &[Message]) -> Vec<Message> {
    let mut system = Vec::new();
    let mut dialogue = Vec::new();
    for message in messages {
        match message.role {
            Role::System => {
                system = vec![text("<<SYS>>\n")];
                system.extend(message.content.iter().cloned());
                system.push(text("\n<</SYS>>\n\n"));
            }
            Role::User => {
                let mut content = vec![text("[INST] ")];
                content.extend(system.iter().chain(&message.content).cloned());
                content.push(text(" [/INST] "));
                dialogue.push(with_content(message, content));
            }
            Role::Assistant | Role::Ipython | Role::Tool => dialogue.push(message.clone()),
        }
    }
    dialogue
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(message: &Message) -> Vec<&str> {
        message.content.iter().filter_map(Content::text).collect()
    }

    fn dialogue() -> Vec<Message> {
        [
            (Role::System, "be brief"),
            (Role::User, "hi"),
            (Role::Assistant, "yes"),
            (Role::User, "2?"),
            (Role::Assistant, ""),
        ]
        .map(|(role, text)| Message::new(role, text))
        .to_vec()
    }

    #[test]
    fn every_name_is_a_template() {
        for name in NAMES {
            PromptTemplate::from_name(name).unwrap();
        }
        let error = PromptTemplate::from_name("torchtune.data.Summarize").unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean `torchtune.data.SummarizeTemplate`?"));
    }

    #[test]
    fn llama2_puts_the_system_text_into_every_user_message() {
        let out = PromptTemplate::Llama2Chat.apply(&dialogue()).unwrap();
        assert_eq!(out.len(), 4);
        for (index, user) in [(0, "hi"), (2, "2?")] {
            let expected = ["[INST] ", "<<SYS>>\n", "be brief", "\n<</SYS>>\n\n", user, " [/INST] "];
            assert_eq!(texts(&out[index]), expected);
        }
        assert_eq!(texts(&out[1]), ["yes"]);
    }

    #[test]
    fn mistral_refuses_a_system_message() {
        let error = PromptTemplate::MistralChat.apply(&dialogue()).unwrap_err();
        assert_eq!(error.to_string(), "role `system` is not supported by `MistralChatTemplate`");
        assert!(error.hint().is_some());
        assert_eq!(PromptTemplate::MistralChat.apply(&dialogue()[1..]).unwrap().len(), 4);
    }

    #[test]
    fn chat_ml_leaves_an_empty_last_answer_open() {
        let out = PromptTemplate::ChatMl.apply(&dialogue()).unwrap();
        assert_eq!(texts(&out[1]), ["<|im_start|>user\n", "hi", "<|im_end|>\n"]);
        assert_eq!(texts(&out[4]), ["<|im_start|>assistant\n", ""]);
    }

    #[test]
    fn roles_without_a_template_stay() {
        let template = PromptTemplate::Roles(vec![(Role::User, "Q: ".into(), String::new())]);
        let out = template.apply(&dialogue()).unwrap();
        assert_eq!(texts(&out[1]), ["Q: ", "hi"]);
        assert_eq!(texts(&out[0]), ["be brief"]);
    }
}
