//! The next token from logits: the likeliest, or one drawn.
//!
//! Numbers: softmax in f64 over f32 logits divided by the temperature; a draw is the argmax of p / q with q ~ Exp(1),
//!          which is a draw from p. Random numbers are counted, so the same seed gives the same text.
//! Source:  Fan et al. 2018, arXiv:1805.04833 (top-k sampling).

use tensor::rng::Stream;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// Divides the logits; 0 = always the likeliest token.
    pub(crate) temperature: f64,
    /// Only the likeliest k tokens can be drawn; `None` = all.
    pub(crate) top_k: Option<usize>,
    /// Where the random numbers come from.
    pub(crate) seed: u64,
}

impl Sampler {
    /// The token chosen from `logits` as number `index` of the answer.
    pub(crate) fn choose(&self, logits: &[f32], index: u64) -> usize {
        if self.temperature <= 0.0 || self.top_k == Some(1) {
            return argmax(logits.iter().map(|&l| f64::from(l)));
        }
        let limit = self.top_k.map_or(f32::NEG_INFINITY, |k| kth_largest(logits, k));
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let stream = Stream::new(self.seed, index);
        argmax(logits.iter().enumerate().map(|(i, &logit)| {
            if logit < limit {
                return f64::NEG_INFINITY;
            }
            let log_p = f64::from(logit - highest) / self.temperature;
            let uniform = Stream::unit(stream.words(i as u64 / 4)[i % 4]);
            // log(p / q) with q = -ln(u): the normaliser of p changes no argmax.
            log_p - (-uniform.ln()).ln()
        }))
    }
}

/// The first index of the largest value.
fn argmax(values: impl Iterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (i, value) in values.enumerate() {
        if value > best.1 {
            best = (i, value);
        }
    }
    best.0
}

/// The k-th largest logit; the smallest if there are fewer.
fn kth_largest(logits: &[f32], k: usize) -> f32 {
    if k >= logits.len() {
        return f32::NEG_INFINITY;
    }
    let mut sorted = logits.to_vec();
    let (_, kth, _) = sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    *kth
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -3.0];

    #[test]
    fn no_temperature_takes_the_likeliest() {
        let greedy = Sampler { temperature: 0.0, top_k: None, seed: 1 };
        assert_eq!(greedy.choose(&LOGITS, 0), 1);
        let top1 = Sampler { temperature: 5.0, top_k: Some(1), seed: 1 };
        assert_eq!(top1.choose(&LOGITS, 9), 1);
    }

    #[test]
    fn draws_follow_the_softmax_of_what_top_k_leaves() {
        let sampler = Sampler { temperature: 1.0, top_k: Some(2), seed: 7 };
        let mut counts = [0u32; 4];
        for index in 0..20_000 {
            counts[sampler.choose(&LOGITS, index)] += 1;
        }
        let share = f64::from(counts[1]) / 20_000.0;
        let expected = 1.0 / (1.0 + (-1.0f64).exp());
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!((share - expected).abs() < 0.01, "drawn {share}, expected {expected}");
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let a = Sampler { temperature: 1.0, top_k: None, seed: 3 };
        let draws = |s: Sampler| (0..50).map(|i| s.choose(&LOGITS, i)).collect::<Vec<_>>();
        assert_eq!(draws(a), draws(a));
        assert_ne!(draws(a), draws(Sampler { seed: 4, ..a }));
    }
}
