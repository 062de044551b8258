//! What can be wrong about a model's shape.

/// Result of model code that looks at shapes and files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A shape or a `config.json` that no model can be built from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of the shape is impossible.
    #[error("wrong model shape: expected `{key}` to be {expected}, found {found}")]
    Shape {
        /// The key, in the words of `config.json`.
        key: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: usize,
    },
    /// A size that nothing gives.
    #[error("missing key `model.{key}`: neither the builder nor `config.json` gives it")]
    MissingKey {
        /// The key, in the builder's words.
        key: &'static str,
    },
    /// The config asks for other shapes than the checkpoint folder holds.
    #[error("model shapes differ: {by} asks for {key} = {asked}, `config.json` says {found}")]
    Conflict {
        /// The key, in the words of `config.json`.
        key: &'static str,
        /// What is asked for.
        asked: String,
        /// Who asks.
        by: String,
        /// What the folder says.
        found: String,
    },
    /// A key of the `model` section that only models of another family have.
    #[error("`model.{key}` belongs to models of `{of}`, this one is of `{found}`")]
    KeyOfFamily {
        /// The key, in the builder's words.
        key: &'static str,
        /// The family that has it.
        of: &'static str,
        /// The model's family.
        found: &'static str,
    },
    /// An adapter on a head that is the embedding.
    #[error(
        "cannot use `model.apply_lora_to_output`: the head of this model is its embedding, which an adapter would change too"
    )]
    TiedHead,
    /// Groups of weights that do not divide the rows of a layer.
    #[error(
        "cannot quantise `{name}`: its rows of {width} weights are no multiple of `quantizer.groupsize` = {group_size}"
    )]
    GroupSize {
        /// The weight.
        name: String,
        /// Weights of a row.
        width: usize,
        /// Weights that share a scale.
        group_size: usize,
        /// The largest power of two, of at most 256, that divides the rows of all layers.
        fits: usize,
    },
    /// A weight of several layers, of which some have an adapter and some have none.
    #[error("cannot quantise `{name}`: it is the weight of several layers, and not all of them have an adapter")]
    PartlyAdapted {
        /// The weight.
        name: String,
    },
    /// An adapter on a layer that cannot be quantised.
    #[error("cannot quantise `{name}`: its layer has an adapter and a bias, and layers with a bias are not quantised")]
    AdaptedBias {
        /// The weight.
        name: String,
    },
    /// The file is not JSON.
    #[error("`config.json` is not valid JSON: {reason}")]
    Json {
        /// What the parser said.
        reason: String,
    },
    /// A value of the wrong kind.
    #[error("wrong value for `{key}` in `config.json`: expected {expected}, found {found}")]
    ConfigKey {
        /// The key.
        key: &'static str,
        /// What it holds.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// An architecture or option that is not computed here.
    #[error("`config.json` has {key} = {found}: expected {expected}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// What is there.
        found: String,
        /// What can be computed.
        expected: &'static str,
    },
}

impl Error {
    /// One action that helps.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Conflict { key, .. } => Some(format!(
                "remove `{key}` from the `model` section, name the builder of this folder's model, or use `ferrotune.models.auto`"
            )),
            Self::KeyOfFamily { key, .. } => Some(format!("remove `{key}` from the `model` section")),
            Self::MissingKey { key } => {
                Some(format!("give `model.{key}`, or a checkpoint folder with a `config.json`"))
            }
            Self::Unsupported { .. } => Some(
                "this version trains Llama, SmolLM2, Mistral, Phi 3, Phi 4, Qwen2, Qwen2.5, Qwen3, Gemma and Gemma 2 models".to_owned(),
            ),
            Self::GroupSize { fits, .. } if *fits > 1 => Some(format!("set `quantizer.groupsize={fits}`")),
            Self::AdaptedBias { .. } => {
                Some("leave `q_proj`, `k_proj` and `v_proj` out of `model.lora_attn_modules`".to_owned())
            }
            Self::PartlyAdapted { .. } => Some(
                "give adapters to `q_proj`, `k_proj` and `v_proj`, or to none of them, with `model.lora_attn_modules`".to_owned(),
            ),
            _ => None,
        }
    }
}
