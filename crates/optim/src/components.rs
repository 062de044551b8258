//! Optimizers and schedules as a config names them.

use config::{FromNode, Names, Node, Problems};

use crate::adamw::{Variant, check_bitsandbytes, check_torch, check_torchao};
use crate::{CosineConfig, Optimizer, Schedule, SgdConfig};

/// Reads the section of one component.
type Check<T> = fn(&Node, &mut Problems) -> Option<T>;

/// Components of `optimizer`.
pub const OPTIMIZERS: Names<Check<Optimizer>> = Names {
    role: "optimizer",
    built: &[
        (&["torch.optim.AdamW"], |node, problems| check_torch(node, problems).map(Optimizer::AdamW)),
        (&["torch.optim.SGD"], check_sgd),
        (&["bitsandbytes.optim.AdamW"], bitsandbytes::<0, false>),
        (&["bitsandbytes.optim.AdamW8bit"], bitsandbytes::<8, false>),
        (&["bitsandbytes.optim.AdamW32bit"], bitsandbytes::<32, false>),
        (&["bitsandbytes.optim.PagedAdamW"], bitsandbytes::<0, true>),
        (&["bitsandbytes.optim.PagedAdamW8bit"], bitsandbytes::<8, true>),
        (&["bitsandbytes.optim.PagedAdamW32bit"], bitsandbytes::<32, true>),
        (&["torchao.optim.AdamW8bit", "torchao.prototype.low_bit_optim.AdamW8bit"], |node, problems| {
            check_torchao(node, problems).map(Optimizer::AdamW)
        }),
    ],
    not_built: &[
        "torch.optim.Adam",
        "torch.optim.Adagrad",
        "torch.optim.RMSprop",
        "torchao.optim.AdamW4bit",
        "torchao.optim.AdamWFp8",
        "torchao.optim.CPUOffloadOptimizer",
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

/// AdamW of bitsandbytes, whose names differ in `BITS` (0 = as `optim_bits` says) and in whether it is paged.
fn bitsandbytes<const BITS: u64, const PAGED: bool>(node: &Node, problems: &mut Problems) -> Option<Optimizer> {
    let variant = Variant { bits: (BITS > 0).then_some(BITS), is_paged: PAGED };
    check_bitsandbytes(node, problems, variant).map(Optimizer::AdamW)
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
    use crate::{AdamW, AdamWConfig, Moments};

    fn problems_of(yaml: &str) -> Result<(Option<Optimizer>, Vec<String>), String> {
        let run = config::Merged::from_text("run.yaml", yaml).expect("valid YAML");
        let mut problems = Problems::new();
        let optimizer = Optimizer::from_node(run.root().at("optimizer").expect("written"), &mut problems);
        let told = |notices: Vec<config::Notice>| notices.iter().map(ToString::to_string).collect();
        problems.finish().map(|notices| (optimizer, told(notices))).map_err(|e| e.to_string())
    }

    fn check(yaml: &str) -> Result<Option<Optimizer>, String> {
        problems_of(yaml).map(|(optimizer, _)| optimizer)
    }

    fn adamw(section: &str) -> AdamW {
        match check(&format!("optimizer: {{_component_: {section}}}")) {
            Ok(Some(Optimizer::AdamW(adamw))) => adamw,
            other => panic!("{section}: {other:?}"),
        }
    }

    fn refused(section: &str) -> String {
        check(&format!("optimizer: {{_component_: {section}}}")).expect_err(section)
    }

    #[test]
    fn a_section_becomes_an_optimizer_with_pytorchs_defaults() {
        let found = check("optimizer: {_component_: torch.optim.AdamW, lr: 2e-5, fused: True}");
        let expected = AdamWConfig { lr: 2e-5, fused: Some(true), ..AdamWConfig::default() };
        assert_eq!((expected.betas, expected.eps, expected.weight_decay), ([0.9, 0.999], 1e-8, 0.01));
        assert_eq!(found, Ok(Some(Optimizer::AdamW(expected.into()))));
    }

    #[test]
    fn nesterov_without_momentum_is_refused() {
        let error = check("optimizer: {_component_: torch.optim.SGD, nesterov: True}").expect_err("refused");
        assert!(error.contains("Nesterov momentum needs a `momentum`"), "{error}");
    }

    #[test]
    fn names_say_how_moments_are_stored() {
        let eight = Moments::EightBits { min_elements: 4096 };
        for (section, moments, is_paged) in [
            ("bitsandbytes.optim.AdamW", Moments::F32, false),
            ("bitsandbytes.optim.AdamW, is_paged: True", Moments::F32, true),
            ("bitsandbytes.optim.AdamW, optim_bits: 8", eight, false),
            ("bitsandbytes.optim.AdamW8bit", eight, false),
            ("bitsandbytes.optim.AdamW8bit, optim_bits: 32", eight, false),
            ("bitsandbytes.optim.AdamW32bit", Moments::F32, false),
            ("bitsandbytes.optim.PagedAdamW", Moments::F32, true),
            ("bitsandbytes.optim.PagedAdamW, optim_bits: 8", eight, true),
            (
                "bitsandbytes.optim.adamw.PagedAdamW8bit, optim_bits: 8, min_8bit_size: 10",
                Moments::EightBits { min_elements: 10 },
                true,
            ),
            ("bitsandbytes.optim.PagedAdamW32bit, is_paged: True", Moments::F32, true),
            ("torchao.optim.AdamW8bit, block_size: 256", eight, false),
            ("torchao.prototype.low_bit_optim.AdamW8bit", eight, false),
            ("torch.optim.AdamW", Moments::LikeParameter, false),
        ] {
            let AdamW { lr, betas, eps, weight_decay, stochastic_rounding, moments: found, is_paged: paged } =
                adamw(section);
            assert_eq!((found, paged), (moments, is_paged), "{section}");
            assert_eq!((lr, betas, eps, weight_decay), (1e-3, [0.9, 0.999], 1e-8, 0.01), "{section}");
            assert!(!stochastic_rounding, "{section}");
        }
    }

    #[test]
    fn rounding_by_chance_has_two_names_with_torchao() {
        for section in [
            "torch.optim.AdamW, stochastic_rounding: True",
            "bitsandbytes.optim.AdamW8bit, stochastic_rounding: True",
            "torchao.optim.AdamW8bit, stochastic_rounding: True",
            "torchao.optim.AdamW8bit, bf16_stochastic_round: True",
        ] {
            assert!(adamw(section).stochastic_rounding, "{section}");
        }
        let elsewhere = "optimizer: {_component_: torch.optim.AdamW, bf16_stochastic_round: True}";
        let (_, notices) = problems_of(elsewhere).expect("ignored");
        assert!(notices.len() == 1 && notices[0].contains("bf16_stochastic_round"), "{notices:?}");
    }

    #[test]
    fn what_is_not_built_is_refused() {
        for (section, reason) in [
            ("bitsandbytes.optim.AdamW8bit, amsgrad: True", "squared-gradient mean"),
            ("bitsandbytes.optim.AdamW8bit, optim_bits: 16", "moments have 8 or 32 bits"),
            ("bitsandbytes.optim.AdamW, optim_bits: 4", "moments have 8 or 32 bits"),
            ("bitsandbytes.optim.AdamW32bit, optim_bits: 8", "have 32 bits"),
            ("bitsandbytes.optim.AdamW8bit, percentile_clipping: 5", "percentile"),
            ("bitsandbytes.optim.AdamW8bit, block_wise: False", "one scale for a whole parameter"),
            ("bitsandbytes.optim.AdamW8bit, args: {lr: 1}", "only `null`"),
            ("bitsandbytes.optim.PagedAdamW8bit, is_paged: False", "is paged"),
            ("torchao.optim.AdamW8bit, block_size: 128", "only 256 elements"),
            ("torchao.optim.AdamW8bit, amsgrad: True", "squared-gradient mean"),
            ("torch.optim.AdamW, amsgrad: True", "squared-gradient mean"),
        ] {
            let error = refused(section);
            assert!(error.contains(reason), "{section}: {error}");
        }
    }

    #[test]
    fn a_key_without_effect_is_noticed() {
        let (_, notices) =
            problems_of("optimizer: {_component_: bitsandbytes.optim.AdamW, min_8bit_size: 1}").expect("fine");
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains("`optimizer.min_8bit_size` has no effect"), "{notices:?}");
    }

    #[test]
    fn in_8_bits_is_the_component_of_that_name() {
        let eight = Optimizer::AdamW(adamw("bitsandbytes.optim.AdamW8bit, lr: 0.5, weight_decay: 0.25"));
        for name in ["torch.optim.AdamW", "bitsandbytes.optim.AdamW"] {
            let wide = Optimizer::AdamW(adamw(&format!("{name}, lr: 0.5, weight_decay: 0.25")));
            assert_eq!(wide.in_8_bits().as_ref(), Some(&eight), "{name}");
        }
        assert_eq!(eight.in_8_bits(), None);
        assert_eq!(Optimizer::Sgd(SgdConfig::default()).in_8_bits(), None);
    }

    #[test]
    fn small_parameters_keep_f32_states() {
        let eight = Optimizer::AdamW(adamw("bitsandbytes.optim.AdamW8bit"));
        let names = |n: usize| eight.states(n).iter().map(|state| state.name).collect::<Vec<_>>();
        assert_eq!(names(4095), ["exp_avg", "exp_avg_sq"]);
        assert_eq!(names(4096), ["exp_avg", "exp_avg_absmax", "exp_avg_sq", "exp_avg_sq_absmax"]);
        assert!(eight.states(4095).iter().all(|state| state.dtype == Some(tensor::DType::F32)));
        let bytes = |n: usize| -> usize {
            let size = |state: &crate::StateSpec| state.num_entries(n) * state.dtype.expect("of its own").size_bytes();
            eight.states(n).iter().map(size).sum()
        };
        assert_eq!(bytes(1 << 20), 2 * (1 << 20) + 2 * 4 * (1 << 12));
        assert_eq!(bytes(257 * 16 + 1), 2 * 4113 + 2 * 4 * 17);
    }
}
