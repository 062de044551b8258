//! SGD's config; the formula is in [`tensor::ops::sgd`].

use tensor::ops::sgd::SgdStep;

use crate::{Place, StepScale, rounding};

config::component! {
    /// Stochastic gradient descent (`torch.optim.SGD`).
    pub struct SgdConfig {
        /// Learning rate.
        pub lr: f64 [0.0..] = 1e-3,
        /// Decay of the momentum buffer; 0 = no buffer.
        pub momentum: f64 [0.0..] = 0.0,
        /// Part of the gradient kept out of the momentum buffer.
        pub dampening: f64 = 0.0,
        /// Weight decay, added to the gradient.
        pub weight_decay: f64 [0.0..] = 0.0,
        /// Nesterov momentum; needs a momentum.
        pub nesterov: bool = false,
        /// Climb instead of descend.
        pub maximize: bool = false,
        /// `True` is accepted and changes nothing: updates are always fused here.
        pub fused: Option<bool> = None,
        /// `True` is accepted and changes nothing, as `fused`.
        pub foreach: Option<bool> = None,
        /// Round bf16 weights up or down by chance, by the run's seed, so that small updates are not lost.
        pub stochastic_rounding: bool = false,
    }
}

impl SgdConfig {
    /// The numbers of one step.
    pub(crate) fn numbers(&self, scale: &StepScale, place: &Place) -> SgdStep {
        SgdStep {
            lr: scale.lr,
            momentum: self.momentum,
            dampening: self.dampening,
            weight_decay: self.weight_decay,
            nesterov: self.nesterov,
            maximize: self.maximize,
            first: scale.step == 1,
            grad_scale: scale.grad_scale,
            rounding: rounding(self.stochastic_rounding, scale, place),
        }
    }
}
