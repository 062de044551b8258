//! The top-level keys of the recipes, as typed configs.

use std::path::PathBuf;

use config::Node;
use data::DatasetList;
use metrics::MetricLoggerConfig;
use models::ModelSection;
use optim::{Optimizer, ScheduleConfig};
use tensor::DType;
use tokenizers::components::TokenizerConfig;

use crate::components::{Checkpointer, Loss, Profiler};

config::choice! {
    /// Number format of weights, gradients and optimizer states.
    pub enum Precision {
        /// 32-bit floating point.
        Fp32 = "fp32",
        /// bfloat16, with sums in 32 bits.
        Bf16 = "bf16",
    }
}

impl Precision {
    /// The element type of tensors.
    pub fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Bf16 => DType::Bf16,
        }
    }
}

config::component! {
    /// Keys of `full_finetune_single_device`.
    pub struct FullFinetuneSettings {
        /// Folder for checkpoints, logs and the saved config; made if it is not there.
        pub output_dir: PathBuf,
        /// Where to compute: `auto` or `cpu`; `null` = `auto`.
        pub device: Option<String> = None,
        /// Number format of weights, gradients and optimizer states; `null` = `fp32`.
        pub dtype: Option<Precision> = None,
        /// Seed of everything random but the order of rows, from 0; `null` = a random one, printed.
        pub seed: Option<u64> [0..=4294967295i64] = None,

        /// The model: a builder, or `ferrotune.models.auto` for what the checkpoint folder holds.
        pub model: Option<ModelSection> = None,
        /// The tokenizer; `null` = `ferrotune.tokenizers.auto` on the checkpoint folder.
        pub tokenizer: Option<TokenizerConfig> = None,
        /// Where weights come from and go to.
        pub checkpointer: Checkpointer,
        /// Continue from the newest complete checkpoint in `output_dir`.
        pub resume_from_checkpoint: bool = false,
        /// Replace what another run left in `output_dir`.
        pub overwrite_output_dir: bool = false,

        /// The training rows; a list of sections is read one after the other.
        pub dataset: DatasetList,
        /// Shuffle the rows anew each epoch, always in the same order for the same epoch.
        pub shuffle: bool = false,
        /// Rows of a micro-batch.
        pub batch_size: usize [1..],
        /// Without effect: this recipe does not validate.
        pub dataset_val: Option<Node> = None,
        /// Without effect: this recipe does not validate.
        pub batch_size_val: Option<Node> = None,
        /// Without effect: this recipe does not validate.
        pub run_val_every_n_steps: Option<Node> = None,
        /// Batching function; `torchtune.data.padded_collate_sft` is the only one, packed rows need none.
        pub collate_fn: Option<String> = None,

        /// Passes over the rows.
        pub epochs: usize [1..] = 1,
        /// Optimizer steps of an epoch at most; `null` = no limit.
        pub max_steps_per_epoch: Option<usize> [1..] = None,
        /// Micro-batches whose gradients make one optimizer step.
        pub gradient_accumulation_steps: usize [1..] = 1,
        /// The optimizer.
        pub optimizer: Optimizer,
        /// Update each unit as soon as its gradients are complete; saves the memory of gradients.
        pub optimizer_in_bwd: bool = false,
        /// Learning-rate schedule; `null` = constant.
        pub lr_scheduler: Option<ScheduleConfig> = None,
        /// The loss; `null` = cross entropy over unmasked tokens.
        pub loss: Option<Loss> = None,
        /// Longest norm of all gradients together; longer ones are scaled down; `null` = no limit, `.inf` = only measure.
        pub clip_grad_norm: Option<f64> [positive] = None,
        /// Compute the activations of blocks twice instead of keeping them; saves memory, costs time.
        pub enable_activation_checkpointing: bool = false,
        /// Keep activations in host memory; without effect where they already are.
        pub enable_activation_offloading: bool = false,

        /// Where metrics are logged; `null` = nowhere.
        pub metric_logger: Option<MetricLoggerConfig> = None,
        /// Optimizer steps from one log line to the next; `null` = 1.
        pub log_every_n_steps: Option<u64> [1..] = None,
        /// Log the peak of resident memory, in GiB.
        pub log_peak_memory_stats: bool = false,
        /// How much is said: `DEBUG`, `INFO`, `WARNING`, `ERROR`.
        pub log_level: String [one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR")] = "INFO".to_owned(),
        /// Optimizer steps from one checkpoint to the next; `null` = one at the end of each epoch.
        pub save_every_n_steps: Option<u64> [1..] = None,

        /// Compile the model; there is nothing to compile here.
        pub compile: Option<Node> = None,
        /// Profiler; not available yet in this version.
        pub profiler: Option<Profiler> = None,
        /// Save in the background; not available yet, checkpoints are saved in the foreground.
        pub enable_async_checkpointing: bool = false,
        /// Grow the embedding to the tokenizer; not available yet in this version.
        pub resize_token_embeddings: bool = false,
        /// Concerns CUDA libraries only.
        pub cudnn_deterministic_mode: Option<Node> = None,
    }
}

config::component! {
    /// What `generate` is asked.
    pub struct PromptSettings {
        /// System message; `null` = none.
        pub system: Option<String> = None,
        /// The user's message.
        pub user: String,
    }
}

config::component! {
    /// Keys of `generate`.
    pub struct GenerateSettings {
        /// Not used; other keys may refer to it.
        pub output_dir: Option<PathBuf> = None,
        /// Where to compute: `auto` or `cpu`; `null` = `auto`.
        pub device: Option<String> = None,
        /// Number format of weights; `null` = `fp32`.
        pub dtype: Option<Precision> = None,
        /// Seed of sampling, from 0; `null` = a random one, printed.
        pub seed: Option<u64> [0..=4294967295i64] = None,
        /// The model: a builder, or `ferrotune.models.auto` for what the checkpoint folder holds.
        pub model: Option<ModelSection> = None,
        /// The tokenizer; `null` = `ferrotune.tokenizers.auto` on the checkpoint folder.
        pub tokenizer: Option<TokenizerConfig> = None,
        /// Where weights come from.
        pub checkpointer: Checkpointer,
        /// What is asked.
        pub prompt: PromptSettings,
        /// Most tokens of the answer.
        pub max_new_tokens: usize [1..] = 300,
        /// Divides the logits before sampling; 0 = always the likeliest token.
        pub temperature: f64 [0.0..] = 1.0,
        /// Sample among the likeliest k tokens only; `null` = among all.
        pub top_k: Option<usize> [1..] = None,
        /// Keep keys and values of earlier tokens; without it every token costs a full pass.
        pub enable_kv_cache: bool = true,
        /// Quantised weights; not available yet in this version.
        pub quantizer: Option<Node> = None,
        /// How much is said: `DEBUG`, `INFO`, `WARNING`, `ERROR`.
        pub log_level: String [one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR")] = "INFO".to_owned(),
        /// Concerns CUDA libraries only.
        pub cudnn_deterministic_mode: Option<Node> = None,
    }
}
