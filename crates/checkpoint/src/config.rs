//! The `checkpointer` section of a config.
//!
//! The keys are torchtune's `FullModelHFCheckpointer`; what a run resumes from and where it writes is decided by the
//! recipe from these values.

use std::path::PathBuf;

use ::config::{FromNode, Names, Node, Problems, Value};

use crate::error::Error;
use crate::folder::CheckpointFiles;

::config::choice! {
    /// What kind of model a checkpoint holds. Names and shapes of the weights follow from `config.json` and the `model`
    /// section; this only has to be a name that exists.
    pub enum ModelType {
        /// Gemma.
        Gemma = "GEMMA",
        /// Gemma 2.
        Gemma2 = "GEMMA2",
        /// Llama 2.
        Llama2 = "LLAMA2",
        /// Llama 3 and 3.1.
        Llama3 = "LLAMA3",
        /// Llama 3.2, its head tied.
        Llama32 = "LLAMA3_2",
        /// Llama 3.2 with images.
        Llama3Vision = "LLAMA3_VISION",
        /// Llama 4.
        Llama4 = "LLAMA4",
        /// Mistral.
        Mistral = "MISTRAL",
        /// Phi 3 mini.
        Phi3Mini = "PHI3_MINI",
        /// Phi 4.
        Phi4 = "PHI4",
        /// Qwen 2 and 2.5.
        Qwen2 = "QWEN2",
        /// Qwen 3.
        Qwen3 = "QWEN3",
        /// A model with a score head.
        Reward = "REWARD",
        /// The text encoder of CLIP.
        ClipText = "CLIP_TEXT",
        /// The encoder of T5.
        T5Encoder = "T5_ENCODER",
    }
}

::config::component! {
    /// A model as a Hugging Face folder (safetensors) or a GGUF file.
    pub struct CheckpointerConfig {
        /// Folder that holds the model. It is only read.
        pub checkpoint_dir: PathBuf,
        /// Files of weights in that folder: a list of names, or `{filename_format, max_filename}`; `null` = what the folder's index says, else `model.safetensors`, else its only `.gguf` file.
        pub checkpoint_files: CheckpointFiles = CheckpointFiles::default(),
        /// Folder for checkpoints, made if need be; must not be `checkpoint_dir` nor inside it.
        pub output_dir: PathBuf,
        /// Kind of model, `LLAMA3_2` for example; `null` = whatever `config.json` says.
        pub model_type: Option<ModelType> = None,
        /// Adapter to start from, a path; `null` and the bare default name load nothing by themselves.
        pub adapter_checkpoint: Option<PathBuf> = Some("adapter_model.pt".into()),
        /// Name of the file of recipe state; kept for configs that set it, the state is always in `recipe_state.json`.
        pub recipe_checkpoint: Option<PathBuf> = Some("recipe_state.pt".into()),
        /// Old place of the recipe's own key `resume_from_checkpoint`.
        pub resume_from_checkpoint: bool = false,
        /// Write safetensors, the only format that is written.
        pub safe_serialization: bool = true,
        /// Load the recipe's state along with the weights; set by `resume_from_checkpoint`.
        pub should_load_recipe_state: bool = false,
        /// How many checkpoints of a run are kept, >= 1, the oldest going first; `null` = all.
        pub keep_last_n_checkpoints: Option<usize> [1..] = None,
        /// Write PyTorch's distributed format, which is not available.
        pub enable_dcp: bool = false,
    }
}

/// What kind of folder a checkpointer reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checkpointer {
    /// A Hugging Face folder, or a GGUF file: [`CheckpointerConfig`].
    HuggingFace,
}

/// The names that the section's `_component_` may have.
pub const CHECKPOINTERS: Names<Checkpointer> = Names {
    role: "checkpointer",
    built: &[(&["torchtune.training.FullModelHFCheckpointer"], Checkpointer::HuggingFace)],
    not_built: &[
        "torchtune.training.FullModelMetaCheckpointer",
        "torchtune.training.FullModelTorchTuneCheckpointer",
        "torchtune.training.DistributedCheckpointer",
    ],
};

::config::component! {
    /// Numbered files of weights.
    struct NumberedFiles {
        /// A name with two `{}`: the file's number, and the highest number.
        filename_format: String,
        /// The highest number in quotes, with its leading zeros.
        max_filename: String,
    }
}

impl FromNode for CheckpointFiles {
    fn expected() -> String {
        "a list of file names, or `filename_format` and `max_filename`".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let files = match node.value() {
            Value::Null => return Some(Self::Found),
            Value::List(_) => Self::Listed(Vec::from_node(node, problems)?),
            Value::Map(_) => {
                let NumberedFiles { filename_format, max_filename } = NumberedFiles::check(node, problems)?;
                Self::Numbered { filename_format, max_filename }
            }
            _ => {
                problems.wrong_value(node, Self::expected());
                return None;
            }
        };
        match files.names() {
            Ok(_) => Some(files),
            Err(error) => {
                report(node, problems, &error);
                None
            }
        }
    }
}

/// Reports what is wrong with the names at the key that has it.
fn report(node: &Node, problems: &mut Problems, error: &Error) {
    match error {
        Error::FilenameFormat { .. } => {
            let node = node.get("filename_format").unwrap_or(node);
            let problem = problems.wrong_value(node, "text with exactly two placeholders `{}`");
            if let Some(hint) = error.hint() {
                problem.hint(hint);
            }
        }
        Error::MaxFilename { .. } => {
            let node = node.get("max_filename").unwrap_or(node);
            problems.wrong_value(node, "a number from 1 to 99999 in digits such as \"00030\"");
        }
        _ => {
            problems.wrong_value(node, "at least one file name");
        }
    }
}

impl CheckpointerConfig {
    /// Refuses what cannot be honoured, reported at the section's keys; a notice for a key in its old place.
    pub fn check_supported(&self, section: &Node, problems: &mut Problems) {
        let at = |key: &str| section.get(key).unwrap_or(section);
        if self.enable_dcp {
            problems
                .refuse(at("enable_dcp"), "`enable_dcp` asks for PyTorch's distributed checkpoint format")
                .hint("remove `checkpointer.enable_dcp`; saving is streamed and needs no extra memory");
        }
        if !self.safe_serialization {
            problems
                .refuse(at("safe_serialization"), "`safe_serialization` is False, but pickle files are never written")
                .hint("remove `checkpointer.safe_serialization`");
        }
        if self.resume_from_checkpoint {
            problems.notice("`checkpointer.resume_from_checkpoint` has moved: write `resume_from_checkpoint`");
        }
    }

    /// Whether the section itself asks to go on from a checkpoint.
    pub fn resumes(&self) -> bool {
        self.resume_from_checkpoint || self.should_load_recipe_state
    }

    /// The adapter to start from: a path the user gave, not the default name.
    pub fn adapter_to_load(&self) -> Option<&PathBuf> {
        self.adapter_checkpoint.as_ref().filter(|path| path.as_os_str() != "adapter_model.pt")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (Option<CheckpointerConfig>, Problems) {
        let merged = ::config::Merged::from_text("run.yaml", text).unwrap();
        let mut problems = Problems::new();
        let section = merged.root().at("checkpointer").unwrap();
        let checked = CheckpointerConfig::check(section, &mut problems);
        if let Some(checked) = &checked {
            checked.check_supported(section, &mut problems);
        }
        (checked, problems)
    }

    fn with(line: &str) -> (Option<CheckpointerConfig>, Problems) {
        check(&format!("checkpointer:\n  checkpoint_dir: /m\n  output_dir: /o\n  {line}\n"))
    }

    #[test]
    fn the_keys_of_a_usual_config_are_taken() {
        let (config, problems) = check(
            "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n  checkpoint_dir: /m\n  \
             checkpoint_files: [a.safetensors, b.safetensors]\n  recipe_checkpoint: null\n  output_dir: /o\n  model_type: \
             LLAMA3_2\n  keep_last_n_checkpoints: 2\n",
        );
        assert!(problems.is_empty() && problems.notices().is_empty(), "{problems:?}");
        let config = config.unwrap();
        assert_eq!(
            config.checkpoint_files,
            CheckpointFiles::Listed(vec!["a.safetensors".into(), "b.safetensors".into()])
        );
        assert_eq!(config.model_type, Some(ModelType::Llama32));
        assert_eq!(config.keep_last_n_checkpoints, Some(2));
        assert_eq!(config.adapter_to_load(), None);
    }

    #[test]
    fn files_may_be_left_out_null_or_numbered() {
        for line in ["model_type: null", "checkpoint_files: null"] {
            assert_eq!(with(line).0.unwrap().checkpoint_files, CheckpointFiles::Found);
        }
        let numbered = "checkpoint_files: {filename_format: 'm-{}-of-{}.safetensors', max_filename: '00002'}";
        assert_eq!(with(numbered).0.unwrap().checkpoint_files.names().unwrap().unwrap().len(), 2);
    }

    #[test]
    fn wrong_values_are_problems_at_their_keys() {
        for (line, key) in [
            ("checkpoint_files: []", "checkpointer.checkpoint_files"),
            ("checkpoint_files: 3", "checkpointer.checkpoint_files"),
            (
                "checkpoint_files: {filename_format: 'x-{}', max_filename: '2'}",
                "checkpointer.checkpoint_files.filename_format",
            ),
            (
                "checkpoint_files: {filename_format: '{}{}', max_filename: 'x'}",
                "checkpointer.checkpoint_files.max_filename",
            ),
            ("checkpoint_files: {filename_format: '{}{}'}", "checkpointer.checkpoint_files.max_filename"),
            ("keep_last_n_checkpoints: 0", "checkpointer.keep_last_n_checkpoints"),
            ("model_type: LAMA", "checkpointer.model_type"),
            ("enable_dcp: True", "checkpointer.enable_dcp"),
            ("safe_serialization: False", "checkpointer.safe_serialization"),
        ] {
            let (_, problems) = with(line);
            let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
            assert_eq!(keys, [key], "{line}");
        }
    }

    #[test]
    fn the_old_key_for_resuming_still_works_with_a_notice() {
        let (config, problems) = with("resume_from_checkpoint: True");
        assert!(config.unwrap().resumes());
        assert!(problems.is_empty());
        assert_eq!(problems.notices().len(), 1);
        assert!(!with("model_type: null").0.unwrap().resumes());
    }

    #[test]
    fn the_component_is_chosen_by_name() {
        assert_eq!(CHECKPOINTERS.find("torchtune.training.FullModelHFCheckpointer"), Some(Checkpointer::HuggingFace));
        assert!(CHECKPOINTERS.is_not_built("torchtune.training.FullModelMetaCheckpointer"));
    }

    #[test]
    fn only_a_path_of_the_users_loads_an_adapter() {
        assert_eq!(with("adapter_checkpoint: null").0.unwrap().adapter_to_load(), None);
        assert_eq!(with("adapter_checkpoint: adapter_model.pt").0.unwrap().adapter_to_load(), None);
        let path = PathBuf::from("a/adapter_model.safetensors");
        let config = with("adapter_checkpoint: a/adapter_model.safetensors").0.unwrap();
        assert_eq!(config.adapter_to_load(), Some(&path));
    }
}
