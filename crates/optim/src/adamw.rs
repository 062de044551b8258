//! AdamW as several packages configure it; the formulas are in [`tensor::ops::adamw`] and [`tensor::ops::adamw8bit`].
//!
//! The packages differ in how moments are stored. `torch.optim` keeps them in the weights' format, `bitsandbytes` in f32 whatever
//! that is, or, as `torchao` does, in 8 bits, but for small parameters, whose moments are f32.

use config::{Node, Problems};
use tensor::DType;
use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::BLOCK;

use crate::{Place, StateSpec, StepScale, rounding};

config::component! {
    /// Adam with decoupled weight decay (`torch.optim.AdamW`); every parameter decays, norms and embeddings included.
    pub struct AdamWConfig {
        /// Learning rate.
        pub lr: f64 [0.0..] = 1e-3,
        /// Decays of the running means of gradients and of their squares, each in [0, 1).
        pub betas: [f64; 2] [0.0..1.0] = [0.9, 0.999],
        /// Added to the denominator.
        pub eps: f64 [0.0..] = 1e-8,
        /// Decoupled weight decay.
        pub weight_decay: f64 [0.0..] = 0.01,
        /// `True` is accepted and changes nothing: updates are always fused here.
        pub fused: Option<bool> = None,
        /// `True` is accepted and changes nothing, as `fused`.
        pub foreach: Option<bool> = None,
        /// Keeping the largest squared-gradient mean; only `False` is supported.
        pub amsgrad: bool = false,
        /// Round bf16 weights up or down by chance, by the run's seed, so that small updates are not lost.
        pub stochastic_rounding: bool = false,
    }
}

config::component! {
    /// AdamW of bitsandbytes: moments in f32, or in 8 bits with a scale for every 256 elements (names in `8bit`, or `optim_bits: 8`).
    /// Moments of `Paged` names are in host memory; on the CPU they always are, and `offload.optimizer` puts them in files.
    pub struct BitsAndBytesAdamWConfig {
        /// Learning rate.
        pub lr: f64 [0.0..] = 1e-3,
        /// Decays of the running means of gradients and of their squares, each in [0, 1).
        pub betas: [f64; 2] [0.0..1.0] = [0.9, 0.999],
        /// Added to the denominator.
        pub eps: f64 [0.0..] = 1e-8,
        /// Decoupled weight decay.
        pub weight_decay: f64 [0.0..] = 0.01,
        /// Keeping the largest squared-gradient mean; only `False` is supported.
        pub amsgrad: bool = false,
        /// Bits of the moments, 32 or 8; names in `8bit` have 8 whatever this says, names in `32bit` take only 32.
        pub optim_bits: u64 = 32,
        /// Further arguments in one object; only `null` is supported.
        pub args: Option<Node> = None,
        /// Parameters with fewer elements keep f32 moments where others have 8 bits.
        pub min_8bit_size: usize = 4096,
        /// Clipping by a percentile of earlier norms; only 100, which is none, is supported.
        pub percentile_clipping: u64 = 100,
        /// A scale for every 256 elements instead of one for a whole parameter; only `True` is supported.
        pub block_wise: bool = true,
        /// As the `Paged` names, which take only `True`.
        pub is_paged: Option<bool> = None,
        /// Round bf16 weights up or down by chance, by the run's seed, so that small updates are not lost. Ours.
        pub stochastic_rounding: bool = false,
    }
}

config::component! {
    /// AdamW of torchao with moments in 8 bits, with a scale for every 256 elements; parameters of fewer than 4096 elements keep f32.
    pub struct TorchaoAdamW8bitConfig {
        /// Learning rate.
        pub lr: f64 [0.0..] = 1e-3,
        /// Decays of the running means of gradients and of their squares, each in [0, 1).
        pub betas: [f64; 2] [0.0..1.0] = [0.9, 0.999],
        /// Added to the denominator.
        pub eps: f64 [0.0..] = 1e-8,
        /// Decoupled weight decay.
        pub weight_decay: f64 [0.0..] = 0.01,
        /// Keeping the largest squared-gradient mean; only `False` is supported.
        pub amsgrad: bool = false,
        /// Elements that share a scale; only 256 is supported.
        pub block_size: usize = 256,
        /// Round bf16 weights up or down by chance, by the run's seed, so that small updates are not lost.
        pub bf16_stochastic_round: bool = false,
        /// The same, under the name that it has for other optimizers.
        pub stochastic_rounding: bool = false,
    }
}

/// How moments are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moments {
    /// In the parameter's dtype.
    LikeParameter,
    /// In f32.
    F32,
    /// In 8 bits.
    EightBits {
        /// Parameters with fewer elements have f32.
        min_elements: usize,
    },
}

/// AdamW, whatever package's config asked for it.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decays of the running means of gradients and of their squares.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Whether bf16 weights are rounded by chance.
    pub stochastic_rounding: bool,
    /// How moments are stored.
    pub moments: Moments,
    /// Whether moments are asked to be in host memory.
    pub is_paged: bool,
}

impl From<AdamWConfig> for AdamW {
    fn from(config: AdamWConfig) -> Self {
        let AdamWConfig { lr, betas, eps, weight_decay, stochastic_rounding, .. } = config;
        Self { lr, betas, eps, weight_decay, stochastic_rounding, moments: Moments::LikeParameter, is_paged: false }
    }
}

impl AdamW {
    /// The states of a parameter of so many elements.
    pub(crate) fn states(&self, num_elements: usize) -> &'static [StateSpec] {
        const fn plain(name: &'static str, dtype: Option<DType>) -> StateSpec {
            StateSpec { name, dtype, elements_per_entry: 1 }
        }
        const fn absmax(name: &'static str) -> StateSpec {
            StateSpec { name, dtype: Some(DType::F32), elements_per_entry: BLOCK }
        }
        const LIKE_PARAMETER: &[StateSpec] = &[plain("exp_avg", None), plain("exp_avg_sq", None)];
        const IN_F32: &[StateSpec] = &[plain("exp_avg", Some(DType::F32)), plain("exp_avg_sq", Some(DType::F32))];
        const IN_8_BITS: &[StateSpec] = &[
            plain("exp_avg", Some(DType::U8)),
            absmax("exp_avg_absmax"),
            plain("exp_avg_sq", Some(DType::U8)),
            absmax("exp_avg_sq_absmax"),
        ];
        match self.moments {
            Moments::LikeParameter => LIKE_PARAMETER,
            Moments::EightBits { min_elements } if num_elements >= min_elements => IN_8_BITS,
            Moments::F32 | Moments::EightBits { .. } => IN_F32,
        }
    }

    /// The numbers of one step.
    pub(crate) fn numbers(&self, scale: &StepScale, place: &Place) -> AdamWStep {
        let [beta1, beta2] = self.betas;
        let StepScale { lr, step, grad_scale } = *scale;
        let rounding = rounding(self.stochastic_rounding, scale, place);
        AdamWStep { lr, beta1, beta2, eps: self.eps, weight_decay: self.weight_decay, step, grad_scale, rounding }
    }
}

/// Refuses a value that would change results and is not built, wherever it is written.
fn refuse_unless(is_supported: bool, section: &Node, key: &str, reason: &str, problems: &mut Problems) -> bool {
    if let (false, Some(node)) = (is_supported, section.get(key)) {
        problems.refuse(node, reason);
    }
    is_supported
}

const AMSGRAD: &str = "keeping the largest squared-gradient mean is not available yet in this version";

/// A section of `torch.optim.AdamW`.
pub(crate) fn check_torch(section: &Node, problems: &mut Problems) -> Option<AdamW> {
    let config = AdamWConfig::check(section, problems)?;
    refuse_unless(!config.amsgrad, section, "amsgrad", AMSGRAD, problems).then(|| config.into())
}

/// What a name of bitsandbytes says besides its keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    /// Bits of the moments; `None` = as `optim_bits` says.
    pub(crate) bits: Option<u64>,
    /// Whether it begins with `Paged`.
    pub(crate) is_paged: bool,
}

/// A section of AdamW of bitsandbytes.
pub(crate) fn check_bitsandbytes(section: &Node, problems: &mut Problems, variant: Variant) -> Option<AdamW> {
    let config = BitsAndBytesAdamWConfig::check(section, problems)?;
    let mut is_fine = true;
    let mut need = |is_supported: bool, key: &str, reason: &str| {
        is_fine &= refuse_unless(is_supported, section, key, reason, problems);
    };
    need(!config.amsgrad, "amsgrad", AMSGRAD);
    need(config.args.is_none(), "args", "only `null` is supported: give the keys themselves");
    let clips = "clipping by a percentile of earlier norms is not available; only 100, which clips nothing";
    need(config.percentile_clipping == 100, "percentile_clipping", clips);
    let block_wise = "one scale for a whole parameter is not available; only `True`, one for every 256 elements";
    need(config.block_wise, "block_wise", block_wise);
    let (bits, is_known) = match (variant.bits, config.optim_bits) {
        (Some(8), bits @ (8 | 32)) => (8, bits > 0),
        (Some(32), bits) => (32, bits == 32),
        (_, bits) => (bits, bits == 8 || bits == 32),
    };
    let known =
        if variant.bits == Some(32) { "moments of this optimizer have 32 bits" } else { "moments have 8 or 32 bits" };
    need(is_known, "optim_bits", known);
    let paged = "this optimizer is paged; take the one without `Paged` in its name";
    need(!variant.is_paged || config.is_paged != Some(false), "is_paged", paged);
    if !is_fine {
        return None;
    }
    if bits == 32 && section.get("min_8bit_size").is_some() {
        problems.notice("`optimizer.min_8bit_size` has no effect: all moments have 32 bits");
    }
    let BitsAndBytesAdamWConfig { lr, betas, eps, weight_decay, stochastic_rounding, .. } = config;
    let moments = if bits == 8 { Moments::EightBits { min_elements: config.min_8bit_size } } else { Moments::F32 };
    let is_paged = variant.is_paged || config.is_paged == Some(true);
    Some(AdamW { lr, betas, eps, weight_decay, stochastic_rounding, moments, is_paged })
}

/// A section of AdamW of torchao in 8 bits.
pub(crate) fn check_torchao(section: &Node, problems: &mut Problems) -> Option<AdamW> {
    /// torchao's choice, after bitsandbytes.
    const MIN_ELEMENTS: usize = 4096;
    let config = TorchaoAdamW8bitConfig::check(section, problems)?;
    let block_size = "only 256 elements share a scale in this version";
    let is_fine = refuse_unless(!config.amsgrad, section, "amsgrad", AMSGRAD, problems)
        & refuse_unless(config.block_size == BLOCK, section, "block_size", block_size, problems);
    let TorchaoAdamW8bitConfig { lr, betas, eps, weight_decay, .. } = config;
    let stochastic_rounding = config.stochastic_rounding || config.bf16_stochastic_round;
    let moments = Moments::EightBits { min_elements: MIN_ELEMENTS };
    is_fine.then_some(AdamW { lr, betas, eps, weight_decay, stochastic_rounding, moments, is_paged: false })
}
