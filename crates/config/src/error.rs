//! Everything that can be wrong with a config before a run starts. Each error ends the program with status 2.
//!
//! `Display` gives the heading, causes and source lines of a message, without the word `error:` in front;
//! [`Error::hint`] gives the one action that helps, where there is one.

use std::io;

use crate::problems::ProblemList;
use crate::source::Origin;

/// Why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read config `{path}`")]
    Read {
        /// The path as given.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not UTF-8 text.
    #[error("config `{path}` is not UTF-8 text: line {line} has other bytes")]
    NotUtf8 {
        /// The path as given.
        path: String,
        /// The first bad line.
        line: usize,
    },
    /// All that is wrong with the text, the command line, the references, or the keys and values: what one stage finds.
    #[error("{0}")]
    Problems(ProblemList),
}

impl Error {
    /// The one action that helps, without the word `hint:`.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some("give the path of a YAML file, relative to the working directory".into()),
            Self::NotUtf8 { .. } => Some("save the file as UTF-8".into()),
            Self::Problems(list) => list.hint(),
        }
    }

    /// The program's exit status for this error: 2, bad usage, config or input.
    pub fn exit_code(&self) -> u8 {
        2
    }
}

/// What is wrong with a piece of YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlFault {
    /// It cannot be parsed.
    #[error("bad YAML")]
    Syntax {
        /// The parser's reason.
        reason: String,
    },
    /// A key occurs twice in one section.
    #[error("duplicate key `{key}`")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where it was first.
        first_line: Option<usize>,
    },
    /// A key is null, a list or a section.
    #[error("bad key")]
    Key {
        /// The kind of value found.
        found: String,
    },
    /// `<<` stands before something that is not a section.
    #[error("bad merge key `<<`")]
    Merge {
        /// The kind of value found.
        found: String,
    },
    /// An unknown or unsupported tag.
    #[error("unsupported YAML tag `{tag}`")]
    Tag {
        /// The tag.
        tag: String,
    },
    /// A tagged scalar whose text does not fit the tag.
    #[error("bad value for YAML tag `{tag}`")]
    Tagged {
        /// The tag.
        tag: String,
        /// The text.
        found: String,
    },
    /// A tab outside quotes and comments.
    #[error("tab character")]
    Tab,
    /// A character that may not stand in YAML text.
    #[error("character U+{code:04X} is not allowed")]
    Character {
        /// Its code point.
        code: u32,
    },
    /// A plain `=` or `<<`, which YAML reserves.
    #[error("bad value `{text}`")]
    Reserved {
        /// The text.
        text: String,
    },
    /// An alias without an anchor.
    #[error("unknown alias `*{name}`")]
    UnknownAlias {
        /// Its name.
        name: String,
    },
    /// An alias inside its own anchor.
    #[error("alias refers to the value that contains it")]
    RecursiveAlias,
    /// More than one document.
    #[error("more than one YAML document")]
    Documents,
    /// Nested too deeply.
    #[error("values nested more than {limit} deep")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// Aliases expand to too many values.
    #[error("more than {limit} values")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The top level is not keys and values.
    #[error("no keys at the top level")]
    Root {
        /// The kind of value found.
        found: String,
    },
    /// A top-level key named `config`.
    #[error("key `config` is not allowed")]
    ReservedKey,
}

impl YamlFault {
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::Syntax { reason } => format!("\n  {reason}"),
            Self::DuplicateKey { first_line: Some(line), .. } => format!("\n  first on line {line}"),
            Self::Key { found } => format!("\n  expected text or a number before `:`, found {found}"),
            Self::Merge { found } => format!("\n  expected a section or a list of sections, found {found}"),
            Self::UnknownAlias { name } => format!("\n  expected an anchor `&{name}` before it"),
            Self::Tagged { found, .. } => format!("\n  found `{found}`"),
            Self::Root { found } => format!("\n  expected `key: value` lines, found {found}"),
            _ => String::new(),
        }
    }

    /// What helps, for a text that stands at `origin`.
    pub(crate) fn hint(&self, origin: &Origin) -> Option<String> {
        let hint = match self {
            Self::Syntax { reason } => syntax_hint(reason)?.into(),
            Self::Tab => "write spaces instead of the tab".into(),
            Self::Character { code } => format!("remove it, or write `\\u{code:04x}` between double quotes"),
            Self::DuplicateKey { .. } => "remove one of the two".into(),
            Self::Tag { .. } => "write the value without a tag".into(),
            Self::Reserved { text } => format!("{QUOTE}: `\"{text}\"`"),
            Self::UnknownAlias { name } => format!("{QUOTE} if it is a text: `\"*{name}\"`"),
            Self::Documents => "remove what follows the line `---`".into(),
            Self::ReservedKey => "rename it; `--config` names the file itself".into(),
            _ => return None,
        };
        // A shell takes one pair of quotes for its own.
        match origin {
            Origin::CommandLine(token) if hint.contains("in quotes") => Some(quoted_twice(token).unwrap_or(hint)),
            _ => Some(hint),
        }
    }
}

const QUOTE: &str = "put the value in quotes";

/// An argument whose value is in quotes, as a shell has to be given it.
fn quoted_twice(token: &str) -> Option<String> {
    let (key, value) = token.split_once('=')?;
    let is_plain =
        !value.starts_with(['[', '{']) && !value.contains(|c: char| "'\"\\$`!".contains(c) || c.is_control());
    is_plain.then(|| format!("write `'{key}=\"{value}\"'`: a shell takes the outer quotes, YAML the inner ones"))
}

/// The usual slip behind what the YAML parser says.
fn syntax_hint(reason: &str) -> Option<&'static str> {
    let has = |words: &str| reason.contains(words);
    if has("tab") {
        Some("indent with spaces, not with tabs")
    } else if has("unexpected character") {
        Some(QUOTE)
    } else if has("mapping values are not allowed") {
        Some("check the indentation, and put a text that contains `: ` in quotes")
    } else if has("flow") || has("placement of ':'") {
        Some("close the `[` or `{` that is open here")
    } else if has("escape") {
        Some("write `\\\\` for a backslash, or put the text in single quotes")
    } else if has("quoted scalar") {
        Some("close the quote that is open here")
    } else {
        None
    }
}

/// What is wrong with an override.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverrideFault {
    /// A flag after the recipe name.
    #[error("unexpected flag `{token}` after the recipe's name")]
    Flag {
        /// The argument.
        token: String,
        /// The override that was probably meant.
        meant: Option<String>,
    },
    /// No `=`.
    #[error("unexpected argument `{token}`: expected `key=value` or `~key`")]
    NoValue {
        /// The argument.
        token: String,
        /// The override that was probably meant.
        meant: Option<String>,
    },
    /// A value behind `~key`.
    #[error("unexpected value in `{token}`: `~` removes a key")]
    RemoveWithValue {
        /// The argument.
        token: String,
        /// What was probably meant.
        meant: String,
    },
    /// `~` on a component.
    #[error("cannot remove component `{key}` by `{token}`")]
    RemoveComponent {
        /// The component's dotted key.
        key: String,
        /// The argument.
        token: String,
    },
    /// `~` on a key that is not in the file.
    #[error("no key `{key}` to remove by `{token}`")]
    RemoveAbsent {
        /// The dotted key.
        key: String,
        /// The argument.
        token: String,
        /// A key close to it.
        nearest: Option<String>,
    },
    /// `~` on an element of a list.
    #[error("cannot remove an element of the list `{key}` by `{token}`")]
    RemoveElement {
        /// The list's dotted key.
        key: String,
        /// The argument.
        token: String,
    },
    /// A list for a section, or a section for a list.
    #[error("cannot replace `{key}` by `{token}`: expected {expected}, found {found}")]
    Incompatible {
        /// The dotted key.
        key: String,
        /// The argument.
        token: String,
        /// What the file has.
        expected: &'static str,
        /// What the argument has.
        found: &'static str,
        /// Whether `~` takes it away.
        is_removable: bool,
    },
    /// An index outside a list.
    #[error("no element `{index}` in the list `{key}` for `{token}`: its length is {len}, its first element is 0")]
    Index {
        /// The list's dotted key.
        key: String,
        /// The argument.
        token: String,
        /// The index as written.
        index: String,
        /// Number of elements.
        len: usize,
    },
    /// A key, or a part of it, without a character.
    #[error("unexpected argument `{token}`: {} key is empty", if token.starts_with('=') { "its" } else { "a part of its" })]
    EmptyPart {
        /// The argument.
        token: String,
        /// The override that was probably meant.
        meant: String,
    },
    /// The key that no config has, because `--config` names the config.
    #[error("unexpected argument `{token}`: no config has a key `config`")]
    ConfigKey {
        /// The argument.
        token: String,
    },
    /// A path with too many parts.
    #[error("the key of an override has more than {limit} parts")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
}

impl OverrideFault {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Flag { meant: Some(meant), .. } | Self::NoValue { meant: Some(meant), .. } => {
                Some(format!("write `{meant}`"))
            }
            Self::Flag { .. } => Some("recipe settings are given as `key=value`".into()),
            Self::RemoveWithValue { meant, .. } | Self::EmptyPart { meant, .. } => Some(format!("write `{meant}`")),
            Self::ConfigKey { .. } => Some("leave it out; `tune run` takes the config from `--config`".into()),
            Self::RemoveComponent { key, .. } => Some(format!("write `{key}=None`, if the recipe can do without it")),
            Self::RemoveAbsent { nearest, .. } => nearest.as_ref().map(|key| format!("did you mean `~{key}`?")),
            Self::RemoveElement { key, .. } => Some(format!("give the whole list: `{key}=[...]`")),
            Self::Incompatible { key, is_removable: true, .. } => Some(format!("remove it first: `~{key} {key}=...`")),
            Self::Incompatible { .. } | Self::NoValue { .. } | Self::Index { .. } | Self::TooDeep { .. } => None,
        }
    }
}

/// What is wrong with a `${…}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceFault {
    /// The text between the braces cannot be read.
    #[error("cannot read `{text}`: {reason}")]
    Syntax {
        /// The whole value.
        text: String,
        /// What was expected.
        reason: &'static str,
    },
    /// The key is not there.
    #[error("`${{{reference}}}` refers to a key that does not exist")]
    Missing {
        /// The text between the braces.
        reference: String,
        /// A key close to it.
        nearest: Option<String>,
    },
    /// The key's value is `???`.
    #[error("`${{{reference}}}` refers to a key without a value (`???`)")]
    Unset {
        /// The text between the braces.
        reference: String,
    },
    /// References in a circle.
    #[error("references in a circle: {chain}")]
    Cycle {
        /// `` `a` -> `b` -> `a` ``.
        chain: String,
    },
    /// `${name:…}` with an unknown name.
    #[error("unknown resolver `{name}`")]
    UnknownResolver {
        /// The name before the colon.
        name: String,
    },
    /// A resolver with unusable arguments.
    #[error("resolver `{name}`: expected {expected}, found {found}")]
    Arguments {
        /// The resolver.
        name: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it was given.
        found: String,
    },
    /// An environment variable that is not set.
    #[error("environment variable `{variable}` is not set")]
    Environment {
        /// Its name.
        variable: String,
    },
    /// References that follow each other too deeply.
    #[error("references nested more than {limit} deep")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// References that expand to too much.
    #[error("references that expand to more than {limit} values or characters")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

impl ReferenceFault {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Syntax { text, .. } if text.contains("${") => {
                Some("write `\\${` for a dollar sign and brace that are text, in double quotes `\\\\${`".into())
            }
            Self::Missing { nearest, .. } => nearest.as_ref().map(|key| format!("did you mean `${{{key}}}`?")),
            Self::UnknownResolver { .. } => {
                let known = "`oc.env`, `oc.decode`, `oc.select`, `oc.create`, `oc.dict.keys`, `oc.dict.values`, `oc.deprecated`";
                Some(format!("known: {known}"))
            }
            Self::Environment { variable } => {
                Some(format!("set it, or give a default: `${{oc.env:{variable},default}}`"))
            }
            _ => None,
        }
    }
}
