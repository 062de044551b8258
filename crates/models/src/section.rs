//! The `model` section of a config.

use config::{FromNode, Names, Node, Problems};

use crate::llama::{BUILDERS, Builder, LlamaConfig};

/// Components of `model`.
pub const MODELS: Names<Builder> = Names { role: "model", built: BUILDERS, not_built: NOT_BUILT };

/// A checked `model` section.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSection {
    /// The builder as the user named it.
    pub builder_name: String,
    /// What the builder says.
    pub builder: Builder,
    /// The keys that the user wrote.
    pub config: LlamaConfig,
}

impl ModelSection {
    /// Whether weights are read; otherwise the model starts from random ones.
    pub fn reads_weights(&self) -> bool {
        self.config.init.is_none()
    }
}

impl Default for ModelSection {
    fn default() -> Self {
        let builder_name = "ferrotune.models.auto".to_owned();
        Self { builder_name, builder: Builder::NONE, config: LlamaConfig::default() }
    }
}

impl FromNode for ModelSection {
    fn expected() -> String {
        "a section with `_component_`, the name of a model builder".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        // `model: {init: random}` is enough: the folder says the rest.
        let named = node.as_map().is_some_and(|map| map.get("_component_").is_some());
        let builder = if named || node.as_map().is_none() { MODELS.choose(node, problems)? } else { Builder::NONE };
        let config = LlamaConfig::check(node, problems)?;
        if let (true, Some(key)) = (config.attn_dropout != 0.0, node.get("attn_dropout")) {
            problems.refuse(key, "dropout on attention is not available yet in this version");
            return None;
        }
        let builder_name = node.component_name().unwrap_or("ferrotune.models.auto").to_owned();
        Some(Self { builder_name, builder, config })
    }
}

/// Builders of torchtune whose models are not built yet.
#[rustfmt::skip]
const NOT_BUILT: &[&str] = &[
    "torchtune.models.mistral.mistral", "torchtune.models.mistral.mistral_7b",
    "torchtune.models.gemma.gemma", "torchtune.models.gemma.gemma_2b", "torchtune.models.gemma.gemma_7b",
    "torchtune.models.gemma2.gemma2", "torchtune.models.gemma2.gemma2_2b", "torchtune.models.gemma2.gemma2_9b",
    "torchtune.models.gemma2.gemma2_27b",
    "torchtune.models.phi3.phi3", "torchtune.models.phi3.phi3_mini", "torchtune.models.phi4.phi4_14b",
    "torchtune.models.qwen2.qwen2", "torchtune.models.qwen2.qwen2_0_5b", "torchtune.models.qwen2.qwen2_1_5b",
    "torchtune.models.qwen2.qwen2_7b",
    "torchtune.models.qwen2_5.qwen2_5_0_5b", "torchtune.models.qwen2_5.qwen2_5_1_5b_base",
    "torchtune.models.qwen2_5.qwen2_5_1_5b_instruct", "torchtune.models.qwen2_5.qwen2_5_3b",
    "torchtune.models.qwen2_5.qwen2_5_7b_base", "torchtune.models.qwen2_5.qwen2_5_7b_instruct",
    "torchtune.models.qwen2_5.qwen2_5_14b_base", "torchtune.models.qwen2_5.qwen2_5_14b_instruct",
    "torchtune.models.qwen2_5.qwen2_5_32b_base", "torchtune.models.qwen2_5.qwen2_5_32b_instruct",
    "torchtune.models.qwen2_5.qwen2_5_72b_base", "torchtune.models.qwen2_5.qwen2_5_72b_instruct",
    "torchtune.models.qwen3.qwen3", "torchtune.models.qwen3.qwen3_0_6b_base",
    "torchtune.models.qwen3.qwen3_0_6b_instruct", "torchtune.models.qwen3.qwen3_1_7b_base",
    "torchtune.models.qwen3.qwen3_1_7b_instruct", "torchtune.models.qwen3.qwen3_4b_base",
    "torchtune.models.qwen3.qwen3_4b_instruct", "torchtune.models.qwen3.qwen3_8b_base",
    "torchtune.models.qwen3.qwen3_8b_instruct", "torchtune.models.qwen3.qwen3_14b_base",
    "torchtune.models.qwen3.qwen3_14b_instruct", "torchtune.models.qwen3.qwen3_32b",
    "torchtune.models.llama3_2_vision.llama3_2_vision_11b", "torchtune.models.llama3_2_vision.llama3_2_vision_90b",
    "torchtune.models.llama4.llama4_scout_17b_16e", "torchtune.models.llama4.llama4_maverick_17b_128e",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(yaml: &str) -> (Option<ModelSection>, Problems) {
        let run = config::Merged::from_text("run.yaml", yaml).expect("valid YAML");
        let mut problems = Problems::new();
        let section = ModelSection::from_node(run.root().at("model").expect("written"), &mut problems);
        (section, problems)
    }

    #[test]
    fn short_and_long_names_mean_the_same_builder() {
        let of =
            |name: &str| check(&format!("model: {{_component_: torchtune.models.{name}}}")).0.expect("known").builder;
        assert_eq!(of("llama3_2.llama3_2_1b"), of("llama3_2._model_builders.llama3_2_1b"));
    }

    #[test]
    fn a_section_without_a_builder_leaves_everything_to_the_folder() {
        let section = check("model: {init: random}").0.expect("enough");
        assert!(!section.reads_weights());
        assert_eq!(section.builder, Builder::NONE);
    }

    #[test]
    fn a_builder_of_another_family_is_known_but_not_available() {
        let (section, problems) = check("model: {_component_: torchtune.models.gemma.gemma_2b}");
        assert!(section.is_none());
        let error = problems.finish().expect_err("not built").to_string();
        assert!(error.contains("known, not available yet in this version"), "{error}");
    }
}
