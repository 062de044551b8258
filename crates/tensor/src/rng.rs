//! Counter-based random numbers: the same counter gives the same number, in any order, on any number of threads.
//!
//! Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10); Box & Muller 1958.

const ROUND_MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a counter under a key (Philox4x32 with ten rounds).
#[inline]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(KEY_INCREMENTS[0]), k[1].wrapping_add(KEY_INCREMENTS[1])];
        }
        let p0 = u64::from(ROUND_MULTIPLIERS[0]) * u64::from(c[0]);
        let p1 = u64::from(ROUND_MULTIPLIERS[1]) * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
    }
    c
}

/// A stream of random numbers, addressed by (seed, stream, index).
///
/// `stream` separates uses of one seed, for example the parameters of a model.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: [u32; 2],
    stream: [u32; 2],
}

impl Stream {
    /// The stream numbered `stream` under `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let split = |x: u64| [x as u32, (x >> 32) as u32];
        Self { key: split(seed), stream: split(stream) }
    }

    /// The four words at `index`.
    #[inline]
    pub fn words(&self, index: u64) -> [u32; 4] {
        philox([index as u32, (index >> 32) as u32, self.stream[0], self.stream[1]], self.key)
    }

    /// A uniform number in (0, 1), never 0 or 1, from one word.
    pub fn unit(word: u32) -> f64 {
        (f64::from(word) + 0.5) / 4_294_967_296.0
    }

    /// Fills `out` with normal numbers of mean 0 and the given standard deviation.
    pub fn fill_normal(&self, out: &mut [f32], std_dev: f64) {
        self.fill_normal_from(0, out, std_dev);
    }

    /// Fills `out` with what [`Stream::fill_normal`] puts from element `start` on. Panics: if that is no multiple of 4.
    pub fn fill_normal_from(&self, start: u64, out: &mut [f32], std_dev: f64) {
        assert!(start.is_multiple_of(4), "normal numbers are made in fours");
        for (index, chunk) in (start / 4..).zip(out.chunks_mut(4)) {
            let w = self.words(index);
            let pair = |a: u32, b: u32| {
                let radius = (-2.0 * Self::unit(a).ln()).sqrt() * std_dev;
                let angle = std::f64::consts::TAU * Self::unit(b);
                [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
            };
            let ([n0, n1], [n2, n3]) = (pair(w[0], w[1]), pair(w[2], w[3]));
            chunk.copy_from_slice(&[n0, n1, n2, n3][..chunk.len()]);
        }
    }

    /// Fills `out` with uniform numbers between -bound and bound, as they stand from element `start` on. Panics: if that is no
    /// multiple of 4.
    pub fn fill_uniform_from(&self, start: u64, out: &mut [f32], bound: f64) {
        assert!(start.is_multiple_of(4), "uniform numbers are made in fours");
        for (index, chunk) in (start / 4..).zip(out.chunks_mut(4)) {
            for (value, word) in chunk.iter_mut().zip(self.words(index)) {
                *value = ((2.0 * Self::unit(word) - 1.0) * bound) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_numbers_fill_their_range_evenly() {
        let mut values = vec![0.0f32; 4096];
        let stream = Stream::new(7, 1);
        stream.fill_uniform_from(0, &mut values, 0.5);
        let mean = values.iter().sum::<f32>() / 4096.0;
        let square = values.iter().map(|v| v * v).sum::<f32>() / 4096.0;
        assert!(values.iter().all(|v| v.abs() < 0.5) && mean.abs() < 0.02, "{mean}");
        assert!((square - 1.0 / 12.0).abs() < 0.005, "{square}");
        let mut rest = vec![0.0f32; 10];
        stream.fill_uniform_from(8, &mut rest, 0.5);
        assert_eq!(rest, values[8..18]);
    }

    #[test]
    fn philox_matches_the_papers_known_answers() {
        let zeros = philox([0; 4], [0; 2]);
        assert_eq!(zeros, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn a_stream_may_be_filled_from_anywhere() {
        let stream = Stream::new(7, 3);
        let mut all = [0.0f32; 23];
        stream.fill_normal(&mut all, 1.0);
        let mut tail = [0.0f32; 15];
        stream.fill_normal_from(8, &mut tail, 1.0);
        assert_eq!(all[8..], tail);
    }

    #[test]
    fn normal_numbers_have_the_asked_spread() {
        let mut x = vec![0.0f32; 100_001];
        Stream::new(7, 3).fill_normal(&mut x, 0.02);
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
        let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / x.len() as f64;
        assert!(mean.abs() < 3e-4, "mean {mean}");
        assert!((var.sqrt() - 0.02).abs() < 2e-4, "standard deviation {}", var.sqrt());
    }
}
