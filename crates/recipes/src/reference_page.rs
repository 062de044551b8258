//! The page that lists every key of every recipe and component, written from the types that check them.

use std::fmt::Write;

use config::{Described, FieldSpec, Names};

use crate::components::{LOSSES, LossConfig, QUANTIZERS, QatQuantizerConfig};
use crate::objectives::{DpoConfig, RsoConfig};
use crate::profiling::{PROFILERS, ProfilerConfig};
use crate::registry;
use crate::settings::{FinetuneSettings, GenerateSettings, Offload, PromptSettings};

/// A component: the name to show, what it is, its keys.
type Entry = (&'static str, &'static str, &'static [FieldSpec]);

/// What a config section can name.
struct Role {
    title: &'static str,
    built: Vec<Entry>,
    not_built: &'static [&'static str],
}

impl Role {
    /// A role whose components `describe` knows by the value that a name stands for.
    fn new<T: Copy>(title: &'static str, names: &Names<T>, entries: Vec<Entry>) -> Self {
        let mut shown = names.built.iter().map(|(names, _)| names[0]);
        let unknown = shown.find(|name| !entries.iter().any(|entry| entry.0 == *name));
        debug_assert_eq!(unknown, None, "a built {title} is not on the page");
        Self { title, built: entries, not_built: names.not_built }
    }
}

fn entry<T: Described>(name: &'static str) -> Entry {
    (name, T::ABOUT, T::FIELDS)
}

fn optimizers() -> Vec<Entry> {
    let mut all = vec![entry::<optim::AdamWConfig>("torch.optim.AdamW"), entry::<optim::SgdConfig>("torch.optim.SGD")];
    let of = |package: &'static str| optim::OPTIMIZERS.spellings().filter(move |name| name.starts_with(package));
    all.extend(of("bitsandbytes.").map(entry::<optim::BitsAndBytesAdamWConfig>));
    all.extend(of("torchao.").map(entry::<optim::TorchaoAdamW8bitConfig>));
    all
}

fn roles() -> Vec<Role> {
    use data::builders as d;
    use tokenizers::components as t;
    vec![
        Role::new(
            "`model`",
            &models::MODELS,
            models::MODELS.spellings().map(entry::<models::families::DecoderKeys>).collect(),
        ),
        Role::new(
            "`tokenizer`",
            &t::TOKENIZERS,
            vec![
                entry::<t::AutoTokenizerConfig>("ferrotune.tokenizers.auto"),
                entry::<t::Llama2TokenizerConfig>("torchtune.models.llama2.llama2_tokenizer"),
                entry::<t::Llama3TokenizerConfig>("torchtune.models.llama3.llama3_tokenizer"),
                entry::<t::MistralTokenizerConfig>("torchtune.models.mistral.mistral_tokenizer"),
                entry::<t::GemmaTokenizerConfig>("torchtune.models.gemma.gemma_tokenizer"),
                entry::<t::QwenTokenizerConfig>("torchtune.models.qwen2.qwen2_tokenizer"),
                entry::<t::QwenTokenizerConfig>("torchtune.models.qwen2_5.qwen2_5_tokenizer"),
                entry::<t::QwenTokenizerConfig>("torchtune.models.qwen3.qwen3_tokenizer"),
                entry::<t::Phi3MiniTokenizerConfig>("torchtune.models.phi3.phi3_mini_tokenizer"),
                entry::<t::Phi4TokenizerConfig>("torchtune.models.phi4.phi4_tokenizer"),
            ],
        ),
        Role::new(
            "`dataset`",
            &d::DATASETS,
            vec![
                entry::<d::AlpacaConfig>("torchtune.datasets.alpaca_dataset"),
                entry::<d::AlpacaCleanedConfig>("torchtune.datasets.alpaca_cleaned_dataset"),
                entry::<d::InstructConfig>("torchtune.datasets.instruct_dataset"),
                entry::<d::ChatConfig>("torchtune.datasets.chat_dataset"),
                entry::<d::TextCompletionConfig>("torchtune.datasets.text_completion_dataset"),
                entry::<d::SamsumConfig>("torchtune.datasets.samsum_dataset"),
                entry::<d::GrammarConfig>("torchtune.datasets.grammar_dataset"),
                entry::<d::SlimOrcaConfig>("torchtune.datasets.slimorca_dataset"),
            ],
        ),
        Role::new(
            "`dataset` of pairs",
            &d::PREFERENCE_DATASETS,
            vec![
                entry::<d::PreferenceConfig>("torchtune.datasets.preference_dataset"),
                entry::<d::HhRlhfHelpfulConfig>("torchtune.datasets.hh_rlhf_helpful_dataset"),
                entry::<d::StackExchangePairedConfig>("torchtune.datasets.stack_exchange_paired_dataset"),
            ],
        ),
        Role::new(
            "`checkpointer`",
            &checkpoint::CHECKPOINTERS,
            vec![entry::<checkpoint::CheckpointerConfig>("torchtune.training.FullModelHFCheckpointer")],
        ),
        Role::new("`optimizer`", &optim::OPTIMIZERS, optimizers()),
        Role::new(
            "`lr_scheduler`",
            &optim::SCHEDULES,
            vec![entry::<optim::CosineConfig>("torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup")],
        ),
        Role::new("`loss`", &LOSSES, losses()),
        Role::new("`quantizer`", &QUANTIZERS, QUANTIZERS.spellings().map(entry::<QatQuantizerConfig>).collect()),
        Role::new(
            "`metric_logger`",
            &metrics::METRIC_LOGGERS,
            vec![
                entry::<metrics::DiskLoggerConfig>("torchtune.training.metric_logging.DiskLogger"),
                entry::<metrics::StdoutLoggerConfig>("torchtune.training.metric_logging.StdoutLogger"),
            ],
        ),
        Role::new("`profiler`", &PROFILERS, vec![entry::<ProfilerConfig>("torchtune.training.setup_torch_profiler")]),
    ]
}

/// Every loss, with the keys of its kind.
fn losses() -> Vec<Entry> {
    let of = |name: &'static str| match name {
        "torchtune.rlhf.loss.DPOLoss" => entry::<DpoConfig>(name),
        "torchtune.rlhf.loss.RSOLoss" => entry::<RsoConfig>(name),
        _ => entry::<LossConfig>(name),
    };
    LOSSES.spellings().map(of).collect()
}

/// The page as Markdown.
pub fn configuration_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## Recipes\n");
    let full = [
        crate::full_finetune_single_device::RECIPE.name,
        crate::full_finetune_distributed::RECIPE.name,
        crate::lora_finetune_single_device::RECIPE.name,
        crate::lora_finetune_distributed::RECIPE.name,
        crate::lora_dpo_single_device::RECIPE.name,
        crate::lora_dpo_distributed::RECIPE.name,
        crate::full_dpo_distributed::RECIPE.name,
        crate::qat_single_device::RECIPE.name,
        crate::qat_distributed::RECIPE.name,
        crate::qat_lora_finetune_distributed::RECIPE.name,
    ];
    let built: &[(&[&str], &[FieldSpec])] =
        &[(&full, FinetuneSettings::FIELDS), (&[crate::generate::NAME], GenerateSettings::FIELDS)];
    for (names, fields) in built {
        let _ = write!(page, "\n### {}\n", listed(names.iter().copied()));
        for name in *names {
            let summary = registry::find(name).map_or("", |recipe| recipe.summary);
            let name = if names.len() == 1 { String::new() } else { format!("`{name}`: ") };
            let _ = write!(page, "\n{name}{}\n", sentence(summary));
        }
        let _ = write!(page, "\n{}", table(fields));
    }
    let _ = write!(page, "\n### `offload` of full fine-tuning\n\n{}\n\n", about(Offload::ABOUT));
    page.push_str(&table(Offload::FIELDS));
    let _ = write!(page, "\n### `prompt` of `generate`\n\n{}\n\n", about(PromptSettings::ABOUT));
    page.push_str(&table(PromptSettings::FIELDS));
    page.push_str("\nKnown, not available yet in this version: ");
    let missing = registry::all().iter().filter(|recipe| !recipe.is_available).map(|recipe| recipe.name);
    page.push_str(&listed(missing));
    page.push_str(".\n");
    for role in roles() {
        let _ = write!(page, "\n## {}\n", role.title);
        for (names, about_text, fields) in grouped(&role.built) {
            let _ = write!(page, "\n### {}\n\n{}\n", listed(names), about(about_text));
            if !fields.is_empty() {
                page.push('\n');
                page.push_str(&table(fields));
            }
        }
        if !role.not_built.is_empty() {
            let _ = write!(
                page,
                "\nKnown, not available yet in this version: {}.\n",
                listed(role.not_built.iter().copied())
            );
        }
    }
    page
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `cargo xtask docs` from the types that check configs; a test compares. -->

Every key of every recipe and component of this version, with what it takes, its default and its effect. A key without a default
must be given. `null` (on the command line also `None`, in exactly that spelling) is a value of its own where the table says so.

A config is a YAML file. On the command line behind it, `key=value` sets a key at any depth (`optimizer.lr=1e-5`,
`dataset[0].packed=True`), the name of a component as the value of its section switches the component
(`optimizer=torch.optim.SGD`; keys that the new one does not take are dropped with a notice), and `~key` removes a key. Values are
YAML. `${other.key}` stands for the value of another key, after all changes.

A section with `_component_` names what is built from its other keys. Names are torchtune's, in their short
(`torchtune.datasets.alpaca_dataset`) or long spelling (`torchtune.datasets._alpaca.alpaca_dataset`). A section that is `null`, or
whose `_component_` is, is as good as not there.

An unknown key that looks like a known one is an error that names it; any other is a notice. `tune validate` finds all problems of a
config at once.
";

/// Components in a row that are the same but for their name, together.
fn grouped(entries: &[Entry]) -> Vec<(Vec<&'static str>, &'static str, &'static [FieldSpec])> {
    let mut groups: Vec<(Vec<&'static str>, &'static str, &'static [FieldSpec])> = Vec::new();
    for (name, about, fields) in entries {
        match groups.last_mut() {
            Some((names, known, _)) if known == about => names.push(name),
            _ => groups.push((vec![name], about, fields)),
        }
    }
    groups
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// A doc comment as one paragraph.
fn about(doc: &str) -> String {
    doc.lines().map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// A summary as a sentence.
fn sentence(summary: &str) -> String {
    let mut letters = summary.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase()).into_iter();
    let text: String = first.chain(letters).collect();
    if text.ends_with('.') { text } else { text + "." }
}

fn table(fields: &[FieldSpec]) -> String {
    let mut text = "| key | takes | default | meaning |\n|---|---|---|---|\n".to_owned();
    for field in fields {
        let default = field.default_text().map_or("required".to_owned(), |text| format!("`{}`", cell(&text)));
        let takes = cell(&(field.accepts)());
        let _ = writeln!(text, "| `{}` | {takes} | {default} | {} |", field.name, cell(&about(field.doc)));
    }
    text
}

/// Text that cannot end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_says_what_it_is() {
        let roles = roles();
        let fields = roles.iter().flat_map(|role| &role.built).flat_map(|(_, _, fields)| fields.iter());
        for field in fields.chain(FinetuneSettings::FIELDS).chain(GenerateSettings::FIELDS) {
            assert!(field.doc.ends_with('.'), "{}: {}", field.name, field.doc);
            assert!(!(field.accepts)().is_empty(), "{}", field.name);
        }
    }

    #[test]
    fn the_committed_page_is_the_one_written_from_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == configuration_page(), "docs/configuration.md is stale: `cargo xtask docs` writes it");
    }
}
