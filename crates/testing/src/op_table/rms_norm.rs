//! Tables of the root-mean-square norm.
//!
//! Numbers: f32 within 1e-11, for plain f32 sums of two thousand squares; bf16 within [`nmse_bound`]. The forward pass rounds x rstd
//! before the product with a plain weight; the table does the same, so that a backend that rounds elsewhere shows.

use tensor::ops::rms_norm::{self, NormWeight, RmsNorm};
use tensor::{Backend, DType, Tensor};

use super::case::{Output, Table, Wrong, table};
use super::nmse_bound;
use crate::compare::round_to;

/// (N, D); the mean of no elements is left out.
const DIMS: &[(usize, usize)] =
    &[(0, 3), (1, 1), (1, 3), (3, 17), (5, 64), (33, 65), (17, 129), (2, 576), (130, 96), (3, 2047)];

const EPS: f32 = 1e-5;

const WEIGHTS: [NormWeight; 2] = [NormWeight::Plain, NormWeight::FromOne];

const PLAIN: RmsNorm = RmsNorm { eps: EPS, weight: NormWeight::Plain };

fn output(name: &'static str, shape: &[usize], dtype: DType, expected: &[f64]) -> Output {
    Output::new(name, shape, dtype, expected).within(nmse_bound(dtype, expected.len()).max(1e-11))
}

fn forward_case(t: &mut Table<'_>, name: &str, dims: (usize, usize), norm: RmsNorm, x_std: f64) {
    let (backend, dtype, (rows, dim)) = (t.backend, t.dtype, dims);
    t.case(format!("{name}, weight {:?}", norm.weight));
    let (x, w) = (t.normal(&[rows, dim], x_std), t.normal(&[dim], 1.0));
    let (mut y, mut rstd) = (vec![0.0; rows * dim], vec![0.0; rows]);
    rms_norm::rms_norm_forward(&mut y, &mut rstd, &x.values, &w.values, norm);
    if norm.weight == NormWeight::Plain {
        rms_norm::rms_norm_forward(&mut y, &mut rstd, &x.values, &vec![1.0; dim], norm);
        y = round_to(dtype, &y).iter().enumerate().map(|(i, n)| n * w.values[i % dim]).collect();
    }
    let outputs = [output("y", &[rows, dim], dtype, &y), output("rstd", &[rows], DType::F32, &rstd)];
    t.run(&outputs, |[y, rstd]| backend.rms_norm_forward(y, rstd, &x.tensor, &w.tensor, norm));
}

/// `y = x rstd w`, and `y = x rstd (1 + w)`.
pub fn check_rms_norm_forward(backend: &dyn Backend, dtype: DType) {
    table("rms_norm_forward", backend, dtype, |t| {
        for weight in WEIGHTS {
            let mut check = |name: &str, dims, eps, x_std| forward_case(t, name, dims, RmsNorm { eps, weight }, x_std);
            for &dims in DIMS {
                check(&format!("N {} D {}", dims.0, dims.1), dims, EPS, 1.0);
            }
            check("rows of zeros", (3, 17), EPS, 0.0);
            check("small rows, where eps decides", (3, 17), EPS, 1e-3);
            check("a large eps", (5, 33), 0.5, 1.0);
            check("small rows and no eps", (5, 33), 0.0, 1e-3);
            check("large rows and no eps", (3, 17), 0.0, 1e6);
        }

        let (x, w, other) = (t.any(&[3, 5], dtype), t.any(&[5], dtype), t.other_dtype());
        let (y, rstd) = ((&[3, 5][..], dtype), (&[3][..], DType::F32));
        let (short, cast, flat) = (t.any(&[4], dtype), t.any(&[5], other), t.any(&[15], dtype));
        let mut refuse = |wrong, [y, rstd]: [_; 2], x: &Tensor, w: &Tensor| {
            t.refuse(wrong, [y, rstd], |[y, rstd]| backend.rms_norm_forward(y, rstd, x, w, PLAIN));
        };
        refuse(Wrong::Shape("w"), [y, rstd], &x, &short);
        refuse(Wrong::Shape("x"), [y, rstd], &flat, &w);
        refuse(Wrong::Shape("y"), [(&[5, 3], dtype), rstd], &x, &w);
        refuse(Wrong::Shape("rstd"), [y, (&[5], DType::F32)], &x, &w);
        refuse(Wrong::DType("w"), [y, rstd], &x, &cast);
        refuse(Wrong::DType("y"), [(&[3, 5], other), rstd], &x, &w);
        refuse(Wrong::DType("rstd"), [y, (&[3], DType::Bf16)], &x, &w);
    });
}

fn backward_case(
    t: &mut Table<'_>,
    (rows, dim): (usize, usize),
    weight: NormWeight,
    out: DType,
    dx_adds: bool,
    dw_adds: bool,
) {
    let (backend, dtype, norm) = (t.backend, t.dtype, RmsNorm { eps: EPS, weight });
    t.case(format!(
        "N {rows} D {dim}, weight {weight:?}, dx accumulate {dx_adds}, dw into {out}, accumulate {dw_adds}"
    ));
    let (dy, x, w) = (t.normal(&[rows, dim], 1.0), t.normal(&[rows, dim], 1.0), t.normal(&[dim], 1.0));
    let (mut normed, mut rstd) = (vec![0.0; rows * dim], vec![0.0; rows]);
    rms_norm::rms_norm_forward(&mut normed, &mut rstd, &x.values, &w.values, norm);
    let rstd = t.floats(&[rows], DType::F32, &rstd);
    let (dx_start, dw_start) = (t.values(rows * dim, 1.0), t.values_of(out, dim, 1.0));
    let (mut dx, mut dw) = (dx_start.clone(), dw_start.clone());
    let (dx_arg, dw_arg) = (Some((&mut dx[..], dx_adds)), Some((&mut dw[..], dw_adds)));
    rms_norm::rms_norm_backward(dx_arg, dw_arg, &dy.values, &x.values, &w.values, &rstd.values, norm);
    // A row of one element has no gradient but eps': terms of about 1 cancel.
    let gradient = |name, shape: &[usize], dtype, expected: &[f64], start: Option<&Vec<f64>>| {
        let output = output(name, shape, dtype, expected).floor(0.3);
        if let Some(start) = start { output.starting_at(start) } else { output }
    };
    let dx_out = || gradient("dx", &[rows, dim], dtype, &dx, dx_adds.then_some(&dx_start));
    let dw_out = || gradient("dw", &[dim], out, &dw, dw_adds.then_some(&dw_start));
    let call = |dx: Option<&mut Tensor>, dw: Option<&mut Tensor>| {
        let (dx, dw) = (dx.map(|dx| (dx, dx_adds)), dw.map(|dw| (dw, dw_adds)));
        backend.rms_norm_backward(dx, dw, &dy.tensor, &x.tensor, &w.tensor, &rstd.tensor, norm)
    };
    t.run(&[dx_out(), dw_out()], |[dx, dw]| call(Some(dx), Some(dw)));
    if dx_adds == dw_adds {
        t.run(&[dx_out()], |[dx]| call(Some(dx), None));
        t.run(&[dw_out()], |[dw]| call(None, Some(dw)));
        t.run(&[], |[]| call(None, None));
    }
}

/// Gradients of x and w.
pub fn check_rms_norm_backward(backend: &dyn Backend, dtype: DType) {
    table("rms_norm_backward", backend, dtype, |t| {
        for &dims in DIMS {
            for &out in t.output_dtypes() {
                for (dx_adds, dw_adds) in [(false, false), (false, true), (true, false), (true, true)] {
                    for weight in WEIGHTS {
                        backward_case(t, dims, weight, out, dx_adds, dw_adds);
                    }
                }
            }
        }
        let (x, w, rstd, other) = (t.any(&[3, 5], dtype), t.any(&[5], dtype), t.any(&[3], DType::F32), t.other_dtype());
        let (dx, dw, int) = ((&[3, 5][..], dtype), (&[5][..], dtype), (&[5][..], DType::I32));
        let (short, cast, bf16) = (t.any(&[2, 5], dtype), t.any(&[3, 5], other), t.any(&[3], DType::Bf16));
        let mut refuse = |wrong, outputs: [_; 2], dy: &Tensor, rstd: &Tensor| {
            t.refuse(wrong, outputs, |[dx, dw]| {
                backend.rms_norm_backward(Some((dx, false)), Some((dw, false)), dy, &x, &w, rstd, PLAIN)
            });
        };
        refuse(Wrong::Shape("dy"), [dx, dw], &short, &rstd);
        refuse(Wrong::Shape("dx"), [(&[5, 3], dtype), dw], &x, &rstd);
        refuse(Wrong::Shape("dw"), [dx, (&[3], dtype)], &x, &rstd);
        refuse(Wrong::DType("dy"), [dx, dw], &cast, &rstd);
        refuse(Wrong::DType("dx"), [(&[3, 5], other), dw], &x, &rstd);
        refuse(Wrong::DType("dw"), [dx, int], &x, &rstd);
        refuse(Wrong::DType("rstd"), [dx, dw], &x, &bf16);
    });
}
