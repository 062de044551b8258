//! The dataset builders of torchtune by name: typed configs, and the plan each comes down to.
//!
//! Errors:  config problems go to `config::Problems`; `Error::ColumnMap` when a plan is made. Panics: never.
//! Checked: `conformance/data/datasets.jsonl`; `tests/builders.rs`.

use std::collections::BTreeMap;

use config::{FromNode, Names, Node, Problems, most_alike};

use crate::plan::{Layout, Plan, PreferencePlan};
use crate::source::{DataFiles, SourceConfig};
use crate::split::Split;
use crate::transform::{PreferenceTransform, Transform, TransformOptions};
use crate::{Error, Result};

/// Names of columns by what they hold.
type ColumnMap = BTreeMap<String, String>;

/// Declares a builder's config: the keys that say where rows come from, then its own.
macro_rules! dataset_config {
    ($(#[doc = $about:expr])* $Name:ident { source $(= $source:expr)?; $($own:tt)* }) => {
        config::component! {
            $(#[doc = $about])*
            pub struct $Name {
                /// Where rows come from: `json`, `csv`, `parquet` or `text` with `data_files`, a file, a folder of data files,
                /// or the id of a dataset repository on a hub (`owner/name`).
                pub source: String $(= $source)?,
                /// Config of the dataset: one that its `README.md` names, or a folder; `null` = the default one.
                pub name: Option<String> = None,
                /// File or list of files to read (`*`, `**`, `?`, `[...]` stand for several), or a section with files for each
                /// split; `null` = those of `source`.
                pub data_files: Option<DataFiles> = None,
                /// Folder that `data_files` are relative to; `null` = the working directory, or the top of the dataset.
                pub data_dir: Option<String> = None,
                /// Branch, tag or commit of a dataset repository; `null` = `main`.
                pub revision: Option<String> = None,
                /// Character between the cells of CSV files; `null` = `,`, or a tab in `.tsv` files.
                pub delimiter: Option<String> = None,
                /// Rows to take: `train`, `train[:1000]`, `train[95%:]`, `train+test`.
                pub split: String = "train".into(),
                $($own)*
            }
        }

        impl $Name {
            fn rows(&self) -> SourceConfig {
                SourceConfig {
                    source: self.source.clone(),
                    name: self.name.clone(),
                    data_files: self.data_files.clone(),
                    data_dir: self.data_dir.clone(),
                    revision: self.revision.clone(),
                    delimiter: self.delimiter.clone(),
                    split: self.split.clone(),
                    hub: None,
                }
            }
        }
    };
}

dataset_config! {
    /// Rows of an input and an output, taken as one user and one assistant message.
    InstructConfig {
        source;
        /// Columns of `input` and `output`; `null` = columns of these names.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the input too, default false.
        pub train_on_input: bool = false,
        /// System message put before each row; `null` = none.
        pub new_system_prompt: Option<String> = None,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

dataset_config! {
    /// Rows of a whole conversation.
    ChatConfig {
        source;
        /// Column that holds the list of messages.
        pub conversation_column: String,
        /// How messages are written: `sharegpt` (`from`, `value`) or `openai` (`role`, `content`).
        pub conversation_style: ConversationStyle,
        /// Whether to train on the user's messages too, default false.
        pub train_on_input: bool = false,
        /// System message put in place of each row's own; `null` = keep those.
        pub new_system_prompt: Option<String> = None,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

config::choice! {
    /// How the messages of a conversation are written.
    pub enum ConversationStyle {
        /// `{from: system|human|gpt, value: ...}`.
        ShareGpt = "sharegpt",
        /// `{role: system|user|assistant|..., content: ...}`.
        OpenAi = "openai",
    }
}

dataset_config! {
    /// Rows of an instruction, an optional input and an output, put into the Alpaca prompt.
    AlpacaConfig {
        source = "tatsu-lab/alpaca".into();
        /// Columns of `instruction`, `input` (may be left out) and `output`; `null` = columns of these names.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the prompt too, default true, unlike other builders.
        pub train_on_input: bool = true,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

dataset_config! {
    /// The corrected Alpaca rows; as the Alpaca dataset in everything else.
    AlpacaCleanedConfig {
        source = "yahma/alpaca-cleaned".into();
        /// Columns of `instruction`, `input` (may be left out) and `output`; `null` = columns of these names.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the prompt too, default true, unlike other builders.
        pub train_on_input: bool = true,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

dataset_config! {
    /// Dialogues and their summaries.
    SamsumConfig {
        source = "Samsung/samsum".into();
        /// Columns of `input` and `output`; `null` = `dialogue` and `summary`.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the dialogue too, default false.
        pub train_on_input: bool = false,
        /// System message put before each row; `null` = none.
        pub new_system_prompt: Option<String> = None,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

dataset_config! {
    /// Sentences and their corrected form.
    GrammarConfig {
        source = "liweili/c4_200m".into();
        /// Columns of `input` and `output`; `null` = columns of these names.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the input too, default false.
        pub train_on_input: bool = false,
        /// System message put before each row; `null` = none.
        pub new_system_prompt: Option<String> = None,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

dataset_config! {
    /// Conversations with `from` and `value`.
    SlimOrcaConfig {
        source = "Open-Orca/SlimOrca-Dedup".into();
        /// Column of `conversations`; `null` = the column of this name.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the user's messages too, default false.
        pub train_on_input: bool = false,
        /// System message put in place of each row's own; `null` = keep those.
        pub new_system_prompt: Option<String> = None,
        /// Whether to lay rows end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
    }
}

dataset_config! {
    /// Plain text, all of it trained on.
    TextCompletionConfig {
        source;
        /// Column that holds the text.
        pub column: String = "text".into(),
        /// Whether to end each text with the tokenizer's end-of-sequence token, default true.
        pub add_eos: bool = true,
        /// Whether to lay texts end to end up to the tokenizer's `max_seq_len`, default false.
        pub packed: bool = false,
        /// Whether a text that does not fit a pack goes on in the next, default true.
        pub split_across_pack: bool = true,
    }
}

dataset_config! {
    /// Pairs of conversations, one better than the other.
    PreferenceConfig {
        source;
        /// Columns of `chosen` and `rejected`; `null` = columns of these names.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the user's messages too, default false.
        pub train_on_input: bool = false,
        /// System message put in place of each conversation's own; `null` = keep those.
        pub new_system_prompt: Option<String> = None,
    }
}

dataset_config! {
    /// Helpfulness comparisons; as the preference dataset in everything else.
    HhRlhfHelpfulConfig {
        source = "RLHFlow/HH-RLHF-Helpful-standard".into();
        /// Columns of `chosen` and `rejected`; `null` = columns of these names.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the user's messages too, default false.
        pub train_on_input: bool = false,
        /// System message put in place of each conversation's own; `null` = keep those.
        pub new_system_prompt: Option<String> = None,
    }
}

dataset_config! {
    /// Questions with a better and a worse answer.
    StackExchangePairedConfig {
        source = "lvwerra/stack-exchange-paired".into();
        /// Columns of `prompt`, `chosen` and `rejected`; `null` = `question`, `response_j` and `response_k`.
        pub column_map: Option<ColumnMap> = None,
        /// Whether to train on the question too, default false.
        pub train_on_input: bool = false,
    }
}

/// The config of a dataset for supervised training.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetConfig {
    /// `torchtune.datasets.instruct_dataset`.
    Instruct(InstructConfig),
    /// `torchtune.datasets.chat_dataset`.
    Chat(ChatConfig),
    /// `torchtune.datasets.alpaca_dataset`.
    Alpaca(AlpacaConfig),
    /// `torchtune.datasets.alpaca_cleaned_dataset`.
    AlpacaCleaned(AlpacaCleanedConfig),
    /// `torchtune.datasets.samsum_dataset`.
    Samsum(SamsumConfig),
    /// `torchtune.datasets.grammar_dataset`.
    Grammar(GrammarConfig),
    /// `torchtune.datasets.slimorca_dataset`.
    SlimOrca(SlimOrcaConfig),
    /// `torchtune.datasets.text_completion_dataset`.
    TextCompletion(TextCompletionConfig),
}

/// The config of a dataset of pairs.
#[derive(Debug, Clone, PartialEq)]
pub enum PreferenceDatasetConfig {
    /// `torchtune.datasets.preference_dataset`.
    Preference(PreferenceConfig),
    /// `torchtune.datasets.hh_rlhf_helpful_dataset`.
    HhRlhfHelpful(HhRlhfHelpfulConfig),
    /// `torchtune.datasets.stack_exchange_paired_dataset`.
    StackExchangePaired(StackExchangePairedConfig),
}

/// Reads the section of one builder.
type Check<T> = fn(&Node, &mut Problems) -> Option<T>;

/// Components of `dataset` in supervised recipes.
pub const DATASETS: Names<Check<DatasetConfig>> = Names {
    role: "dataset",
    built: &[
        (&["torchtune.datasets.alpaca_dataset"], |n, p| AlpacaConfig::check(n, p).map(DatasetConfig::Alpaca)),
        (&["torchtune.datasets.instruct_dataset"], |n, p| InstructConfig::check(n, p).map(DatasetConfig::Instruct)),
        (&["torchtune.datasets.chat_dataset"], |n, p| ChatConfig::check(n, p).map(DatasetConfig::Chat)),
        (&["torchtune.datasets.text_completion_dataset"], |n, p| {
            TextCompletionConfig::check(n, p).map(DatasetConfig::TextCompletion)
        }),
        (&["torchtune.datasets.alpaca_cleaned_dataset"], |n, p| {
            AlpacaCleanedConfig::check(n, p).map(DatasetConfig::AlpacaCleaned)
        }),
        (&["torchtune.datasets.samsum_dataset"], |n, p| SamsumConfig::check(n, p).map(DatasetConfig::Samsum)),
        (&["torchtune.datasets.grammar_dataset"], |n, p| GrammarConfig::check(n, p).map(DatasetConfig::Grammar)),
        (&["torchtune.datasets.slimorca_dataset"], |n, p| SlimOrcaConfig::check(n, p).map(DatasetConfig::SlimOrca)),
    ],
    not_built: &[
        "torchtune.datasets.cnn_dailymail_articles_dataset",
        "torchtune.datasets.wikitext_dataset",
        "torchtune.datasets.multimodal.the_cauldron_dataset",
        "torchtune.datasets.multimodal.llava_instruct_dataset",
        "torchtune.datasets.multimodal.multimodal_chat_dataset",
        "torchtune.datasets.multimodal.vqa_dataset",
        "torchtune.datasets.SFTDataset",
        "torchtune.datasets.TextCompletionDataset",
        "torchtune.datasets.ConcatDataset",
        "torchtune.datasets.PackedDataset",
        "torchtune.dev.grpo.gsm8k.gsm8k_dataset",
        "torchtune.dev.grpo.gsm8k.gsm8k_sft",
        "torchtune.dev.rl.gsm8k.gsm8k_dataset",
        "torchtune.dev.rl.gsm8k.gsm8k_sft",
    ],
};

/// Components of `dataset` in preference recipes.
pub const PREFERENCE_DATASETS: Names<Check<PreferenceDatasetConfig>> = Names {
    role: "preference dataset",
    built: &[
        (&["torchtune.datasets.preference_dataset"], |n, p| {
            PreferenceConfig::check(n, p).map(PreferenceDatasetConfig::Preference)
        }),
        (&["torchtune.datasets.hh_rlhf_helpful_dataset"], |n, p| {
            HhRlhfHelpfulConfig::check(n, p).map(PreferenceDatasetConfig::HhRlhfHelpful)
        }),
        (&["torchtune.datasets.stack_exchange_paired_dataset"], |n, p| {
            StackExchangePairedConfig::check(n, p).map(PreferenceDatasetConfig::StackExchangePaired)
        }),
    ],
    not_built: &["torchtune.datasets.PreferenceDataset"],
};

impl FromNode for DatasetConfig {
    fn expected() -> String {
        "a dataset section with `_component_`".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        if let (Some(name), Some(component)) = (node.component_name(), node.get("_component_"))
            && PREFERENCE_DATASETS.find(name).is_some()
        {
            problems.refuse(component, format!("`{name}` holds pairs for preference recipes"));
            return None;
        }
        let config = DATASETS.choose(node, problems)?(node, problems)?;
        match config.plan() {
            Ok(plan) => check_rows(node, &plan.rows, problems),
            Err(error) => refuse(node, "column_map", &error, problems),
        }
        Some(config)
    }
}

impl FromNode for PreferenceDatasetConfig {
    fn expected() -> String {
        "a dataset section with `_component_`".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        if let (Some(name), Some(component)) = (node.component_name(), node.get("_component_"))
            && DATASETS.find(name).is_some()
        {
            problems.refuse(component, format!("`{name}` holds single rows, not pairs for preference recipes"));
            return None;
        }
        if let Some(packed) = node.get("packed").filter(|node| *node.value() == config::Value::Bool(true)) {
            problems
                .refuse(packed, "pairs cannot be packed: the sides of a pair are compared row by row")
                .hint(format!("remove `{}`", packed.path()));
            return None;
        }
        let config = PREFERENCE_DATASETS.choose(node, problems)?(node, problems)?;
        match config.plan() {
            Ok(plan) => check_rows(node, &plan.rows, problems),
            Err(error) => refuse(node, "column_map", &error, problems),
        }
        Some(config)
    }
}

/// A list of datasets of one kind: the section is one of them, or a list that is read one after the other.
macro_rules! dataset_list {
    ($(#[$meta:meta])* $List:ident of $Config:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $List {
            /// The key of each section, `dataset` or `dataset[1]`, and the section.
            pub sections: Vec<(String, $Config)>,
        }

        impl FromNode for $List {
            fn expected() -> String {
                "a dataset section with `_component_`, or a list of them".into()
            }

            fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
                let configs = match node.as_list() {
                    Some([]) => {
                        problems.wrong_value(node, Self::expected());
                        None
                    }
                    Some(_) => Vec::from_node(node, problems),
                    None => $Config::from_node(node, problems).map(|one| vec![one]),
                };
                let nodes = node.as_list().unwrap_or(std::slice::from_ref(node));
                let keys = nodes.iter().map(|node| node.path().to_owned());
                configs.map(|configs| Self { sections: keys.zip(configs).collect() })
            }
        }
    };
}

dataset_list! {
    /// The `dataset` section of a supervised recipe.
    DatasetList of DatasetConfig
}

dataset_list! {
    /// The `dataset` section of a preference recipe.
    PreferenceDatasetList of PreferenceDatasetConfig
}

/// The `dataset` section of a recipe, of whichever kind: its first component says which. That it is the kind that the recipe takes is
/// checked by the recipe.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetSection {
    /// Single rows.
    Rows(DatasetList),
    /// Pairs of rows.
    Pairs(PreferenceDatasetList),
}

impl FromNode for DatasetSection {
    fn expected() -> String {
        DatasetList::expected()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let first = node.as_list().map_or(Some(node), <[Node]>::first);
        if first.and_then(Node::component_name).is_some_and(names_pairs) {
            PreferenceDatasetList::from_node(node, problems).map(Self::Pairs)
        } else {
            DatasetList::from_node(node, problems).map(Self::Rows)
        }
    }
}

/// Whether a component's name is that of a dataset of pairs, or most like one.
fn names_pairs(name: &str) -> bool {
    let of_pairs = |name: &str| PREFERENCE_DATASETS.find(name).is_some() || PREFERENCE_DATASETS.is_not_built(name);
    let of_rows = DATASETS.find(name).is_some() || DATASETS.is_not_built(name);
    let known = DATASETS.shown().chain(PREFERENCE_DATASETS.shown());
    of_pairs(name) || (!of_rows && most_alike(name, known, 1).first().is_some_and(|name| of_pairs(name)))
}

impl FromNode for DataFiles {
    fn expected() -> String {
        "a file, a list of files, or a section with files for each split".into()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        let files = |node: &Node, problems: &mut Problems| match node.as_list() {
            Some(_) => Vec::<String>::from_node(node, problems),
            None => String::from_node(node, problems).map(|file| vec![file]),
        };
        let Some(splits) = node.as_map() else { return files(node, problems).map(Self::Train) };
        let splits: Vec<_> =
            splits.iter().map(|(name, node)| Some((name.as_str().to_owned(), files(node, problems)?))).collect();
        splits.into_iter().collect::<Option<_>>().map(Self::Splits)
    }
}

/// What the words of a section that say where rows come from leave wrong, as far as no file needs to be looked at.
fn check_rows(section: &Node, rows: &SourceConfig, problems: &mut Problems) {
    if let Some(filter) = section.get("filter_fn").filter(|node| !node.is_null()) {
        let problem = problems.refuse(filter, "it names a Python function, which cannot be called here");
        problem.hint("leave out the rows that it refuses beforehand, and take the key away");
    }
    if let Err(error) = Split::parse(&rows.split) {
        refuse(section, "split", &error, problems);
    }
    if rows.names_only_a_format() {
        refuse(section, "source", &Error::NoDataFiles { format: rows.source.clone() }, problems);
    }
}

/// Reports an error at the key that it is about.
fn refuse(section: &Node, key: &str, error: &Error, problems: &mut Problems) {
    let problem = problems.refuse(section.get(key).unwrap_or(section), error.to_string().replace("\n  ", ": "));
    if let Some(hint) = error.hint() {
        problem.hint(hint);
    }
}

/// The column for a key: from the map if there is one, which then must have it, else `default`.
fn column(
    map: Option<&ColumnMap>,
    expected: &'static [&'static str],
    key: &'static str,
    default: &str,
) -> Result<String> {
    let Some(map) = map else { return Ok(default.to_owned()) };
    let missing = || Error::ColumnMap { key, expected, found: map.keys().cloned().collect() };
    map.get(key).cloned().ok_or_else(missing)
}

fn input_output(map: Option<&ColumnMap>, defaults: [&str; 2], options: TransformOptions) -> Result<Transform> {
    let column = |key, default| column(map, &["input", "output"], key, default);
    Ok(Transform::InputOutput { input: column("input", defaults[0])?, output: column("output", defaults[1])?, options })
}

fn alpaca(map: Option<&ColumnMap>, train_on_input: bool) -> Result<Transform> {
    let column = |key| column(map, &["instruction", "output"], key, key);
    let input = map.map_or(Some("input".to_owned()), |map| map.get("input").cloned());
    let options = TransformOptions { train_on_input, new_system_prompt: None };
    Ok(Transform::Alpaca { instruction: column("instruction")?, input, output: column("output")?, options })
}

fn chosen_rejected(map: Option<&ColumnMap>, options: TransformOptions) -> Result<PreferenceTransform> {
    let column = |key| column(map, &["chosen", "rejected"], key, key);
    Ok(PreferenceTransform::ChosenRejected { chosen: column("chosen")?, rejected: column("rejected")?, options })
}

fn options(train_on_input: bool, new_system_prompt: Option<&String>) -> TransformOptions {
    TransformOptions { train_on_input, new_system_prompt: new_system_prompt.cloned() }
}

impl DatasetConfig {
    /// What the builder does with its keys.
    pub fn plan(&self) -> Result<Plan> {
        let conversations = |rows, transform, packed: bool| {
            Ok(Plan { rows, layout: Layout::Messages(transform), packed, split_across_pack: false })
        };
        match self {
            Self::Instruct(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                conversations(c.rows(), input_output(c.column_map.as_ref(), ["input", "output"], options)?, c.packed)
            }
            Self::Grammar(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                conversations(c.rows(), input_output(c.column_map.as_ref(), ["input", "output"], options)?, c.packed)
            }
            Self::Samsum(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                conversations(
                    c.rows(),
                    input_output(c.column_map.as_ref(), ["dialogue", "summary"], options)?,
                    c.packed,
                )
            }
            Self::Alpaca(c) => conversations(c.rows(), alpaca(c.column_map.as_ref(), c.train_on_input)?, c.packed),
            Self::AlpacaCleaned(c) => {
                conversations(c.rows(), alpaca(c.column_map.as_ref(), c.train_on_input)?, c.packed)
            }
            Self::Chat(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                let column = c.conversation_column.clone();
                let transform = match c.conversation_style {
                    ConversationStyle::ShareGpt => Transform::ShareGpt { column, options },
                    ConversationStyle::OpenAi => Transform::OpenAi { column, options },
                };
                conversations(c.rows(), transform, c.packed)
            }
            Self::SlimOrca(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                let column = column(c.column_map.as_ref(), &["conversations"], "conversations", "conversations")?;
                conversations(c.rows(), Transform::ShareGpt { column, options }, c.packed)
            }
            Self::TextCompletion(c) => Ok(Plan {
                rows: c.rows(),
                layout: Layout::Text { column: c.column.clone(), add_eos: c.add_eos },
                packed: c.packed,
                split_across_pack: c.split_across_pack,
            }),
        }
    }
}

impl PreferenceDatasetConfig {
    /// What the builder does with its keys.
    pub fn plan(&self) -> Result<PreferencePlan> {
        match self {
            Self::Preference(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                Ok(PreferencePlan { rows: c.rows(), transform: chosen_rejected(c.column_map.as_ref(), options)? })
            }
            Self::HhRlhfHelpful(c) => {
                let options = options(c.train_on_input, c.new_system_prompt.as_ref());
                Ok(PreferencePlan { rows: c.rows(), transform: chosen_rejected(c.column_map.as_ref(), options)? })
            }
            Self::StackExchangePaired(c) => {
                let column =
                    |key, default| column(c.column_map.as_ref(), &["prompt", "chosen", "rejected"], key, default);
                let transform = PreferenceTransform::Paired {
                    prompt: column("prompt", "question")?,
                    chosen: column("chosen", "response_j")?,
                    rejected: column("rejected", "response_k")?,
                    options: options(c.train_on_input, None),
                };
                // The part of the dataset that the reference always takes.
                let is_whole = c.data_files.is_none() && c.data_dir.is_none() && c.name.is_none();
                let data_dir = if is_whole { Some("data/rl".to_owned()) } else { c.data_dir.clone() };
                Ok(PreferencePlan { rows: SourceConfig { data_dir, ..c.rows() }, transform })
            }
        }
    }
}
