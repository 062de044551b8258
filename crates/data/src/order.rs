//! The order of rows in an epoch: PyTorch's seeded permutation, and the share of it that a rank takes.
//!
//! Numbers: `randperm(n, seed)` equals `torch.randperm(n, generator=Generator().manual_seed(seed))` on the CPU:
//!          MT19937 seeded by `init_genrand(seed mod 2^32)`, one 32-bit draw a step; for i in 0..n-1,
//!          z = draw mod (n - i), then entries i and i + z swap.
//! Panics:  never.
//! Source:  Matsumoto & Nishimura 1998, "Mersenne Twister", reference initialisation and tempering.
//! Checked: `conformance/training/randperm.jsonl`.

/// Words of state in the generator.
const STATE_WORDS: usize = 624;
/// Distance of the word that the twist mixes in.
const SHIFT_WORDS: usize = 397;

/// The Mersenne Twister with 32-bit output.
pub struct Mt19937 {
    state: [u32; STATE_WORDS],
    next: usize,
}

impl Mt19937 {
    /// A generator seeded as the reference's `init_genrand`.
    pub fn new(seed: u32) -> Self {
        let mut state = [0_u32; STATE_WORDS];
        state[0] = seed;
        for i in 1..STATE_WORDS {
            let previous = state[i - 1];
            state[i] = 1_812_433_253_u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: STATE_WORDS }
    }

    /// The next 32-bit draw.
    pub fn draw(&mut self) -> u32 {
        if self.next == STATE_WORDS {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..STATE_WORDS {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE_WORDS] & 0x7fff_ffff);
            let mut mixed = self.state[(i + SHIFT_WORDS) % STATE_WORDS] ^ (joined >> 1);
            if joined & 1 == 1 {
                mixed ^= 0x9908_b0df;
            }
            self.state[i] = mixed;
        }
        self.next = 0;
    }
}

/// A permutation of `0..n`, the one PyTorch draws for this seed.
pub fn randperm(n: usize, seed: u64) -> Vec<usize> {
    let mut generator = Mt19937::new(seed as u32);
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        let z = generator.draw() as usize % (n - i);
        order.swap(i, i + z);
    }
    order
}

/// Which rows of an epoch one rank visits, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    /// Shuffle each epoch with seed + epoch; otherwise rows come in file order.
    pub shuffle: bool,
    /// Seed of epoch 0. The reference always uses 0, whatever the recipe's `seed` says.
    pub seed: u64,
    /// Ranks that share the rows, at least 1.
    pub num_replicas: usize,
    /// This rank, below `num_replicas`.
    pub rank: usize,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { shuffle: true, seed: 0, num_replicas: 1, rank: 0 }
    }
}

impl Sampler {
    /// Row numbers of one rank in one epoch.
    ///
    /// The epoch's order is padded by wrapping to a multiple of `num_replicas`, so that every rank gets
    /// `ceil(num_rows / num_replicas)` rows; a rank then takes every `num_replicas`-th. Consecutive rows of all ranks
    /// together are consecutive in the epoch's order, hence the rows of a step do not depend on how ranks share them.
    pub fn epoch_order(&self, num_rows: usize, epoch: usize) -> Vec<usize> {
        let order: Vec<usize> =
            if self.shuffle { randperm(num_rows, self.seed + epoch as u64) } else { (0..num_rows).collect() };
        if self.num_replicas == 1 {
            return order;
        }
        let padded = num_rows.div_ceil(self.num_replicas) * self.num_replicas;
        (self.rank..padded).step_by(self.num_replicas).map(|i| order[i % num_rows]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_draws_equal_the_published_ones() {
        // The reference program's `init_genrand(5489)` sequence.
        let mut generator = Mt19937::new(5489);
        assert_eq!([generator.draw(), generator.draw(), generator.draw()], [3499211612, 581869302, 3890346734]);
    }

    #[test]
    fn an_epoch_visits_every_row_once() {
        for n in [0, 1, 2, 7, 700] {
            let mut order = randperm(n, 3);
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_differ_and_repeat() {
        let sampler = Sampler::default();
        assert_eq!(sampler.epoch_order(10, 1), randperm(10, 1));
        assert_ne!(sampler.epoch_order(10, 0), sampler.epoch_order(10, 1));
        assert_eq!(Sampler { shuffle: false, ..sampler }.epoch_order(3, 5), [0, 1, 2]);
    }

    #[test]
    fn ranks_stride_and_wrap() {
        let sampler = |rank| Sampler { shuffle: false, seed: 0, num_replicas: 3, rank };
        assert_eq!(sampler(0).epoch_order(7, 0), [0, 3, 6]);
        assert_eq!(sampler(1).epoch_order(7, 0), [1, 4, 0]);
        assert_eq!(sampler(2).epoch_order(7, 0), [2, 5, 1]);
        assert!(sampler(2).epoch_order(0, 0).is_empty());
    }
}
