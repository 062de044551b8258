//! The better of two answers: what a policy makes of pairs is compared with what a frozen reference makes of them.
//!
//! ```text
//! pi, ref = sum of log-probabilities of a row's unmasked labels, under the policy and under the reference
//! z       = (pi_chosen - pi_rejected) - (ref_chosen - ref_rejected)
//! DPO     = -(1 - s) log sigmoid(beta z) - s log sigmoid(-beta z)          RSO = max(0, 1 - gamma z)
//! rewards = beta (pi - ref), or gamma (pi - ref)
//! ```
//!
//! Shapes:  a batch of B pairs has 2B rows: all chosen sides, then all rejected ones.
//! Numbers: the loss is the mean over all pairs of the window, on all ranks, in f64 over log-probabilities in f32. Where the reference is the
//!          policy, z is exactly 0.
//! Metrics: means over the pairs of a micro-batch; logits/* are means over all positions of the padded rows, as the reference logs
//!          them. Ranks are averaged.
//! Source:  Rafailov et al. 2023, arXiv:2305.18290; label smoothing as in Mitchell 2023; RSO: Liu et al. 2023, arXiv:2309.06657.
//! Checked: `tests/preference.rs`, `curves/dpo` of the conformance pack.

use std::sync::Arc;

use data::Batch;
use dist::Communicator;
use models::Decoder;
use tensor::{Backend, Cx, DType, PassKey, Tensor};
use train::{Held, ParamStore};

use super::{Count, Forward, FrozenModel, Metrics, Objective, upload};
use crate::Result;

config::component! {
    /// Direct preference optimisation: the policy is to prefer the chosen answer more than the reference does.
    pub struct DpoConfig {
        /// How strongly a difference in log-probabilities counts, > 0; a higher one stays closer to the reference.
        pub beta: f64 [positive] = 0.1,
        /// Share of pairs whose sides are taken to be mixed up, from 0 to 1.
        pub label_smoothing: f64 [0.0..=1.0] = 0.0,
    }
}

config::component! {
    /// Statistical rejection sampling optimisation: a hinge on the difference instead of a logarithm.
    pub struct RsoConfig {
        /// How strongly a difference in log-probabilities counts, > 0.
        pub gamma: f64 [positive] = 0.1,
    }
}

/// The loss of one pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PreferenceLoss {
    /// [`DpoConfig`].
    Dpo {
        /// Factor on the difference.
        beta: f64,
        /// Share of pairs that are mixed up.
        label_smoothing: f64,
    },
    /// [`RsoConfig`].
    Rso {
        /// Factor on the difference.
        gamma: f64,
    },
}

impl Default for PreferenceLoss {
    fn default() -> Self {
        DpoConfig::default().into()
    }
}

impl From<DpoConfig> for PreferenceLoss {
    fn from(config: DpoConfig) -> Self {
        Self::Dpo { beta: config.beta, label_smoothing: config.label_smoothing }
    }
}

impl From<RsoConfig> for PreferenceLoss {
    fn from(config: RsoConfig) -> Self {
        Self::Rso { gamma: config.gamma }
    }
}

impl PreferenceLoss {
    /// The loss of a pair of which the policy prefers the chosen side by `z` more than the reference does, and its derivative.
    pub fn of(self, z: f64) -> (f64, f64) {
        match self {
            Self::Dpo { beta, label_smoothing } => {
                let (right, wrong) = (1.0 - label_smoothing, label_smoothing);
                let loss = right * softplus(-beta * z) + wrong * softplus(beta * z);
                (loss, beta * (wrong * sigmoid(beta * z) - right * sigmoid(-beta * z)))
            }
            Self::Rso { gamma } => {
                let loss = (1.0 - gamma * z).max(0.0);
                (loss, if loss > 0.0 { -gamma } else { 0.0 })
            }
        }
    }

    /// What the reward of an answer is to the difference of its log-probabilities.
    fn factor(self) -> f64 {
        match self {
            Self::Dpo { beta: factor, .. } | Self::Rso { gamma: factor } => factor,
        }
    }
}

/// `log(1 + e^x)`, minus the logarithm of `sigmoid(-x)`.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Which micro-batches of a step the metrics are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Averages {
    /// The last one, as the reference's recipe for one device logs them.
    Last,
    /// All, averaged, as its recipes for several devices do.
    All,
}

/// What a preference run trains for.
#[derive(Debug, Clone)]
pub struct PreferenceGoal {
    /// The loss of a pair.
    pub loss: PreferenceLoss,
    /// What its metrics are of.
    pub averages: Averages,
    /// The reference; `None` = the policy without its adapters.
    pub reference: Option<Arc<Decoder>>,
}

/// Names of what is logged, in the order of [`Seen`].
const NAMES: [&str; 8] = [
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "log_probs/rejected",
    "log_probs/chosen",
    "logits/rejected",
    "logits/chosen",
];

/// What a micro-batch showed.
type Seen = [f64; NAMES.len()];

/// The objective.
#[derive(Debug)]
pub struct Preference {
    loss: PreferenceLoss,
    averages: Averages,
    reference: Option<FrozenModel>,
    /// Micro-batches of the running step.
    seen: Vec<Seen>,
}

impl Preference {
    /// An objective that compares with `reference`; `None` = with the policy without its adapters.
    pub fn new(loss: PreferenceLoss, averages: Averages, reference: Option<FrozenModel>) -> Self {
        Self { loss, averages, reference, seen: Vec::new() }
    }
}

impl Objective for Preference {
    fn count(&self, window: &[Batch]) -> Count {
        let pairs = window.iter().map(|batch| batch.batch / 2).sum();
        Count { terms: pairs, tokens: window.iter().map(|batch| batch.tokens.len()).sum() }
    }

    fn forward<'a>(
        &mut self,
        model: &Decoder,
        backend: &'a dyn Backend,
        store: &'a mut ParamStore,
        batch: &Batch,
        scale: f32,
        pass: PassKey,
    ) -> Result<Forward<'a>> {
        let (inputs, labels) = upload(backend, batch)?;
        let of_rows = |log_probs: &Tensor| -> Result<Vec<f64>> {
            let all = backend.to_f32(log_probs)?;
            let rows = all.chunks(batch.tokens_per_row.max(1));
            Ok(rows.map(|row| row.iter().map(|&log_prob| f64::from(log_prob)).sum()).collect())
        };
        let reference = {
            let _span = backend.span(|| "reference");
            let (log_probs, _) = match &mut self.reference {
                Some(reference) => {
                    reference.ask(backend, |model, cx| model.label_log_probs(cx, &inputs, &labels, None))?
                }
                None => {
                    let mut cx = Cx::inference(backend, store).without_adapters();
                    model.label_log_probs(&mut cx, &inputs, &labels, None)?
                }
            };
            of_rows(log_probs.tensor())?
        };
        let mut cx = Cx::training(backend, store).keyed(pass);
        let (log_probs, means) = model.label_log_probs(&mut cx, &inputs, &labels, Some(2))?;
        let policy = of_rows(log_probs.tensor())?;
        let logits = backend.to_f32(&means.expect("asked for"))?;

        let num_pairs = batch.batch / 2;
        let (mut loss, mut upstream, mut seen) = (0.0, vec![0.0; batch.batch], Seen::default());
        for (chosen, rejected) in (0..num_pairs).map(|pair| (pair, num_pairs + pair)) {
            let gain = |row: usize| policy[row] - reference[row];
            let (of_pair, slope) = self.loss.of(gain(chosen) - gain(rejected));
            loss += f64::from(scale) * of_pair;
            (upstream[chosen], upstream[rejected]) = (f64::from(scale) * slope, -f64::from(scale) * slope);
            let [better, worse] = [chosen, rejected].map(|row| self.loss.factor() * gain(row));
            let accuracy = f64::from(u8::from(better > worse));
            let of_pair = [better, worse, accuracy, better - worse, policy[rejected], policy[chosen]];
            seen.iter_mut().zip(of_pair).for_each(|(mean, value)| *mean += value / num_pairs as f64);
        }
        seen[6..].copy_from_slice(&[logits[1], logits[0]].map(f64::from));
        self.seen.push(seen);

        // Every label of a row counts as much as the row does.
        let spread = upstream.iter().flat_map(|&of_row| std::iter::repeat_n(of_row as f32, batch.tokens_per_row));
        let dy = backend.from_f32(log_probs.tensor().shape(), DType::F32, &spread.collect::<Vec<f32>>())?;
        Ok(Forward { cx, loss, ends_in: Some((log_probs, dy)) })
    }

    fn metrics(&mut self, world: &Communicator) -> Result<Metrics> {
        let seen = std::mem::take(&mut self.seen);
        let of_step = match self.averages {
            Averages::Last => seen.last().copied().unwrap_or_default(),
            Averages::All => std::array::from_fn(|i| seen.iter().map(|of| of[i]).sum::<f64>() / seen.len() as f64),
        };
        let sums = world.sum(of_step.to_vec()).wait()?;
        let means = sums.into_iter().map(|sum| f64::from((sum / world.world_size() as f64) as f32));
        Ok(NAMES.into_iter().zip(means).collect())
    }

    fn held(&self) -> Held {
        self.reference.as_ref().map_or(Held::default(), |reference| reference.store.most_held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DPO: PreferenceLoss = PreferenceLoss::Dpo { beta: 0.1, label_smoothing: 0.0 };
    const SMOOTHED: PreferenceLoss = PreferenceLoss::Dpo { beta: 0.3, label_smoothing: 0.2 };
    const RSO: PreferenceLoss = PreferenceLoss::Rso { gamma: 0.1 };

    #[test]
    fn no_difference_costs_the_logarithm_of_two() {
        for loss in [DPO, PreferenceLoss::default()] {
            assert_eq!(loss.of(0.0), (std::f64::consts::LN_2, -0.05));
        }
        assert!((SMOOTHED.of(0.0).0 - std::f64::consts::LN_2).abs() < 1e-15);
        assert_eq!(RSO.of(0.0), (1.0, -0.1));
    }

    #[test]
    fn losses_are_those_of_their_formulas() {
        for z in [-30.0, -3.0, -0.1, 0.5, 7.0, 40.0] {
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let expected = -0.8 * sigmoid(0.3 * z).ln() - 0.2 * sigmoid(-0.3 * z).ln();
            assert!((SMOOTHED.of(z).0 - expected).abs() < 1e-12 * expected.max(1.0), "{z}");
            assert_eq!(RSO.of(z).0, f64::max(1.0 - 0.1 * z, 0.0), "{z}");
        }
        // Far outside of what exponentials reach.
        assert_eq!(DPO.of(-1e6), (1e5, -0.1));
        assert_eq!(DPO.of(1e6), (0.0, 0.0));
    }

    #[test]
    fn slopes_are_derivatives() {
        for loss in [DPO, SMOOTHED, RSO] {
            for z in [-12.0, -1.0, 0.3, 4.0, 9.9, 10.1, 25.0] {
                let h = 1e-5;
                let quotient = (loss.of(z + h).0 - loss.of(z - h).0) / (2.0 * h);
                assert!((loss.of(z).1 - quotient).abs() < 1e-9, "{loss:?} at {z}");
            }
        }
    }
}
