//! Tables of the bias of linear layers.
//!
//! Numbers: within [`nmse_bound`](super::nmse_bound).

use tensor::ops::bias;
use tensor::{Backend, DType};

use super::case::{Output, Wrong, table};

/// (M, N).
const DIMS: &[(usize, usize)] = &[(0, 3), (3, 0), (1, 1), (1, 3), (3, 17), (33, 65), (17, 129), (130, 96), (3, 2047)];

/// `y += b` for every row.
pub fn check_bias_in_place(backend: &dyn Backend, dtype: DType) {
    table("bias_in_place", backend, dtype, |t| {
        for &(rows, dim) in DIMS {
            t.case(format!("M {rows} N {dim}"));
            let b = t.normal(&[dim], 1.0);
            let start = t.values_of(dtype, rows * dim, 1.0);
            let mut y = start.clone();
            bias::bias_in_place(&mut y, &b.values);
            let y = Output::new("y", &[rows, dim], dtype, &y).starting_at(&start);
            t.run(&[y], |[y]| backend.bias_in_place(y, &b.tensor));
        }
        let (b, short, other) = (t.any(&[4], dtype), t.any(&[3], dtype), t.other_dtype());
        let (cast, int) = (t.any(&[4], other), t.any(&[4], DType::I32));
        t.refuse(Wrong::Shape("b"), [(&[3, 4], dtype)], |[y]| backend.bias_in_place(y, &short));
        t.refuse(Wrong::Shape("y"), [(&[12], dtype)], |[y]| backend.bias_in_place(y, &b));
        t.refuse(Wrong::DType("b"), [(&[3, 4], dtype)], |[y]| backend.bias_in_place(y, &cast));
        t.refuse(Wrong::DType("y"), [(&[3, 4], DType::I32)], |[y]| backend.bias_in_place(y, &int));
    });
}

/// `db (+)= sum of rows of dy`.
pub fn check_bias_backward(backend: &dyn Backend, dtype: DType) {
    table("bias_backward", backend, dtype, |t| {
        for &(rows, dim) in DIMS {
            for &out in t.output_dtypes() {
                for accumulate in [false, true] {
                    t.case(format!("M {rows} N {dim} into {out}, accumulate {accumulate}"));
                    let dy = t.normal(&[rows, dim], 1.0);
                    let start = t.values_of(out, dim, 1.0);
                    let mut db = start.clone();
                    bias::bias_backward(&mut db, &dy.values, accumulate);
                    let output = Output::new("db", &[dim], out, &db);
                    let output = if accumulate { output.starting_at(&start) } else { output };
                    t.run(&[output], |[db]| backend.bias_backward(db, &dy.tensor, accumulate));
                }
            }
        }
        let (dy, flat, int) = (t.any(&[3, 4], dtype), t.any(&[12], dtype), t.any(&[3, 4], DType::I32));
        t.refuse(Wrong::Shape("db"), [(&[3], dtype)], |[db]| backend.bias_backward(db, &dy, false));
        t.refuse(Wrong::Shape("dy"), [(&[12], dtype)], |[db]| backend.bias_backward(db, &flat, false));
        t.refuse(Wrong::DType("db"), [(&[4], DType::I32)], |[db]| backend.bias_backward(db, &dy, false));
        t.refuse(Wrong::DType("dy"), [(&[4], dtype)], |[db]| backend.bias_backward(db, &int, false));
    });
}
