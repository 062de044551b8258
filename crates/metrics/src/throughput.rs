//! Tokens per second of an optimizer step, and its length.
//!
//! Numbers: tokens are those that bear a loss (labels that are not ignored); time runs from the previous
//!          [`Throughput::finish_step`] or [`Throughput::restart`] on a monotonic clock.

use std::time::{Duration, Instant};

/// Counts tokens and time between optimizer steps.
#[derive(Debug)]
pub struct Throughput {
    since: Instant,
    num_tokens: u64,
}

/// What one optimizer step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRate {
    /// Tokens that bore a loss.
    pub num_tokens: u64,
    /// How long the step took.
    pub elapsed: Duration,
}

impl Throughput {
    /// A meter whose first step begins at this moment.
    pub fn start() -> Self {
        Self { since: Instant::now(), num_tokens: 0 }
    }

    /// Adds the tokens of one micro-batch to the current step.
    pub fn add_tokens(&mut self, num_tokens: u64) {
        self.num_tokens += num_tokens;
    }

    /// Ends the current step, begins the next one, and says what the ended one did.
    pub fn finish_step(&mut self) -> StepRate {
        self.finish_step_at(Instant::now())
    }

    /// Begins the current step anew: what lay between (saving a checkpoint) counts for no step.
    pub fn restart(&mut self) {
        *self = Self::start();
    }

    fn finish_step_at(&mut self, at: Instant) -> StepRate {
        let rate = StepRate { num_tokens: self.num_tokens, elapsed: at.saturating_duration_since(self.since) };
        *self = Self { since: at, num_tokens: 0 };
        rate
    }
}

impl StepRate {
    /// Tokens per second, the metric `tokens_per_second_per_gpu` of one rank; 0 for a step that took no time.
    pub fn tokens_per_second(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.num_tokens as f64 / self.elapsed.as_secs_f64() }
    }

    /// The step's length in milliseconds, the metric `step_ms`.
    pub fn step_ms(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_counts_its_own_tokens_and_time() {
        let mut meter = Throughput::start();
        let start = meter.since;
        meter.add_tokens(300);
        meter.add_tokens(200);
        let first = meter.finish_step_at(start + Duration::from_millis(250));
        assert_eq!((first.tokens_per_second(), first.step_ms()), (2000.0, 250.0));
        meter.add_tokens(10);
        let second = meter.finish_step_at(start + Duration::from_millis(1250));
        assert_eq!((second.tokens_per_second(), second.step_ms()), (10.0, 1000.0));
    }

    #[test]
    fn restart_forgets() {
        let mut meter = Throughput::start();
        meter.add_tokens(300);
        meter.restart();
        let start = meter.since;
        assert_eq!(meter.finish_step_at(start), StepRate { num_tokens: 0, elapsed: Duration::ZERO });
    }

    #[test]
    fn a_step_without_time_has_no_infinite_rate() {
        assert_eq!(StepRate { num_tokens: 5, elapsed: Duration::ZERO }.tokens_per_second(), 0.0);
    }
}
