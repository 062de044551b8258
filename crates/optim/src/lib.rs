//! Optimizers, schedules and clipping as pure functions over a backend, tensors and state.
//!
//! An [`Optimizer`] knows its numbers and describes the states it keeps for a parameter ([`StateSpec`]); who allocates, stores and
//! shards those states is not its business. A [`Schedule`] is a function from steps to a factor on the learning rate.

mod adamw;
mod clip;
mod components;
mod schedule;
mod sgd;

pub use adamw::{AdamW, AdamWConfig, BitsAndBytesAdamWConfig, Moments, TorchaoAdamW8bitConfig};
pub use clip::clip_factor;
pub use components::{OPTIMIZERS, SCHEDULES, ScheduleConfig};
pub use schedule::{CosineConfig, Schedule};
pub use sgd::SgdConfig;

use tensor::ops::adamw8bit::Quantised;
use tensor::ops::rounding::{RandomBits, Rounding};
use tensor::{Backend, DType, Result, Tensor};

/// What changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepScale {
    /// Learning rate of this step.
    pub lr: f64,
    /// Which step this is, from 1.
    pub step: u64,
    /// Factor on the gradients, for clipping.
    pub grad_scale: f32,
}

/// Which weights of a run an update is about, for what is drawn at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The run's seed.
    pub seed: u64,
    /// The unit that the weights belong to.
    pub unit: u32,
    /// Where the first of them is in its unit.
    pub start: u64,
}

/// A state that an optimizer keeps for a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Its name: `exp_avg`.
    pub name: &'static str,
    /// Its dtype; `None` = the parameter's.
    pub dtype: Option<DType>,
    /// Elements of the parameter that share an entry, counted from the parameter's first; 1 = the state has the parameter's shape.
    pub elements_per_entry: usize,
}

impl StateSpec {
    /// Entries for so many elements.
    pub const fn num_entries(&self, num_elements: usize) -> usize {
        num_elements.div_ceil(self.elements_per_entry)
    }
}

/// An optimizer of a known kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Optimizer {
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Stochastic gradient descent.
    Sgd(SgdConfig),
}

impl Optimizer {
    /// The learning rate of its config.
    pub fn lr(&self) -> f64 {
        match self {
            Self::AdamW(config) => config.lr,
            Self::Sgd(config) => config.lr,
        }
    }

    /// Whether it rounds bf16 weights by chance.
    pub fn rounds_by_chance(&self) -> bool {
        match self {
            Self::AdamW(config) => config.stochastic_rounding,
            Self::Sgd(config) => config.stochastic_rounding,
        }
    }

    /// Whether its states are asked to be in host memory.
    pub fn is_paged(&self) -> bool {
        matches!(self, Self::AdamW(config) if config.is_paged)
    }

    /// What `optimizer=bitsandbytes.optim.AdamW8bit` makes of it: the same with moments in 8 bits; `None` if it has none to shrink.
    pub fn in_8_bits(&self) -> Option<Self> {
        match self {
            Self::AdamW(AdamW { moments: Moments::EightBits { .. }, .. }) | Self::Sgd(_) => None,
            Self::AdamW(config) => {
                let moments = Moments::EightBits { min_elements: BitsAndBytesAdamWConfig::default().min_8bit_size };
                Some(Self::AdamW(AdamW { moments, ..config.clone() }))
            }
        }
    }

    /// The states that it keeps for a parameter of so many elements. They start as zeros.
    pub fn states(&self, num_elements: usize) -> &'static [StateSpec] {
        const MOMENTUM: &[StateSpec] = &[StateSpec { name: "momentum_buffer", dtype: None, elements_per_entry: 1 }];
        match self {
            Self::AdamW(config) => config.states(num_elements),
            Self::Sgd(config) if config.momentum != 0.0 => MOMENTUM,
            Self::Sgd(_) => &[],
        }
    }

    /// Updates weights and their `states` in place: those that [`Optimizer::states`] lists, in its order. Weights may be those of
    /// several parameters with the same states.
    pub fn step(
        &self,
        backend: &dyn Backend,
        param: &mut Tensor,
        states: &mut [Tensor],
        grad: &Tensor,
        scale: &StepScale,
        place: &Place,
    ) -> Result<()> {
        match (self, states) {
            (Self::AdamW(config), [exp_avg, exp_avg_sq]) => {
                backend.adamw_step(param, exp_avg, exp_avg_sq, grad, &config.numbers(scale, place))
            }
            (Self::AdamW(config), [bytes, absmax, sq_bytes, sq_absmax]) => {
                let (m, v) = (Quantised { bytes, absmax }, Quantised { bytes: sq_bytes, absmax: sq_absmax });
                backend.adamw8bit_step(param, m, v, grad, &config.numbers(scale, place))
            }
            (Self::Sgd(config), states) => {
                backend.sgd_step(param, states.first_mut(), grad, &config.numbers(scale, place))
            }
            (Self::AdamW(_), _) => unreachable!("the caller allocates the states that are listed"),
        }
    }
}

/// How an update rounds weights.
fn rounding(by_chance: bool, scale: &StepScale, place: &Place) -> Rounding {
    let Place { seed, unit, start } = *place;
    if by_chance { Rounding::Stochastic(RandomBits { seed, step: scale.step, unit, start }) } else { Rounding::Nearest }
}
