//! Dropout: some elements become 0, the others grow by as much as that takes from the mean.
//!
//! y = x / (1 - p) where an element is kept, else 0. Which elements are kept follows from a counter-based stream and the element's
//! index alone, so that threads do not matter and a second run, or the backward pass, drops the same ones.
//!
//! Numbers: storage f32 or bf16; computed in f32, rounded once.
//! Grads:   dx is the same op on dy, with the same stream.
//! Errors:  `Error::DType`.
//! Source:  Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting", section 10 (scaled in
//!          training).

use super::{Float, expect_float};
use crate::rng::Stream;
use crate::{Result, Tensor};

/// What is dropped.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// Share of the elements that become 0, from 0 up to, but not, 1.
    pub probability: f32,
    /// Where the choice is drawn from: a word for each element.
    pub stream: Stream,
}

impl Dropout {
    /// Words below this drop their element.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 4_294_967_296.0) as u32
    }

    /// What elements that are kept are multiplied by.
    pub fn factor(&self) -> f32 {
        1.0 / (1.0 - self.probability)
    }

    /// Whether an element is kept.
    pub fn keeps(&self, index: usize) -> bool {
        self.stream.words(index as u64 / 4)[index % 4] >= self.threshold()
    }
}

/// Checks the op; gives the number of elements.
pub fn check_in_place(x: &Tensor) -> Result<usize> {
    expect_float("dropout_in_place", "x", x)?;
    Ok(x.num_elements())
}

/// Reference.
pub fn dropout_in_place<T: Float>(x: &mut [T], dropout: &Dropout) {
    let factor = T::from_f64(f64::from(dropout.factor()));
    for (i, x) in x.iter_mut().enumerate() {
        *x = if dropout.keeps(i) { *x * factor } else { T::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_dropped_as_it_says_and_the_mean_stays() {
        for probability in [0.1f32, 0.5, 0.9] {
            let dropout = Dropout { probability, stream: Stream::new(3, 4) };
            let mut ones = vec![1.0f64; 100_000];
            dropout_in_place(&mut ones, &dropout);
            let kept = ones.iter().filter(|x| **x > 0.0).count() as f64 / 1e5;
            // Five standard deviations.
            let bound = 5.0 * (f64::from(probability) * (1.0 - f64::from(probability)) / 1e5).sqrt();
            assert!((kept - (1.0 - f64::from(probability))).abs() < bound, "p {probability}: {kept} are kept");
            let mean = ones.iter().sum::<f64>() / 1e5;
            assert!((mean - 1.0).abs() < bound / (1.0 - f64::from(probability)), "p {probability}: mean {mean}");
        }
    }
}
