//! Component names to what implements them: `_component_: torch.optim.AdamW` picks AdamW's config.

use crate::node::Node;
use crate::problems::{Problem, ProblemKind, Problems};
use crate::source::Origin;
use crate::suggest;

/// The names that one kind of component may have.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Kind {
///     AdamW,
///     Sgd,
/// }
/// const OPTIMIZERS: config::Names<Kind> = config::Names {
///     role: "optimizer",
///     built: &[(&["torch.optim.AdamW", "torch.optim.adamw.AdamW"], Kind::AdamW), (&["torch.optim.SGD"], Kind::Sgd)],
///     not_built: &["bitsandbytes.optim.PagedAdamW8bit"],
/// };
///
/// let run = config::Merged::from_text("run.yaml", "optimizer: {_component_: torch.optim.SGD, lr: 1e-3}")?;
/// let mut problems = config::Problems::new();
/// let optimizer = run.root().at("optimizer").expect("written above");
/// assert_eq!(OPTIMIZERS.choose(optimizer, &mut problems), Some(Kind::Sgd));
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Names<T: 'static> {
    /// What the components are, for messages: `optimizer`.
    pub role: &'static str,
    /// All spellings of each component (the first is the one to show), and what it is.
    pub built: &'static [(&'static [&'static str], T)],
    /// Names that are known but not available in this version.
    pub not_built: &'static [&'static str],
}

impl<T: Copy> Names<T> {
    /// What `name` stands for, if it is built.
    pub fn find(&self, name: &str) -> Option<T> {
        self.built.iter().find(|(spellings, _)| spellings.contains(&name)).map(|(_, component)| *component)
    }

    /// True for names that are known but not available in this version.
    pub fn is_not_built(&self, name: &str) -> bool {
        self.not_built.contains(&name)
    }

    /// Every spelling of every component that is built.
    pub fn spellings(&self) -> impl Iterator<Item = &'static str> {
        self.built.iter().flat_map(|(spellings, _)| spellings.iter().copied())
    }

    /// What the section's `_component_` names, or `None` after reporting a problem.
    ///
    /// A section that may be left out is tested with [`Node::is_absent`] first.
    pub fn choose(&self, section: &Node, problems: &mut Problems) -> Option<T> {
        let example = self.built.first().map_or("", |(spellings, _)| spellings[0]);
        let expected = || format!("the name of {} {}, such as `{example}`", article(self.role), self.role);
        if section.as_map().is_none() {
            let problem = problems.wrong_value(section, format!("a section with `_component_`, {}", expected()));
            if let Some(name) = section.as_str() {
                problem.hint(format!("write `{}: {{_component_: {name}}}`", section.path()));
            }
            return None;
        }
        let Some(component) = section.get("_component_") else {
            problems.missing(section, "_component_", expected());
            return None;
        };
        let name = match component.as_str() {
            Some(name) if !component.is_missing() => name,
            _ => {
                let problem = problems.wrong_value(component, expected());
                if component.origin().is_command_line() && component.as_map().is_some() {
                    problem.hint(format!("give the keys one by one: `{}.key=value`", section.path()));
                }
                return None;
            }
        };
        let found = self.find(name);
        if found.is_none() {
            self.report(name, component, problems);
        }
        found
    }

    fn report(&self, name: &str, component: &Node, problems: &mut Problems) {
        let (key, origin): (String, Origin) = (component.path().to_owned(), component.origin().clone());
        let kind = if self.is_not_built(name) {
            ProblemKind::NotAvailable { role: self.role, name: name.to_owned() }
        } else {
            ProblemKind::UnknownComponent { role: self.role, name: name.to_owned() }
        };
        let mut names: Vec<String> = Vec::new();
        for alike in suggest::most_alike(name, self.spellings(), 6) {
            let entry = self.built.iter().find(|(spellings, _)| spellings.contains(&alike));
            let shown = format!("`{}`", entry.map_or(alike, |(spellings, _)| spellings[0]));
            if names.len() < 3 && !names.contains(&shown) {
                names.push(shown);
            }
        }
        let hint = match (&kind, names.is_empty()) {
            (ProblemKind::UnknownComponent { .. }, false) => Some(format!("did you mean {}?", any_of(&names))),
            (_, _) => Some(format!("available: {}", self.some_names())),
        };
        problems.push(Problem { key, origin, kind, hint });
    }

    /// The first spelling of each component, cut short after six.
    fn some_names(&self) -> String {
        let shown: Vec<String> = self.built.iter().take(6).map(|(names, _)| format!("`{}`", names[0])).collect();
        let more = self.built.len().saturating_sub(shown.len());
        if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
    }
}

fn any_of(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.join(""),
    }
}

fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}
