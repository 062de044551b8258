//! Tables of the gated activation.
//!
//! Numbers: [`nmse_bound`](super::nmse_bound); gates whose exponentials overflow f32 included.

use tensor::ops::swiglu;
use tensor::{Backend, DType};

use super::case::{Input, Output, Table, Wrong, table};

/// (T, F).
const DIMS: &[(usize, usize)] = &[(0, 3), (3, 0), (1, 1), (3, 17), (33, 65), (17, 129), (8, 64), (65, 300)];

const EXTREMES: &[f64] = &[0.0, -0.0, 1e4, -1e4, 90.0, -90.0, 88.5, -88.5, 1e-30, -1e-30, 3e38, -3e38];

/// Gates that are random, and gates that are extreme.
fn each_gate(t: &mut Table<'_>, mut check: impl FnMut(&mut Table<'_>, &[usize], &Input)) {
    for &(rows, columns) in DIMS {
        t.case(format!("T {rows} F {columns}"));
        let gate = t.normal(&[rows, columns], 2.0);
        check(t, &[rows, columns], &gate);
    }
    for &extreme in EXTREMES {
        t.case(format!("gates of {extreme:e}"));
        let gate = t.floats(&[1, 17], t.dtype, &[extreme; 17]);
        check(t, &[1, 17], &gate);
    }
}

/// An output whose values below 1e-6 may vanish: exp(-x) of a large gate is out of f32's range.
fn output(name: &'static str, shape: &[usize], dtype: DType, expected: &[f64]) -> Output {
    Output::new(name, shape, dtype, expected).floor(1e-6)
}

/// `h = silu(gate) up`.
pub fn check_swiglu_forward(backend: &dyn Backend, dtype: DType) {
    table("swiglu_forward", backend, dtype, |t| {
        each_gate(t, |t, shape, gate| {
            // Below 1, so that a gate near f32's end stays finite.
            let up: Vec<f64> = t.values(gate.values.len(), 1.0).iter().map(|v| v.tanh()).collect();
            let up = t.floats(shape, dtype, &up);
            let mut h = vec![0.0; gate.values.len()];
            swiglu::swiglu_forward(&mut h, &gate.values, &up.values);
            t.run(&[output("h", shape, dtype, &h)], |[h]| backend.swiglu_forward(h, &gate.tensor, &up.tensor));
        });
        let (gate, h, other) = (t.any(&[3, 5], dtype), (&[3, 5][..], dtype), t.other_dtype());
        let (long, cast) = (t.any(&[5, 3], dtype), t.any(&[3, 5], other));
        t.refuse(Wrong::Shape("up"), [h], |[h]| backend.swiglu_forward(h, &gate, &long));
        t.refuse(Wrong::Shape("h"), [(&[15], dtype)], |[h]| backend.swiglu_forward(h, &gate, &gate));
        t.refuse(Wrong::DType("up"), [h], |[h]| backend.swiglu_forward(h, &gate, &cast));
        t.refuse(Wrong::DType("h"), [(&[3, 5], other)], |[h]| backend.swiglu_forward(h, &gate, &gate));
    });
}

/// Gradients of gate and up.
pub fn check_swiglu_backward(backend: &dyn Backend, dtype: DType) {
    table("swiglu_backward", backend, dtype, |t| {
        each_gate(t, |t, shape, gate| {
            let [dh, up] = [(); 2].map(|()| {
                let values: Vec<f64> = t.values(gate.values.len(), 1.0).iter().map(|v| v.tanh()).collect();
                t.floats(shape, dtype, &values)
            });
            let mut dgate = vec![0.0; gate.values.len()];
            let mut dup = dgate.clone();
            swiglu::swiglu_backward(&mut dgate, &mut dup, &dh.values, &gate.values, &up.values);
            let outputs = [output("dgate", shape, dtype, &dgate), output("dup", shape, dtype, &dup)];
            t.run(&outputs, |[dgate, dup]| backend.swiglu_backward(dgate, dup, &dh.tensor, &gate.tensor, &up.tensor));
        });
        let (gate, out, other) = (t.any(&[3, 5], dtype), (&[3, 5][..], dtype), t.other_dtype());
        let (long, cast, wrong) = (t.any(&[5, 3], dtype), t.any(&[3, 5], other), (&[5, 3][..], dtype));
        t.refuse(Wrong::Shape("dh"), [out, out], |[a, b]| backend.swiglu_backward(a, b, &long, &gate, &gate));
        t.refuse(Wrong::Shape("dup"), [out, wrong], |[a, b]| backend.swiglu_backward(a, b, &gate, &gate, &gate));
        t.refuse(Wrong::DType("dh"), [out, out], |[a, b]| backend.swiglu_backward(a, b, &cast, &gate, &gate));
        let wrong = (&[3, 5][..], other);
        t.refuse(Wrong::DType("dgate"), [wrong, out], |[a, b]| backend.swiglu_backward(a, b, &gate, &gate, &gate));
    });
}
