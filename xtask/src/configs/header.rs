//! The first lines of a config: what it does, what it needs, how to start it.

use super::memory;
use super::models::{self, Model};
use super::table::{Config, Data};
use super::text::Text;

/// Writes the first lines; `example` is an override that is worth knowing.
pub(super) fn write(text: &mut Text, config: &Config, what: &str, example: &str) {
    text.remark(what);
    text.gap();
    text.remark(&memory::sentence(config));
    text.gap();
    for model in needed(config) {
        text.command(&model.download());
    }
    let run = command(config);
    text.command(&run);
    text.gap();
    text.remark("Any key can be changed for one run:");
    text.gap();
    text.command(&format!("{run} {example}"));
}

/// The models to download, each once.
fn needed(config: &Config) -> Vec<&'static Model> {
    let mut needed = vec![config.model];
    for (model, _) in &config.frozen {
        if !needed.iter().any(|known| known.repository == model.repository) {
            needed.push(model);
        }
    }
    needed
}

/// How the recipe is started.
pub(super) fn command(config: &Config) -> String {
    let ranks = match (config.is_distributed, config.tensor_parallel) {
        (false, _) => String::new(),
        (true, _) if config.name.ends_with("multinode") => "--nnodes 2 --nproc_per_node 8 ".to_owned(),
        (true, Some(ranks)) if ranks > 1 => format!("--nproc_per_node {ranks} "),
        // A device holds about 80 GB.
        (true, _) if memory::num_weights(config.model) > 6e10 => "--nproc_per_node 8 ".to_owned(),
        (true, _) if memory::num_weights(config.model) > 2e10 => "--nproc_per_node 4 ".to_owned(),
        (true, _) => "--nproc_per_node 2 ".to_owned(),
    };
    format!("tune run {ranks}{} --config {}", config.recipe, config.name)
}

/// What the rows are, for a sentence.
pub(super) fn data(data: Data) -> &'static str {
    match data {
        Data::AlpacaCleaned => "the cleaned Alpaca instructions",
        Data::Alpaca => "the Alpaca instructions",
        Data::Cauldron => "questions about text in pictures (the OCR-VQA part of The Cauldron)",
        Data::CauldronMix => {
            "four parts of The Cauldron, drawn alike: questions about pictures, charts, documents and tables"
        }
        Data::StackExchange => "pairs of Stack Exchange answers",
        Data::Reviews => "film reviews",
        Data::Gsm8k => "school mathematics (GSM8K)",
        Data::Commands => "spoken commands and what they mean (TOPv2)",
        Data::Gsm8kSolutions => "worked solutions of school mathematics (GSM8K)",
    }
}

/// What is trained, for a sentence: `every weight of Llama 3 8B`, `a LoRA adapter of rank 8 for Llama 3 8B`.
pub(super) fn learner(config: &Config) -> String {
    let title = config.model.title;
    let Some(adapter) = &config.adapter else { return format!("every weight of {title}") };
    let kind = if adapter.dora { "DoRA" } else { "LoRA" };
    let quantised = if adapter.quantised { " with its weights quantised to 4 bits" } else { "" };
    format!("a {kind} adapter of rank {} for {title}{quantised}", adapter.rank)
}

/// Where it runs, for a sentence.
pub(super) fn devices(config: &Config) -> &'static str {
    match (config.is_distributed, config.name.ends_with("multinode")) {
        (false, _) => "on one device",
        (true, false) => "divided over several devices",
        (true, true) => "divided over the devices of several machines",
    }
}

/// The reward model of a config with one.
pub(super) fn reward_model(config: &Config) -> &'static Model {
    let frozen = config.frozen.iter().find(|(model, _)| model.family.model_type == "REWARD");
    frozen.map_or(&models::MISTRAL_7B_REWARD, |(model, _)| model)
}
