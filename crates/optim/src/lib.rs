//! Optimizers, schedules and clipping as pure functions over a backend, tensors and state.
//!
//! An [`Optimizer`] knows its numbers and the names of the states it keeps for a parameter; who allocates, stores and
//! shards those states is not its business. A [`Schedule`] is a function from steps to a factor on the learning rate.

mod adamw;
mod clip;
mod components;
mod schedule;
mod sgd;

pub use adamw::AdamWConfig;
pub use clip::clip_factor;
pub use components::{OPTIMIZERS, SCHEDULES, ScheduleConfig};
pub use schedule::{CosineConfig, Schedule};
pub use sgd::SgdConfig;

use tensor::{Backend, Result, Tensor};

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

/// An optimizer of a known kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Optimizer {
    /// Adam with decoupled weight decay.
    AdamW(AdamWConfig),
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

    /// Names of the states it keeps for each parameter, which have the parameter's shape and start as zeros.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Self::AdamW(_) => &["exp_avg", "exp_avg_sq"],
            Self::Sgd(config) if config.momentum != 0.0 => &["momentum_buffer"],
            Self::Sgd(_) => &[],
        }
    }

    /// Updates `param` and its `states` (in the order of [`Optimizer::state_names`]) in place.
    pub fn step(
        &self,
        backend: &dyn Backend,
        param: &mut Tensor,
        states: &mut [Tensor],
        grad: &Tensor,
        scale: &StepScale,
    ) -> Result<()> {
        match (self, states) {
            (Self::AdamW(config), [exp_avg, exp_avg_sq]) => {
                backend.adamw_step(param, exp_avg, exp_avg_sq, grad, &config.numbers(scale))
            }
            (Self::Sgd(config), states) => backend.sgd_step(param, states.first_mut(), grad, &config.numbers(scale)),
            (Self::AdamW(_), _) => unreachable!("the caller allocates the states that `state_names` lists"),
        }
    }
}
