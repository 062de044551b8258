//! Tables of what adapters need: multiples, dropout, lengths of changed rows, columns brought to a length.
//!
//! Numbers: within [`nmse_bound`](super::nmse_bound).

use tensor::ops::dora::{self, DoraDims};
use tensor::ops::dropout::{self, Dropout};
use tensor::ops::elementwise::{self, Columns};
use tensor::rng::Stream;
use tensor::{Backend, DType};

use super::case::{Output, Wrong, table};

/// `x *= factor`.
pub fn check_scale_in_place(backend: &dyn Backend, dtype: DType) {
    table("scale_in_place", backend, dtype, |t| {
        for shape in [&[0][..], &[1], &[17, 3], &[33, 65], &[129, 511]] {
            for factor in [2.0f32, 0.3, 0.0] {
                t.case(format!("{shape:?} by {factor}"));
                let start = t.values(shape.iter().product(), 1.0);
                let mut x = start.clone();
                elementwise::scale_in_place(&mut x, f64::from(factor));
                let x = Output::new("x", shape, dtype, &x).starting_at(&start);
                t.run(&[x], |[x]| backend.scale_in_place(x, factor));
            }
        }
        t.refuse(Wrong::DType("x"), [(&[3], DType::I32)], |[x]| backend.scale_in_place(x, 2.0));
    });
}

/// Copies of columns.
pub fn check_copy_columns(backend: &dyn Backend, dtype: DType) {
    table("copy_columns", backend, dtype, |t| {
        for (rows, dst_width, src_width, count, from, to) in [
            (0, 3, 2, 1, 0, 0),
            (3, 5, 5, 5, 0, 0),
            (17, 9, 4, 4, 0, 5),
            (33, 3, 70, 3, 60, 0),
            (129, 65, 33, 0, 3, 3),
            (700, 130, 66, 64, 1, 2),
        ] {
            let columns = Columns { count, from, to };
            t.case(format!("{rows} rows of {src_width} to {dst_width}, {columns:?}"));
            let src = t.normal(&[rows, src_width], 1.0);
            let start = t.values(rows * dst_width, 1.0);
            let mut dst = start.clone();
            elementwise::copy_columns(&mut dst, dst_width, &src.values, src_width, columns);
            let dst = Output::new("dst", &[rows, dst_width], dtype, &dst).starting_at(&start);
            t.run(&[dst], |[dst]| backend.copy_columns(dst, &src.tensor, columns));
        }
        let (src, dst) = (t.any(&[3, 4], dtype), (&[3, 6][..], dtype));
        let (long, cast) = (t.any(&[4, 4], dtype), t.any(&[3, 4], t.other_dtype()));
        let columns = Columns { count: 3, from: 1, to: 3 };
        t.refuse(Wrong::Shape("src"), [dst], |[dst]| backend.copy_columns(dst, &long, columns));
        t.refuse(Wrong::Shape("src"), [dst], |[dst]| backend.copy_columns(dst, &src, Columns { from: 2, ..columns }));
        t.refuse(Wrong::Shape("dst"), [dst], |[dst]| backend.copy_columns(dst, &src, Columns { to: 4, ..columns }));
        t.refuse(Wrong::DType("dst"), [dst], |[dst]| backend.copy_columns(dst, &cast, columns));
    });
}

/// Dropout.
pub fn check_dropout_in_place(backend: &dyn Backend, dtype: DType) {
    table("dropout_in_place", backend, dtype, |t| {
        for shape in [&[0][..], &[1], &[3], &[5, 7], &[129, 511], &[3, 40_001]] {
            for (probability, seed) in [(0.0f32, 1), (0.1, 2), (0.5, 2), (0.99, 3)] {
                t.case(format!("{shape:?}, p {probability}"));
                let dropout = Dropout { probability, stream: Stream::new(seed, 9) };
                let start = t.values(shape.iter().product(), 1.0);
                let mut x = start.clone();
                dropout::dropout_in_place(&mut x, &dropout);
                let x = Output::new("x", shape, dtype, &x).starting_at(&start);
                t.run(&[x], |[x]| backend.dropout_in_place(x, &dropout));
            }
        }
        let dropout = Dropout { probability: 0.5, stream: Stream::new(0, 0) };
        t.refuse(Wrong::DType("x"), [(&[3], DType::I32)], |[x]| backend.dropout_in_place(x, &dropout));
    });
}

/// (N, K, R).
const NORMS: &[(usize, usize, usize)] =
    &[(0, 3, 2), (3, 0, 2), (1, 1, 1), (3, 17, 1), (17, 33, 4), (130, 96, 8), (65, 513, 3), (300, 257, 16)];

/// Lengths of the rows of a changed weight.
pub fn check_dora_norm(backend: &dyn Backend, dtype: DType) {
    table("dora_norm", backend, dtype, |t| {
        for &(n, k, rank) in NORMS {
            for scale in [1.0f32, 0.25] {
                let dims = DoraDims { n, k, rank };
                t.case(format!("{dims:?}, scale {scale}"));
                let (w, a, b) = (t.normal(&[n, k], 1.0), t.normal(&[rank, k], 1.0), t.normal(&[n, rank], 1.0));
                let mut norm = vec![0.0; n];
                dora::dora_norm(&mut norm, &w.values, &a.values, &b.values, f64::from(scale), dims);
                let norm = Output::new("norm", &[n], DType::F32, &norm);
                t.run(&[norm], |[norm]| backend.dora_norm(norm, &w.tensor, &a.tensor, &b.tensor, scale));
            }
        }
        let (w, a, b, norm) =
            (t.any(&[4, 5], dtype), t.any(&[2, 5], dtype), t.any(&[4, 2], dtype), (&[4][..], DType::F32));
        let (long, turned, cast) = (t.any(&[2, 6], dtype), t.any(&[2, 4], dtype), t.any(&[2, 5], t.other_dtype()));
        t.refuse(Wrong::Shape("a"), [norm], |[norm]| backend.dora_norm(norm, &w, &long, &b, 1.0));
        t.refuse(Wrong::Shape("b"), [norm], |[norm]| backend.dora_norm(norm, &w, &a, &turned, 1.0));
        t.refuse(Wrong::Shape("norm"), [(&[5], DType::F32)], |[norm]| backend.dora_norm(norm, &w, &a, &b, 1.0));
        t.refuse(Wrong::DType("a"), [norm], |[norm]| backend.dora_norm(norm, &w, &cast, &b, 1.0));
        t.refuse(Wrong::DType("norm"), [(&[4], DType::Bf16)], |[norm]| backend.dora_norm(norm, &w, &a, &b, 1.0));
    });
}

/// (M, N).
const SCALES: &[(usize, usize)] = &[(0, 3), (3, 0), (1, 1), (1, 3), (3, 17), (33, 65), (17, 129), (130, 96), (3, 2047)];

/// Lengths of rows, of which one is nothing.
fn lengths(len: usize) -> Vec<f64> {
    (0..len).map(|i| if i == 2 { 0.0 } else { 0.5 + (i % 7) as f64 }).collect()
}

/// Columns brought to a length.
pub fn check_dora_scale_forward(backend: &dyn Backend, dtype: DType) {
    table("dora_scale_forward", backend, dtype, |t| {
        for &(m, n) in SCALES {
            t.case(format!("M {m} N {n}"));
            let (z, magnitude) = (t.normal(&[m, n], 1.0), t.normal(&[n], 1.0));
            let norm = t.floats(&[n], DType::F32, &lengths(n));
            let mut y = vec![0.0; m * n];
            dora::dora_scale_forward(&mut y, &z.values, &magnitude.values, &norm.values);
            let y = Output::new("y", &[m, n], dtype, &y);
            t.run(&[y], |[y]| backend.dora_scale_forward(y, &z.tensor, &magnitude.tensor, &norm.tensor));
        }
        let (z, magnitude, norm) = (t.any(&[3, 4], dtype), t.any(&[4], dtype), t.any(&[4], DType::F32));
        let (long, cast, y) = (t.any(&[5], DType::F32), t.any(&[4], t.other_dtype()), (&[3, 4][..], dtype));
        t.refuse(Wrong::Shape("y"), [(&[4, 3], dtype)], |[y]| backend.dora_scale_forward(y, &z, &magnitude, &norm));
        t.refuse(Wrong::Shape("norm"), [y], |[y]| backend.dora_scale_forward(y, &z, &magnitude, &long));
        t.refuse(Wrong::DType("magnitude"), [y], |[y]| backend.dora_scale_forward(y, &z, &cast, &norm));
    });
}

/// Gradients of columns brought to a length.
pub fn check_dora_scale_backward(backend: &dyn Backend, dtype: DType) {
    table("dora_scale_backward", backend, dtype, |t| {
        for &(m, n) in SCALES {
            for &out in t.output_dtypes() {
                for accumulate in [false, true] {
                    t.case(format!("M {m} N {n} into {out}, accumulate {accumulate}"));
                    let (z, dy, magnitude) = (t.normal(&[m, n], 1.0), t.normal(&[m, n], 1.0), t.normal(&[n], 1.0));
                    let norm = t.floats(&[n], DType::F32, &lengths(n));
                    let start = t.values_of(out, n, 1.0);
                    let (mut dz, mut dm) = (vec![0.0; m * n], start.clone());
                    let of_dm = Some((&mut dm[..], accumulate));
                    dora::dora_scale_backward(&mut dz, of_dm, &dy.values, &z.values, &magnitude.values, &norm.values);
                    let dz = Output::new("dz", &[m, n], dtype, &dz);
                    let mut dm = Output::new("dmagnitude", &[n], out, &dm).floor(0.3 * (m as f64).sqrt());
                    if accumulate {
                        dm = dm.starting_at(&start);
                    }
                    t.run(&[dz, dm], |[dz, dm]| {
                        let dm = Some((dm, accumulate));
                        backend.dora_scale_backward(dz, dm, &dy.tensor, &z.tensor, &magnitude.tensor, &norm.tensor)
                    });
                }
            }
        }
        let (z, dy, magnitude, norm) =
            (t.any(&[3, 4], dtype), t.any(&[3, 4], dtype), t.any(&[4], dtype), t.any(&[4], DType::F32));
        let turned = t.any(&[4, 3], dtype);
        let dz = (&[3, 4][..], dtype);
        t.refuse(Wrong::Shape("dy"), [dz], |[dz]| {
            backend.dora_scale_backward(dz, None, &turned, &z, &magnitude, &norm)
        });
        t.refuse(Wrong::Shape("dmagnitude"), [dz, (&[3], dtype)], |[dz, dm]| {
            backend.dora_scale_backward(dz, Some((dm, false)), &dy, &z, &magnitude, &norm)
        });
        t.refuse(Wrong::DType("dmagnitude"), [dz, (&[4], DType::I32)], |[dz, dm]| {
            backend.dora_scale_backward(dz, Some((dm, false)), &dy, &z, &magnitude, &norm)
        });
    });
}
