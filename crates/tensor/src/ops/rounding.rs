//! How updated weights are rounded when they are stored: to nearest, or by chance.
//!
//! Rounded to nearest, a bf16 weight does not move at all while its updates stay below half a unit in the last place. Rounded
//! by chance it goes to one of the two bf16 values around it, to each with the probability that makes the mean the value itself:
//! 16 random bits are added to the f32 below the bits that bf16 keeps, and what is below is cut off.
//!
//! Random bits are a function of seed, step, unit and the element's place in its unit, whichever thread and whichever rank
//! updates it: Philox gives a key to every [`STRETCH`] elements, a hash of 32 bits makes the bits of each from it.
//!
//! Numbers: values that bf16 holds, infinities among them, stay as they are; NaN stays NaN. In f32 nothing is rounded.
//! Source:  Gupta et al. 2015, arXiv:1502.02551; the hash is built like the finaliser of MurmurHash3, with its constants.
//! Checked: means, neighbours and independence of the stretches below; the op tables of the optimizers.

use std::ops::Range;

use half::bf16;

use crate::rng::Stream;

/// How the weights of an update are rounded; states of the optimizer are rounded to nearest always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    /// Up or down by chance; f32 weights are not rounded.
    Stochastic(RandomBits),
}

/// Where the random bits of an update's elements come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomBits {
    /// The run's seed.
    pub seed: u64,
    /// Which update this is, from 1.
    pub step: u64,
    /// The unit that the weights belong to.
    pub unit: u32,
    /// The place of the tensor's first element in its unit.
    pub start: u64,
}

/// Elements that share a key.
pub const STRETCH: usize = 1024;

/// Tells these streams of a seed from those that weights are initialised from, which are numbered by parameter.
const USE: u64 = 1 << 63;

/// The random bits of some elements, side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StretchBits {
    key: [u32; 2],
    /// The first element's place in the stretch.
    first: u32,
}

impl StretchBits {
    /// 32 random bits for the element `index` places after the first.
    #[inline(always)]
    pub const fn at(self, index: u32) -> u32 {
        let mut x = self.key[0].wrapping_add(self.first.wrapping_add(index));
        x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
        x = (x ^ (x >> 13)).wrapping_add(self.key[1]).wrapping_mul(0xC2B2_AE35);
        x ^ (x >> 16)
    }
}

impl RandomBits {
    /// The bits of the elements `first..first + len` of the tensor: ranges that begin at 0, each with its bits.
    pub fn stretches(self, first: usize, len: usize) -> impl Iterator<Item = (Range<usize>, StretchBits)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == len {
                return None;
            }
            let place = self.start + (first + at) as u64;
            let bits = self.stretch_of(place);
            let range = at..len.min(at + STRETCH - bits.first as usize);
            at = range.end;
            Some((range, bits))
        })
    }

    /// The bits of the tensor's element `index`, found alone.
    pub fn at(self, index: usize) -> u32 {
        self.stretch_of(self.start + index as u64).at(0)
    }

    fn stretch_of(self, place: u64) -> StretchBits {
        let (number, first) = (place / STRETCH as u64, (place % STRETCH as u64) as u32);
        let words = Stream::new(self.seed, USE | self.step).words((u64::from(self.unit) << 32) | number);
        StretchBits { key: [words[0], words[1]], first }
    }
}

/// Reference of rounding by chance: of `random` the upper 16 bits count.
pub fn round_by_chance(x: f32, random: u32) -> bf16 {
    if x.is_nan() {
        return bf16::from_f32(x);
    }
    bf16::from_bits(((x.to_bits() + (random >> 16)) >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: RandomBits = RandomBits { seed: 42, step: 3, unit: 7, start: 0 };

    #[test]
    fn the_mean_of_many_roundings_is_the_value() {
        const COUNT: usize = 100_000;
        // 1 has neighbours 2^-7 above and 2^-8 below.
        for x in
            [1.0f32 + 1.0 / 1024.0, -1.0 - 1.0 / 1024.0, 0.999, 2.7654321, -1e-20, 1e-39, 5.7e30, 1.0 + f32::EPSILON]
        {
            let lower = f32::from_bits(x.to_bits() & 0xffff_0000);
            let upper = f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000);
            let unit = f64::from(upper) - f64::from(lower);
            let chance = (f64::from(x) - f64::from(lower)) / unit;
            let mut ups = 0;
            for i in 0..COUNT {
                let rounded = round_by_chance(x, BITS.at(i)).to_f32();
                assert!(rounded == lower || rounded == upper, "{x} became {rounded}");
                ups += usize::from(rounded == upper);
            }
            let mean = f64::from(lower) + unit * ups as f64 / COUNT as f64;
            let sigma = unit.abs() * (chance * (1.0 - chance) / COUNT as f64).sqrt();
            let off = (mean - f64::from(x)).abs();
            assert!(off <= 4.0 * sigma, "{x}: mean {mean}, {} sigma off", off / sigma);
        }
    }

    #[test]
    fn what_bf16_holds_stays() {
        let held = [0.0, -0.0, 1.0, -3.5, 1e-40, f32::INFINITY, f32::NEG_INFINITY, 3.389e38].map(bf16::from_f32);
        for x in held {
            for random in [0, 0xffff_0000, u32::MAX, 0x1234_5678] {
                assert_eq!(round_by_chance(x.to_f32(), random).to_bits(), x.to_bits(), "{x}");
            }
        }
        for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(round_by_chance(nan, u32::MAX).is_nan());
        }
    }

    #[test]
    fn bits_depend_on_the_place_alone() {
        let whole: Vec<u32> = (0..5000).map(|i| BITS.at(i)).collect();
        for (start, first, len) in
            [(0, 0, 5000), (1000, 0, 30), (1000, 24, 1), (256, 700, 3000), (0, 1024, 1024), (9, 9, 0)]
        {
            let part = RandomBits { start, ..BITS };
            let mut next = 0;
            for (range, bits) in part.stretches(first, len) {
                assert_eq!(range.start, next, "ranges follow one another");
                next = range.end;
                for (index, i) in (0..).zip(range) {
                    assert_eq!(bits.at(index), whole[start as usize + first + i], "{start} {first} {len} {i}");
                }
            }
            assert_eq!(next, len);
        }
    }

    #[test]
    fn every_part_of_the_key_changes_the_bits() {
        let others = [
            RandomBits { seed: 43, ..BITS },
            RandomBits { step: 4, ..BITS },
            RandomBits { unit: 8, ..BITS },
            RandomBits { start: STRETCH as u64, ..BITS },
            RandomBits { start: (STRETCH as u64) << 20, ..BITS },
        ];
        for other in others {
            let same = (0..1000).filter(|&i| other.at(i) >> 16 == BITS.at(i) >> 16).count();
            assert!(same < 5, "{other:?}: {same} of 1000 are the same");
        }
    }

    #[test]
    fn every_random_bit_is_set_half_of_the_time() {
        const COUNT: usize = 1 << 16;
        for bit in 16..32 {
            let set = (0..COUNT).filter(|&i| BITS.at(i) >> bit & 1 == 1).count();
            // Of a fair coin sigma is 128.
            assert!(set.abs_diff(COUNT / 2) < 512, "bit {bit}: {set} of {COUNT}");
        }
    }
}
