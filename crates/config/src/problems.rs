//! What checking a config finds: problems, all reported together, and notices, which stop nothing.

use std::collections::HashSet;
use std::fmt;

use crate::error::{Error, OverrideFault, ReferenceFault, YamlFault};
use crate::node::Node;
use crate::source::Origin;

/// Problems that a list shows one by one; of more it tells how many.
const LISTED: usize = 50;

/// One thing wrong with a config.
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
    /// The text is not YAML, or is YAML that a config may not contain; such a problem has no key.
    Yaml(YamlFault),
    /// A command-line argument cannot be used.
    Override(OverrideFault),
    /// A `${...}` in the key's value cannot be replaced.
    Reference(ReferenceFault),
}

impl Problem {
    pub(crate) fn yaml(fault: YamlFault, origin: Origin) -> Self {
        let hint = fault.hint(&origin);
        Self { key: String::new(), origin, hint, kind: ProblemKind::Yaml(fault) }
    }

    pub(crate) fn of_argument(fault: OverrideFault, origin: Origin) -> Self {
        Self { key: String::new(), origin, hint: fault.hint(), kind: ProblemKind::Override(fault) }
    }

    pub(crate) fn reference(fault: ReferenceFault, key: String, origin: Origin) -> Self {
        Self { key, origin, hint: fault.hint(), kind: ProblemKind::Reference(fault) }
    }

    /// The key whose problem this is, as a reference to it would name it.
    fn cause(&self) -> Option<&str> {
        match &self.kind {
            ProblemKind::UnknownKey { meant } => Some(meant),
            ProblemKind::Missing { .. } | ProblemKind::Value { .. } => Some(&self.key),
            _ => None,
        }
    }

    /// The key that a reference reads and that has no value.
    fn reads(&self) -> Option<&str> {
        match &self.kind {
            ProblemKind::Reference(ReferenceFault::Missing { reference, .. } | ReferenceFault::Unset { reference }) => {
                Some(reference)
            }
            _ => None,
        }
    }

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
            ProblemKind::Yaml(fault) => {
                let (within, file) = (self.origin.within_token(), self.origin.shown_file());
                format!("{fault}{within}{}{file}", fault.detail())
            }
            ProblemKind::Override(fault) => fault.to_string(),
            ProblemKind::Reference(fault) => format!("cannot resolve `{key}`{within}\n  {fault}{place}"),
        }
    }

    /// A hint that a list shows beside the problem: one that names what was meant, or is about this text alone. (An unknown
    /// key's line has it already.)
    fn suggestion(&self) -> Option<&str> {
        let hint = self.hint.as_deref()?;
        let is_beside = match self.kind {
            ProblemKind::UnknownKey { .. } => false,
            ProblemKind::Yaml(_) | ProblemKind::Override(_) | ProblemKind::Reference(_) => true,
            _ => hint.starts_with("did you mean") || hint.starts_with("write "),
        };
        is_beside.then_some(hint)
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
            ProblemKind::Yaml(fault) => {
                let detail = fault.detail().replace("\n  ", ", ");
                match self.origin.position() {
                    Some(_) => format!("{fault}{detail}"),
                    None => format!("{fault}{}{detail}", self.origin.within_token()),
                }
            }
            ProblemKind::Override(fault) => fault.to_string(),
            ProblemKind::Reference(fault) => fault.to_string(),
        };
        let suggestion = self.suggestion().map(|hint| format!(", {hint}")).unwrap_or_default();
        format!("  {}{what}{suggestion}", self.place())
    }

    /// How a line begins: the key and its place, for what has a key; else the place alone, unless the argument is named
    /// behind it.
    fn place(&self) -> String {
        match (&self.kind, self.origin.position()) {
            (ProblemKind::Override(_), _) | (ProblemKind::Yaml(_), None) => String::new(),
            (ProblemKind::Yaml(_), Some(place)) => format!("line {}, column {}: ", place.line(), place.column()),
            _ => {
                let key = if self.key.is_empty() { "top level" } else { &self.key };
                let note = if self.is_placeless() { String::new() } else { self.origin.note() };
                format!("{key}{note}: ")
            }
        }
    }
}

/// At least one problem, in the form a user reads.
#[derive(Clone, Debug, PartialEq)]
pub struct ProblemList {
    problems: Vec<Problem>,
}

impl ProblemList {
    /// Problems, at least one. A reference to a key that is misspelt or lacks its value is left out where that is told.
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        let causes: HashSet<String> = problems.iter().filter_map(Problem::cause).map(str::to_owned).collect();
        problems.retain(|problem| problem.reads().is_none_or(|key| !causes.contains(key)));
        Self { problems }
    }

    /// Problems of reading a text, at least one, in the order of the text.
    pub(crate) fn in_file_order(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.origin.position().map(|place| (place.line(), place.column())));
        Self::new(problems)
    }

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
        for problem in self.problems.iter().take(LISTED) {
            write!(f, "\n{}", problem.line())?;
        }
        match self.problems.len().saturating_sub(LISTED) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
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
    found: Vec<Problem>,
    notices: Vec<Notice>,
    /// The last problem that was found with a broken node, and is not told.
    untold: Option<Problem>,
}

impl Problems {
    /// Nothing found yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// True while no problem is found; notices do not count.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Number of problems.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// The problems found so far.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.found.iter()
    }

    /// The notices given so far.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) -> &mut Problem {
        self.found.push(problem);
        self.found.last_mut().expect("just pushed")
    }

    /// Adds a problem with the value of `node`, unless that is broken: then its problem is told already.
    fn push_for(&mut self, node: &Node, problem: Problem) -> &mut Problem {
        if node.is_broken() { self.untold.insert(problem) } else { self.push(problem) }
    }

    /// `node` holds something else than `expected` (such as `an integer >= 1`).
    pub fn wrong_value(&mut self, node: &Node, expected: impl Into<String>) -> &mut Problem {
        let kind = ProblemKind::Value { expected: expected.into(), found: node.found() };
        let (key, origin) = (node.path().to_owned(), node.origin().clone());
        self.push_for(node, Problem { key, origin, kind, hint: None })
    }

    /// Rewords the problems of `node` itself found since `first`: where null is fine too, the message says so.
    pub(crate) fn widen_expected(&mut self, first: usize, node: &Node, narrow: &str, wide: &str) {
        for problem in self.found[first..].iter_mut().filter(|problem| problem.key == node.path()) {
            if let ProblemKind::Value { expected, .. } = &mut problem.kind
                && expected == narrow
            {
                wide.clone_into(expected);
            }
        }
    }

    /// Adds a hint to the problems of `node` itself found since `first` that have none.
    pub(crate) fn advise(&mut self, first: usize, node: &Node, hint: &str) {
        for problem in self.found[first..].iter_mut().filter(|p| p.key == node.path() && p.hint.is_none()) {
            problem.hint(hint);
        }
    }

    /// `section` lacks the required `key`, which would hold `expected`.
    pub fn missing(&mut self, section: &Node, key: &str, expected: impl Into<String>) -> &mut Problem {
        let (expected, key) = (expected.into(), section.path_of(key));
        let origin = section.key_origin().clone();
        // No value on the command line makes a section, but its keys do.
        let below = match &*expected {
            noun if noun.contains("section with `_component_`") => "._component_",
            noun if noun.starts_with("a section") => ".key",
            _ => "",
        };
        let hint = Some(format!("add it to the file, or give `{key}{below}=...` on the command line"));
        let kind = ProblemKind::Missing { expected };
        self.push(Problem { key, origin, kind, hint })
    }

    /// `node` is fine by itself but cannot be honoured; `reason` is a clause such as
    /// `` `lora_rank` is set but recipe `full_finetune_single_device` trains no adapter ``.
    pub fn refuse(&mut self, node: &Node, reason: impl Into<String>) -> &mut Problem {
        let kind = ProblemKind::Refused { reason: reason.into() };
        // A value that the command line puts in the place of the file's is what cannot be honoured.
        let origin = if node.origin().is_command_line() { node.origin() } else { node.key_origin() };
        let (key, origin) = (node.path().to_owned(), origin.clone());
        self.push_for(node, Problem { key, origin, kind, hint: None })
    }

    /// Nothing takes the key of `node`, and the dotted key `meant` is close to it. If `meant` is missing, this is why, and
    /// it is not reported twice.
    pub fn unknown_key(&mut self, node: &Node, meant: String) -> &mut Problem {
        self.found.retain(|p| !(matches!(p.kind, ProblemKind::Missing { .. }) && p.key == meant));
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
        if self.found.is_empty() { Ok(self.notices) } else { Err(Error::Problems(ProblemList::new(self.found))) }
    }
}

impl Problem {
    /// Adds the one action that helps: `problems.refuse(node, "…").hint("remove `lora_rank`")`.
    pub fn hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(hint.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::written::Written;

    #[test]
    fn of_a_broken_value_nothing_more_is_told() {
        let written = Written::parse("run.yaml", "a: ${nope}\nb: 1\n").unwrap();
        let check = |key: &str| {
            let error = written.resolve_or_check(|merged| {
                let mut problems = Problems::new();
                let node = merged.root().get(key).expect("written above");
                problems.wrong_value(node, "a number").hint("give one");
                problems.refuse(node, "there is a reason");
                problems
            });
            match error {
                Err(Error::Problems(list)) => list.iter().count(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((check("a"), check("b")), (1, 3));
    }
}
