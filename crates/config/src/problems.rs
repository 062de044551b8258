//! What checking a config finds: problems, all reported together, and notices, which stop nothing.

use std::fmt;

use crate::error::Error;
use crate::node::Node;
use crate::source::Origin;

/// One thing wrong with a checked config.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The dotted key.
    pub key: String,
    /// Where the key or value was given.
    pub origin: Origin,
    /// What is wrong with it.
    pub kind: ProblemKind,
    /// One action that helps.
    pub hint: Option<String>,
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// Nothing takes the key; a known one is close to it.
    UnknownKey {
        /// The dotted known key.
        meant: String,
    },
    /// A required key is not there.
    Missing {
        /// What it would hold.
        expected: String,
    },
    /// The value has the wrong type or is out of range.
    Value {
        /// What the key accepts.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A component name that nothing is registered under.
    UnknownComponent {
        /// `optimizer`, `dataset` and so on.
        role: &'static str,
        /// The name as written.
        name: String,
    },
    /// A component that is known but not built in this version.
    NotAvailable {
        /// `optimizer`, `dataset` and so on.
        role: &'static str,
        /// The name as written.
        name: String,
    },
    /// The value is fine by itself but cannot be honoured here.
    Refused {
        /// Why, as a clause.
        reason: String,
    },
}

impl Problem {
    /// True where the place to show would only be the file's first line.
    fn is_placeless(&self) -> bool {
        matches!(self.kind, ProblemKind::Missing { .. }) && !self.key.contains('.')
    }

    /// The heading and the causes, for a problem that stands alone.
    fn alone(&self) -> String {
        let (key, within) = (&self.key, self.origin.within());
        let place = if self.is_placeless() { String::new() } else { self.origin.shown() };
        match &self.kind {
            ProblemKind::UnknownKey { .. } => format!("unknown key `{key}`{within}{place}"),
            ProblemKind::Missing { expected } => format!("missing key `{key}`{within}\n  expected {expected}{place}"),
            ProblemKind::Value { expected, found } => {
                format!("wrong value for `{key}`{within}\n  expected {expected}, found {found}{place}")
            }
            ProblemKind::UnknownComponent { role, name } => {
                format!("unknown {role} `{name}` for `{key}`{within}{place}")
            }
            ProblemKind::NotAvailable { role, name } => {
                format!("{role} `{name}` is known, not available yet in this version{place}")
            }
            ProblemKind::Refused { reason } => format!("cannot use `{key}`{within}\n  {reason}{place}"),
        }
    }

    /// A hint that names what was meant, which a list shows beside the problem. (An unknown key's line has it already.)
    fn suggestion(&self) -> Option<&str> {
        let is_key = matches!(self.kind, ProblemKind::UnknownKey { .. });
        self.hint.as_deref().filter(|hint| !is_key && (hint.starts_with("did you mean") || hint.starts_with("write ")))
    }

    /// One line of a list.
    fn line(&self) -> String {
        let what = match &self.kind {
            ProblemKind::UnknownKey { meant } => format!("unknown key, did you mean `{meant}`?"),
            ProblemKind::Missing { expected } => format!("missing, expected {expected}"),
            ProblemKind::Value { expected, found } => format!("expected {expected}, found {found}"),
            ProblemKind::UnknownComponent { role, name } => format!("unknown {role} `{name}`"),
            ProblemKind::NotAvailable { role, name } => {
                format!("{role} `{name}` is known, not available yet in this version")
            }
            ProblemKind::Refused { reason } => reason.clone(),
        };
        let key = if self.key.is_empty() { "top level" } else { &self.key };
        let note = if self.is_placeless() { String::new() } else { self.origin.note() };
        let suggestion = self.suggestion().map(|hint| format!(", {hint}")).unwrap_or_default();
        format!("  {key}{note}: {what}{suggestion}")
    }
}

/// At least one problem, in the form a user reads.
#[derive(Clone, Debug, PartialEq)]
pub struct ProblemList {
    problems: Vec<Problem>,
}

impl ProblemList {
    /// The problems in the order they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }

    /// One action that helps: the hint of the only problem, or the first hint that the list's lines do not give.
    pub fn hint(&self) -> Option<String> {
        match &self.problems[..] {
            [only] => only.hint.clone(),
            several => {
                let is_said =
                    |p: &Problem| matches!(p.kind, ProblemKind::UnknownKey { .. }) || p.suggestion().is_some();
                let mut unsaid = several.iter().filter(|p| !is_said(p));
                unsaid.find_map(|p| p.hint.clone())
            }
        }
    }
}

impl fmt::Display for ProblemList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &self.problems[..] {
            return f.write_str(&only.alone());
        }
        let place = self.problems.iter().map(|p| &p.origin).max_by_key(|origin| match origin {
            Origin::File(_) => 2,
            Origin::CommandLine(_) => 1,
            Origin::Code => 0,
        });
        write!(f, "{} problems{}", self.problems.len(), place.map(Origin::within).unwrap_or_default())?;
        for problem in &self.problems {
            write!(f, "\n{}", problem.line())?;
        }
        Ok(())
    }
}

/// Something the user should know that stops nothing, as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(String);

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Collects problems and notices while a config is checked.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    problems: Vec<Problem>,
    notices: Vec<Notice>,
}

impl Problems {
    /// Nothing found yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// True while no problem is found; notices do not count.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Number of problems.
    pub fn len(&self) -> usize {
        self.problems.len()
    }

    /// The problems found so far.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }

    /// The notices given so far.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) -> &mut Problem {
        self.problems.push(problem);
        self.problems.last_mut().expect("just pushed")
    }

    /// `node` holds something else than `expected` (such as `an integer >= 1`).
    pub fn wrong_value(&mut self, node: &Node, expected: impl Into<String>) -> &mut Problem {
        let kind = ProblemKind::Value { expected: expected.into(), found: node.found() };
        self.push(Problem { key: node.path().to_owned(), origin: node.origin().clone(), kind, hint: None })
    }

    /// Rewords the problems of `node` itself found since `first`: where null is fine too, the message says so.
    pub(crate) fn widen_expected(&mut self, first: usize, node: &Node, narrow: &str, wide: &str) {
        for problem in self.problems[first..].iter_mut().filter(|problem| problem.key == node.path()) {
            if let ProblemKind::Value { expected, .. } = &mut problem.kind
                && expected == narrow
            {
                wide.clone_into(expected);
            }
        }
    }

    /// `section` lacks the required `key`, which would hold `expected`.
    pub fn missing(&mut self, section: &Node, key: &str, expected: impl Into<String>) -> &mut Problem {
        let kind = ProblemKind::Missing { expected: expected.into() };
        let origin = section.key_origin().clone();
        let key = section.path_of(key);
        let hint = Some(format!("add it to the file, or give `{key}=...` on the command line"));
        self.push(Problem { key, origin, kind, hint })
    }

    /// `node` is fine by itself but cannot be honoured; `reason` is a clause such as
    /// `` `lora_rank` is set but recipe `full_finetune_single_device` trains no adapter ``.
    pub fn refuse(&mut self, node: &Node, reason: impl Into<String>) -> &mut Problem {
        let kind = ProblemKind::Refused { reason: reason.into() };
        // A value that the command line puts in the place of the file's is what cannot be honoured.
        let origin = if node.origin().is_command_line() { node.origin() } else { node.key_origin() };
        self.push(Problem { key: node.path().to_owned(), origin: origin.clone(), kind, hint: None })
    }

    /// Nothing takes the key of `node`, and the dotted key `meant` is close to it. If `meant` is missing, this is why, and
    /// it is not reported twice.
    pub fn unknown_key(&mut self, node: &Node, meant: String) -> &mut Problem {
        self.problems.retain(|p| !(matches!(p.kind, ProblemKind::Missing { .. }) && p.key == meant));
        let hint = Some(format!("did you mean `{meant}`?"));
        let kind = ProblemKind::UnknownKey { meant };
        self.push(Problem { key: node.path().to_owned(), origin: node.key_origin().clone(), kind, hint })
    }

    /// Adds a notice: one line, lower case, no final period.
    pub fn notice(&mut self, text: impl Into<String>) {
        self.notices.push(Notice(text.into()));
    }

    /// The notices if there was no problem, else one error with all of them.
    pub fn finish(self) -> Result<Vec<Notice>, Error> {
        if self.problems.is_empty() {
            Ok(self.notices)
        } else {
            Err(Error::Problems(ProblemList { problems: self.problems }))
        }
    }
}

impl Problem {
    /// Adds the one action that helps: `problems.refuse(node, "…").hint("remove `lora_rank`")`.
    pub fn hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(hint.into());
    }
}
