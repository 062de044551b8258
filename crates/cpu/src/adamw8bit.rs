//! AdamW with moments in 8 bits: a block at a time out of 8 bits, updated, and back.
//!
//! The byte nearest to a part is found without searching: comparisons with the borders of the powers of ten choose two numbers, from
//! which one multiplication and one addition make the position p of [`tensor::ops::adamw8bit`], with the place in the piece behind
//! the point. The loop has no branch and becomes vector code.
//!
//! Numbers: factors are computed in f64 and rounded to f32; the update is computed in f32, the parameter rounded once. Of two bytes
//!          that are equally near, within 1e-4 of a piece, either may be taken.

use std::ops::Range;
use std::sync::LazyLock;

use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::{BLOCK, Moment, Quantised, check};
use tensor::ops::rounding::Rounding;
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::adamw::Factors;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::{Isa, per_isa};
use crate::numbers::{Element, mul_add, with_element};
use crate::rounding::{ToNearest, of_dtype, store_rounded};

/// Powers of ten that parts are spread over.
const DECADES: usize = 7;

/// What bytes of a moment stand for, and how to find them.
struct Codec {
    /// The part of each byte.
    parts: [f32; 256],
    finder: Finder,
}

/// The numbers that finding bytes takes.
#[derive(Clone, Copy)]
struct Finder {
    /// From which magnitude on the nearest byte belongs to a power of ten.
    borders: [f32; DECADES],
    /// Pieces of each power of ten: the first of its positions.
    pieces: [f32; DECADES],
    /// Positions that a magnitude of 1 is away from one of 0.
    slopes: [f32; DECADES],
    /// From which part on the nearest is 1.
    one: f32,
    /// The byte of that.
    byte_of_one: u32,
    /// The position that the byte 0 would have.
    offset: u32,
}

static EXP_AVG: LazyLock<Codec> = LazyLock::new(|| Codec::new(Moment::ExpAvg));
static EXP_AVG_SQ: LazyLock<Codec> = LazyLock::new(|| Codec::new(Moment::ExpAvgSq));

impl Codec {
    fn new(moment: Moment) -> Self {
        let parts = moment.parts();
        let (offset, byte_of_one) = match moment {
            Moment::ExpAvg => (0, 0x80),
            Moment::ExpAvgSq => (1, 0xff),
        };
        let part = |position: usize| parts[position - offset];
        let first = |decade: usize| 1usize << (decade + moment.top_bit() as usize + 1 - DECADES);
        let finder = Finder {
            borders: std::array::from_fn(|decade| f64::midpoint(part(first(decade)), part(first(decade) - 1)) as f32),
            pieces: std::array::from_fn(|decade| first(decade) as f32),
            slopes: std::array::from_fn(|decade| {
                (first(decade) as f64 / 0.9 * 10f64.powi((DECADES - 1 - decade) as i32)) as f32
            }),
            one: f64::midpoint(part(2 * first(DECADES - 1) - 1), 1.0) as f32,
            byte_of_one,
            offset: offset as u32,
        };
        Self { parts: parts.map(|part| part as f32), finder }
    }
}

impl Finder {
    /// The byte whose part is nearest to `part`; any for NaN. Without a sign, parts must not be negative.
    #[inline(always)]
    fn nearest<const FMA: bool>(&self, part: f32) -> u8 {
        /// Adding it leaves the number without what is behind its point in the low bits of the sum.
        const CUT: f32 = 8_388_608.0 - 0.5;
        let magnitude = part.abs();
        let (mut pieces, mut slope) = (self.pieces[0], self.slopes[0]);
        for decade in 1..DECADES {
            let reached = magnitude >= self.borders[decade];
            pieces = if reached { self.pieces[decade] } else { pieces };
            slope = if reached { self.slopes[decade] } else { slope };
        }
        // The first piece of a power of ten begins at a tenth of it: 1 - 0.1 / 0.9.
        let at = mul_add::<FMA>(magnitude, slope, pieces * (8.0 / 9.0));
        let (first, last) = (pieces + 0.25, 2.0 * pieces - 0.5);
        let at = if at > first { at } else { first };
        let at = if at < last { at } else { last };
        let position = (at + CUT).to_bits() & 0xff;
        let position = if magnitude >= self.borders[0] { position } else { self.offset };
        let byte = position.wrapping_sub(self.offset);
        let byte = if part < 0.0 { byte.wrapping_neg() } else { byte };
        (if part >= self.one { self.byte_of_one } else { byte }) as u8
    }
}

/// A block of a moment.
struct Block<'a> {
    codec: &'a Codec,
    bytes: &'a mut [u8],
    absmax: &'a mut f32,
}

per_isa! {
    fn dequantise<const FMA: bool,>(values: &mut [f32; BLOCK], block: &Block<'_>) {
        for (value, &byte) in values.iter_mut().zip(block.bytes.iter()) {
            *value = block.codec.parts[byte as usize] * *block.absmax;
        }
    }
}

per_isa! {
    fn quantise<const FMA: bool,>(values: &[f32], block: &mut Block<'_>) {
        // Magnitudes are in the order of their bits, with NaN above all.
        let mut most = 0u32;
        for value in values {
            most = most.max(value.to_bits() & 0x7fff_ffff);
        }
        *block.absmax = f32::from_bits(most);
        let divisor = if most == 0 { 1.0 } else { *block.absmax };
        // A copy, which no write to bytes can change: its numbers stay in registers.
        let finder = block.codec.finder;
        for (byte, &value) in block.bytes.iter_mut().zip(values) {
            *byte = finder.nearest::<FMA>(value / divisor);
        }
    }
}

per_isa! {
    fn update<const FMA: bool, T: Element, G: Element>(
        updated: &mut [f32; BLOCK],
        mean: &mut [f32; BLOCK],
        mean_sq: &mut [f32; BLOCK],
        param: &[T],
        grad: &[G],
        f: Factors,
    ) {
        let moments = mean.iter_mut().zip(mean_sq);
        for (((p, g), (m, v)), updated) in param.iter().zip(grad).zip(moments).zip(updated) {
            (*updated, *m, *v) = f.update(p.to_f32(), *m, *v, g.to_f32());
        }
    }
}

/// Blocks of a moment, side by side.
type Blocks<'a> = (&'a mut [u8], &'a mut [f32]);

/// Updates some blocks, of which the first element is the tensor's `first`.
fn update_blocks<T: Element, G: Element>(
    isa: Isa,
    param: &mut [T],
    (m_bytes, m_absmax): Blocks<'_>,
    (v_bytes, v_absmax): Blocks<'_>,
    grad: &[G],
    (f, rounding): (Factors, Rounding),
    first: usize,
) {
    let (m_codec, v_codec) = (&*EXP_AVG, &*EXP_AVG_SQ);
    let [mut mean, mut mean_sq, mut updated] = [[0.0f32; BLOCK]; 3];
    let m_blocks = m_bytes.chunks_mut(BLOCK).zip(m_absmax);
    let v_blocks = v_bytes.chunks_mut(BLOCK).zip(v_absmax);
    let weights = param.chunks_mut(BLOCK).zip(grad.chunks(BLOCK));
    for (number, ((param, grad), (m, v))) in weights.zip(m_blocks.zip(v_blocks)).enumerate() {
        let mut m = Block { codec: m_codec, bytes: m.0, absmax: m.1 };
        let mut v = Block { codec: v_codec, bytes: v.0, absmax: v.1 };
        dequantise(isa, &mut mean, &m);
        dequantise(isa, &mut mean_sq, &v);
        update(isa, &mut updated, &mut mean, &mut mean_sq, param, grad, f);
        let len = param.len();
        match rounding {
            Rounding::Nearest => store_rounded(isa, param, &updated[..len], ToNearest),
            Rounding::Stochastic(bits) => {
                for (range, bits) in bits.stretches(first + number * BLOCK, len) {
                    store_rounded(isa, &mut param[range.clone()], &updated[range], bits);
                }
            }
        }
        quantise(isa, &mean[..len], &mut m);
        quantise(isa, &mean_sq[..len], &mut v);
    }
}

/// One update in place.
pub(crate) fn step(
    backend: &CpuBackend,
    param: &mut Tensor,
    exp_avg: Quantised<'_>,
    exp_avg_sq: Quantised<'_>,
    grad: &Tensor,
    step: &AdamWStep,
) -> Result<()> {
    /// Blocks of a task at most, as many elements as other updates take.
    const MOST: usize = (1 << 20) / BLOCK;
    let len = check(param, &exp_avg, &exp_avg_sq, grad)?;
    let numbers = (Factors::new(step), of_dtype(step.rounding, param.dtype()));
    let num_blocks = len.div_ceil(BLOCK);
    with_element!(param.dtype(), T => with_element!(grad.dtype(), G => {
        let grad = Read::<G>::of(grad)?;
        let mut param = Write::<T>::of(param)?;
        let Quantised { bytes, absmax } = exp_avg;
        let (mut m, mut m_absmax) = (Write::<u8>::of(bytes)?, Write::<f32>::of(absmax)?);
        let Quantised { bytes, absmax } = exp_avg_sq;
        let (mut v, mut v_absmax) = (Write::<u8>::of(bytes)?, Write::<f32>::of(absmax)?);
        let m = (Rows::new(&mut m, BLOCK), Rows::new(&mut m_absmax, 1));
        let v = (Rows::new(&mut v, BLOCK), Rows::new(&mut v_absmax, 1));
        let outputs = (Rows::new(&mut param, BLOCK), m, v);
        let per_task = backend.crew.rows_per_task(num_blocks, BLOCK).min(MOST);
        backend.crew.run_rows(num_blocks, per_task, outputs, |blocks, (param, m, v), _| {
            let Range { start, end } = blocks.start * BLOCK..(blocks.end * BLOCK).min(len);
            update_blocks(backend.isa, param, m, v, &grad[start..end], numbers, start);
        });
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_byte_is_found() {
        for (moment, codec) in [(Moment::ExpAvg, &*EXP_AVG), (Moment::ExpAvgSq, &*EXP_AVG_SQ)] {
            let parts = moment.parts();
            let sign = if moment == Moment::ExpAvg { -1.0 } else { 1.0 };
            // Every power of two down to what becomes 0, in steps that meet no border; both ends.
            let spread = (0..400_000).map(|i| 2f32.powf(-26.0 * (i as f32 / 4e5)));
            for magnitude in spread.chain([0.0, 1.0, 1e-30, f32::MIN_POSITIVE]) {
                for part in [magnitude, sign * magnitude] {
                    let distance = |byte: usize| (parts[byte] - f64::from(part)).abs();
                    let least = (0..256).map(distance).fold(f64::INFINITY, f64::min);
                    for byte in [codec.finder.nearest::<false>(part), codec.finder.nearest::<true>(part)] {
                        let found = distance(byte as usize);
                        assert!(
                            found <= least * 1.001 + 1e-12,
                            "{moment:?} {part:e}: {byte} is {found:e}, not {least:e}"
                        );
                    }
                }
            }
            for byte in 0..=255u8 {
                assert_eq!(codec.finder.nearest::<false>(codec.parts[byte as usize]), byte, "{moment:?}");
            }
        }
    }
}
