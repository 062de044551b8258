//! The `model` section of a config.

use config::{FromNode, Names, Node, Problem, ProblemKind, Problems, Value};
use tensor::ops::fake_quantise::FakeQuant;

use crate::common::{LoraConfig, LoraModule};
use crate::families::{AttentionModule, BUILDERS, Builder, DecoderKeys, Family, Trains};

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
    /// The adapters, if only those are trained.
    pub lora: Option<LoraConfig>,
    /// How linear layers are quantised for show, which another section says.
    pub fake_quant: Option<FakeQuant>,
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
        Self { builder_name, builder: Builder::NONE, config: DecoderKeys::default(), lora: None, fake_quant: None }
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
        refuse_keys_of_gemma2(node, &config, &builder, problems);
        if let (true, Some(key)) = (config.attn_dropout != 0.0, node.get("attn_dropout")) {
            problems.refuse(key, "dropout on attention is not available yet in this version");
            return None;
        }
        let builder_name = node.component_name().unwrap_or("ferrotune.models.auto").to_owned();
        let before = problems.len();
        let lora = lora_of(node, &builder, &config, problems);
        (problems.len() == before).then_some(Self { builder_name, builder, config, lora, fake_quant: None })
    }
}

/// Keys that only adapters give a meaning to.
const LORA_KEYS: &[&str] = &[
    "lora_attn_modules",
    "apply_lora_to_mlp",
    "apply_lora_to_output",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "use_dora",
    "quantize_base",
];

/// The adapters that a section asks for.
fn lora_of(section: &Node, builder: &Builder, keys: &DecoderKeys, problems: &mut Problems) -> Option<LoraConfig> {
    let written: Vec<&Node> =
        LORA_KEYS.iter().filter_map(|key| section.get(key)).filter(|node| !node.is_null()).collect();
    // A builder says by its name whether it has adapters; without one the keys do.
    let has_adapter = builder.trains != Trains::All || (*builder == Builder::NONE && !written.is_empty());
    if !has_adapter {
        for node in written {
            problems
                .refuse(node, "this builder trains every weight and has no adapter")
                .hint("name the builder with `lora_` before its last word");
        }
        return None;
    }
    let mut modules: Vec<LoraModule> = match &keys.lora_attn_modules {
        None => {
            problems.missing(section, "lora_attn_modules", "a list of `q_proj`, `k_proj`, `v_proj`, `output_proj`");
            Vec::new()
        }
        Some(list) => {
            if list.is_empty()
                && let Some(node) = section.get("lora_attn_modules")
            {
                problems.wrong_value(node, "at least one of `q_proj`, `k_proj`, `v_proj`, `output_proj`");
            }
            list.iter().map(|module| LoraModule::from(*module)).collect()
        }
    };
    if keys.apply_lora_to_mlp == Some(true) {
        modules.extend([LoraModule::Gate, LoraModule::Up, LoraModule::Down]);
    }
    if keys.apply_lora_to_output == Some(true) {
        modules.push(LoraModule::Head);
    }
    modules.sort_unstable();
    modules.dedup();
    if let (Some(true), Some(true), Some(node)) =
        (keys.apply_lora_to_output, keys.use_dora, section.get("apply_lora_to_output"))
    {
        problems.push(Problem {
            key: node.path().to_owned(),
            origin: node.origin().clone(),
            kind: ProblemKind::NotAvailable {
                role: "setting",
                name: "apply_lora_to_output: True with use_dora: True".to_owned(),
            },
            hint: Some("set one of both to False".to_owned()),
        });
    }
    if let (true, Some(node)) = (keys.lora_dropout.unwrap_or(0.0) as f32 >= 1.0, section.get("lora_dropout")) {
        problems.wrong_value(node, "a number from 0 up to, but not, 1");
    }
    Some(LoraConfig {
        rank: keys.lora_rank.unwrap_or(8),
        alpha: keys.lora_alpha.unwrap_or(16.0),
        dropout: keys.lora_dropout.unwrap_or(0.0),
        modules,
        use_dora: keys.use_dora == Some(true),
        quantize_base: keys.quantize_base.unwrap_or(builder.trains == Trains::AdapterOnNf4),
    })
}

impl From<AttentionModule> for LoraModule {
    fn from(module: AttentionModule) -> Self {
        match module {
            AttentionModule::Q => Self::Q,
            AttentionModule::K => Self::K,
            AttentionModule::V => Self::V,
            AttentionModule::Output => Self::O,
        }
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

/// Keys that only Gemma 2 has, beside a builder that is known to be another's.
fn refuse_keys_of_gemma2(section: &Node, keys: &DecoderKeys, builder: &Builder, problems: &mut Problems) {
    let family = builder.facts().family.filter(|family| *family != Family::Gemma2);
    if let (Some(key), Some(family)) = (keys.facts().key_of_gemma2(), family)
        && let Some(node) = section.get(key)
    {
        let (of, found) = (Family::Gemma2.model_type(), family.model_type());
        let reason = format!("`{key}` belongs to models of `{of}`, this one is of `{found}`");
        problems.refuse(node, reason).hint(format!("remove `{key}` from the `model` section"));
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
        "llama2_reward_7b" "lora_llama2_reward_7b" "qlora_llama2_reward_7b"
        "llama2_classifier" "lora_llama2_classifier";
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
        "mistral_reward_7b" "lora_mistral_reward_7b" "qlora_mistral_reward_7b"
        "mistral_classifier" "lora_mistral_classifier";
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
    fn keys_of_gemma_2_stand_beside_no_other_builder() {
        let of = |builder: &str| {
            check(&format!(
                "model: {{_component_: torchtune.models.{builder}, final_capping_value: .inf, head_dim: 8}}"
            ))
            .1
        };
        for (builder, found) in [("gemma.gemma", "gemma"), ("llama3_2.llama3_2_1b", "llama")] {
            let error = of(builder).finish().expect_err("no caps").to_string();
            let expected = format!("`final_capping_value` belongs to models of `gemma2`, this one is of `{found}`");
            assert!(error.contains(&expected), "{error}");
        }
        assert!(of("gemma2.gemma2").is_empty());
        // The folder decides.
        assert!(check("model: {init: random, hidden_capping_value: 3}").1.is_empty());
    }

    #[test]
    fn a_builder_of_another_family_is_known_but_not_available() {
        let (section, problems) = check("model: {_component_: torchtune.models.t5.t5_encoder}");
        assert!(section.is_none());
        let error = problems.finish().expect_err("not built").to_string();
        assert!(error.contains("known, not available yet in this version"), "{error}");
    }
}
