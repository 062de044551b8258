//! Tables of optimizer updates, but for those of states in 8 bits.
//!
//! Numbers: [`nmse_bound`](super::nmse_bound). Learning rates are large, so that an update is a visible part of the result.

use half::bf16;
use tensor::ops::adamw::{self, AdamWStep};
use tensor::ops::rounding::{RandomBits, Rounding, round_by_chance};
use tensor::ops::sgd::{self, SgdStep};
use tensor::{Backend, DType, Tensor};

use super::case::{Output, Table, Wrong, table};

const LENGTHS: &[usize] = &[0, 1, 3, 17, 65, 1023, 10_007];

pub(super) const ADAMW: AdamWStep = AdamWStep { lr: 0.1, weight_decay: 0.01, ..AdamWStep::FIRST };

/// Rounding by chance, of tensors that begin at different places of a stretch and reach into the next ones.
pub(super) fn by_chance(start: u64) -> Rounding {
    Rounding::Stochastic(RandomBits { seed: 11, step: 5, unit: 3, start })
}

/// What is stored of updated weights.
pub(super) fn rounded(values: &[f64], dtype: DType, rounding: Rounding) -> Vec<f64> {
    let round = |(i, &x): (usize, &f64)| match rounding {
        Rounding::Stochastic(bits) if dtype == DType::Bf16 => bf16::to_f64(round_by_chance(x as f32, bits.at(i))),
        _ => x,
    };
    values.iter().enumerate().map(round).collect()
}

fn adamw_case(t: &mut Table<'_>, len: usize, dtypes: (DType, DType), step: &AdamWStep, grad_std: f64) {
    let (backend, dtype) = (t.backend, t.dtype);
    let (state_dtype, grad_dtype) = dtypes;
    t.case(format!("{len} elements, states in {state_dtype}, gradients of {grad_std} in {grad_dtype}, {step:?}"));
    // Without gradients there are no moments either: the update is 0 / (0 + eps).
    let moment_std = if grad_std == 0.0 { 0.0 } else { 0.5 };
    let (param, exp_avg) = (t.values(len, 1.0), t.values_of(state_dtype, len, moment_std));
    let exp_avg_sq: Vec<f64> = t.values_of(state_dtype, len, moment_std).into_iter().map(f64::abs).collect();
    let grad = t.values_of(grad_dtype, len, grad_std);
    let grad = t.floats(&[len], grad_dtype, &grad);
    let (mut p, mut m, mut v) = (param.clone(), exp_avg.clone(), exp_avg_sq.clone());
    adamw::adamw_step(&mut p, &mut m, &mut v, &grad.values, step);
    let p = rounded(&p, dtype, step.rounding);
    let [p, m, v] =
        [("param", dtype, p, param), ("exp_avg", state_dtype, m, exp_avg), ("exp_avg_sq", state_dtype, v, exp_avg_sq)]
            .map(|(name, dtype, expected, start)| Output::new(name, &[len], dtype, &expected).starting_at(&start));
    t.run(&[p, m, v], |[p, m, v]| backend.adamw_step(p, m, v, &grad.tensor, step));
}

/// AdamW.
pub fn check_adamw_step(backend: &dyn Backend, dtype: DType) {
    table("adamw_step", backend, dtype, |t| {
        for &grad_dtype in t.output_dtypes() {
            for &state_dtype in t.output_dtypes() {
                for &len in LENGTHS {
                    adamw_case(t, len, (state_dtype, grad_dtype), &ADAMW, 1.0);
                    adamw_case(
                        t,
                        len,
                        (state_dtype, grad_dtype),
                        &AdamWStep { rounding: by_chance(512), ..ADAMW },
                        1.0,
                    );
                }
            }
            let dtypes = (dtype, grad_dtype);
            for step in [
                AdamWStep { step: 2, ..ADAMW },
                AdamWStep { step: 100_000, ..ADAMW },
                AdamWStep { weight_decay: 0.0, ..ADAMW },
                AdamWStep { weight_decay: 2.0, ..ADAMW },
                AdamWStep { eps: 0.5, step: 3, ..ADAMW },
                AdamWStep { beta1: 0.0, beta2: 0.95, step: 7, ..ADAMW },
                AdamWStep { grad_scale: 0.125, step: 7, ..ADAMW },
                AdamWStep { lr: 0.0, ..ADAMW },
                AdamWStep { rounding: by_chance(1023), ..ADAMW },
                AdamWStep { rounding: by_chance(1 << 40), ..ADAMW },
            ] {
                adamw_case(t, 33, dtypes, &step, 1.0);
            }
            adamw_case(t, 33, dtypes, &ADAMW, 0.0);
        }
        let (grad, p, int) = (t.any(&[3, 4], dtype), (&[3, 4][..], dtype), (&[3, 4][..], DType::I32));
        let (turned, cast, flat) = (t.any(&[4, 3], dtype), (&[3, 4][..], t.other_dtype()), (&[12][..], dtype));
        let mut refuse = |wrong, outputs: [_; 3], grad: &Tensor| {
            t.refuse(wrong, outputs, |[p, m, v]| backend.adamw_step(p, m, v, grad, &ADAMW));
        };
        refuse(Wrong::Shape("grad"), [p, p, p], &turned);
        refuse(Wrong::Shape("exp_avg"), [p, flat, p], &grad);
        refuse(Wrong::Shape("exp_avg_sq"), [p, p, flat], &grad);
        refuse(Wrong::DType("param"), [int, p, p], &grad);
        // States may be f32 where parameters are not, but both or none.
        refuse(Wrong::DType(if dtype == DType::F32 { "exp_avg" } else { "exp_avg_sq" }), [p, cast, p], &grad);
        refuse(Wrong::DType("exp_avg_sq"), [p, p, cast], &grad);
        if dtype == DType::F32 {
            let bf16 = t.any(&[3, 4], DType::Bf16);
            t.refuse(Wrong::DType("grad"), [p, p, p], |[p, m, v]| backend.adamw_step(p, m, v, &bf16, &ADAMW));
        }
    });
}

const SGD: SgdStep = SgdStep {
    lr: 0.1,
    momentum: 0.0,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    maximize: false,
    first: false,
    grad_scale: 1.0,
    rounding: Rounding::Nearest,
};

fn sgd_case(t: &mut Table<'_>, len: usize, grad_dtype: DType, step: &SgdStep) {
    let (backend, dtype) = (t.backend, t.dtype);
    t.case(format!("{len} elements, gradients in {grad_dtype}, {step:?}"));
    let (param, buffer, grad) = (t.values(len, 1.0), t.values(len, 1.0), t.values_of(grad_dtype, len, 1.0));
    let grad = t.floats(&[len], grad_dtype, &grad);
    let (mut p, mut b) = (param.clone(), buffer.clone());
    let with_momentum = step.momentum != 0.0;
    sgd::sgd_step(&mut p, with_momentum.then_some(&mut b[..]), &grad.values, step);
    let p = Output::new("param", &[len], dtype, &rounded(&p, dtype, step.rounding)).starting_at(&param);
    if with_momentum {
        let b = Output::new("momentum_buffer", &[len], dtype, &b);
        // The first update gives the buffer its contents.
        let b = if step.first { b } else { b.starting_at(&buffer) };
        t.run(&[p, b], |[p, b]| backend.sgd_step(p, Some(b), &grad.tensor, step));
    } else {
        t.run(&[p], |[p]| backend.sgd_step(p, None, &grad.tensor, step));
    }
}

/// SGD.
pub fn check_sgd_step(backend: &dyn Backend, dtype: DType) {
    let momentum = SgdStep { momentum: 0.9, ..SGD };
    table("sgd_step", backend, dtype, |t| {
        for &grad_dtype in t.output_dtypes() {
            for &len in LENGTHS {
                sgd_case(t, len, grad_dtype, &SGD);
                sgd_case(t, len, grad_dtype, &momentum);
                for step in [SGD, momentum] {
                    sgd_case(t, len, grad_dtype, &SgdStep { rounding: by_chance(700), ..step });
                }
            }
            for base in [SGD, momentum, SgdStep { nesterov: true, ..momentum }] {
                for step in [
                    SgdStep { first: true, ..base },
                    SgdStep { first: true, dampening: 0.5, weight_decay: 0.1, ..base },
                    SgdStep { weight_decay: 0.1, ..base },
                    SgdStep { weight_decay: 0.1, maximize: true, ..base },
                    SgdStep { grad_scale: 0.125, weight_decay: 0.1, ..base },
                    SgdStep { dampening: if base.nesterov { 0.0 } else { 0.25 }, ..base },
                ] {
                    sgd_case(t, 33, grad_dtype, &step);
                }
            }
        }
        let (grad, p, int) = (t.any(&[3, 4], dtype), (&[3, 4][..], dtype), (&[3, 4][..], DType::I32));
        let (turned, cast, flat) = (t.any(&[4, 3], dtype), (&[3, 4][..], t.other_dtype()), (&[12][..], dtype));
        let mut refuse = |wrong, outputs: [_; 2], grad: &Tensor| {
            t.refuse(wrong, outputs, |[p, b]| backend.sgd_step(p, Some(b), grad, &momentum));
        };
        refuse(Wrong::Shape("grad"), [p, p], &turned);
        refuse(Wrong::Shape("momentum_buffer"), [p, flat], &grad);
        refuse(Wrong::DType("momentum_buffer"), [p, cast], &grad);
        refuse(Wrong::DType("param"), [int, p], &grad);
        if dtype == DType::F32 {
            let bf16 = t.any(&[3, 4], DType::Bf16);
            t.refuse(Wrong::DType("grad"), [p, p], |[p, b]| backend.sgd_step(p, Some(b), &bf16, &momentum));
        }
    });
}
