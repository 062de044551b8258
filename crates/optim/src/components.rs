//! Optimizers and schedules as a config names them.

use config::{FromNode, Names, Node, Problems};

use crate::{AdamWConfig, CosineConfig, Optimizer, Schedule, SgdConfig};

/// Reads the section of one component.
type Check<T> = fn(&Node, &mut Problems) -> Option<T>;

/// Components of `optimizer`.
pub const OPTIMIZERS: Names<Check<Optimizer>> = Names {
    role: "optimizer",
    built: &[(&["torch.optim.AdamW"], check_adamw), (&["torch.optim.SGD"], check_sgd)],
    not_built: &[
        "torch.optim.Adam",
        "torch.optim.Adagrad",
        "torch.optim.RMSprop",
        "bitsandbytes.optim.AdamW",
        "bitsandbytes.optim.AdamW8bit",
        "bitsandbytes.optim.PagedAdamW",
        "bitsandbytes.optim.PagedAdamW8bit",
        "torchao.optim.AdamW8bit",
        "torchao.optim.AdamW4bit",
        "torchao.optim.AdamWFp8",
        "torchao.optim.CPUOffloadOptimizer",
        "torchao.prototype.low_bit_optim.AdamW8bit",
        "torchao.prototype.low_bit_optim.AdamW4bit",
        "torchao.prototype.low_bit_optim.AdamWFp8",
        "torchao.prototype.low_bit_optim.CPUOffloadOptimizer",
    ],
};

/// Components of `lr_scheduler`.
pub const SCHEDULES: Names<Check<ScheduleConfig>> = Names {
    role: "learning-rate scheduler",
    built: &[(&["torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"], |node, problems| {
        CosineConfig::check(node, problems).map(ScheduleConfig::Cosine)
    })],
    not_built: &[],
};

fn check_adamw(node: &Node, problems: &mut Problems) -> Option<Optimizer> {
    let config = AdamWConfig::check(node, problems)?;
    if let (true, Some(key)) = (config.amsgrad, node.get("amsgrad")) {
        problems.refuse(key, "keeping the largest squared-gradient mean is not available yet in this version");
        return None;
    }
    Some(Optimizer::AdamW(config))
}

fn check_sgd(node: &Node, problems: &mut Problems) -> Option<Optimizer> {
    let config = SgdConfig::check(node, problems)?;
    if let (true, Some(key)) = (config.nesterov, node.get("nesterov"))
        && (config.momentum == 0.0 || config.dampening != 0.0)
    {
        problems.refuse(key, "Nesterov momentum needs a `momentum` and no `dampening`");
        return None;
    }
    Some(Optimizer::Sgd(config))
}

impl FromNode for Optimizer {
    fn expected() -> String {
        "a section with `_component_`, the name of an optimizer".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        OPTIMIZERS.choose(node, problems)?(node, problems)
    }
}

/// A checked `lr_scheduler` section.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleConfig {
    /// `get_cosine_schedule_with_warmup`.
    Cosine(CosineConfig),
}

impl ScheduleConfig {
    /// The schedule of a run of so many steps.
    pub fn schedule(&self, num_training_steps: u64) -> Schedule {
        match self {
            Self::Cosine(config) => Schedule::Cosine { config: config.clone(), num_training_steps },
        }
    }
}

impl FromNode for ScheduleConfig {
    fn expected() -> String {
        "a section with `_component_`, the name of a learning-rate scheduler".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        SCHEDULES.choose(node, problems)?(node, problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(yaml: &str) -> Result<Option<Optimizer>, String> {
        let run = config::Merged::from_text("run.yaml", yaml).expect("valid YAML");
        let mut problems = Problems::new();
        let optimizer = Optimizer::from_node(run.root().at("optimizer").expect("written"), &mut problems);
        problems.finish().map(|_| optimizer).map_err(|e| e.to_string())
    }

    #[test]
    fn a_section_becomes_an_optimizer_with_pytorchs_defaults() {
        let adamw = check("optimizer: {_component_: torch.optim.AdamW, lr: 2e-5, fused: True}");
        let expected = AdamWConfig { lr: 2e-5, fused: Some(true), ..AdamWConfig::default() };
        assert_eq!(adamw, Ok(Some(Optimizer::AdamW(expected.clone()))));
        assert_eq!((expected.betas, expected.eps, expected.weight_decay), ([0.9, 0.999], 1e-8, 0.01));
    }

    #[test]
    fn nesterov_without_momentum_is_refused() {
        let error = check("optimizer: {_component_: torch.optim.SGD, nesterov: True}").expect_err("refused");
        assert!(error.contains("Nesterov momentum needs a `momentum`"), "{error}");
    }
}
