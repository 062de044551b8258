//! Component names to what implements them: `_component_: torch.optim.AdamW` picks AdamW's config.
//!
//! A component has a short name, under which its package gives it out, and a long one, which goes through the module that
//! defines it: `torchtune.datasets.alpaca_dataset` and `torchtune.datasets._alpaca.alpaca_dataset`. Tables hold one of
//! the two; every other spelling means the same by the rule of [`REEXPORTS`].

use std::borrow::Cow;

use crate::node::Node;
use crate::problems::{Problem, ProblemKind, Problems};
use crate::source::Origin;
use crate::suggest;

/// Packages and those of their modules whose names they give out as their own; `*` is any one word.
const REEXPORTS: &[(&str, &[&str])] = &[
    (
        "torchtune.models.*",
        &["_component_builders", "_model_builders", "_parallelism", "_prompt_template", "_tokenizer", "_transform"],
    ),
    (
        "torchtune.datasets",
        &[
            "_alpaca",
            "_chat",
            "_cnn_dailymail",
            "_concat",
            "_grammar",
            "_hh_rlhf_helpful",
            "_instruct",
            "_packed",
            "_preference",
            "_samsum",
            "_sft",
            "_slimorca",
            "_stack_exchange_paired",
            "_text_completion",
            "_wikitext",
        ],
    ),
    ("torchtune.datasets.multimodal", &["_llava_instruct", "_multimodal", "_the_cauldron", "_vqa"]),
    ("torchtune.data", &["_collate", "_messages", "_prompt_templates"]),
    (
        "torchtune.training",
        &[
            "_profiler",
            "checkpointing",
            "checkpointing._checkpointer",
            "lr_schedulers",
            "metric_logging",
            "quantization",
        ],
    ),
    ("torchtune.modules", &["classifier"]),
    ("torchtune.modules.loss", &["ce_chunked_output_loss", "cross_entropy_loss", "kd_losses"]),
    ("torchtune.modules.transforms.tokenizers", &["_gpt2", "_hf_tokenizer", "_sentencepiece", "_tiktoken"]),
    ("torchtune.rlhf.loss", &["dpo", "ppo"]),
    ("torch.optim", &["adagrad", "adam", "adamw", "rmsprop", "sgd"]),
    ("torch.nn", &["modules", "modules.loss"]),
    ("bitsandbytes.optim", &["adamw"]),
    ("torchao.optim", &["adam", "cpu_offload"]),
    ("torchao.prototype.low_bit_optim", &["adam", "cpu_offload"]),
];

/// The name under which a package gives out what `name` means.
fn short(name: &str) -> Cow<'_, str> {
    let through_module = |(package, modules): &(&str, &[&str])| {
        let (path, last) = name.rsplit_once('.')?;
        let end = path.match_indices('.').nth(package.split('.').count() - 1)?.0;
        let (found, module) = (&path[..end], &path[end + 1..]);
        let same = found.split('.').zip(package.split('.')).all(|(word, pattern)| pattern == "*" || word == pattern);
        (same && modules.contains(&module)).then(|| Cow::Owned(format!("{found}.{last}")))
    };
    REEXPORTS.iter().find_map(through_module).unwrap_or(Cow::Borrowed(name))
}

/// Whether two names mean the same.
fn same(a: &str, b: &str) -> bool {
    let last = |name: &str| name.rfind('.').map_or(0, |dot| dot + 1);
    a == b || (a[last(a)..] == b[last(b)..] && short(a) == short(b))
}

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
///     built: &[(&["torch.optim.AdamW"], Kind::AdamW), (&["torch.optim.SGD"], Kind::Sgd)],
///     not_built: &["bitsandbytes.optim.PagedAdamW8bit"],
/// };
///
/// let run = config::Merged::from_text("run.yaml", "optimizer: {_component_: torch.optim.sgd.SGD, lr: 1e-3}")?;
/// let mut problems = config::Problems::new();
/// let optimizer = run.root().at("optimizer").expect("written above");
/// assert_eq!(OPTIMIZERS.choose(optimizer, &mut problems), Some(Kind::Sgd));
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Names<T: 'static> {
    /// What the components are, for messages: `optimizer`.
    pub role: &'static str,
    /// Names of each component (the first is the one to show; spellings that go through its module need no entry), and what it
    /// is.
    pub built: &'static [(&'static [&'static str], T)],
    /// Names that are known but not available in this version.
    pub not_built: &'static [&'static str],
}

impl<T: Copy> Names<T> {
    /// What `name` stands for, if it is built.
    pub fn find(&self, name: &str) -> Option<T> {
        self.built.iter().find(|(names, _)| names.iter().any(|known| same(known, name))).map(|(_, built)| *built)
    }

    /// True for names that are known but not available in this version.
    pub fn is_not_built(&self, name: &str) -> bool {
        self.not_built.iter().any(|known| same(known, name))
    }

    /// Every name of every component that is built.
    pub fn spellings(&self) -> impl Iterator<Item = &'static str> + use<T> {
        self.built.iter().flat_map(|(names, _)| names.iter().copied())
    }

    /// The name to show of every component, built or not.
    pub fn shown(&self) -> impl Iterator<Item = &'static str> + use<T> {
        self.built.iter().map(|(names, _)| names[0]).chain(self.not_built.iter().copied())
    }

    /// What the section's `_component_` names, or `None` after reporting a problem.
    ///
    /// A section that may be left out is tested with [`Node::is_absent`] first.
    pub fn choose(&self, section: &Node, problems: &mut Problems) -> Option<T> {
        if section.as_map().is_none() {
            let problem = problems.wrong_value(section, format!("a section with `_component_`, {}", self.expected()));
            if let Some(name) = section.as_str() {
                let path = section.path();
                problem.hint(if section.origin().is_command_line() {
                    format!("write `{path}._component_={name}`")
                } else {
                    format!("write `{path}: {{_component_: {name}}}`")
                });
            }
            return None;
        }
        let Some(component) = section.get("_component_") else {
            problems.missing(section, "_component_", self.expected());
            return None;
        };
        if component.origin().is_command_line() && component.as_map().is_some() {
            problems
                .wrong_value(component, self.expected())
                .hint(format!("give the keys one by one: `{}.key=value`", section.path()));
            return None;
        }
        self.look_up(component, problems)
    }

    /// What a node that holds a name stands for, or `None` after reporting a problem.
    pub fn look_up(&self, component: &Node, problems: &mut Problems) -> Option<T> {
        let Some(name) = component.as_str().filter(|_| !component.is_missing()) else {
            problems.wrong_value(component, self.expected());
            return None;
        };
        let found = self.find(name);
        if found.is_none() {
            self.report(name, component, problems);
        }
        found
    }

    /// What a `_component_` must be, as a noun.
    fn expected(&self) -> String {
        let example = self.shown().next().unwrap_or_default();
        format!("the name of {} {}, such as `{example}`", article(self.role), self.role)
    }

    fn report(&self, name: &str, component: &Node, problems: &mut Problems) {
        let (key, origin): (String, Origin) = (component.path().to_owned(), component.origin().clone());
        if self.is_not_built(name) {
            let kind = ProblemKind::NotAvailable { role: self.role, name: name.to_owned() };
            let hint = (!self.built.is_empty()).then(|| format!("available: {}", self.some_names()));
            problems.push(Problem { key, origin, kind, hint });
            return;
        }
        let kind = ProblemKind::UnknownComponent { role: self.role, name: name.to_owned() };
        let hint = match self.nearest(name).as_slice() {
            [] => format!("available: {}", self.some_names()),
            names => format!("did you mean {}?", any_of(names)),
        };
        problems.push(Problem { key, origin, kind, hint: Some(hint) });
    }

    /// Up to three names like `name`: those that are built, unless the one most like it is not.
    fn nearest(&self, name: &str) -> Vec<&'static str> {
        let known = self.spellings().chain(self.not_built.iter().copied());
        let alike = suggest::most_alike(name, known, 6);
        let is_built = |name: &str| self.find(name).is_some();
        let only_built = alike.first().is_some_and(|first| is_built(first));
        let mut names: Vec<&str> = Vec::new();
        for alike in alike.into_iter().filter(|alike| !only_built || is_built(alike)) {
            let entry = self.built.iter().find(|(names, _)| names.contains(&alike));
            let shown = entry.map_or(alike, |(names, _)| names[0]);
            if names.len() < 3 && !names.contains(&shown) {
                names.push(shown);
            }
        }
        names
    }

    /// The first name of each component, cut short after six.
    fn some_names(&self) -> String {
        let shown: Vec<String> = self.shown().take(self.built.len().max(1)).map(|name| format!("`{name}`")).collect();
        let more = shown.len().saturating_sub(6);
        let shown = shown[..shown.len() - more].join(", ");
        if more == 0 { shown } else { format!("{shown} and {more} more") }
    }
}

fn any_of(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match &names[..] {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.join(""),
    }
}

fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merged::Merged;

    const MODELS: Names<u8> = Names {
        role: "model",
        built: &[(&["torchtune.models.llama2.llama2_7b"], 7), (&["torchtune.training.metric_logging.DiskLogger"], 8)],
        not_built: &["torchtune.models.gemma.gemma_2b", "torchtune.models.gemma.lora_gemma_2b"],
    };

    fn hint(name: &str) -> Option<String> {
        let run = Merged::from_text("run.yaml", format!("model: {{_component_: {name}}}")).unwrap();
        let mut problems = Problems::new();
        assert_eq!(MODELS.choose(run.root().at("model").unwrap(), &mut problems), None);
        problems.iter().next().unwrap().hint.clone()
    }

    #[test]
    fn names_through_a_module_mean_the_same() {
        for name in ["torchtune.models.llama2.llama2_7b", "torchtune.models.llama2._model_builders.llama2_7b"] {
            assert_eq!(MODELS.find(name), Some(7), "{name}");
        }
        // The table may hold either spelling.
        for name in ["torchtune.training.DiskLogger", "torchtune.training.metric_logging.DiskLogger"] {
            assert_eq!(MODELS.find(name), Some(8), "{name}");
        }
        assert!(MODELS.is_not_built("torchtune.models.gemma._model_builders.gemma_2b"));
    }

    #[test]
    fn other_modules_and_packages_are_other_names() {
        for name in [
            "torchtune.models.llama2._model_builder.llama2_7b",
            "torchtune.models._model_builders.llama2_7b",
            "torchtune.models.llama3.llama2_7b",
            "torchtune.models.llama2.x._model_builders.llama2_7b",
            "torchtune.models.llama2._model_builders",
            "llama2_7b",
            "..",
            "",
        ] {
            assert_eq!(MODELS.find(name), None, "{name}");
        }
    }

    #[test]
    fn names_that_are_not_built_are_meant_too() {
        let built = hint("torchtune.models.llama2.llama2_7").unwrap();
        assert_eq!(built, "did you mean `torchtune.models.llama2.llama2_7b`?");
        let not_built = hint("torchtune.models.gemma.gemma_2").unwrap();
        assert!(not_built.starts_with("did you mean `torchtune.models.gemma.gemma_2b`"), "{not_built}");
        assert!(hint("torchtune.models.gemma.gemma_2b").unwrap().starts_with("available: `torchtune.models.llama2"));
    }
}
