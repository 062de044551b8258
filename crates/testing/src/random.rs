//! Seeded inputs for tests: the same arguments give the same numbers everywhere.

use tensor::rng::Stream;

/// The seed of every test input; streams tell uses apart.
const SEED: u64 = 0x7e57;

/// `len` normal numbers of mean 0, exactly representable in f32.
pub fn normal(stream: u64, len: usize, std_dev: f64) -> Vec<f64> {
    let mut values = vec![0.0f32; len];
    Stream::new(SEED, stream).fill_normal(&mut values, std_dev);
    values.into_iter().map(f64::from).collect()
}

/// `len` integers, uniform in `0..bound`. Panics: if `bound` is 0 and `len` is not.
pub fn indices(stream: u64, len: usize, bound: usize) -> Vec<i32> {
    let stream = Stream::new(SEED, stream);
    (0..len).map(|i| (stream.words(i as u64)[0] as usize % bound) as i32).collect()
}

/// `len` positions out of `0..bound`, ascending and without repetition, evenly spread with a random start in each stretch;
/// all of them if there are no more than `len`.
pub fn sample(stream: u64, len: usize, bound: usize) -> Vec<usize> {
    if bound <= len {
        return (0..bound).collect();
    }
    let stream = Stream::new(SEED, stream);
    let start_of = |i: usize| i * bound / len;
    (0..len).map(|i| start_of(i) + stream.words(i as u64)[0] as usize % (start_of(i + 1) - start_of(i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_ascend_and_stay_inside() {
        for (len, bound) in [(500, 3), (500, 500), (500, 501), (7, 1000), (3, 0)] {
            let picked = sample(1, len, bound);
            assert_eq!(picked.len(), len.min(bound));
            assert!(picked.windows(2).all(|pair| pair[0] < pair[1]), "{picked:?}");
            assert!(picked.iter().all(|&i| i < bound));
        }
    }

    #[test]
    fn streams_differ_and_repeat() {
        assert_eq!(normal(1, 9, 1.0), normal(1, 9, 1.0));
        assert_ne!(normal(1, 9, 1.0), normal(2, 9, 1.0));
        assert!(indices(3, 100, 7).iter().all(|&i| (0..7).contains(&i)));
    }
}
