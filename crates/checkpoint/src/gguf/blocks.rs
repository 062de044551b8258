//! GGUF's quantised blocks to f32: one function a type, one block at a time.
//!
//! Layout:  little-endian; a row is a whole number of blocks. `d`, `m`: f16 scale and minimum; `q`: packed integers.
//!          Blocks of 32:  Q4_0 = d q4[32] · Q4_1 = d m q4[32] · Q5_0 = d h[4] q4[32] · Q5_1 = d m h[4] q4[32] ·
//!          Q8_0 = d i8[32] · IQ4_NL = d q4[32]. In 4-bit types byte j holds elements j (low) and j + 16 (high).
//!          Blocks of 256: Q2_K = s[16] q2[256] d m · Q3_K = h[32] q2[256] s6[16] d · Q4_K = d m s6[12] q4[256] ·
//!          Q5_K = d m s6[12] h[32] q4[256] · Q6_K = q4[256] h2[256] i8[16] d · Q8_K = f32 d, i8[256], i16[16] sums ·
//!          IQ4_XS = d u16 h2[8] s4[8] q4[256].
//! Numbers: each product and sum in f32, in the order of the formula beside the type, never fused.
//! Panics:  never for a block of `block_bytes` and an output of `block_elements`, which the caller checks.
//! Source:  the format of ggml (github.com/ggml-org/ggml, docs/gguf.md and its block definitions).
//! Checked: conformance `quant/dequant.safetensors`.

use std::fmt;

use half::f16;

/// A quantised block format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "the formats' own names")]
pub enum BlockType {
    /// y = d * (q - 8), q of 4 bits.
    Q4_0,
    /// y = d * q + m, q of 4 bits.
    Q4_1,
    /// y = d * (q - 16), q of 5 bits.
    Q5_0,
    /// y = d * q + m, q of 5 bits.
    Q5_1,
    /// y = d * q, q of 8 bits.
    Q8_0,
    /// y = d * s * q - m * s', q of 2 bits, s and s' of 4.
    Q2_K,
    /// y = d * s * q, q of 3 bits, s of 6.
    Q3_K,
    /// y = d * s * q - m * s', q of 4 bits, s and s' of 6.
    Q4_K,
    /// y = d * s * q - m * s', q of 5 bits, s and s' of 6.
    Q5_K,
    /// y = d * s * q, q of 6 bits, s of 8.
    Q6_K,
    /// y = d * q, q of 8 bits, d of f32.
    Q8_K,
    /// y = d * table\[q\], q of 4 bits.
    IQ4_NL,
    /// y = d * s * table\[q\], q of 4 bits, s of 6.
    IQ4_XS,
}

/// The values that the 4-bit codes of IQ4_NL and IQ4_XS stand for.
const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl BlockType {
    /// Elements in a block.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            _ => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::Q8_K => 292,
            Self::IQ4_XS => 136,
        }
    }

    /// Dequantises one block: `block` holds `block_bytes`, `y` takes `block_elements`.
    pub fn dequantize(self, y: &mut [f32], block: &[u8]) {
        match self {
            Self::Q4_0 => q4_0(y, block),
            Self::Q4_1 => q4_1(y, block),
            Self::Q5_0 => q5_0(y, block),
            Self::Q5_1 => q5_1(y, block),
            Self::Q8_0 => q8_0(y, block),
            Self::Q2_K => q2_k(y, block),
            Self::Q3_K => q3_k(y, block),
            Self::Q4_K => q4_k(y, block),
            Self::Q5_K => q5_k(y, block),
            Self::Q6_K => q6_k(y, block),
            Self::Q8_K => q8_k(y, block),
            Self::IQ4_NL => iq4_nl(y, block),
            Self::IQ4_XS => iq4_xs(y, block),
        }
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn q4_0(y: &mut [f32], block: &[u8]) {
    let d = half_at(block, 0);
    for (j, &q) in block[2..18].iter().enumerate() {
        y[j] = d * (f32::from(q & 15) - 8.0);
        y[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

fn q4_1(y: &mut [f32], block: &[u8]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &q) in block[4..20].iter().enumerate() {
        y[j] = d * f32::from(q & 15) + m;
        y[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The fifth bits of a block of 32: bit i belongs to element i.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The 5-bit codes of elements j and j + 16.
fn five_bit_pair(q: u8, high: u32, j: usize) -> (f32, f32) {
    let low = (q & 15) as u32 | ((high >> j) & 1) << 4;
    let upper = (q >> 4) as u32 | ((high >> (j + 16)) & 1) << 4;
    (low as f32, upper as f32)
}

fn q5_0(y: &mut [f32], block: &[u8]) {
    let (d, high) = (half_at(block, 0), fifth_bits(block, 2));
    for (j, &q) in block[6..22].iter().enumerate() {
        let (low, upper) = five_bit_pair(q, high, j);
        y[j] = d * (low - 16.0);
        y[j + 16] = d * (upper - 16.0);
    }
}

fn q5_1(y: &mut [f32], block: &[u8]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), fifth_bits(block, 4));
    for (j, &q) in block[8..24].iter().enumerate() {
        let (low, upper) = five_bit_pair(q, high, j);
        y[j] = d * low + m;
        y[j + 16] = d * upper + m;
    }
}

fn q8_0(y: &mut [f32], block: &[u8]) {
    let d = half_at(block, 0);
    for (y, &q) in y.iter_mut().zip(&block[2..34]) {
        *y = d * f32::from(q as i8);
    }
}

fn q2_k(y: &mut [f32], block: &[u8]) {
    let (scales, q) = (&block[..16], &block[16..80]);
    let (d, m) = (half_at(block, 80), half_at(block, 82));
    // Element i of each half of 128: byte i % 32 of the half's 32, bits 2 * (i / 32).
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[group] & 15);
        let minimum = m * f32::from(scales[group] >> 4);
        let bytes = &q[32 * (group / 8) + 16 * (group % 2)..][..16];
        let shift = 2 * (group % 8 / 2);
        for (y, &q) in y.iter_mut().zip(bytes) {
            *y = scale * f32::from((q >> shift) & 3) - minimum;
        }
    }
}

fn q3_k(y: &mut [f32], block: &[u8]) {
    let (high, q, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        // Scale g: low four bits in byte g % 8 (upper nibble for g >= 8), high two in byte 8 + g % 4.
        let low = (packed[group % 8] >> (4 * (group / 8))) & 15;
        let top = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        let first = 16 * (group % 2);
        let bytes = &q[32 * (group / 8) + first..][..16];
        let shift = 2 * (group % 8 / 2);
        // A clear bit subtracts four; bit k of the mask serves the k-th run of 32 elements.
        let bit = 1u8 << (group / 2);
        for ((y, &q), &h) in y.iter_mut().zip(bytes).zip(&high[first..first + 16]) {
            let code = f32::from((q >> shift) & 3) - if h & bit == 0 { 4.0 } else { 0.0 };
            *y = scale * code;
        }
    }
}

/// Scale and minimum of run `j` (of 32 elements) in the 12 packed bytes of Q4_K and Q5_K.
fn scale_and_minimum(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

fn q4_k(y: &mut [f32], block: &[u8]) {
    let (d, m, packed, q) = (half_at(block, 0), half_at(block, 2), &block[4..16], &block[16..144]);
    for (run, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, run);
        let (scale, minimum) = (d * scale, m * minimum);
        let bytes = &q[32 * (run / 2)..][..32];
        let shift = 4 * (run % 2);
        for (y, &q) in y.iter_mut().zip(bytes) {
            *y = scale * f32::from((q >> shift) & 15) - minimum;
        }
    }
}

fn q5_k(y: &mut [f32], block: &[u8]) {
    let (d, m, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    let (high, q) = (&block[16..48], &block[48..176]);
    for (run, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, run);
        let (scale, minimum) = (d * scale, m * minimum);
        let bytes = &q[32 * (run / 2)..][..32];
        let shift = 4 * (run % 2);
        for ((y, &q), &h) in y.iter_mut().zip(bytes).zip(high) {
            let code = ((q >> shift) & 15) | ((h >> run) & 1) << 4;
            *y = scale * f32::from(code) - minimum;
        }
    }
}

fn q6_k(y: &mut [f32], block: &[u8]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[group] as i8);
        // In each half of 128: runs 0 and 2 share 32 bytes (low and high nibble), runs 1 and 3 the next 32.
        let (half, run, first) = (group / 8, group % 8 / 2, 16 * (group % 2));
        let nibbles = &low[64 * half + 32 * (run % 2) + first..][..16];
        let pairs = &high[32 * half + first..][..16];
        for ((y, &l), &h) in y.iter_mut().zip(nibbles).zip(pairs) {
            let code = ((l >> (4 * (run / 2))) & 15) | ((h >> (2 * run)) & 3) << 4;
            *y = scale * (f32::from(code) - 32.0);
        }
    }
}

fn q8_k(y: &mut [f32], block: &[u8]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (y, &q) in y.iter_mut().zip(&block[4..260]) {
        *y = d * f32::from(q as i8);
    }
}

fn iq4_nl(y: &mut [f32], block: &[u8]) {
    iq4_run(y, half_at(block, 0), &block[2..18]);
}

fn iq4_xs(y: &mut [f32], block: &[u8]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let (low, q) = (&block[4..8], &block[8..136]);
    for (run, y) in y.chunks_exact_mut(32).enumerate() {
        let nibble = (low[run / 2] >> (4 * (run % 2))) & 15;
        let pair = ((high >> (2 * run)) & 3) as u8;
        iq4_run(y, d * (f32::from(nibble | pair << 4) - 32.0), &q[16 * run..][..16]);
    }
}

/// 32 elements of one scale through the table of values.
fn iq4_run(y: &mut [f32], scale: f32, q: &[u8]) {
    for (j, &q) in q.iter().enumerate() {
        y[j] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        y[j + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();

    #[test]
    fn q4_0_counts_from_minus_eight() {
        let mut block = ONE.to_vec();
        block.extend([0x70; 16]);
        let mut y = [0.0; 32];
        BlockType::Q4_0.dequantize(&mut y, &block);
        assert_eq!((y[0], y[15], y[16], y[31]), (-8.0, -8.0, -1.0, -1.0));
    }

    #[test]
    fn q8_k_is_an_f32_scale_times_signed_bytes() {
        let mut block = 0.5f32.to_le_bytes().to_vec();
        block.extend((0..=255u8).collect::<Vec<_>>());
        block.extend([0; 32]);
        assert_eq!(block.len(), BlockType::Q8_K.block_bytes());
        let mut y = [0.0; 256];
        BlockType::Q8_K.dequantize(&mut y, &block);
        assert_eq!((y[1], y[127], y[128], y[255]), (0.5, 63.5, -64.0, -0.5));
    }
}
