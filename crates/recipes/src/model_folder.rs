//! What a checkpoint folder or a GGUF file says about its model, and the weights it holds.

use std::path::{Path, PathBuf};

use checkpoint::{CheckpointFiles, ModelType, Vocabulary, WeightSource, read_config_json};
use models::facts::{Facts, Sources};
use models::families::{Family, from_config_json, to_config_json};
use models::{Decoder, DecoderConfig, ModelSection};
use serde_json::{Map, Value};
use tokenizers::GgufVocab;

use crate::console::Console;
use crate::{Error, Result};

/// An opened folder: headers are read, weights are not.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    dir: PathBuf,
    /// `None` when the model starts from random weights.
    weights: Option<WeightSource>,
    /// `config.json`, or what a GGUF file says in its words.
    config_json: Option<Map<String, Value>>,
    vocabulary: Option<Vocabulary>,
}

impl ModelFolder {
    /// Opens the folder; without `reads_weights` only its `config.json` matters.
    pub(crate) fn open(dir: &Path, files: &CheckpointFiles, reads_weights: bool) -> Result<Self> {
        let weights = if reads_weights { Some(WeightSource::open_folder(dir, files)?) } else { None };
        let gguf = weights.as_ref().and_then(WeightSource::gguf);
        let config_json = match gguf {
            Some(contents) => Some(contents.config.clone()),
            None => read_config_json(dir)?,
        };
        let vocabulary = gguf.and_then(|contents| contents.vocabulary.clone());
        Ok(Self { dir: dir.to_path_buf(), weights, config_json, vocabulary })
    }

    /// The model that a section and, where there is one, a folder's `config.json` describe; no weights are looked at.
    pub(crate) fn describe(dir: &Path, section: &ModelSection) -> Result<Decoder> {
        let config_json = if dir.is_dir() { read_config_json(dir)? } else { None };
        let folder = Self { dir: dir.to_path_buf(), weights: None, config_json, vocabulary: None };
        let (model, _) = folder.describe_model(section).map_err(|source| Error::ModelFolder {
            dir: folder.dir.clone(),
            described: folder.config_json.is_some(),
            source: Box::new(source),
        })?;
        Ok(model)
    }

    /// The folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The weights, unless the model starts from random ones.
    pub(crate) fn weights(&self) -> Option<&WeightSource> {
        self.weights.as_ref()
    }

    /// The vocabulary of a GGUF file, for the tokenizers.
    pub(crate) fn gguf_vocabulary(&self) -> Option<GgufVocab> {
        let v = self.vocabulary.clone()?;
        Some(GgufVocab {
            origin: self.weights.as_ref().map_or_else(String::new, |w| w.path().display().to_string()),
            model: v.model,
            pre: v.pre,
            tokens: v.tokens,
            scores: Some(v.scores).filter(|s| !s.is_empty()),
            token_types: Some(v.token_types).filter(|t| !t.is_empty()),
            merges: v.merges,
            bos: v.bos_id,
            eos: v.eos_id,
            eot: v.eot_id,
            unknown: v.unknown_id,
            padding: v.padding_id,
            add_bos: v.add_bos,
            add_space_prefix: v.add_space_prefix,
            chat_template: v.chat_template,
        })
    }

    /// Whether the folder is read from a GGUF file, so that a saved folder needs everything made anew.
    pub(crate) fn is_gguf(&self) -> bool {
        self.weights.as_ref().is_some_and(|w| w.gguf().is_some())
    }

    /// Builds the model that the config and the folder agree on, and checks that the weights fit it.
    pub(crate) fn build_model(&self, section: &ModelSection, console: Console) -> Result<Decoder> {
        let (model, notices) = self.describe_model(section).map_err(|source| Error::ModelFolder {
            dir: self.dir.clone(),
            described: self.config_json.is_some(),
            source: Box::new(source),
        })?;
        let left_aside = match &self.weights {
            Some(weights) => train::check_weights(model.layout(), weights)?,
            None => Vec::new(),
        };
        let of_files = self.weights.iter().flat_map(WeightSource::notices).cloned();
        for text in notices.into_iter().chain(of_files).chain(left_aside) {
            console.notice(&text);
        }
        Ok(model)
    }

    /// The model without its weights, and notices about differences between folder and config.
    fn describe_model(&self, section: &ModelSection) -> models::Result<(Decoder, Vec<String>)> {
        let folder = match &self.config_json {
            Some(map) => Some(from_config_json(&Value::Object(map.clone()).to_string())?),
            None => None,
        };
        let (config, notices) = resolve(section, folder.as_ref(), self.weights.is_some())?;
        let model = Decoder::with_adapters(config, section.lora.as_ref())?;
        let model = match section.fake_quant {
            None => model,
            Some(quant) => model.quantised(quant)?,
        };
        Ok((model, notices))
    }

    /// The `config.json` of a folder that the trained model is saved to.
    pub(crate) fn saved_config(&self, model: &DecoderConfig, dtype: tensor::DType) -> Map<String, Value> {
        let shape = to_config_json(model);
        let base = self.config_json.clone().unwrap_or_default();
        // What the folder said stays, spelled as it was; the shape is laid over it only where it says something else.
        let updates = match from_config_json(&Value::Object(base.clone()).to_string()) {
            Ok(facts) if describes(&facts, model) => Map::new(),
            _ => shape,
        };
        checkpoint::hugging_face_config(&base, &updates, dtype)
    }
}

/// Tells that a checkpointer's `model_type` is of another family than the model, which the folder decides.
pub(crate) fn notice_model_type(wanted: Option<ModelType>, model: &DecoderConfig, console: Console) {
    let Some((wanted, family)) = wanted.and_then(|wanted| Some((wanted, family_of(wanted)?))) else { return };
    if family != model.family {
        let found = model.family.model_type();
        console
            .notice(&format!("`checkpointer.model_type={wanted}` has no effect: the model is of the family `{found}`"));
    }
}

/// The family of a kind of checkpoint; none if no model of this version belongs to it.
pub(crate) fn family_of(kind: ModelType) -> Option<Family> {
    match kind {
        ModelType::Llama2 | ModelType::Llama3 | ModelType::Llama32 => Some(Family::Llama),
        ModelType::Mistral => Some(Family::Mistral),
        ModelType::Phi3Mini | ModelType::Phi4 => Some(Family::Phi3),
        ModelType::Qwen2 => Some(Family::Qwen2),
        ModelType::Qwen3 => Some(Family::Qwen3),
        ModelType::Gemma => Some(Family::Gemma),
        ModelType::Gemma2 => Some(Family::Gemma2),
        _ => None,
    }
}

/// Whether facts of a folder lead to this very model.
fn describes(facts: &Facts, model: &DecoderConfig) -> bool {
    let nothing = Facts::default();
    let sources =
        Sources { user: &nothing, folder: Some(facts), builder: &nothing, builder_name: "", reads_weights: true };
    sources.resolve().is_ok_and(|(config, _)| config == *model)
}

fn resolve(
    section: &ModelSection,
    folder: Option<&Facts>,
    reads_weights: bool,
) -> models::Result<(DecoderConfig, Vec<String>)> {
    let (user, builder) = (section.config.facts(), section.builder.facts());
    let sources =
        Sources { user: &user, folder, builder: &builder, builder_name: &section.builder_name, reads_weights };
    sources.resolve()
}
