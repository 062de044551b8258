//! What can end a recipe, with the exit code and the one action that helps.

use std::path::PathBuf;

use crate::memory_plan::{MemoryPlan, PartList, gib};

/// Result of a recipe.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a recipe: of a part it uses, or its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The config.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] tokenizers::Error),
    /// The rows.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The model's shape.
    #[error(transparent)]
    Model(#[from] models::Error),
    /// Files of weights and checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The logger.
    #[error(transparent)]
    Metrics(#[from] metrics::Error),
    /// The device.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// The model's shape, as its folder and the config give it.
    #[error(
        "{source}\n  {} `{}`{}",
        if *described { "in checkpoint folder" } else { "checkpoint folder" },
        dir.display(),
        if *described { "" } else { " has no `config.json`" }
    )]
    ModelFolder {
        /// The folder.
        dir: PathBuf,
        /// Whether something in it describes the model.
        described: bool,
        /// What is wrong.
        source: Box<models::Error>,
    },
    /// The device of the config is not there.
    #[error("no device `{device}` for `device`\n  expected {available}")]
    NoDevice {
        /// What the config asks for.
        device: String,
        /// What there is.
        available: String,
    },
    /// The backend could not be started.
    #[error("the cpu backend cannot start: {reason}")]
    Backend {
        /// Why.
        reason: String,
    },
    /// An environment variable has a value that means nothing.
    #[error("wrong value for the environment variable `{variable}`\n  expected {expected}, found `{found}`")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it holds.
        found: String,
    },
    /// A tokenizer or a row has an id that the model's embedding has no row for.
    #[error("token id {token} is outside of the model's vocabulary\n  expected ids below vocab_size = {vocab_size}")]
    TokenOutside {
        /// The largest id in the rows.
        token: i32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// Every label of every row is masked.
    #[error(
        "nothing to learn: no row of the dataset has an unmasked token\n  expected one at least, found {num_rows} rows that are masked whole"
    )]
    NothingToLearn {
        /// Rows.
        num_rows: usize,
    },
    /// A row is longer than the model can see.
    #[error(
        "{} is longer than the model\n  expected at most {limit} tokens = `max_position_embeddings` (`model.max_seq_len`), found {found}",
        place.as_ref().map_or("a pack".to_owned(), |place| format!("the row in {place}"))
    )]
    RowTooLong {
        /// Where the row stands; `None` for a pack.
        place: Option<data::Place>,
        /// Tokens of the longest row.
        found: usize,
        /// Tokens the model can see.
        limit: usize,
    },
    /// The loss or the gradients are not numbers any more.
    #[error(
        "loss is not finite at step {step} (loss = {}{}), training stopped before the update",
        config::python_float(*loss),
        grad_norm.map_or(String::new(), |norm| format!(", grad_norm = {}", config::python_float(norm)))
    )]
    NonFinite {
        /// The step, from 1.
        step: u64,
        /// Its loss.
        loss: f64,
        /// Its gradient norm, if it was reached.
        grad_norm: Option<f64>,
    },
    /// An update made weights infinite, NaN, or so large that their squares are.
    #[error("the norm of the weights is not finite after step {step}, they are not saved")]
    NonFiniteWeights {
        /// The step, from 1.
        step: u64,
    },
    /// [`Error::NonFinite`] or [`Error::NonFiniteWeights`], with what there is to go back to.
    #[error("{error}\n  last checkpoint: {}", last.as_ref().map_or("none".to_owned(), |path| format!("`{}`", path.display())))]
    Diverged {
        /// What happened.
        error: Box<Error>,
        /// The newest complete checkpoint of the run.
        last: Option<PathBuf>,
        /// Whether gradients were clipped.
        is_clipped: bool,
    },
    /// A checkpoint could not be written.
    #[error(transparent)]
    NotSaved {
        /// Why.
        source: Box<Error>,
    },
    /// A resumed run that has nothing left to do.
    #[error("nothing to train: `{checkpoint}` has already made {done} of {total} steps")]
    NothingLeft {
        /// The checkpoint.
        checkpoint: String,
        /// Steps it has made.
        done: u64,
        /// Steps that the config asks for.
        total: u64,
    },
    /// A checkpoint of another kind of run.
    #[error("cannot resume from `{checkpoint}`\n  {reason}")]
    CannotResume {
        /// The checkpoint.
        checkpoint: String,
        /// Why not.
        reason: String,
    },
    /// A model without weights was asked for, but nothing says how it starts.
    #[error("the checkpoint folder `{dir}` has no weights to generate with")]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// The prompt leaves no room.
    #[error("the prompt has {found} tokens\n  expected fewer than {limit} = `max_position_embeddings`")]
    PromptTooLong {
        /// Tokens of the prompt.
        found: usize,
        /// Tokens the model can see.
        limit: usize,
    },
    /// The machine has less free memory than the run needs.
    #[error(
        "not enough memory for this run: {} needed, {} free\n  {}{}",
        gib(*needed),
        gib(*free),
        PartList(plan),
        if *ranks == 1 { String::new() } else { format!(", for each of {ranks} ranks") }
    )]
    NotEnoughMemory {
        /// Bytes that all ranks of this machine need.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// What one rank needs.
        plan: Box<MemoryPlan>,
        /// Ranks of this machine.
        ranks: usize,
        /// What helps most.
        remedy: Option<Remedy>,
    },
    /// An adapter in a format that is not read.
    #[error("cannot read the adapter `{}`\n  expected a `.safetensors` file, or a folder with `adapter_model.safetensors`", path.display())]
    AdapterFile {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// An adapter of other layers or another rank than the config's.
    #[error("the adapter is not the one that the config describes: {source}")]
    AdapterShape {
        /// What differs.
        source: train::Error,
    },
    /// An adapter that another scale was trained with.
    #[error("the adapter is scaled in another way than the config says\n  expected lora_alpha / lora_rank = {wanted}, found {found} in `{}`", path.display())]
    OtherAdapter {
        /// Its config.
        path: PathBuf,
        /// What the run's config says.
        wanted: String,
        /// What the adapter's config says.
        found: String,
    },
    /// A model to compare with that is not of the shape of the one that is trained.
    #[error("the model of `ref_checkpointer` is not like the one that is trained: {source}")]
    Reference {
        /// What differs.
        source: train::Error,
    },
    /// A recipe whose memory is not planned.
    #[error("recipe `{recipe}` has no memory plan in this version")]
    NoPlan {
        /// The recipe.
        recipe: &'static str,
    },
    /// An error of one of several ranks.
    #[error("rank {rank}: {source}")]
    OfRank {
        /// The rank.
        rank: usize,
        /// What happened there.
        source: Box<Error>,
    },
    /// A bug on one of several ranks.
    #[error("rank {rank} stopped on a bug: {message}")]
    RankPanicked {
        /// The rank.
        rank: usize,
        /// The panic's message.
        message: String,
    },
    /// Processes of one run were started with different configs.
    #[error("rank {rank} has another config than rank 0\n  rank 0: {first}, rank {rank}: {other}")]
    OtherConfig {
        /// The first rank that differs.
        rank: usize,
        /// The first key that differs, on rank 0: `` `seed: 1` ``, or `` no `seed` ``.
        first: String,
        /// That key on the other rank.
        other: String,
    },
    /// A process of the run has failed, and has said why.
    #[error("rank {rank} has failed")]
    ToldByRank {
        /// The rank.
        rank: usize,
        /// The exit code of what it has said.
        exit_code: u8,
    },
    /// A micro-batch of more tokens than any machine holds.
    #[error("a micro-batch of {batch} rows of up to {tokens} tokens is too large for any machine")]
    TooManyTokens {
        /// Rows.
        batch: usize,
        /// Tokens of the longest row.
        tokens: usize,
    },
    /// The disk has less room than what is to live in files needs.
    #[error(
        "not enough room for `offload` in `{}`: {} needed, {} free",
        dir.display(),
        gib(*needed),
        gib(*free)
    )]
    NotEnoughDisk {
        /// The folder.
        dir: PathBuf,
        /// Bytes that all ranks of this machine need.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Profiles cannot be written.
    #[error("cannot write profiles to `{}`", dir.display())]
    ProfileDir {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Ranks could not exchange what they had to.
    #[error(transparent)]
    Ranks(#[from] dist::Error),
    /// A file of the recipe itself could not be written.
    #[error("cannot write `{path}`: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Settings that would bring a run's memory down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    /// As they are typed behind the config.
    pub settings: Vec<String>,
    /// Bytes that the run then needs.
    pub total: u64,
    /// Whether that is free.
    pub fits: bool,
}

/// An error as people read it: `error: …`, its causes, an empty line and the hint.
pub fn told(error: &dyn std::error::Error, hint: Option<&str>) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        let line = inner.to_string();
        // Many errors print their cause themselves.
        if !text.contains(&line) {
            text.push_str(&format!("\n  caused by: {line}"));
        }
        cause = inner.source();
    }
    if let Some(hint) = hint {
        text.push_str(&format!("\n\nhint: {hint}"));
    }
    text
}

impl Error {
    /// One action that helps, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(e) => e.hint(),
            Self::Tokenizer(e) => e.hint(),
            Self::Data(e) => e.hint(),
            Self::Model(e) => e.hint(),
            Self::ModelFolder { source, .. } => source.hint(),
            Self::Checkpoint(e) => e.hint(),
            Self::Metrics(e) => e.hint(),
            Self::NoDevice { .. } => Some("`device=auto` takes what is there".to_owned()),
            Self::TokenOutside { .. } => {
                Some("use the tokenizer that belongs to the model, or a model with a larger vocabulary".to_owned())
            }
            Self::NothingToLearn { .. } => Some(
                "raise `tokenizer.max_seq_len` if it cuts the answers off, or train on the questions too with \
                 `dataset.train_on_input=True`"
                    .to_owned(),
            ),
            Self::RowTooLong { limit, .. } => Some(format!("`tokenizer.max_seq_len={limit}` cuts longer rows")),
            Self::Diverged { last, is_clipped, .. } => {
                let begin = if last.is_some() {
                    "resume with `tune run … resume_from_checkpoint=True` and"
                } else {
                    "start again with"
                };
                let clip = if *is_clipped { "" } else { ", or `clip_grad_norm=1.0`" };
                Some(format!("{begin} a lower `optimizer.lr`{clip}"))
            }
            Self::NonFinite { .. } | Self::NonFiniteWeights { .. } => Some("lower `optimizer.lr`".to_owned()),
            Self::NotEnoughMemory { remedy, .. } => remedy.as_ref().map(|remedy| {
                let settings = remedy.settings.join(" ");
                let left = if remedy.fits { "" } else { ", still too much: take a smaller model or shorter rows" };
                let verb = if remedy.settings.len() == 1 { "brings" } else { "bring" };
                format!("`{settings}` {verb} it to {}{left}", gib(remedy.total))
            }),
            Self::OfRank { source, .. } | Self::NotSaved { source } => source.hint(),
            Self::TooManyTokens { .. } => Some("lower `batch_size`".to_owned()),
            Self::NotEnoughDisk { .. } => Some("name a folder on a larger disk as `offload.dir`".to_owned()),
            Self::ProfileDir { .. } => {
                Some("set `profiler.output_dir` to a folder you can write to, or `profiler.enabled=False`".to_owned())
            }
            Self::AdapterFile { .. } => Some("`checkpointer.adapter_checkpoint` names it as PEFT saves it".to_owned()),
            Self::OtherAdapter { .. } => {
                Some("set `model.lora_alpha` and `model.lora_rank` as the adapter was trained".to_owned())
            }
            Self::AdapterShape { .. } => {
                Some("set the `lora_` keys of `model` and `model.use_dora` as the adapter was trained".to_owned())
            }
            Self::Reference { .. } => Some(
                "name a model of the same shape as `ref_checkpointer.checkpoint_dir`, usually the one that training starts from"
                    .to_owned(),
            ),
            Self::NoPlan { .. } => Some("leave `--plan` out".to_owned()),
            Self::OtherConfig { .. } => Some("start all ranks with the same command line".to_owned()),
            Self::NothingLeft { .. } => Some("raise `epochs` or `max_steps_per_epoch` to train further".to_owned()),
            Self::CannotResume { .. } => Some(
                "start anew in another `output_dir`, with this checkpoint as `checkpointer.checkpoint_dir`".to_owned(),
            ),
            Self::NoWeights { .. } => Some("name a folder that a training run has saved".to_owned()),
            Self::PromptTooLong { .. } => Some("shorten `prompt.user`".to_owned()),
            Self::Tensor(_)
            | Self::RankPanicked { .. }
            | Self::ToldByRank { .. }
            | Self::Ranks(_)
            | Self::Write { .. }
            | Self::Backend { .. }
            | Self::Environment { .. } => None,
        }
    }

    /// 1 for a run that failed, 2 for a config or input that could not be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Data(error) => error.exit_code(),
            Self::OfRank { source, .. } => source.exit_code(),
            Self::ToldByRank { exit_code, .. } => *exit_code,
            Self::RankPanicked { .. }
            | Self::Ranks(_)
            | Self::NonFinite { .. }
            | Self::NonFiniteWeights { .. }
            | Self::Diverged { .. }
            | Self::NotSaved { .. }
            | Self::Tensor(_)
            | Self::Write { .. }
            | Self::Metrics(_) => 1,
            _ => 2,
        }
    }
}

impl From<train::Error> for Error {
    fn from(error: train::Error) -> Self {
        match error {
            train::Error::Checkpoint(e) => Self::Checkpoint(e),
            train::Error::Tensor(e) => Self::Tensor(e),
            train::Error::Ranks(e) => Self::Ranks(e),
            other => Self::Backend { reason: other.to_string() },
        }
    }
}
