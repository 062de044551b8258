//! Rotary position embedding on half-split heads.
//!
//! Numbers: angle = f32(position) * inv_freq rounded to f32, its cosine and sine rounded from f64; rotation in f32, rounded
//!          once.

use tensor::ops::rope::{RopeDims, check, check_table};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, mul_add, with_element};

/// Cosines and sines of rotary angles.
pub(crate) fn table(backend: &CpuBackend, table: &mut Tensor, positions: &Tensor, inv_freq: &Tensor) -> Result<()> {
    /// What a cosine and a sine in f64 cost, in elements of a plain pass.
    const COST: usize = 64;
    let (num_tokens, half) = check_table(table, positions, inv_freq)?;
    let (positions, inv_freq) = (Read::<i32>::of(positions)?, Read::<f32>::of(inv_freq)?);
    let mut table = Write::<f32>::of(table)?;
    let rows_per_task = backend.crew.rows_per_task(num_tokens, half * COST);
    backend.crew.run_rows(num_tokens, rows_per_task, Rows::new(&mut table, 2 * half), |rows, table, _| {
        for (row, t) in rows.enumerate() {
            let (cos, sin) = table[row * 2 * half..][..2 * half].split_at_mut(half);
            for (i, &freq) in inv_freq.iter().enumerate() {
                let (s, c) = f64::from(positions[t] as f32 * freq).sin_cos();
                (cos[i], sin[i]) = (c as f32, s as f32);
            }
        }
    });
    Ok(())
}

per_isa! {
    /// Rotates the heads of some rows; `sign` is -1 for the inverse.
    fn rotate_rows<const FMA: bool, T: Element>(x: &mut [T], table: &[f32], dims: RopeDims, sign: f32) {
        let RopeDims { num_heads, head_dim } = dims;
        for (x, angles) in x.chunks_exact_mut(num_heads * head_dim).zip(table.chunks_exact(head_dim)) {
            let (cos, sin) = angles.split_at(head_dim / 2);
            for head in x.chunks_exact_mut(head_dim) {
                let (first, second) = head.split_at_mut(head_dim / 2);
                for ((a, b), (&cos, &sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
                    let (x, y, sin) = (a.to_f32(), b.to_f32(), sin * sign);
                    *a = T::from_f32(mul_add::<FMA>(x, cos, -(y * sin)));
                    *b = T::from_f32(mul_add::<FMA>(y, cos, x * sin));
                }
            }
        }
    }
}

/// Rotates `x` in place, by minus the angles if `inverse`.
pub(crate) fn in_place(
    backend: &CpuBackend,
    x: &mut Tensor,
    table: &Tensor,
    dims: RopeDims,
    inverse: bool,
) -> Result<()> {
    let num_tokens = check(x, table, dims)?;
    let (width, head_dim) = (dims.num_heads * dims.head_dim, dims.head_dim);
    with_element!(x.dtype(), T => {
        let table = Read::<f32>::of(table)?;
        let mut x = Write::<T>::of(x)?;
        if width == 0 {
            return Ok(());
        }
        let sign = if inverse { -1.0 } else { 1.0 };
        let rows_per_task = backend.crew.rows_per_task(num_tokens, width);
        backend.crew.run_rows(num_tokens, rows_per_task, Rows::new(&mut x, width), |rows, x, _| {
            rotate_rows(backend.isa, x, &table[rows.start * head_dim..rows.end * head_dim], dims, sign);
        });
    });
    Ok(())
}
