//! Tables of the rotary position embedding.
//!
//! Numbers: [`nmse_bound`](super::nmse_bound); angles of a hundred thousand radians included, whose cosines need their
//! whole circles taken off exactly.

use tensor::ops::rope::{self, RopeDims};
use tensor::{Backend, DType};

use super::case::{Output, Table, Wrong, table};

fn inv_freq(half: usize, base: f32) -> Vec<f32> {
    (0..half).map(|i| base.powf(-(i as f32) / half as f32)).collect()
}

/// Cosines and sines of angles; f32 whatever the table's dtype.
pub fn check_rope_table(backend: &dyn Backend, dtype: DType) {
    table("rope_table", backend, dtype, |t| {
        let far: &[i32] = &[0, 1, 4095, 8191, 16_384, 65_537, 131_071, 1_000_003];
        let near: Vec<i32> = (0..65).collect();
        let continued: Vec<i32> = (17..30).chain(0..20).collect();
        for (positions, half) in [(&near[..], 32), (far, 64), (&continued, 17), (&[3], 1), (&[], 4), (far, 33)] {
            t.case(format!("T {} H {}", positions.len(), 2 * half));
            let freq = inv_freq(half, 10_000.0);
            let mut expected = vec![0.0; positions.len() * 2 * half];
            rope::rope_table(&mut expected, positions, &freq);
            let freq: Vec<f64> = freq.into_iter().map(f64::from).collect();
            let (ints, freq) = (t.ints(&[positions.len()], positions), t.floats(&[half], DType::F32, &freq));
            let table = Output::new("table", &[positions.len(), 2 * half], DType::F32, &expected);
            t.run(&[table], |[table]| backend.rope_table(table, &ints, &freq.tensor));
        }
        let (positions, freq, table) = (t.ints(&[3], &[0, 1, 2]), t.any(&[4], DType::F32), (&[3, 8][..], DType::F32));
        let (float, bf16) = (t.any(&[3], dtype), t.any(&[4], DType::Bf16));
        t.refuse(Wrong::DType("positions"), [table], |[table]| backend.rope_table(table, &float, &freq));
        t.refuse(Wrong::DType("inv_freq"), [table], |[table]| backend.rope_table(table, &positions, &bf16));
        let (half, cast) = ((&[3, 4][..], DType::F32), (&[3, 8][..], DType::Bf16));
        t.refuse(Wrong::Shape("table"), [half], |[table]| backend.rope_table(table, &positions, &freq));
        t.refuse(Wrong::DType("table"), [cast], |[table]| backend.rope_table(table, &positions, &freq));
    });
}

fn rotate_case(t: &mut Table<'_>, num_tokens: usize, dims: RopeDims, inverse: bool) {
    let (backend, dtype, RopeDims { num_heads, head_dim }) = (t.backend, t.dtype, dims);
    t.case(format!("T {num_tokens} {dims:?} inverse {inverse}"));
    let positions: Vec<i32> = (0..num_tokens as i32).map(|t| 5 * t + 1).collect();
    let mut angles = vec![0.0; num_tokens * head_dim];
    rope::rope_table(&mut angles, &positions, &inv_freq(head_dim / 2, 500.0));
    let angles = t.floats(&[num_tokens, head_dim], DType::F32, &angles);
    let start = t.values(num_tokens * num_heads * head_dim, 1.0);
    let mut x = start.clone();
    rope::rope_in_place(&mut x, &angles.values, dims, inverse);
    // A rotation of a pair can bring one of its elements near to 0.
    let x = Output::new("x", &[num_tokens, num_heads * head_dim], dtype, &x).floor(0.3).starting_at(&start);
    t.run(&[x], |[x]| backend.rope_in_place(x, &angles.tensor, dims, inverse));
}

/// Rotation, both ways.
pub fn check_rope_in_place(backend: &dyn Backend, dtype: DType) {
    table("rope_in_place", backend, dtype, |t| {
        let sizes = [(0, 2, 4), (1, 1, 2), (3, 1, 6), (5, 3, 34), (17, 2, 64), (33, 9, 64), (65, 3, 128), (7, 5, 80)];
        for (num_tokens, num_heads, head_dim) in sizes {
            for inverse in [false, true] {
                rotate_case(t, num_tokens, RopeDims { num_heads, head_dim }, inverse);
            }
        }
        let (dims, odd) = (RopeDims { num_heads: 2, head_dim: 4 }, RopeDims { num_heads: 2, head_dim: 3 });
        let (table, short) = (t.any(&[3, 4], DType::F32), t.any(&[2, 4], DType::F32));
        let (bf16, x, int) = (t.any(&[3, 4], DType::Bf16), (&[3, 8][..], dtype), (&[3, 8][..], DType::I32));
        t.refuse(Wrong::Shape("x"), [(&[3, 6], dtype)], |[x]| backend.rope_in_place(x, &table, odd, false));
        t.refuse(Wrong::Shape("x"), [(&[3, 9], dtype)], |[x]| backend.rope_in_place(x, &table, dims, false));
        t.refuse(Wrong::Shape("table"), [x], |[x]| backend.rope_in_place(x, &short, dims, false));
        t.refuse(Wrong::DType("table"), [x], |[x]| backend.rope_in_place(x, &bf16, dims, true));
        t.refuse(Wrong::DType("x"), [int], |[x]| backend.rope_in_place(x, &table, dims, true));
    });
}
