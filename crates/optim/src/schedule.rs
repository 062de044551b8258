//! Learning-rate schedules.
//!
//! Step k, counted from 0, uses the optimizer's learning rate times `factor(k)`.

config::component! {
    /// Linear warm-up from 0, then a cosine down to 0 (`get_cosine_schedule_with_warmup`).
    pub struct CosineConfig {
        /// Optimizer steps of warm-up; 0 = none.
        pub num_warmup_steps: u64,
        /// Waves of the cosine over the rest of the run; 0.5 = from the peak down to 0 once.
        pub num_cycles: f64 [0.0..] = 0.5,
    }
}

/// A function from optimizer steps to a factor on the learning rate.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// Always 1.
    Constant,
    /// Warm-up and cosine over a known number of steps.
    Cosine {
        /// Its numbers.
        config: CosineConfig,
        /// Steps of the whole run.
        num_training_steps: u64,
    },
}

impl Schedule {
    /// The factor of step `step`, from 0; within [0, 1].
    pub fn factor(&self, step: u64) -> f64 {
        let Self::Cosine { config, num_training_steps } = self else {
            return 1.0;
        };
        let warmup = config.num_warmup_steps;
        if step < warmup {
            return step as f64 / warmup.max(1) as f64;
        }
        let rest = num_training_steps.saturating_sub(warmup).max(1);
        let progress = (step - warmup) as f64 / rest as f64;
        (0.5 * (1.0 + (std::f64::consts::TAU * config.num_cycles * progress).cos())).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(num_warmup_steps: u64, num_training_steps: u64) -> Schedule {
        Schedule::Cosine { config: CosineConfig { num_warmup_steps, num_cycles: 0.5 }, num_training_steps }
    }

    #[test]
    fn warms_up_from_zero_and_ends_at_zero() {
        let schedule = cosine(3, 8);
        assert_eq!(schedule.factor(0), 0.0);
        assert!((schedule.factor(1) - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(schedule.factor(3), 1.0);
        assert!((schedule.factor(4) - 0.9045084971874737).abs() < 1e-15);
        assert!(schedule.factor(8).abs() < 1e-15);
    }

    #[test]
    fn without_warm_up_the_first_step_is_the_peak() {
        assert_eq!(cosine(0, 10).factor(0), 1.0);
    }

    proptest::proptest! {
        #[test]
        fn stays_within_zero_and_one(warmup in 0u64..50, total in 0u64..100, step in 0u64..200) {
            let factor = cosine(warmup, total).factor(step);
            proptest::prop_assert!((0.0..=1.0).contains(&factor));
        }
    }
}
