//! NF4: weights in 4 bits each, which stand for quantiles of the normal distribution, with scales that are quantised too.
//!
//! ```text
//! block of 64 weights:   absmax = max |w|;  code = nearest of the table to w / absmax
//! 256 such blocks:       s = absmax - mean of all absmax;  factor = 128 / max |s|;  q = round(s * factor), in 8 bits
//! back:                  w = table[code] * (q / factor + mean)
//! ```
//!
//! Layout:  bytes in this order, for n weights in B = ceil(n / 64) blocks and S = ceil(B / 256) groups of them; native byte order.
//!          `mean` f32 | `factor` f32 for each group | `q` i8 for each block | codes, two a byte, the first one in the low half
//! Numbers: every step is rounded to the dtype of the weights, as the reference rounds; numbers in the layout are then exact.
//!          A group whose scales are all alike has the factor 1, a block of zeros the code of 0. A weight that is no number makes
//!          all that are unpacked with it none.
//! Errors:  `Error::Shape`, `Error::DType`.
//! Source:  Dettmers et al. 2023, arXiv:2305.14314, sections 3 and E.

use super::{expect_dtype, expect_float, expect_shape};
use crate::{DType, Result, Tensor};

/// Weights that share a scale.
pub const BLOCK: usize = 64;

/// Blocks that share a factor.
pub const GROUP: usize = 256;

/// What the codes stand for: quantiles of the normal distribution, made so that 0 is exact and both ends are 1. In four digits, as the
/// reference has them.
pub const TABLE: [f32; 16] = [
    -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626,
    0.7230, 1.0,
];

/// The code of 0.
pub const ZERO: u8 = 7;

/// Where the parts of packed weights begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Weights.
    pub num_elements: usize,
    /// Blocks of weights.
    pub num_blocks: usize,
    /// Groups of blocks.
    pub num_groups: usize,
}

impl Layout {
    /// The layout of so many weights.
    pub const fn new(num_elements: usize) -> Self {
        let num_blocks = num_elements.div_ceil(BLOCK);
        Self { num_elements, num_blocks, num_groups: num_blocks.div_ceil(GROUP) }
    }

    /// Where the 8-bit scales begin.
    pub const fn scales(&self) -> usize {
        4 * (1 + self.num_groups)
    }

    /// Where the codes begin.
    pub const fn codes(&self) -> usize {
        self.scales() + self.num_blocks
    }

    /// Bytes of everything.
    pub const fn len_bytes(&self) -> usize {
        self.codes() + self.num_elements.div_ceil(2)
    }
}

/// Bytes of so many packed weights.
pub const fn packed_bytes(num_elements: usize) -> usize {
    Layout::new(num_elements).len_bytes()
}

/// Checks packing and unpacking of the weights `w`.
pub fn check(op: &'static str, packed: &Tensor, w: &Tensor) -> Result<Layout> {
    expect_float(op, "w", w)?;
    let layout = Layout::new(w.num_elements());
    expect_dtype(op, "packed", packed, DType::U8)?;
    expect_shape(op, "packed", packed, &[layout.len_bytes()])?;
    Ok(layout)
}

/// Quantised scales of blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    /// Of the largest magnitudes of all blocks.
    pub mean: f32,
    /// One for each group.
    pub factors: Vec<f32>,
    /// One for each block.
    pub quantised: Vec<i8>,
}

impl Scales {
    /// Quantises the largest magnitudes of blocks.
    pub fn new(absmax: &[f32], round: fn(f32) -> f32) -> Self {
        let sum: f64 = absmax.iter().copied().map(f64::from).sum();
        let mean = round((sum / absmax.len().max(1) as f64) as f32);
        let (mut factors, mut quantised) = (Vec::new(), Vec::with_capacity(absmax.len()));
        for group in absmax.chunks(GROUP) {
            let centred: Vec<f32> = group.iter().map(|absmax| round(absmax - mean)).collect();
            let most = centred.iter().fold(0.0f32, |most, s| most.max(s.abs()));
            let factor = if most > 0.0 { round(256.0 / round(2.0 * most)) } else { 1.0 };
            let quantise = |s: &f32| round(s * factor).round_ties_even().clamp(-128.0, 127.0) as i8;
            factors.push(factor);
            quantised.extend(centred.iter().map(quantise));
        }
        Self { mean, factors, quantised }
    }

    /// Writes them into packed weights.
    pub fn pack(&self, packed: &mut [u8], layout: Layout) {
        let floats = std::iter::once(&self.mean).chain(&self.factors);
        for (bytes, float) in packed.chunks_exact_mut(4).zip(floats) {
            bytes.copy_from_slice(&float.to_ne_bytes());
        }
        for (byte, &q) in packed[layout.scales()..layout.codes()].iter_mut().zip(&self.quantised) {
            *byte = q.cast_unsigned();
        }
    }
}

/// Scales as they lie in packed weights.
#[derive(Debug, Clone, Copy)]
pub struct PackedScales<'a> {
    mean: f32,
    factors: &'a [[u8; 4]],
    quantised: &'a [u8],
}

impl<'a> PackedScales<'a> {
    /// Those of packed weights.
    pub fn new(packed: &'a [u8], layout: Layout) -> Self {
        let (floats, _) = packed[..layout.scales()].as_chunks::<4>();
        let (mean, factors) = floats.split_first().expect("the first is the mean");
        let quantised = &packed[layout.scales()..layout.codes()];
        Self { mean: f32::from_ne_bytes(*mean), factors, quantised }
    }

    /// The scale of a block.
    pub fn of_block(&self, block: usize, round: fn(f32) -> f32) -> f32 {
        let factor = f32::from_ne_bytes(self.factors[block / GROUP]);
        round(round(f32::from(self.quantised[block].cast_signed()) / factor) + self.mean)
    }
}

/// The larger magnitude; NaN if one of both is.
pub fn larger(most: f32, w: f32) -> f32 {
    if most >= w.abs() || most.is_nan() { most } else { w.abs() }
}

/// The table as a dtype holds it.
pub fn table(round: fn(f32) -> f32) -> [f32; 16] {
    TABLE.map(round)
}

/// The code of a weight over its block's largest magnitude: the nearest of the table, the first of two that are equally near.
pub fn code_of(normalised: f32, round: fn(f32) -> f32) -> u8 {
    let (mut best, mut least) = (ZERO, f32::INFINITY);
    for (code, value) in (0..).zip(table(round)) {
        let distance = round(normalised - value).abs();
        if distance < least {
            (best, least) = (code, distance);
        }
    }
    best
}

/// Reference of packing.
pub fn nf4_quantise(packed: &mut [u8], w: &[f32], round: fn(f32) -> f32) {
    let layout = Layout::new(w.len());
    let absmax: Vec<f32> = w.chunks(BLOCK).map(|block| block.iter().copied().fold(0.0, larger)).collect();
    packed.fill(0);
    Scales::new(&absmax, round).pack(packed, layout);
    for (i, w) in w.iter().enumerate() {
        let absmax = absmax[i / BLOCK];
        let code = if absmax > 0.0 { code_of(round(w / absmax), round) } else { ZERO };
        packed[layout.codes() + i / 2] |= code << (4 * (i % 2));
    }
}

/// Reference of unpacking.
pub fn nf4_dequantise(w: &mut [f32], packed: &[u8], round: fn(f32) -> f32) {
    let layout = Layout::new(w.len());
    let (scales, table) = (PackedScales::new(packed, layout), table(round));
    for (i, w) in w.iter_mut().enumerate() {
        let code = packed[layout.codes() + i / 2] >> (4 * (i % 2)) & 15;
        *w = round(table[usize::from(code)] * scales.of_block(i / BLOCK, round));
    }
}
