//! Tables of the gated linear unit.
//!
//! Numbers: [`nmse_bound`](super::nmse_bound); gates whose exponentials overflow f32 included.

use tensor::ops::glu::{self, Activation};
use tensor::{Backend, DType};

use super::case::{Input, Output, Table, Wrong, table};

/// (T, F).
const DIMS: &[(usize, usize)] = &[(0, 3), (3, 0), (1, 1), (3, 17), (33, 65), (17, 129), (8, 64), (65, 300)];

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::GeluTanh];

const SILU: Activation = Activation::Silu;

/// Around where an exponential leaves f32, and where a cube does.
const EXTREMES: &[f64] = &[
    0.0, -0.0, 1e4, -1e4, 90.0, -90.0, 88.5, -88.5, 10.0, -10.0, 12.5, -12.5, 1e-30, -1e-30, 1e13, -1e13, 3e38, -3e38,
];

/// Gates that are random, and gates that are extreme.
fn each_gate(t: &mut Table<'_>, mut check: impl FnMut(&mut Table<'_>, &[usize], &Input, Activation)) {
    for activation in ACTIVATIONS {
        for &(rows, columns) in DIMS {
            t.case(format!("{activation:?}, T {rows} F {columns}"));
            let gate = t.normal(&[rows, columns], 2.0);
            check(t, &[rows, columns], &gate, activation);
        }
        for &extreme in EXTREMES {
            t.case(format!("{activation:?}, gates of {extreme:e}"));
            let gate = t.floats(&[1, 17], t.dtype, &[extreme; 17]);
            check(t, &[1, 17], &gate, activation);
        }
    }
}

/// An output whose values below 1e-6 may vanish: exp(-x) of a large gate is out of f32's range.
fn output(name: &'static str, shape: &[usize], dtype: DType, expected: &[f64]) -> Output {
    Output::new(name, shape, dtype, expected).floor(1e-6)
}

/// `h = activation(gate) up`.
pub fn check_glu_forward(backend: &dyn Backend, dtype: DType) {
    table("glu_forward", backend, dtype, |t| {
        each_gate(t, |t, shape, gate, activation| {
            // Below 1, so that a gate near f32's end stays finite.
            let up: Vec<f64> = t.values(gate.values.len(), 1.0).iter().map(|v| v.tanh()).collect();
            let up = t.floats(shape, dtype, &up);
            let mut h = vec![0.0; gate.values.len()];
            glu::glu_forward(&mut h, &gate.values, &up.values, activation);
            t.run(&[output("h", shape, dtype, &h)], |[h]| backend.glu_forward(h, &gate.tensor, &up.tensor, activation));
        });
        let (gate, h, other) = (t.any(&[3, 5], dtype), (&[3, 5][..], dtype), t.other_dtype());
        let (long, cast) = (t.any(&[5, 3], dtype), t.any(&[3, 5], other));
        t.refuse(Wrong::Shape("up"), [h], |[h]| backend.glu_forward(h, &gate, &long, SILU));
        t.refuse(Wrong::Shape("h"), [(&[15], dtype)], |[h]| backend.glu_forward(h, &gate, &gate, SILU));
        t.refuse(Wrong::DType("up"), [h], |[h]| backend.glu_forward(h, &gate, &cast, SILU));
        t.refuse(Wrong::DType("h"), [(&[3, 5], other)], |[h]| backend.glu_forward(h, &gate, &gate, SILU));
    });
}

/// Gradients of gate and up.
pub fn check_glu_backward(backend: &dyn Backend, dtype: DType) {
    table("glu_backward", backend, dtype, |t| {
        each_gate(t, |t, shape, gate, activation| {
            let [dh, up] = [(); 2].map(|()| {
                let values: Vec<f64> = t.values(gate.values.len(), 1.0).iter().map(|v| v.tanh()).collect();
                t.floats(shape, dtype, &values)
            });
            let mut dgate = vec![0.0; gate.values.len()];
            let mut dup = dgate.clone();
            glu::glu_backward(&mut dgate, &mut dup, &dh.values, &gate.values, &up.values, activation);
            let outputs = [output("dgate", shape, dtype, &dgate), output("dup", shape, dtype, &dup)];
            t.run(&outputs, |[dgate, dup]| {
                backend.glu_backward(dgate, dup, &dh.tensor, &gate.tensor, &up.tensor, activation)
            });
        });
        let (gate, out, other) = (t.any(&[3, 5], dtype), (&[3, 5][..], dtype), t.other_dtype());
        let (long, cast, wrong) = (t.any(&[5, 3], dtype), t.any(&[3, 5], other), (&[5, 3][..], dtype));
        t.refuse(Wrong::Shape("dh"), [out, out], |[a, b]| backend.glu_backward(a, b, &long, &gate, &gate, SILU));
        t.refuse(Wrong::Shape("dup"), [out, wrong], |[a, b]| backend.glu_backward(a, b, &gate, &gate, &gate, SILU));
        t.refuse(Wrong::DType("dh"), [out, out], |[a, b]| backend.glu_backward(a, b, &cast, &gate, &gate, SILU));
        let wrong = (&[3, 5][..], other);
        t.refuse(Wrong::DType("dgate"), [wrong, out], |[a, b]| backend.glu_backward(a, b, &gate, &gate, &gate, SILU));
    });
}
