//! The `model` section of a config.

use config::{FromNode, Names, Node, Problems, Value};

use crate::families::{BUILDERS, Builder, DecoderKeys};

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
    pub config: DecoderKeys,
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
        Self { builder_name, builder: Builder::NONE, config: DecoderKeys::default() }
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
        refuse_unequal_heads(node, problems);
        refuse_unlike(node, &["q_proj_bias", "k_proj_bias", "v_proj_bias"], problems);
        refuse_unlike(node, &["q_norm", "k_norm"], problems);
        let config = DecoderKeys::check(node, problems)?;
        if let (true, Some(key)) = (config.attn_dropout != 0.0, node.get("attn_dropout")) {
            problems.refuse(key, "dropout on attention is not available yet in this version");
            return None;
        }
        let builder_name = node.component_name().unwrap_or("ferrotune.models.auto").to_owned();
        Some(Self { builder_name, builder, config })
    }
}

/// Names of builders, by the package that gives them out.
macro_rules! builders {
    ($($package:literal: $($name:literal)+;)+) => { &[$($(concat!("torchtune.", $package, ".", $name)),+),+] };
}

/// Heads must divide what is shared among them.
fn refuse_unequal_heads(section: &Node, problems: &mut Problems) {
    let number = |key: &str| match section.get(key).map(Node::value) {
        Some(Value::Int(number)) if *number > 0 => Some(*number),
        _ => None,
    };
    for (key, of) in [("num_heads", "embed_dim"), ("num_kv_heads", "num_heads")] {
        if let (Some(part), Some(whole), Some(node)) = (number(key), number(of), section.get(key))
            && whole % part != 0
        {
            problems.wrong_value(node, format!("a divisor of `{of}`, which is {whole}"));
        }
    }
}

/// What is there for queries is there for keys and values too, or for none of them.
fn refuse_unlike(section: &Node, keys: &[&str], problems: &mut Problems) {
    let flag = |key: &str| match section.get(key).map(Node::value) {
        Some(Value::Bool(flag)) => Some(*flag),
        _ => None,
    };
    let Some((first, wanted)) = keys.iter().find_map(|key| Some((key, flag(key)?))) else { return };
    for key in keys {
        if let (Some(found), Some(node)) = (flag(key), section.get(key))
            && found != wanted
        {
            problems.wrong_value(node, format!("the same as `{first}`, which is {wanted}"));
        }
    }
}

/// Builders of torchtune whose models are not built yet. `lora_` builders add an adapter, `qlora_` ones quantise the weights
/// under it too; the last of each first line takes sizes as keys.
#[rustfmt::skip]
const NOT_BUILT: &[&str] = builders! {
    "models.llama2":
        "lora_llama2_7b" "lora_llama2_13b" "lora_llama2_70b" "lora_llama2"
        "qlora_llama2_7b" "qlora_llama2_13b" "qlora_llama2_70b"
        "llama2_reward_7b" "lora_llama2_reward_7b" "qlora_llama2_reward_7b"
        "llama2_classifier" "lora_llama2_classifier";
    "models.llama3":
        "lora_llama3_8b" "lora_llama3_70b" "lora_llama3"
        "qlora_llama3_8b" "qlora_llama3_70b";
    "models.llama3_1":
        "lora_llama3_1_8b" "lora_llama3_1_70b" "lora_llama3_1_405b" "lora_llama3_1"
        "qlora_llama3_1_8b" "qlora_llama3_1_70b" "qlora_llama3_1_405b";
    "models.llama3_2":
        "lora_llama3_2_1b" "lora_llama3_2_3b" "lora_llama3_2"
        "qlora_llama3_2_1b" "qlora_llama3_2_3b";
    "models.llama3_3":
        "lora_llama3_3_70b"
        "qlora_llama3_3_70b";
    "models.llama3_2_vision":
        "llama3_2_vision_11b" "llama3_2_vision_90b"
        "lora_llama3_2_vision_11b" "lora_llama3_2_vision_90b"
        "qlora_llama3_2_vision_11b" "qlora_llama3_2_vision_90b"
        "llama3_2_vision_encoder" "llama3_2_vision_decoder"
        "lora_llama3_2_vision_encoder" "lora_llama3_2_vision_decoder";
    "models.llama4":
        "llama4_scout_17b_16e" "llama4_maverick_17b_128e"
        "lora_llama4_scout_17b_16e"
        "llama4_vision_encoder" "llama4_decoder"
        "lora_llama4_vision_encoder" "lora_llama4_decoder";
    "models.mistral":
        "lora_mistral_7b" "lora_mistral"
        "qlora_mistral_7b"
        "mistral_reward_7b" "lora_mistral_reward_7b" "qlora_mistral_reward_7b"
        "mistral_classifier" "lora_mistral_classifier";
    "models.gemma":
        "gemma_2b" "gemma_7b" "gemma"
        "lora_gemma_2b" "lora_gemma_7b" "lora_gemma"
        "qlora_gemma_2b" "qlora_gemma_7b";
    "models.gemma2":
        "gemma2_2b" "gemma2_9b" "gemma2_27b" "gemma2"
        "lora_gemma2_2b" "lora_gemma2_9b" "lora_gemma2_27b" "lora_gemma2"
        "qlora_gemma2_2b" "qlora_gemma2_9b" "qlora_gemma2_27b";
    "models.phi3":
        "lora_phi3_mini" "lora_phi3"
        "qlora_phi3_mini";
    "models.phi4":
        "lora_phi4_14b" "qlora_phi4_14b";
    "models.qwen2":
        "lora_qwen2_0_5b" "lora_qwen2_1_5b" "lora_qwen2_7b" "lora_qwen2";
    "models.qwen2_5":
        "lora_qwen2_5_0_5b" "lora_qwen2_5_1_5b_base" "lora_qwen2_5_1_5b_instruct" "lora_qwen2_5_3b"
        "lora_qwen2_5_7b_base" "lora_qwen2_5_7b_instruct" "lora_qwen2_5_14b_base" "lora_qwen2_5_14b_instruct"
        "lora_qwen2_5_32b_base" "lora_qwen2_5_32b_instruct" "lora_qwen2_5_72b_base" "lora_qwen2_5_72b_instruct";
    "models.qwen3":
        "lora_qwen3_0_6b_base" "lora_qwen3_0_6b_instruct" "lora_qwen3_1_7b_base" "lora_qwen3_1_7b_instruct"
        "lora_qwen3_4b_base" "lora_qwen3_4b_instruct" "lora_qwen3_8b_base" "lora_qwen3_8b_instruct"
        "lora_qwen3_14b_base" "lora_qwen3_14b_instruct" "lora_qwen3_32b" "lora_qwen3";
    "models.clip":
        "clip_text_vit_large_patch14" "clip_text_encoder" "clip_vision_encoder";
    "models.t5":
        "t5_v1_1_xxl_encoder" "t5_encoder";
    "models.flux":
        "flux_1_autoencoder";
    "modules":
        "classifier_model";
};

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
    fn what_queries_have_keys_and_values_have_too() {
        let of = |keys: &str| check(&format!("model: {{_component_: torchtune.models.qwen3.qwen3, {keys}}}"));
        let (section, _) = of("q_norm: True, k_norm: True, q_proj_bias: False");
        let facts = section.expect("alike").config.facts();
        assert_eq!((facts.qk_norm, facts.attention_bias), (Some(true), Some(false)));
        for (keys, expected) in [
            ("q_norm: True, k_norm: False", "the same as `q_norm`, which is true"),
            ("q_proj_bias: False, k_proj_bias: False, v_proj_bias: True", "the same as `q_proj_bias`, which is false"),
        ] {
            let error = of(keys).1.finish().expect_err("unlike").to_string();
            assert!(error.contains(expected), "{keys}: {error}");
        }
    }

    #[test]
    fn a_builder_of_another_family_is_known_but_not_available() {
        let (section, problems) = check("model: {_component_: torchtune.models.gemma.gemma_2b}");
        assert!(section.is_none());
        let error = problems.finish().expect_err("not built").to_string();
        assert!(error.contains("known, not available yet in this version"), "{error}");
    }
}
