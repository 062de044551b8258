//! Messages: what a row of a dataset becomes before it is tokenised.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{Error, Result};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call, in Llama 3's word.
    Ipython,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role as it is written in data files and chat formats.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Ipython => "ipython",
            Self::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        [Self::System, Self::User, Self::Assistant, Self::Ipython, Self::Tool]
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| Error::UnknownRole { found: name.to_owned() })
    }
}

/// One piece of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text; items are tokenised one by one.
    Text(String),
    /// An image file.
    Image(PathBuf),
}

impl Content {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub content: Vec<Content>,
    /// Whether the loss ignores this message.
    pub masked: bool,
    /// Whether this is a call of a tool (assistant only).
    pub ipython: bool,
    /// Whether the turn ends here; false when a tool answers before the assistant goes on.
    pub eot: bool,
}

impl Message {
    /// A message of one text, trained on, that ends its turn.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, content: vec![Content::Text(text.into())], masked: false, ipython: false, eot: true }
    }

    /// The same message with its mask set.
    pub fn with_masked(mut self, masked: bool) -> Self {
        self.masked = masked;
        self
    }

    /// All texts of the message, joined without a separator.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(Content::text).collect()
    }

    /// Checks what holds for a single message: tool calls come from the assistant and are text.
    pub fn check(&self) -> Result<()> {
        if !self.ipython {
            return Ok(());
        }
        if self.role != Role::Assistant {
            return Err(Error::ToolCallRole { role: self.role });
        }
        if self.content.iter().any(|item| item.text().is_none()) {
            return Err(Error::ToolCallImage);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_parse_what_they_print() {
        for name in ["system", "user", "assistant", "ipython", "tool"] {
            assert_eq!(name.parse::<Role>().unwrap().as_str(), name);
        }
        let error = "asistant".parse::<Role>().unwrap_err();
        assert!(error.to_string().contains("`asistant`"), "{error}");
    }

    #[test]
    fn tool_calls_come_from_the_assistant() {
        let mut message = Message::new(Role::User, "f()");
        message.ipython = true;
        assert!(matches!(message.check(), Err(Error::ToolCallRole { role: Role::User })));
        message.role = Role::Assistant;
        assert!(message.check().is_ok());
        message.content.push(Content::Image("a.png".into()));
        assert!(matches!(message.check(), Err(Error::ToolCallImage)));
    }
}
