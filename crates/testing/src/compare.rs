//! How close two arrays are.
//!
//! Three questions, in this order, so that the first failure is the most telling one:
//! 1. Are NaN and infinities at the same places?
//! 2. NMSE: is the mean of squared errors at most `nmse` times the mean of squared expected values?
//! 3. Is every single error at most eight times what the NMSE bound allows on average? NMSE alone would let one wrong
//!    element of a large array pass.

use tensor::DType;

/// How far a single element may be off, in root-mean-square errors that the NMSE bound allows.
const OUTLIER: f64 = 8.0;

/// What counts as close.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Bound on the normalised mean squared error.
    pub nmse: f64,
    /// Magnitude below which expected values count as this large, for results that cancel to about 0.
    pub floor: f64,
}

impl Tolerance {
    /// Only equal values are close.
    pub const EXACT: Self = Self { nmse: 0.0, floor: 0.0 };

    /// Closeness relative to the expected values' own size.
    pub const fn nmse(nmse: f64) -> Self {
        Self { nmse, floor: 0.0 }
    }

    /// The same bound, with errors measured against at least `floor`.
    pub const fn with_floor(self, floor: f64) -> Self {
        Self { floor, ..self }
    }
}

/// Why two arrays are not close.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// They have different lengths.
    #[error("expected {expected} elements, found {found}")]
    Length {
        /// Elements expected.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// One is NaN or infinite where the other is not.
    #[error("element {index}: expected {expected:e}, found {found:e}")]
    NotFinite {
        /// The first such element.
        index: usize,
        /// Its expected value.
        expected: f64,
        /// The value found.
        found: f64,
    },
    /// The normalised mean squared error is too large.
    #[error("nmse {nmse:.3e} exceeds {bound:.1e}; worst is element {worst}: expected {expected:e}, found {found:e}")]
    Nmse {
        /// The error.
        nmse: f64,
        /// Its bound.
        bound: f64,
        /// The element that is farthest off.
        worst: usize,
        /// Its expected value.
        expected: f64,
        /// The value found.
        found: f64,
    },
    /// A single element is too far off.
    #[error("element {index}: expected {expected:e}, found {found:e}, more than {bound:.1e} off")]
    Outlier {
        /// The element that is farthest off.
        index: usize,
        /// Its expected value.
        expected: f64,
        /// The value found.
        found: f64,
        /// How far off it may be.
        bound: f64,
    },
}

/// Mean squared error over mean squared expected value; 0 for equal arrays, infinite if only zeros were expected.
pub fn nmse(found: &[f64], expected: &[f64]) -> f64 {
    nmse_above(found, expected, 0.0)
}

fn nmse_above(found: &[f64], expected: &[f64], floor: f64) -> f64 {
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f - e) * (f - e)).sum();
    let size: f64 = expected.iter().map(|e| e * e).sum();
    if error == 0.0 { 0.0 } else { error / size.max(floor * floor * expected.len() as f64) }
}

/// Whether `found` is close to `expected`; infinities and NaN must stand at the same places and are left out of sums.
pub fn compare(found: &[f64], expected: &[f64], tolerance: Tolerance) -> Result<(), Mismatch> {
    if found.len() != expected.len() {
        return Err(Mismatch::Length { expected: expected.len(), found: found.len() });
    }
    let same_kind = |f: f64, e: f64| (f.is_finite() && e.is_finite()) || f == e || (f.is_nan() && e.is_nan());
    if let Some(index) = (0..found.len()).find(|&i| !same_kind(found[i], expected[i])) {
        return Err(Mismatch::NotFinite { index, expected: expected[index], found: found[index] });
    }
    let finite: Vec<usize> = (0..found.len()).filter(|&i| found[i].is_finite()).collect();
    let [f, e] = [found, expected].map(|all| finite.iter().map(|&i| all[i]).collect::<Vec<f64>>());
    let Some(worst) = (0..f.len()).max_by(|&a, &b| (f[a] - e[a]).abs().total_cmp(&(f[b] - e[b]).abs())) else {
        return Ok(());
    };
    let (index, expected, found) = (finite[worst], e[worst], f[worst]);
    let nmse = nmse_above(&f, &e, tolerance.floor);
    if nmse > tolerance.nmse {
        return Err(Mismatch::Nmse { nmse, bound: tolerance.nmse, worst: index, expected, found });
    }
    let size = (e.iter().map(|e| e * e).sum::<f64>() / e.len() as f64).sqrt().max(tolerance.floor);
    let allowed = |i: usize| OUTLIER * tolerance.nmse.sqrt() * size.max(e[i].abs());
    match (0..f.len()).find(|&i| (f[i] - e[i]).abs() > allowed(i)) {
        None => Ok(()),
        Some(i) => Err(Mismatch::Outlier { index: finite[i], expected: e[i], found: f[i], bound: allowed(i) }),
    }
}

/// Panics, naming `what`, unless `found` is close to `expected`.
#[track_caller]
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: Tolerance) {
    if let Err(mismatch) = compare(found, expected, tolerance) {
        panic!("{what}: {mismatch}");
    }
}

/// Panics, naming `what` and the first difference, unless both hold the same bytes.
#[track_caller]
pub fn assert_same_bits(what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{what}: number of bytes");
    let difference = found.iter().zip(expected).position(|(f, e)| f != e);
    if let Some(at) = difference {
        panic!("{what}: byte {at}: expected {:#04x}, found {:#04x}", expected[at], found[at]);
    }
}

/// Each value rounded to `dtype`; unchanged for integers.
pub fn round_to(dtype: DType, values: &[f64]) -> Vec<f64> {
    let round = |&v: &f64| match dtype {
        DType::F32 => f64::from(v as f32),
        DType::Bf16 => half::bf16::from_f32(v as f32).to_f64(),
        DType::I32 | DType::U8 => v,
    };
    values.iter().map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Tolerance = Tolerance::nmse(1e-6);

    #[test]
    fn equal_arrays_are_close_even_exactly() {
        let x = [1.0, -2.0, f64::NAN, f64::INFINITY, 0.0];
        assert_eq!(compare(&x, &x, Tolerance::EXACT), Ok(()));
        assert_eq!(compare(&[], &[], Tolerance::EXACT), Ok(()));
        assert_eq!(compare(&[0.0, 0.0], &[0.0, 0.0], BOUND), Ok(()));
    }

    #[test]
    fn lengths_are_compared_first() {
        assert_eq!(compare(&[f64::NAN], &[1.0, 2.0], BOUND), Err(Mismatch::Length { expected: 2, found: 1 }));
    }

    #[test]
    fn nan_and_infinity_must_stand_at_the_same_places() {
        for (found, expected) in [
            (f64::NAN, 1.0),
            (1.0, f64::NAN),
            (f64::INFINITY, f64::NEG_INFINITY),
            (f64::INFINITY, f64::NAN),
            (1e300, f64::INFINITY),
        ] {
            let result = compare(&[1.0, found], &[1.0, expected], Tolerance::nmse(1e9));
            assert!(matches!(result, Err(Mismatch::NotFinite { index: 1, .. })), "{found} {expected}: {result:?}");
        }
    }

    #[test]
    fn nmse_is_relative_to_the_expected_values() {
        assert!((nmse(&[1.1, 2.2], &[1.0, 2.0]) - 0.01).abs() < 1e-12);
        assert!((nmse(&[1.1e9, 2.2e9], &[1e9, 2e9]) - 0.01).abs() < 1e-12);
        assert_eq!(nmse(&[1e-30], &[0.0]), f64::INFINITY);
        let result = compare(&[1.0, 2.01], &[1.0, 2.0], BOUND);
        assert!(matches!(result, Err(Mismatch::Nmse { worst: 1, .. })), "{result:?}");
        assert_eq!(compare(&[1.0, 2.0001], &[1.0, 2.0], BOUND), Ok(()));
    }

    #[test]
    fn one_wrong_element_of_many_is_found() {
        let expected = vec![1.0; 1_000_000];
        let mut found = expected.clone();
        found[777_777] = 1.5;
        assert!(nmse(&found, &expected) < BOUND.nmse);
        let result = compare(&found, &expected, BOUND);
        assert!(matches!(result, Err(Mismatch::Outlier { index: 777_777, .. })), "{result:?}");
    }

    #[test]
    fn a_floor_forgives_noise_around_zero_only() {
        let floored = BOUND.with_floor(1.0);
        assert!(compare(&[1e-8, 0.0], &[0.0, 0.0], BOUND).is_err());
        assert_eq!(compare(&[1e-8, 0.0], &[0.0, 0.0], floored), Ok(()));
        assert!(compare(&[1e-2, 0.0], &[0.0, 0.0], floored).is_err());
        assert!(compare(&[101.0], &[100.0], floored).is_err());
    }

    #[test]
    #[should_panic(expected = "the gradient: nmse 1.000e0 exceeds 1.0e-6; worst is element 0: expected 1e0, found 2e0")]
    fn assertions_name_what_they_compare() {
        assert_close("the gradient", &[2.0], &[1.0], BOUND);
    }

    #[test]
    #[should_panic(expected = "weights: byte 1: expected 0x02, found 0x03")]
    fn different_bits_are_located() {
        assert_same_bits("weights", &[1, 3], &[1, 2]);
    }

    #[test]
    fn rounding_goes_to_the_nearest_representable_value() {
        assert_eq!(round_to(DType::Bf16, &[1.003, 1.004]), [1.0, 1.0078125]);
        assert_eq!(round_to(DType::F32, &[0.1]), [f64::from(0.1f32)]);
    }
}
