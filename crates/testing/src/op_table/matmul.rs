//! Tables of the three matrix products.
//!
//! Numbers: [`nmse_bound`](super::nmse_bound), against at least 0.3 sqrt(terms of a sum): in a small result the terms may
//! cancel.

use tensor::ops::matmul::{self, MatmulDims};
use tensor::{Backend, DType};

use super::case::{Output, Table, Wrong, table};

const DIMS: &[(usize, usize, usize)] = &[
    (0, 3, 5),
    (3, 0, 5),
    (3, 5, 0),
    (1, 1, 1),
    (1, 17, 33),
    (17, 1, 3),
    (3, 5, 1),
    (2, 4, 8),
    (7, 9, 31),
    (16, 16, 16),
    (33, 65, 17),
    (65, 33, 129),
    (64, 129, 128),
    (129, 64, 65),
    (1, 300, 257),
    (200, 140, 260),
];

fn each_dims(t: &mut Table<'_>, mut check: impl FnMut(&mut Table<'_>, MatmulDims)) {
    for &(m, n, k) in DIMS {
        check(t, MatmulDims { m, n, k });
    }
}

fn floor(terms: usize) -> f64 {
    0.3 * (terms as f64).sqrt()
}

/// `y (+)= x w^T`.
pub fn check_matmul_nt(backend: &dyn Backend, dtype: DType) {
    table("matmul_nt", backend, dtype, |t| {
        each_dims(t, |t, dims| {
            let MatmulDims { m, n, k } = dims;
            for &out in t.output_dtypes() {
                for accumulate in [false, true] {
                    t.case(format!("{dims:?} into {out}, accumulate {accumulate}"));
                    let (x, w) = (t.normal(&[m, k], 1.0), t.normal(&[n, k], 1.0));
                    let start = t.values_of(out, m * n, 1.0);
                    let mut y = start.clone();
                    matmul::matmul_nt(&mut y, &x.values, &w.values, dims, accumulate);
                    let mut y = Output::new("y", &[m, n], out, &y).floor(floor(k));
                    if accumulate {
                        y = y.starting_at(&start);
                    }
                    t.run(&[y], |[y]| backend.matmul_nt(y, &x.tensor, &w.tensor, accumulate));
                }
            }
        });
        t.case("NaN stays NaN, in its row only");
        let (mut x, w) = (t.values(3 * 5, 1.0), t.normal(&[4, 5], 1.0));
        x[7] = f64::NAN;
        let x = t.floats(&[3, 5], dtype, &x);
        let mut y = vec![0.0; 12];
        matmul::matmul_nt(&mut y, &x.values, &w.values, MatmulDims { m: 3, n: 4, k: 5 }, false);
        t.run(&[Output::new("y", &[3, 4], dtype, &y)], |[y]| backend.matmul_nt(y, &x.tensor, &w.tensor, false));

        let (x, w, y, other) = (t.any(&[3, 5], dtype), t.any(&[4, 5], dtype), (&[3, 4][..], dtype), t.other_dtype());
        let (long, flat, cast) = (t.any(&[4, 6], dtype), t.any(&[15], dtype), t.any(&[4, 5], other));
        t.refuse(Wrong::Shape("w"), [y], |[y]| backend.matmul_nt(y, &x, &long, false));
        t.refuse(Wrong::Shape("x"), [y], |[y]| backend.matmul_nt(y, &flat, &w, false));
        t.refuse(Wrong::Shape("y"), [(&[4, 3], dtype)], |[y]| backend.matmul_nt(y, &x, &w, false));
        t.refuse(Wrong::DType("w"), [y], |[y]| backend.matmul_nt(y, &x, &cast, false));
        t.refuse(Wrong::DType("y"), [(&[3, 4], DType::I32)], |[y]| backend.matmul_nt(y, &x, &w, false));
        let foreign = t.elsewhere(&[4, 5], dtype);
        t.refuse(Wrong::Device, [y], |[y]| backend.matmul_nt(y, &x, &foreign, false));
    });
}

/// `dx (+)= dy w`.
pub fn check_matmul_nn(backend: &dyn Backend, dtype: DType) {
    table("matmul_nn", backend, dtype, |t| {
        each_dims(t, |t, dims| {
            let MatmulDims { m, n, k } = dims;
            for accumulate in [false, true] {
                t.case(format!("{dims:?} accumulate {accumulate}"));
                let (dy, w) = (t.normal(&[m, n], 1.0), t.normal(&[n, k], 1.0));
                let start = t.values(m * k, 1.0);
                let mut dx = start.clone();
                matmul::matmul_nn(&mut dx, &dy.values, &w.values, dims, accumulate);
                let mut dx = Output::new("dx", &[m, k], dtype, &dx).floor(floor(n));
                if accumulate {
                    dx = dx.starting_at(&start);
                }
                t.run(&[dx], |[dx]| backend.matmul_nn(dx, &dy.tensor, &w.tensor, accumulate));
            }
        });
        let (dy, w, dx, other) = (t.any(&[3, 4], dtype), t.any(&[4, 5], dtype), (&[3, 5][..], dtype), t.other_dtype());
        let (long, cast) = (t.any(&[5, 4], dtype), t.any(&[4, 5], other));
        t.refuse(Wrong::Shape("w"), [dx], |[dx]| backend.matmul_nn(dx, &dy, &long, false));
        t.refuse(Wrong::Shape("dx"), [(&[5, 3], dtype)], |[dx]| backend.matmul_nn(dx, &dy, &w, true));
        t.refuse(Wrong::DType("w"), [dx], |[dx]| backend.matmul_nn(dx, &dy, &cast, false));
        t.refuse(Wrong::DType("dx"), [(&[3, 5], other)], |[dx]| backend.matmul_nn(dx, &dy, &w, false));
    });
}

/// `dw (+)= dy^T x`.
pub fn check_matmul_tn(backend: &dyn Backend, dtype: DType) {
    table("matmul_tn", backend, dtype, |t| {
        each_dims(t, |t, dims| {
            let MatmulDims { m, n, k } = dims;
            for &out in t.output_dtypes() {
                for accumulate in [false, true] {
                    t.case(format!("{dims:?} into {out}, accumulate {accumulate}"));
                    let (dy, x) = (t.normal(&[m, n], 1.0), t.normal(&[m, k], 1.0));
                    let start = t.values_of(out, n * k, 1.0);
                    let mut dw = start.clone();
                    matmul::matmul_tn(&mut dw, &dy.values, &x.values, dims, accumulate);
                    let mut dw = Output::new("dw", &[n, k], out, &dw).floor(floor(m));
                    if accumulate {
                        dw = dw.starting_at(&start);
                    }
                    t.run(&[dw], |[dw]| backend.matmul_tn(dw, &dy.tensor, &x.tensor, accumulate));
                }
            }
        });
        let (dy, x, dw, other) = (t.any(&[3, 4], dtype), t.any(&[3, 5], dtype), (&[4, 5][..], dtype), t.other_dtype());
        let (long, cast) = (t.any(&[4, 5], dtype), t.any(&[3, 5], other));
        t.refuse(Wrong::Shape("x"), [dw], |[dw]| backend.matmul_tn(dw, &dy, &long, false));
        t.refuse(Wrong::Shape("dw"), [(&[5, 4], dtype)], |[dw]| backend.matmul_tn(dw, &dy, &x, true));
        t.refuse(Wrong::DType("x"), [dw], |[dw]| backend.matmul_tn(dw, &dy, &cast, false));
        t.refuse(Wrong::DType("dw"), [(&[4, 5], DType::I32)], |[dw]| backend.matmul_tn(dw, &dy, &x, false));
    });
}
