//! Rotary position embedding on half-split heads: (a, b) -> (a cos - b sin, b cos + a sin) for a = `x[i]`, b = `x[i + H/2]`.
//!
//! Shapes:  x: (T, N*H), in place; table: (T, H) f32, row t = H/2 cosines, then H/2 sines; positions: (T) i32;
//!          inv_freq: (H/2) f32.
//! Numbers: angle = f32(position) * inv_freq rounded to f32; rotation in f32, rounded once.
//! Grads:   the gradient is rotated by minus the angles (`inverse`).
//! Errors:  `Error::Shape` if H is odd or the columns of x are not a multiple of H.
//! Source:  Su et al. 2021, arXiv:2104.09864; row order as in Hugging Face checkpoints.

use super::{Float, expect_2d, expect_dtype, expect_float, expect_shape};
use crate::{DType, Error, Result, Tensor};

/// Heads of the tensor to rotate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeDims {
    /// Heads in a row of x.
    pub num_heads: usize,
    /// Elements of a head, even.
    pub head_dim: usize,
}

/// Checks the table of angles: (T, H/2).
pub fn check_table(table: &Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<(usize, usize)> {
    let op = "rope_table";
    let (num_tokens, half) = (positions.num_elements(), inv_freq.num_elements());
    expect_dtype(op, "positions", positions, DType::I32)?;
    expect_dtype(op, "inv_freq", inv_freq, DType::F32)?;
    expect_shape(op, "table", table, &[num_tokens, 2 * half])?;
    expect_dtype(op, "table", table, DType::F32)?;
    Ok((num_tokens, half))
}

/// Checks the rotation: T.
pub fn check(x: &Tensor, table: &Tensor, dims: RopeDims) -> Result<usize> {
    let op = "rope";
    let (num_tokens, _) = expect_2d(op, "x", x)?;
    if !dims.head_dim.is_multiple_of(2) {
        let expected = format!("an even head_dim, not {}", dims.head_dim);
        return Err(Error::Shape { op, name: "x", expected, found: x.shape() });
    }
    expect_shape(op, "x", x, &[num_tokens, dims.num_heads * dims.head_dim])?;
    expect_shape(op, "table", table, &[num_tokens, dims.head_dim])?;
    expect_dtype(op, "table", table, DType::F32)?;
    expect_float(op, "x", x)?;
    Ok(num_tokens)
}

/// Reference of the table of angles. The product of position and frequency is rounded to f32 in every `T`: at large
/// positions that rounding, not the cosine, decides the value.
pub fn rope_table<T: Float>(table: &mut [T], positions: &[i32], inv_freq: &[f32]) {
    let half = inv_freq.len();
    for (t, &position) in positions.iter().enumerate() {
        for (i, &freq) in inv_freq.iter().enumerate() {
            let angle = T::from_f64(f64::from(position as f32 * freq));
            table[t * 2 * half + i] = angle.cos();
            table[t * 2 * half + half + i] = angle.sin();
        }
    }
}

/// Reference of the rotation; with `inverse` it is its own backward pass.
pub fn rope_in_place<T: Float>(x: &mut [T], table: &[T], dims: RopeDims, inverse: bool) {
    let RopeDims { num_heads, head_dim } = dims;
    let half = head_dim / 2;
    for (head, x) in x.chunks_exact_mut(head_dim.max(1)).enumerate() {
        let (cos, sin) = table[head / num_heads * head_dim..][..head_dim].split_at(half);
        for i in 0..half {
            let (a, b) = (x[i], x[i + half]);
            let sin = if inverse { -sin[i] } else { sin[i] };
            x[i] = a * cos[i] - b * sin;
            x[i + half] = b * cos[i] + a * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_swaps_the_halves() {
        let quarter = std::f32::consts::FRAC_PI_2;
        let mut table = [0.0f64; 8];
        rope_table(&mut table, &[0, 1], &[quarter, 2.0 * quarter]);
        let dims = RopeDims { num_heads: 1, head_dim: 4 };
        let mut x = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0];
        rope_in_place(&mut x, &table, dims, false);
        let rounded = x.map(|v| (v * 1e6f64).round() / 1e6);
        assert_eq!(rounded, [1.0, 2.0, 3.0, 4.0, -3.0, -2.0, 1.0, -4.0]);
        rope_in_place(&mut x, &table, dims, true);
        let back = x.map(|v| (v * 1e6).round() / 1e6);
        assert_eq!(back, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    }
}
