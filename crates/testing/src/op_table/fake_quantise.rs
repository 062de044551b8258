//! Tables of fake quantisation.
//!
//! Numbers: the same values as the reference, which rounds after the same steps.

use tensor::ops::fake_quantise::{self, FakeQuant, Scheme};
use tensor::{Backend, DType};

use super::case::{Output, Table, Wrong, table};

/// (M, K).
const ROWS: &[(usize, usize)] =
    &[(0, 3), (3, 0), (1, 1), (12, 2), (13, 31), (12, 32), (14, 33), (129, 96), (12, 2047), (3, 40_001)];

/// (N, K, G).
const GROUPS: &[(usize, usize, usize)] =
    &[(0, 4, 2), (3, 0, 2), (12, 2, 2), (13, 6, 3), (5, 66, 33), (130, 96, 32), (17, 512, 256), (300, 128, 64)];

/// Numbers of which every `width` are of another kind: zeros, of one sign, tiny, alike, none at all, far from 0, plain.
fn numbers(t: &mut Table<'_>, len: usize, width: usize) -> Vec<f64> {
    let values = t.values(len, 1.0);
    let kind = |i: usize, v: f64| match i / width.max(1) % 11 {
        0 => 0.0,
        1 => v.abs(),
        2 => -v.abs(),
        3 => 1e-9 * v,
        4 => 1.5,
        5 if i.is_multiple_of(width.max(1)) => f64::NAN,
        6 if i.is_multiple_of(width.max(1)) => f64::INFINITY,
        7 => 100.0 + v,
        8 => 1e4 * v,
        _ => v,
    };
    values.into_iter().enumerate().map(|(i, v)| kind(i, v)).collect()
}

fn as_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

fn exactly(shape: &[usize], dtype: DType, y: &[f32]) -> Output {
    let y: Vec<f64> = y.iter().map(|&y| f64::from(y)).collect();
    Output::new("y", shape, dtype, &y).within(0.0)
}

/// Rows in 8 bits.
pub fn check_fake_quantise_rows(backend: &dyn Backend, dtype: DType) {
    table("fake_quantise_rows", backend, dtype, |t| {
        for &(m, k) in ROWS {
            t.case(format!("M {m} K {k}"));
            let values = numbers(t, m * k, k);
            let x = t.floats(&[m, k], dtype, &values);
            let mut y = vec![0.0; m * k];
            fake_quantise::fake_quantise_rows(&mut y, &as_f32(&x.values), k, dtype.rounding());
            t.run(&[exactly(&[m, k], dtype, &y)], |[y]| backend.fake_quantise_rows(y, &x.tensor));
        }
        let (x, int, flat) = (t.any(&[3, 4], dtype), t.any(&[3, 4], DType::I32), t.any(&[12], dtype));
        t.refuse(Wrong::Shape("y"), [(&[4, 3], dtype)], |[y]| backend.fake_quantise_rows(y, &x));
        t.refuse(Wrong::Shape("x"), [(&[12], dtype)], |[y]| backend.fake_quantise_rows(y, &flat));
        t.refuse(Wrong::DType("y"), [(&[3, 4], t.other_dtype())], |[y]| backend.fake_quantise_rows(y, &x));
        t.refuse(Wrong::DType("x"), [(&[3, 4], DType::I32)], |[y]| backend.fake_quantise_rows(y, &int));
    });
}

/// Groups in 4 bits.
pub fn check_fake_quantise_groups(backend: &dyn Backend, dtype: DType) {
    table("fake_quantise_groups", backend, dtype, |t| {
        for scheme in [Scheme::Int8Int4, Scheme::Int4] {
            for &(n, k, group_size) in GROUPS {
                let quant = FakeQuant { scheme, group_size };
                t.case(format!("N {n} K {k}, {quant:?}"));
                let values = numbers(t, n * k, group_size);
                let w = t.floats(&[n, k], dtype, &values);
                let mut y = vec![0.0; n * k];
                fake_quantise::fake_quantise_groups(&mut y, &as_f32(&w.values), quant, dtype.rounding());
                t.run(&[exactly(&[n, k], dtype, &y)], |[y]| backend.fake_quantise_groups(y, &w.tensor, quant));
            }
        }
        let groups_of = |group_size| FakeQuant { scheme: Scheme::Int8Int4, group_size };
        let (w, int, y) = (t.any(&[3, 6], dtype), t.any(&[3, 6], DType::I32), (&[3, 6][..], dtype));
        for size in [0, 1, 4, 12] {
            t.refuse(Wrong::Shape("w"), [y], |[y]| backend.fake_quantise_groups(y, &w, groups_of(size)));
        }
        t.refuse(Wrong::Shape("y"), [(&[6, 3], dtype)], |[y]| backend.fake_quantise_groups(y, &w, groups_of(3)));
        t.refuse(Wrong::DType("y"), [(&[3, 6], t.other_dtype())], |[y]| {
            backend.fake_quantise_groups(y, &w, groups_of(3))
        });
        t.refuse(Wrong::DType("w"), [(&[3, 6], DType::I32)], |[y]| backend.fake_quantise_groups(y, &int, groups_of(3)));
    });
}
