//! File name patterns, in the two readings that hubs and datasets use.
//!
//! Grammar: `*` any characters, `?` one, `[abc]`, `[a-z]`, `[!a]` one of a set; every other character stands for itself,
//!          and so does a `[` that nothing closes.
//! Names:   [`Pattern::matches_name`], for patterns of files to leave out: `*` and `?` also stand for `/`.
//! Paths:   [`Pattern::matches_path`], for data files: `*` and `?` stop at `/`; `**` between slashes stands for any
//!          number of folders, also none; `**` elsewhere for any characters.

use std::fmt;

use crate::{Error, Result};

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Character(char),
    /// `?`.
    One,
    /// `*`.
    Any,
    /// `**`.
    AnyFolders,
    /// `**/` at the beginning or after a slash.
    Folders,
    /// `[...]`: whether it is negated, and ranges.
    Set(bool, Vec<(char, char)>),
}

impl Pattern {
    /// Reads a pattern; every text is one.
    pub fn new(text: &str) -> Self {
        let symbols: Vec<char> = text.chars().collect();
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < symbols.len() {
            let (token, used) = Token::read(&symbols[at..], at == 0 || symbols[at - 1] == '/');
            tokens.push(token);
            at += used;
        }
        Self { text: text.to_owned(), tokens }
    }

    /// Reads a pattern that a user has typed, in which a `[` that nothing closes is a slip.
    pub fn checked(text: &str) -> Result<Self> {
        let pattern = Self::new(text);
        if pattern.tokens.contains(&Token::Character('[')) {
            return Err(Error::BadPattern { pattern: text.to_owned() });
        }
        Ok(pattern)
    }

    /// True if a text holds a character that makes it more than a name.
    pub fn is_one(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// True if the whole name matches, where `*` also stands for `/`.
    pub fn matches_name(&self, name: &str) -> bool {
        matches(&self.tokens, &name.chars().collect::<Vec<_>>(), false)
    }

    /// True if the whole path matches, where `*` stops at `/`.
    pub fn matches_path(&self, path: &str) -> bool {
        matches(&self.tokens, &path.chars().collect::<Vec<_>>(), true)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Token {
    /// The token that `symbols` begin with, and how many of them it takes.
    fn read(symbols: &[char], begins_part: bool) -> (Self, usize) {
        match symbols {
            ['*', '*', '/', ..] if begins_part => (Self::Folders, 3),
            ['*', ..] => match symbols.iter().take_while(|&&c| c == '*').count() {
                1 => (Self::Any, 1),
                stars => (Self::AnyFolders, stars),
            },
            ['?', ..] => (Self::One, 1),
            ['[', rest @ ..] => Self::read_set(rest).unwrap_or((Self::Character('['), 1)),
            [c, ..] => (Self::Character(*c), 1),
            [] => unreachable!("called with what is left of the pattern"),
        }
    }

    /// A set from what follows its `[`; `None` without a `]`.
    fn read_set(rest: &[char]) -> Option<(Self, usize)> {
        let is_negated = matches!(rest.first(), Some('!' | '^'));
        let body = &rest[usize::from(is_negated)..];
        // A `]` in the first place stands for itself.
        let end = body.iter().skip(1).position(|&c| c == ']')? + 1;
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < end {
            if at + 2 < end && body[at + 1] == '-' {
                ranges.push((body[at], body[at + 2]));
                at += 3;
            } else {
                ranges.push((body[at], body[at]));
                at += 1;
            }
        }
        Some((Self::Set(is_negated, ranges), 1 + usize::from(is_negated) + end + 1))
    }

    /// Whether it stands for this one character.
    fn takes(&self, c: char, is_path: bool) -> bool {
        match self {
            Self::Character(own) => *own == c,
            Self::One | Self::Any => !(is_path && c == '/'),
            Self::AnyFolders => true,
            Self::Folders => false,
            Self::Set(is_negated, ranges) => {
                let holds = ranges.iter().any(|&(from, to)| (from..=to).contains(&c));
                holds != *is_negated && !(is_path && c == '/')
            }
        }
    }
}

/// Matches by keeping, for each prefix of the text, whether the tokens so far match it: time is their product at most.
fn matches(tokens: &[Token], text: &[char], is_path: bool) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for token in tokens {
        let mut next = vec![false; text.len() + 1];
        match token {
            Token::Any | Token::AnyFolders => {
                for end in 0..=text.len() {
                    next[end] = reached[end] || end > 0 && next[end - 1] && token.takes(text[end - 1], is_path);
                }
            }
            Token::Folders => {
                // Nothing, or anything that ends in a slash.
                let mut before = false;
                for end in 0..=text.len() {
                    next[end] = reached[end] || before && text[end - 1] == '/';
                    before |= reached[end];
                }
            }
            _ => {
                for end in 1..=text.len() {
                    next[end] = reached[end - 1] && token.takes(text[end - 1], is_path);
                }
            }
        }
        reached = next;
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(pattern: &str, text: &str) -> bool {
        Pattern::new(pattern).matches_name(text)
    }

    fn path(pattern: &str, text: &str) -> bool {
        Pattern::new(pattern).matches_path(text)
    }

    #[test]
    fn names() {
        for (pattern, text) in [
            ("*.safetensors", "model.safetensors"),
            ("*.safetensors", "a/b/model.safetensors"),
            ("original/*", "original/consolidated.00.pth"),
            ("model-0000[12]-of-*.bin", "model-00002-of-00003.bin"),
            ("[!a]x", "bx"),
            ("[]]", "]"),
            ("[a-c-]", "-"),
            ("a?c", "a/c"),
            ("[x", "[x"),
            ("", ""),
        ] {
            assert!(name(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("*.bin", "a.bin2"), ("a", "A"), ("[!a]x", "ax"), ("model", "model.bin"), ("?", ""), ("*.bin", "bin")]
        {
            assert!(!name(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn paths() {
        for (pattern, text) in [
            ("data/train-*", "data/train-00000-of-00001.parquet"),
            ("**/*.json", "a.json"),
            ("**/*.json", "a/b/c.json"),
            ("a/**/b", "a/b"),
            ("a/**/b", "a/x/y/b"),
            ("a/**", "a/x/y"),
            ("**", "a/b"),
        ] {
            assert!(path(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("data/*", "data/x/y"),
            ("*.json", "a/b.json"),
            ("a/**/b", "a/xb"),
            ("a?c", "a/c"),
            ("a[!x]c", "a/c"),
            ("**/x", "ax"),
        ] {
            assert!(!path(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_bracket_that_nothing_closes_is_a_slip() {
        for text in ["[", "a[b", "[]", "[!]", "[a][", "*.[ch"] {
            let error = Pattern::checked(text).unwrap_err();
            assert!(matches!(&error, Error::BadPattern { pattern } if pattern == text) && error.exit_code() == 2);
        }
        for text in ["[a]", "[]]", "[[]", "]", "", "*.bin"] {
            assert_eq!(Pattern::checked(text).unwrap(), Pattern::new(text));
        }
        // What the hint says.
        assert!(name("[[]x", "[x"));
    }

    #[test]
    fn hostile_patterns_take_no_time() {
        assert!(!name(&"*a".repeat(200), &"a".repeat(199)));
    }

    proptest! {
        #[test]
        fn reading_never_panics(pattern in "[a*?/\\[\\]!^-]{0,10}", text in "[a/\\]!-]{0,8}") {
            let read = Pattern::new(&pattern);
            let (by_name, by_path) = (read.matches_name(&text), read.matches_path(&text));
            // A path pattern never matches more than the same pattern read as a name, but for `**/` that stands for nothing.
            prop_assert!(!by_path || by_name || pattern.contains("**/"));
        }

        #[test]
        fn a_plain_name_matches_itself_alone(a in "[a-c/.]{0,6}", b in "[a-c/.]{0,6}") {
            prop_assert_eq!(name(&a, &b), a == b);
            prop_assert_eq!(path(&a, &b), a == b);
        }
    }
}
