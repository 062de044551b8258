//! Whether a conversation has an order of speakers that can be trained on.
//!
//! Rules:   at least two messages; a system message only first; no two user messages in a row; an assistant message after
//!          a user, tool or ipython message; a tool or ipython message after an assistant message that calls a tool.
//! Errors:  `Error::Field`, naming the message. Panics: never.

use tokenizers::{Message, Role};

use crate::Result;
use crate::row::Row;

/// Checks a conversation; each message carries its index in the row's column, for messages.
pub(crate) fn validate(row: &Row, column: &str, turns: &[(usize, Message)]) -> Result<()> {
    if turns.len() < 2 {
        return Err(row.bad_field(column, "at least 2 messages", &turns.len().to_string()));
    }
    let mut previous: Option<&Message> = None;
    for (position, (index, message)) in turns.iter().enumerate() {
        let after = previous.map(|m| m.role);
        let expected = match message.role {
            Role::System if position > 0 => Some("a system message only at the beginning"),
            Role::User if after == Some(Role::User) => Some("an assistant message between two user messages"),
            Role::Assistant if !matches!(after, Some(Role::User | Role::Tool | Role::Ipython)) => {
                Some("a user, tool or ipython message before an assistant message")
            }
            Role::Tool | Role::Ipython if !previous.is_some_and(|m| m.ipython) => {
                Some("an assistant message that calls a tool before the tool's answer")
            }
            _ => None,
        };
        if let Some(expected) = expected {
            let after = after.map_or("at the beginning".to_owned(), |role| format!("after `{role}`"));
            return Err(row.bad_field(&format!("{column}[{index}]"), expected, &format!("`{}` {after}", message.role)));
        }
        previous = Some(message);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Place;
    use serde_json::Map;
    use std::path::Path;

    fn check(roles: &[&str]) -> std::result::Result<(), String> {
        let turns: Vec<_> = roles.iter().map(|role| Message::new(role.parse().unwrap(), "x")).enumerate().collect();
        check_turns(&turns)
    }

    fn check_turns(turns: &[(usize, Message)]) -> std::result::Result<(), String> {
        let row = Row::new(Place { file: Path::new("a.jsonl").into(), line: 2, row: None }, Map::new());
        validate(&row, "messages", turns).map_err(|error| error.to_string())
    }

    #[test]
    fn ordinary_conversations() {
        for roles in [&["user", "assistant"][..], &["system", "user", "assistant", "user"], &["system", "user"]] {
            check(roles).unwrap();
        }
    }

    #[test]
    fn refused_conversations() {
        let cases: [(&[&str], &str); 8] = [
            (&[], "field `messages`\n  expected at least 2 messages, found 0"),
            (&["user"], "field `messages`\n  expected at least 2 messages, found 1"),
            (
                &["assistant", "user"],
                "field `messages[0]`\n  expected a user, tool or ipython message before an assistant message, found `assistant` at the beginning",
            ),
            (
                &["system", "assistant"],
                "field `messages[1]`\n  expected a user, tool or ipython message before an assistant message, found `assistant` after `system`",
            ),
            (
                &["user", "assistant", "assistant"],
                "field `messages[2]`\n  expected a user, tool or ipython message before an assistant message, found `assistant` after `assistant`",
            ),
            (
                &["user", "user"],
                "field `messages[1]`\n  expected an assistant message between two user messages, found `user` after `user`",
            ),
            (
                &["user", "system"],
                "field `messages[1]`\n  expected a system message only at the beginning, found `system` after `user`",
            ),
            (
                &["user", "assistant", "tool"],
                "field `messages[2]`\n  expected an assistant message that calls a tool before the tool's answer, found `tool` after `assistant`",
            ),
        ];
        for (roles, message) in cases {
            assert_eq!(check(roles).unwrap_err(), format!("bad record in `a.jsonl`, line 2: {message}"));
        }
    }

    #[test]
    fn tools_answer_calls() {
        let mut turns: Vec<_> = [Role::User, Role::Assistant, Role::Tool, Role::Assistant]
            .map(|role| Message::new(role, "x"))
            .into_iter()
            .enumerate()
            .collect();
        turns[1].1.ipython = true;
        check_turns(&turns).unwrap();
    }
}
