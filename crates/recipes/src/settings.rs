//! The top-level keys of the recipes, as typed configs.

use std::path::PathBuf;

use config::{FromNode, Node, Problems};
use data::DatasetSection;
use metrics::MetricLoggerConfig;
use models::ModelSection;
use optim::{Optimizer, ScheduleConfig};
use tensor::DType;
use tokenizers::components::TokenizerConfig;

use crate::components::{Checkpointer, Loss, Quantizer};
use crate::profiling::Profiler;

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

config::choice! {
    /// Which blocks are computed twice instead of keeping their activations.
    pub enum CheckpointMode {
        /// No block.
        Nothing = "none",
        /// Every block.
        Full = "full",
        /// Every `ac_option`-th block.
        Selective = "selective",
    }
}

/// Every how many blocks one is computed twice; 0 means 1, as in the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockStride(pub usize);

impl FromNode for BlockStride {
    fn expected() -> String {
        usize::expected()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        if node.as_str() == Some("op") {
            problems
                .refuse(node, "computing single ops twice, and keeping others, is not available in this version")
                .hint("`ac_option=2` computes every second block twice");
            return None;
        }
        usize::from_node(node, problems).map(|stride| Self(stride.max(1)))
    }
}

config::choice! {
    /// Where something lives between its uses.
    pub enum Place {
        /// In the memory of the device that computes.
        Device = "device",
        /// In host memory.
        Host = "host",
        /// In files.
        Disk = "disk",
    }
}

config::component! {
    /// Where parameters, gradients and optimizer states live between their uses. On the CPU `device` and `host` are the same.
    pub struct Offload {
        /// Where parameters live: `device`, `host`, `disk`.
        pub parameters: Place = Place::Device,
        /// Where gradients live.
        pub gradients: Place = Place::Device,
        /// Where optimizer states live.
        pub optimizer: Place = Place::Device,
        /// Folder for the files of what lives on disk; `null` = `offload` in `output_dir`. They are removed when the run ends.
        pub dir: Option<PathBuf> = None,
    }
}

config::component! {
    /// Keys of the recipes that train a model: every weight or an adapter, on rows or on pairs, on one rank or several.
    pub struct FinetuneSettings {
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
        /// DPO with every weight: where the frozen reference comes from, usually the model that training starts from. An adapter needs none:
        /// its reference is the model without it.
        pub ref_checkpointer: Option<Checkpointer> = None,
        /// Continue from the newest complete checkpoint in `output_dir`.
        pub resume_from_checkpoint: bool = false,
        /// Replace what another run left in `output_dir`.
        pub overwrite_output_dir: bool = false,

        /// Adapters: save them alone, without a folder of weights that have them worked in.
        pub save_adapter_weights_only: bool = false,
        /// Adapters: concerns how PyTorch reads weights.
        pub low_cpu_ram: bool = false,

        /// QAT: how linear layers are quantised while they are trained.
        pub quantizer: Option<Quantizer> = None,
        /// QAT: optimizer steps that run with full numbers before layers are quantised; `null` = none.
        pub fake_quant_after_n_steps: Option<u64> [0..] = None,

        /// The training rows, or pairs for DPO; a list of sections is read one after the other.
        pub dataset: DatasetSection,
        /// Shuffle the rows anew each epoch, always in the same order for the same epoch.
        pub shuffle: bool = false,
        /// Rows or pairs of a micro-batch.
        pub batch_size: usize [1..],
        /// Without effect: this recipe does not validate.
        pub dataset_val: Option<Node> = None,
        /// Without effect: this recipe does not validate.
        pub batch_size_val: Option<Node> = None,
        /// Without effect: this recipe does not validate.
        pub run_val_every_n_steps: Option<Node> = None,
        /// Batching function; `torchtune.data.padded_collate_sft` is the only one for rows, `padded_collate_dpo` for pairs.
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
        /// The loss; `null` = cross entropy over unmasked tokens, for pairs DPO with its defaults.
        pub loss: Option<Loss> = None,
        /// Longest norm of all gradients together; longer ones are scaled down; `null` = no limit, `.inf` = only measure.
        pub clip_grad_norm: Option<f64> [positive_or_inf] = None,
        /// Compute the activations of blocks twice instead of keeping them; saves memory, costs time.
        pub enable_activation_checkpointing: bool = false,
        /// Keep activations in host memory; without effect where they already are.
        pub enable_activation_offloading: bool = false,

        /// Where parameters, gradients and optimizer states live between their uses.
        pub offload: Offload = Offload::default(),

        /// Several ranks: keep parameters, gradients and optimizer states in host memory; there they already are on a CPU.
        pub fsdp_cpu_offload: bool = false,
        /// Several ranks: give gathered parameters up between forward and backward; saves memory, gathers them twice.
        pub fsdp_reshard_after_forward: bool = true,
        /// Several ranks: more layers to shard by themselves; embedding and head always are.
        pub custom_sharded_layers: Option<Vec<String>> = None,
        /// Ranks that share one copy of the model; -1 = all that `data_parallel_replicate_dim` leaves.
        pub data_parallel_shard_dim: i64 [-1..] = -1,
        /// Copies of the model.
        pub data_parallel_replicate_dim: usize [1..] = 1,
        /// Ranks that share one matrix product; only 1 in this version.
        pub tensor_parallel_dim: usize [1..] = 1,
        /// How matrix products are shared; without effect while none is.
        pub tensor_parallel_plan: Option<Node> = None,
        /// Ranks that share one sequence; only 1 in this version.
        pub context_parallel_dim: usize [1..] = 1,
        /// How keys travel between ranks that share a sequence; without effect while none do.
        pub context_parallel_rotate_method: Option<Node> = None,
        /// Several ranks: which blocks are computed twice, before `enable_activation_checkpointing`; `null` = as that says.
        pub ac_mode: Option<CheckpointMode> = None,
        /// With `ac_mode: selective`: every how many blocks one is computed twice; 0 or `null` = 1.
        pub ac_option: Option<BlockStride> = None,
        /// Concerns GPUs only.
        pub activation_offloading_use_streams: Option<Node> = None,
        /// Matrix products in 8 bits; not available yet in this version.
        pub enable_fp8_training: bool = false,
        /// How numbers are scaled to 8 bits; without effect while none are.
        pub fp8_recipe_name: Option<Node> = None,

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
        /// Profiler; `null` = none.
        pub profiler: Option<Profiler> = None,
        /// Save in the background; not available yet, checkpoints are saved in the foreground.
        pub enable_async_checkpointing: bool = false,
        /// Grow the embedding to the tokenizer; not available yet in this version.
        pub resize_token_embeddings: bool = false,
        /// Concerns CUDA libraries only.
        pub cudnn_deterministic_mode: Option<Node> = None,
        /// Concerns PyTorch's sharding only.
        pub memory_efficient_fsdp_wrap: Option<Node> = None,
    }
}

impl FinetuneSettings {
    /// What the model is, without its folder.
    pub(crate) fn model_section(&self) -> ModelSection {
        ModelSection {
            fake_quant: self.quantizer.map(|quantizer| quantizer.0),
            ..self.model.clone().unwrap_or_default()
        }
    }

    /// The adapter to start from, if the user names one.
    pub(crate) fn adapter(&self) -> Option<&PathBuf> {
        self.checkpointer.0.adapter_to_load()
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
