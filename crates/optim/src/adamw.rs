//! AdamW's config; the formula is in [`tensor::ops::adamw`].

use tensor::ops::adamw::AdamWStep;

use crate::StepScale;

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
    }
}

impl AdamWConfig {
    /// The numbers of one step.
    pub(crate) fn numbers(&self, scale: &StepScale) -> AdamWStep {
        let [beta1, beta2] = self.betas;
        let StepScale { lr, step, grad_scale } = *scale;
        AdamWStep { lr, beta1, beta2, eps: self.eps, weight_decay: self.weight_decay, step, grad_scale }
    }
}
