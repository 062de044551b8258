//! Gradient checks: a backward function against central differences of its forward function, in f64.
//!
//! The loss is sum(y * r) with fixed random r, so that dy = r. For sampled elements x of the inputs, the quotient
//! (loss(x + h) - loss(x - h)) / 2h must equal the gradient that backward gives.
//!
//! Numbers: h is 1e-6 relative to x (or absolute, for |x| < 1), at most 500 elements an input. A gradient may differ by 1e-6
//!          of the larger of itself and the root mean square of its input's gradients, plus the quotient's own round-off,
//!          about 2^-52 sum|y r| / h.
//! Errors:  [`GradError`].

use crate::random;

/// Relative step of the differences.
const STEP: f64 = 1e-6;

/// Relative difference that passes.
const BOUND: f64 = 1e-6;

/// Elements of an input that are checked, at most.
const MAX_SAMPLES: usize = 500;

/// The stream of the fixed random r.
const LOSS_STREAM: u64 = 1 << 40;

/// A gradient that is not the derivative.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GradError {
    /// Backward gave gradients of another number or length than the inputs.
    #[error("gradient of `{input}`: expected {expected} elements, found {found}")]
    Length {
        /// The input.
        input: String,
        /// Elements of the input.
        expected: usize,
        /// Elements of its gradient.
        found: usize,
    },
    /// One element's gradient is wrong.
    #[error("gradient of `{input}`, element {index}: expected {expected:e} (central difference), found {found:e}")]
    Wrong {
        /// The input.
        input: String,
        /// The element.
        index: usize,
        /// The difference quotient.
        expected: f64,
        /// What backward gave.
        found: f64,
    },
}

/// Compares `backward` with central differences of `forward`.
///
/// `forward` maps the inputs to y (several outputs are concatenated); `backward` maps the inputs and dy to one gradient an
/// input, in their order.
pub fn check(
    inputs: &[(&str, Vec<f64>)],
    forward: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    backward: impl Fn(&[Vec<f64>], &[f64]) -> Vec<Vec<f64>>,
) -> Result<(), GradError> {
    let mut values: Vec<Vec<f64>> = inputs.iter().map(|(_, values)| values.clone()).collect();
    let y = forward(&values);
    let r = random::normal(LOSS_STREAM, y.len(), 1.0);
    let magnitude: f64 = y.iter().zip(&r).map(|(y, r)| (y * r).abs()).sum();
    let gradients = backward(&values, &r);
    for (i, (name, x)) in inputs.iter().enumerate() {
        let gradient = gradients.get(i).map_or(&[][..], Vec::as_slice);
        if gradient.len() != x.len() {
            return Err(GradError::Length { input: (*name).to_owned(), expected: x.len(), found: gradient.len() });
        }
        let rms = (gradient.iter().map(|g| g * g).sum::<f64>() / gradient.len() as f64).sqrt();
        for index in random::sample(i as u64, MAX_SAMPLES, x.len()) {
            let h = STEP * x[index].abs().max(1.0);
            let (above, below) = (x[index] + h, x[index] - h);
            values[i][index] = above;
            let y_above = forward(&values);
            values[i][index] = below;
            let y_below = forward(&values);
            values[i][index] = x[index];
            // Summing differences, not losses: elements that x does not reach cancel exactly.
            let rise: f64 = y_above.iter().zip(&y_below).zip(&r).map(|((a, b), r)| (a - b) * r).sum();
            let (expected, found) = (rise / (above - below), gradient[index]);
            let allowed = BOUND * expected.abs().max(found.abs()).max(rms) + f64::EPSILON * magnitude / h;
            let difference = (expected - found).abs();
            if difference.is_nan() || difference > allowed {
                return Err(GradError::Wrong { input: (*name).to_owned(), index, expected, found });
            }
        }
    }
    Ok(())
}

/// [`check`], panicking with the name of the function and the error.
#[track_caller]
pub fn assert_gradients(
    what: &str,
    inputs: &[(&str, Vec<f64>)],
    forward: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    backward: impl Fn(&[Vec<f64>], &[f64]) -> Vec<Vec<f64>>,
) {
    if let Err(error) = check(inputs, forward, backward) {
        panic!("{what}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(x: &[Vec<f64>]) -> Vec<f64> {
        x[0].iter().zip(&x[1]).map(|(a, b)| a * b.sin()).collect()
    }

    fn product_backward(x: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let da = dy.iter().zip(&x[1]).map(|(d, b)| d * b.sin()).collect();
        let db = dy.iter().zip(&x[0]).zip(&x[1]).map(|((d, a), b)| d * a * b.cos()).collect();
        vec![da, db]
    }

    fn inputs(len: usize) -> [(&'static str, Vec<f64>); 2] {
        [("a", random::normal(1, len, 3.0)), ("b", random::normal(2, len, 1.0))]
    }

    #[test]
    fn right_gradients_pass() {
        for len in [0, 1, 3, 17, 1000] {
            assert_eq!(check(&inputs(len), product, product_backward), Ok(()));
        }
    }

    #[test]
    fn a_gradient_off_by_a_hundred_thousandth_is_reported() {
        let wrong = |x: &[Vec<f64>], dy: &[f64]| {
            let mut gradients = product_backward(x, dy);
            gradients[1][2] *= 1.0 + 1e-5;
            gradients
        };
        let inputs = [("a", vec![1.0, -2.0, 3.0]), ("b", vec![0.1, 0.2, 0.3])];
        let result = check(&inputs, product, wrong);
        assert!(matches!(&result, Err(GradError::Wrong { input, index: 2, .. }) if input == "b"), "{result:?}");
    }

    #[test]
    fn missing_zero_and_nan_gradients_are_reported() {
        let inputs = inputs(5);
        let result = check(&inputs, product, |x, dy| product_backward(x, dy)[..1].to_vec());
        assert_eq!(result, Err(GradError::Length { input: "b".to_owned(), expected: 5, found: 0 }));
        for constant in [0.0, f64::NAN] {
            let result = check(&inputs, product, |x, _| vec![vec![constant; x[0].len()]; 2]);
            assert!(matches!(&result, Err(GradError::Wrong { index: 0, .. })), "{result:?}");
        }
    }

    #[test]
    #[should_panic(expected = "the product: gradient of `a`, element 0: expected ")]
    fn assertions_name_the_function_and_the_input() {
        assert_gradients("the product", &inputs(5), product, |x, dy| {
            let mut gradients = product_backward(x, dy);
            gradients[0].iter_mut().for_each(|g| *g = -*g);
            gradients
        });
    }
}
