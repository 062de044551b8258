//! AdamW with both moments in 8 bits: a byte an element, and an f32 for every [`BLOCK`] of them.
//!
//! A byte stands for a part of the largest magnitude in its block. Those parts are spread over seven powers of ten, the larger
//! the finer: the numbers from 0.1 to 1 are cut into as many equal pieces as there are bytes to spare, those from 0.01 to 0.1
//! into half as many, and so on; a byte is the middle of its piece. The last two bytes are 0 and 1. With p the byte, b the
//! position of its highest bit and K the position of the highest bit of all:
//!   part(p) = 10^(b - K) * (0.1 + 0.9 * (p - 2^b + 1/2) / 2^b)
//! - exp_avg_sq, which is never negative: the byte n is p = n + 1, K = 7; 0 is 0 and 255 is 1.
//! - exp_avg: the byte is a signed number n with p = |n|, K = 6 and the sign of n; 0 is 0 and -128 is +1.
//!
//! An update takes the moments of a block out of 8 bits, is the update of [`adamw`](super::adamw), and puts them back: the block's
//! largest magnitude, and for every element the byte whose part is nearest. Bytes of 0 are moments of 0, so padding stays 0.
//!
//! Shapes:  param, bytes of both moments, grad: one shape; absmax of both: (ceil(elements / BLOCK)). Elements are counted
//!          through the tensor, in blocks that the last may leave unfilled.
//! Numbers: bytes u8, absmax f32, param f32 or bf16, grad that or f32; computed in f32, the parameter rounded once. The update
//!          uses the moments before they are put back.
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Dettmers et al. 2022, arXiv:2110.02861 (dynamic tree quantisation, block-wise); sizes as bitsandbytes'. The order of the
//!          bytes is ours.
//! Checked: the parts by hand below; the op table.

use super::adamw::{AdamWStep, adamw_step};
use super::{Float, expect_dtype, expect_dtype_or_f32, expect_float, expect_shape};
use crate::{DType, Result, Tensor};

/// Elements that share an absmax.
pub const BLOCK: usize = 256;

/// Which of the two moments, which decides what a byte stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The mean of gradients.
    ExpAvg,
    /// The mean of squared gradients.
    ExpAvgSq,
}

impl Moment {
    /// The position of the highest bit of all p: K.
    pub const fn top_bit(self) -> u32 {
        match self {
            Self::ExpAvg => 6,
            Self::ExpAvgSq => 7,
        }
    }

    /// The part that each byte stands for.
    pub fn parts(self) -> [f64; 256] {
        std::array::from_fn(|byte| match (self, byte) {
            (_, 0) => 0.0,
            (Self::ExpAvgSq, 255) | (Self::ExpAvg, 128) => 1.0,
            (Self::ExpAvgSq, n) => self.part(n as u32 + 1),
            (Self::ExpAvg, n) if n < 128 => self.part(n as u32),
            (Self::ExpAvg, n) => -self.part(256 - n as u32),
        })
    }

    fn part(self, p: u32) -> f64 {
        let bit = p.ilog2();
        let pieces = f64::from(1u32 << bit);
        let middle = 0.1 + 0.9 * (f64::from(p) - pieces + 0.5) / pieces;
        middle / 10f64.powi((self.top_bit() - bit) as i32)
    }
}

/// A moment in 8 bits.
#[derive(Debug)]
pub struct Quantised<'a> {
    /// A byte an element.
    pub bytes: &'a mut Tensor,
    /// The largest magnitude of each block.
    pub absmax: &'a mut Tensor,
}

/// Checks an update; gives the number of elements.
pub fn check(param: &Tensor, exp_avg: &Quantised<'_>, exp_avg_sq: &Quantised<'_>, grad: &Tensor) -> Result<usize> {
    let op = "adamw8bit_step";
    let dtype = expect_float(op, "param", param)?;
    let num_blocks = param.num_elements().div_ceil(BLOCK);
    for (names, moment) in [(["exp_avg", "exp_avg_absmax"], exp_avg), (["exp_avg_sq", "exp_avg_sq_absmax"], exp_avg_sq)]
    {
        expect_shape(op, names[0], moment.bytes, param.dims())?;
        expect_dtype(op, names[0], moment.bytes, DType::U8)?;
        expect_shape(op, names[1], moment.absmax, &[num_blocks])?;
        expect_dtype(op, names[1], moment.absmax, DType::F32)?;
    }
    expect_shape(op, "grad", grad, param.dims())?;
    expect_dtype_or_f32(op, "grad", grad, dtype)?;
    Ok(param.num_elements())
}

/// Reference of taking a moment out of 8 bits.
pub fn dequantise<T: Float>(moment: Moment, bytes: &[u8], absmax: &[T]) -> Vec<T> {
    let parts = moment.parts();
    let value = |(i, &byte): (usize, &u8)| T::from_f64(parts[byte as usize]) * absmax[i / BLOCK];
    bytes.iter().enumerate().map(value).collect()
}

/// Reference of putting a moment into 8 bits.
pub fn quantise<T: Float>(moment: Moment, values: &[T], bytes: &mut [u8], absmax: &mut [T]) {
    let parts = moment.parts();
    for ((values, bytes), absmax) in values.chunks(BLOCK).zip(bytes.chunks_mut(BLOCK)).zip(absmax) {
        *absmax = values.iter().fold(T::ZERO, |most, &v| most.max(v).max(-v));
        for (byte, &value) in bytes.iter_mut().zip(values) {
            let part = if *absmax == T::ZERO { 0.0 } else { (value / *absmax).to_f64() };
            let distance = |byte: u8| (parts[byte as usize] - part).abs();
            *byte = (0..=255).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).expect("there are 256 bytes");
        }
    }
}

/// Reference of one update; each moment as bytes and absmax.
pub fn adamw8bit_step<T: Float>(
    param: &mut [T],
    (m_bytes, m_absmax): (&mut [u8], &mut [T]),
    (v_bytes, v_absmax): (&mut [u8], &mut [T]),
    grad: &[T],
    step: &AdamWStep,
) {
    let mut m = dequantise(Moment::ExpAvg, m_bytes, m_absmax);
    let mut v = dequantise(Moment::ExpAvgSq, v_bytes, v_absmax);
    adamw_step(param, &mut m, &mut v, grad, step);
    quantise(Moment::ExpAvg, &m, m_bytes, m_absmax);
    quantise(Moment::ExpAvgSq, &v, v_bytes, v_absmax);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_by_hand() {
        let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
        let signed = Moment::ExpAvg.parts();
        // One piece of [1e-7, 1e-6], two of [1e-6, 1e-5], 64 of [0.1, 1].
        close(signed[1], 5.5e-7);
        close(signed[2], 3.25e-6);
        close(signed[3], 7.75e-6);
        close(signed[64], 0.1 + 0.9 / 128.0);
        close(signed[127], 1.0 - 0.9 / 128.0);
        close(signed[255], -5.5e-7);
        close(signed[129], -1.0 + 0.9 / 128.0);
        assert_eq!((signed[0], signed[128]), (0.0, 1.0));
        let unsigned = Moment::ExpAvgSq.parts();
        close(unsigned[1], 3.25e-7);
        close(unsigned[2], 7.75e-7);
        close(unsigned[254], 1.0 - 0.9 / 256.0);
        assert_eq!((unsigned[0], unsigned[255]), (0.0, 1.0));
    }

    #[test]
    fn every_byte_has_a_part_of_its_own_and_is_its_own_nearest() {
        for moment in [Moment::ExpAvg, Moment::ExpAvgSq] {
            let mut sorted = moment.parts();
            sorted.sort_by(f64::total_cmp);
            assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "{moment:?}");
            let bytes: Vec<u8> = (0..=255).collect();
            let (mut again, mut absmax) = (vec![9; 256], [0.0]);
            quantise(moment, &dequantise(moment, &bytes, &[4.0f64]), &mut again, &mut absmax);
            assert_eq!((again, absmax), (bytes, [4.0]), "{moment:?}");
        }
    }

    #[test]
    fn zeros_are_bytes_of_zero() {
        let (mut bytes, mut absmax) = (vec![9; 300], [1.0, 1.0]);
        quantise(Moment::ExpAvg, &[0.0f32; 300], &mut bytes, &mut absmax);
        assert_eq!((bytes, absmax), (vec![0; 300], [0.0, 0.0]));
        assert!(dequantise(Moment::ExpAvg, &[0; 300], &[0.0f64, 5.0]).iter().all(|&v| v == 0.0));
    }

    #[test]
    fn blocks_have_a_scale_each() {
        let values: Vec<f64> = (0..BLOCK + 3).map(|i| if i < BLOCK { 1e-3 * i as f64 } else { 1e6 }).collect();
        let (mut bytes, mut absmax) = (vec![0; values.len()], [0.0; 2]);
        quantise(Moment::ExpAvg, &values, &mut bytes, &mut absmax);
        assert_eq!(absmax, [0.255, 1e6]);
        let back = dequantise(Moment::ExpAvg, &bytes, &absmax);
        for (i, (back, value)) in back.iter().zip(&values).enumerate() {
            // Half of a piece of the largest power of ten.
            assert!((back - value).abs() <= 0.9 / 128.0 * absmax[i / BLOCK] + 1e-12, "{value} came back as {back}");
        }
    }

    #[test]
    fn the_first_update_is_that_of_adamw() {
        let step = AdamWStep { lr: 0.1, weight_decay: 0.5, ..AdamWStep::FIRST };
        let grad: Vec<f64> = (0..300).map(|i| (f64::from(i) - 150.0) / 7.0).collect();
        let (mut p, mut m, mut v) = (vec![1.0; 300], vec![0.0; 300], vec![0.0; 300]);
        adamw_step(&mut p, &mut m, &mut v, &grad, &step);
        let mut p8 = vec![1.0; 300];
        let (mut m8, mut v8) = ((vec![0; 300], [0.0; 2]), (vec![0; 300], [0.0; 2]));
        adamw8bit_step(&mut p8, (&mut m8.0, &mut m8.1), (&mut v8.0, &mut v8.1), &grad, &step);
        assert_eq!(p8, p);
        let largest = grad.iter().fold(0.0f64, |most, g| most.max(g.abs()));
        assert!((m8.1[0] - 0.1 * largest).abs() < 1e-12 && (v8.1[0] - 0.001 * largest * largest).abs() < 1e-12);
    }
}
