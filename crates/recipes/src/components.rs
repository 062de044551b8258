//! Sections of a config that belong to the recipes themselves, and small steps from checked sections to things that run.

use std::path::Path;

use checkpoint::{CheckpointerConfig, ModelType};
use config::{FromNode, Merged, Names, Node, Problem, ProblemKind, Problems};
use data::{DATASETS, Dataset, PREFERENCE_DATASETS};
use models::DecoderConfig;
use tokenizers::components::{AutoTokenizerConfig, TokenizerConfig};
use tokenizers::{GgufVocab, ModelTokenizer};

use tensor::ops::fake_quantise::{FakeQuant, Scheme};

use crate::console::Console;
use crate::model_folder::{ModelFolder, family_of};
use crate::objectives::{DpoConfig, PreferenceLoss, RsoConfig};
use crate::saving::SideFiles;
use crate::{Error, Result};

/// Reads the section of one component.
type Check<T> = fn(&Node, &mut Problems) -> Option<T>;

/// The `checkpointer` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpointer(pub CheckpointerConfig);

impl FromNode for Checkpointer {
    fn expected() -> String {
        "a section with `_component_`, the name of a checkpointer".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        checkpoint::CHECKPOINTERS.choose(node, problems)?;
        let config = CheckpointerConfig::check(node, problems)?;
        config.check_supported(node, problems);
        Some(Self(config))
    }
}

config::component! {
    /// Cross entropy over unmasked tokens. All spellings compute the same number here, and none holds all logits at once.
    pub struct LossConfig {
        /// Accepted and without effect: chunks follow from the sizes.
        pub num_output_chunks: usize [1..] = 8,
        /// The label of masked tokens; only -100, which is what every dataset uses.
        pub ignore_index: i64 = -100,
        /// Accepted and without effect: masked tokens are always left out of the head.
        pub mask_ignored_tokens: bool = true,
        /// Accepted and without effect on one device.
        pub tp_enabled: bool = false,
    }
}

/// The `loss` section.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Of every next token.
    NextToken(LossConfig),
    /// Of pairs.
    Preference(PreferenceLoss),
}

impl FromNode for Loss {
    fn expected() -> String {
        "a section with `_component_`, the name of a loss".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        LOSSES.choose(node, problems)?(node, problems)
    }
}

/// Components of `loss`.
pub(crate) const LOSSES: Names<Check<Loss>> = Names {
    role: "loss",
    built: &[
        (&["torchtune.modules.loss.LinearCrossEntropyLoss"], check_loss),
        (&["torchtune.modules.loss.CEWithChunkedOutputLoss"], check_loss),
        (&["torch.nn.CrossEntropyLoss"], check_loss),
        (&["torchtune.rlhf.loss.DPOLoss"], |node, problems| {
            DpoConfig::check(node, problems).map(|config| Loss::Preference(config.into()))
        }),
        (&["torchtune.rlhf.loss.RSOLoss"], |node, problems| {
            RsoConfig::check(node, problems).map(|config| Loss::Preference(config.into()))
        }),
    ],
    not_built: &[
        "torchtune.rlhf.loss.PPOLoss",
        "torchtune.dev.grpo.loss.GRPOLoss",
        "torchtune.dev.grpo.loss.GRPOCompletionLoss",
        "torchtune.dev.grpo.loss.GRPOSimpleLoss",
        "torchtune.dev.grpo.loss.GRPOWithChunkedOutputLoss",
        "torchtune.dev.rl.linear_grpo_loss.LinearGRPOLoss",
    ],
};

fn check_loss(node: &Node, problems: &mut Problems) -> Option<Loss> {
    let config = LossConfig::check(node, problems)?;
    if let (true, Some(key)) = (config.ignore_index != -100, node.get("ignore_index")) {
        problems.wrong_value(key, "-100, the label that datasets give to masked tokens");
        return None;
    }
    Some(Loss::NextToken(config))
}

/// What a recipe trains on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// Single rows.
    Rows,
    /// Pairs of rows.
    Pairs,
}

impl ItemKind {
    /// As people say it.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Rows => "single rows",
            Self::Pairs => "pairs",
        }
    }
}

/// A kind of component of which none is built in this version.
const fn not_built(role: &'static str, names: &'static [&'static str]) -> Names<Check<()>> {
    Names { role, built: &[], not_built: names }
}

/// Components of `kd_loss`.
pub(crate) const KD_LOSSES: Names<Check<()>> = not_built(
    "distillation loss",
    &[
        "torchtune.modules.loss.ForwardKLLoss",
        "torchtune.modules.loss.ForwardKLWithChunkedOutputLoss",
        "torchtune.modules.loss.ReverseKLLoss",
        "torchtune.modules.loss.ReverseKLWithChunkedOutputLoss",
        "torchtune.modules.loss.SymmetricKLLoss",
        "torchtune.modules.loss.SymmetricKLWithChunkedOutputLoss",
    ],
);

config::component! {
    /// Quantisation that training has to live with: weights of linear layers, and for some names their inputs too, are rounded to what few
    /// bits can hold wherever they are multiplied.
    pub struct QatQuantizerConfig {
        /// Weights of a row that share a scale; it divides the inputs of every layer that is quantised.
        pub groupsize: usize [2..] = 256,
    }
}

/// The `quantizer` section of a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantizer(pub FakeQuant);

impl FromNode for Quantizer {
    fn expected() -> String {
        "a section with `_component_`, the name of a quantizer".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let of_weights = node.component_name().filter(|name| QUANTIZERS.is_not_built(name));
        if let (Some(name), Some(component)) = (of_weights, node.get("_component_")) {
            problems
                .refuse(component, format!("`{name}` quantises finished weights, and this recipe trains"))
                .hint("name a quantizer with `QAT` in its name");
            return None;
        }
        let scheme = QUANTIZERS.choose(node, problems)?;
        let group_size = QatQuantizerConfig::check(node, problems)?.groupsize;
        Some(Self(FakeQuant { scheme, group_size }))
    }
}

/// Components of `quantizer`.
pub(crate) const QUANTIZERS: Names<Scheme> = Names {
    role: "quantizer",
    built: &[
        (&["torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"], Scheme::Int8Int4),
        (&["torchtune.training.quantization.Int8DynActInt4WeightQATQuantizerModuleSwap"], Scheme::Int8Int4),
        (&["torchtune.training.quantization.Int4WeightOnlyQATQuantizer"], Scheme::Int4),
        (&["torchtune.training.quantization.Int4WeightOnlyQATQuantizerModuleSwap"], Scheme::Int4),
    ],
    not_built: &[
        "torchtune.training.quantization.Int8DynActInt4WeightQuantizer",
        "torchtune.training.quantization.Int4WeightOnlyQuantizer",
    ],
};

/// Components of `tensor_parallel_plan`.
pub(crate) const TENSOR_PARALLEL_PLANS: Names<Check<()>> = not_built(
    "tensor-parallel plan",
    &["torchtune.models.llama3.base_llama_tp_plan", "torchtune.models.llama4.decoder_only_tp_plan"],
);

/// Components that turn a row into messages or tensors: `transform` of a dataset and its like.
pub(crate) const TRANSFORMS: Names<Check<()>> = not_built(
    "transform",
    &[
        "torchtune.datasets.multimodal.the_cauldron_transform",
        "torchtune.data.InputOutputToMessages",
        "torchtune.data.AlpacaToMessages",
        "torchtune.data.ShareGPTToMessages",
        "torchtune.data.OpenAIToMessages",
        "torchtune.data.ChosenRejectedToMessages",
    ],
);

/// Components of the list `reward_functions`.
pub(crate) const REWARD_FUNCTIONS: Names<Check<()>> = not_built(
    "reward function",
    &[
        "torchtune.dev.rl.rewards.FormattedMathCorrectnessReward",
        "torchtune.dev.rl.rewards.ThinkingAnswerFormattingReward",
    ],
);

/// What `collate_fn` may name, and what it makes batches of.
pub(crate) const COLLATORS: Names<ItemKind> = Names {
    role: "batching function",
    built: &[
        (&["torchtune.data.padded_collate_sft"], ItemKind::Rows),
        (&["torchtune.data.padded_collate_packed"], ItemKind::Rows),
        (&["torchtune.data.padded_collate_dpo"], ItemKind::Pairs),
    ],
    not_built: &[
        "torchtune.data.padded_collate",
        "torchtune.data.padded_collate_tiled_images_and_mask",
        "torchtune.data.left_pad_sequence",
        "torchtune.dev.grpo.data.padded_collate_rl",
    ],
};

/// The seed of a run: the config's, or a random one that is told.
pub(crate) fn seed(given: Option<u64>, console: Console) -> u64 {
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = u64::from(now.subsec_nanos()) ^ (now.as_secs() << 12) & 0xffff_ffff;
        console.info(&format!("Using seed {seed}; `seed={seed}` gives the same run."));
        seed
    })
}

/// Opens the tokenizer of a section; without one, the folder's own.
pub(crate) fn open_tokenizer(section: Option<&TokenizerConfig>, folder: &ModelFolder) -> Result<ModelTokenizer> {
    let vocabulary = folder.gguf_vocabulary();
    let of_folder = || {
        let path = vocabulary.is_none().then(|| folder.dir().to_path_buf());
        TokenizerConfig::Auto(AutoTokenizerConfig { path, ..AutoTokenizerConfig::default() })
    };
    let config = match section {
        None => of_folder(),
        // `auto` without a path means the checkpoint's own tokenizer.
        Some(TokenizerConfig::Auto(auto)) if auto.path.is_none() && vocabulary.is_none() => {
            TokenizerConfig::Auto(AutoTokenizerConfig { path: Some(folder.dir().to_path_buf()), ..auto.clone() })
        }
        Some(config) => config.clone(),
    };
    Ok(config.build(vocabulary.as_ref())?)
}

/// Files that a folder made from a GGUF source needs beside its weights.
pub(crate) fn made_files(vocabulary: Option<&GgufVocab>) -> Result<SideFiles> {
    let Some(vocabulary) = vocabulary else { return Ok(Vec::new()) };
    Ok(vec![
        ("tokenizer.json".to_owned(), vocabulary.to_tokenizer_json()?),
        ("tokenizer_config.json".to_owned(), vocabulary.to_tokenizer_config_json()?),
    ])
}

/// Checks that there is something to learn, that the model has a row of its embedding for every token, and that it sees every
/// row of the data whole.
pub(crate) fn check_rows(dataset: &Dataset, model: &DecoderConfig) -> Result<()> {
    if !dataset.has_labels() && !dataset.is_empty() {
        return Err(Error::NothingToLearn { num_rows: dataset.len() });
    }
    if let Some(token) = dataset.max_token().filter(|&t| t as usize >= model.vocab_size) {
        return Err(Error::TokenOutside { token, vocab_size: model.vocab_size });
    }
    let (found, limit) = (dataset.max_row_len(), model.max_position_embeddings);
    if found > limit {
        return Err(Error::RowTooLong { place: dataset.longest_row().cloned(), found, limit });
    }
    Ok(())
}

/// Saves the config as it was merged, so that the run can be repeated.
pub(crate) fn save_config(output_dir: &Path, config: &Merged) -> Result<()> {
    let path = output_dir.join("torchtune_config.yaml");
    let write = || {
        std::fs::create_dir_all(output_dir)?;
        std::fs::write(&path, config.to_yaml(config::Order::File))
    };
    write().map_err(|source| Error::Write { path: path.clone(), source })
}

/// Refuses devices that this version cannot compute on.
pub(crate) fn check_device(config: &Merged, problems: &mut Problems) {
    let Some(node) = config.root().at("device") else { return };
    // What is no text is reported with the other types.
    if node.as_str().is_some_and(|device| !["auto", "cpu"].contains(&device)) {
        problems.wrong_value(node, "`auto` or `cpu` in this version").hint("`device=auto` takes what is there");
    }
}

/// Refuses packs without a length.
pub(crate) fn check_packing(config: &Merged, problems: &mut Problems) {
    let Some(dataset) = config.root().at("dataset") else { return };
    let is_set = |length: &Node| !length.is_null() || length.is_broken();
    let has_length = config.root().at("tokenizer.max_seq_len").is_some_and(is_set);
    if has_length || config.root().at("tokenizer").is_some_and(Node::is_broken) {
        return;
    }
    let sections = dataset.as_list().unwrap_or(std::slice::from_ref(dataset));
    for packed in sections.iter().filter_map(|section| section.get("packed")) {
        if *packed.value() == config::Value::Bool(true) {
            problems
                .refuse(packed, "`packed: True` needs `tokenizer.max_seq_len`, the length of a pack")
                .hint("set it in tokens, such as `tokenizer.max_seq_len=2048`");
        }
    }
}

/// Refuses a `model_type` of a family that no model of this version belongs to, in the checkpointer behind `key`.
pub(crate) fn check_model_type(key: &str, config: &Merged, problems: &mut Problems) {
    let Some(node) = config.root().at(&format!("{key}.model_type")).filter(|node| !node.is_null()) else { return };
    // What is no kind of model is reported with the other values.
    let kind = ModelType::from_node(node, &mut Problems::new());
    if let Some(kind) = kind.filter(|kind| family_of(*kind).is_none()) {
        problems.push(Problem {
            key: node.path().to_owned(),
            origin: node.origin().clone(),
            kind: ProblemKind::NotAvailable { role: "model type", name: kind.to_string() },
            hint: Some("leave it out: the folder says what it holds".to_owned()),
        });
    }
}

/// Refuses to write into the folders that models are read from.
pub(crate) fn check_output_dirs(
    checkpointer: &Checkpointer,
    other_models: Option<&Checkpointer>,
    output_dir: Option<&Path>,
    log_dir: Option<&Path>,
    profile_dir: Option<&Path>,
    config: &Merged,
    problems: &mut Problems,
) {
    let own = ("checkpointer.output_dir", Some(checkpointer.0.output_dir.as_path()));
    let read: Vec<&Path> =
        [Some(checkpointer), other_models].into_iter().flatten().map(|read| read.0.checkpoint_dir.as_path()).collect();
    let others = [("metric_logger.log_dir", log_dir), ("profiler.output_dir", profile_dir)];
    for (key, dir) in [("output_dir", output_dir), own].into_iter().chain(others) {
        let (Some(dir), Some(node)) = (dir, config.root().at(key)) else { continue };
        let error = checkpoint::check_not_inside(dir, &read);
        if let Err(error @ checkpoint::Error::OutputInsideCheckpoint { .. }) = error {
            let problem = problems.refuse(node, error.to_string().replace("\n  ", ": "));
            if let Some(hint) = error.hint() {
                problem.hint(hint);
            }
            // The others usually lie in this one.
            return;
        }
    }
}

/// Refuses batching functions that would batch otherwise than here.
pub(crate) fn check_collate(config: &Merged, takes: ItemKind, problems: &mut Problems) {
    let Some(node) = config.root().at("collate_fn").filter(|node| node.as_str().is_some()) else { return };
    if let Some(kind) = COLLATORS.look_up(node, problems).filter(|kind| *kind != takes) {
        problems
            .refuse(node, format!("it makes batches of {}, and the recipe trains on {}", kind.plural(), takes.plural()))
            .hint("remove `collate_fn`");
    }
}

/// Refuses datasets of another kind than a recipe takes.
pub(crate) fn check_dataset(config: &Merged, recipe: &str, takes: ItemKind, problems: &mut Problems) {
    let Some(node) = config.root().at("dataset") else { return };
    for section in node.as_list().unwrap_or(std::slice::from_ref(node)) {
        let (Some(component), Some(name)) = (section.get("_component_"), section.component_name()) else { continue };
        let holds = match (DATASETS.find(name), PREFERENCE_DATASETS.find(name)) {
            (Some(_), _) => ItemKind::Rows,
            (_, Some(_)) => ItemKind::Pairs,
            _ => continue,
        };
        let already = problems.iter().any(|problem| problem.key == component.path());
        if holds != takes && !already {
            let (holds, wants) = (holds.plural(), takes.plural());
            let problem =
                problems.refuse(component, format!("`{name}` holds {holds}, and recipe `{recipe}` trains on {wants}"));
            problem.hint(match takes {
                ItemKind::Rows => "run a recipe with `dpo` in its name, or name a dataset such as `torchtune.datasets.instruct_dataset`",
                ItemKind::Pairs => "name a dataset of pairs, such as `torchtune.datasets.preference_dataset`",
            });
        }
    }
}

/// Refuses losses of another kind of recipe.
pub(crate) fn check_loss_kind(config: &Merged, recipe: &str, takes: ItemKind, problems: &mut Problems) {
    let Some(node) = config.root().at("loss") else { return };
    let (Some(component), Some(name)) = (node.get("_component_"), node.component_name()) else { return };
    // What else is wrong with it is reported with the other values.
    let of = match Loss::from_node(node, &mut Problems::new()) {
        Some(Loss::NextToken(_)) => ItemKind::Rows,
        Some(Loss::Preference(_)) => ItemKind::Pairs,
        None => return,
    };
    if of != takes {
        let (of, wants) = (of.plural(), takes.plural());
        let problem =
            problems.refuse(component, format!("`{name}` is a loss of {of}, and recipe `{recipe}` trains on {wants}"));
        problem.hint(match takes {
            ItemKind::Rows => "remove `loss`, which is cross entropy then",
            ItemKind::Pairs => "set `loss._component_=torchtune.rlhf.loss.DPOLoss`",
        });
    }
}

/// One line for each key that is set and concerns PyTorch alone.
pub(crate) fn notice_torch_only_keys(config: &Merged, problems: &mut Problems) {
    let root = config.root();
    let is_set = |key: &str| {
        let node = root.at(key).filter(|node| !node.is_null());
        node.is_some_and(|node| !matches!(node.value(), config::Value::Bool(false)))
    };
    for key in ["compile", "cudnn_deterministic_mode", "memory_efficient_fsdp_wrap"] {
        if is_set(key) {
            problems.notice(format!("`{key}` has no effect: it concerns PyTorch alone"));
        }
    }
}
