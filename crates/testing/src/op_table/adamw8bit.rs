//! Table of AdamW with moments in 8 bits.
//!
//! Numbers: parameters and the largest magnitudes are compared as everywhere. A byte is right if no other is nearer to the exact
//!          moment, but for a thousandth of the distance: which of two bytes at one distance it is, is left open.

use tensor::ops::adamw::{AdamWStep, adamw_step};
use tensor::ops::adamw8bit::{self, BLOCK, Moment, Quantised};
use tensor::{Backend, DType, Tensor};

use super::case::{Output, Table, Wrong, table};
use super::optimizers::{ADAMW, by_chance, rounded};

/// None, one, full blocks, one more or less, enough for several tasks.
const LENGTHS: &[usize] = &[0, 1, 3, 255, 256, 257, 1023, 100_007];

/// A moment in 8 bits of random values, of which those of a block have about one size.
struct Start {
    bytes: Vec<u8>,
    absmax: Vec<f64>,
}

impl Start {
    fn random(t: &mut Table<'_>, moment: Moment, len: usize) -> Self {
        let sizes = t.values_of(DType::F32, len.div_ceil(BLOCK), 1.0);
        let values = t.values_of(DType::F32, len, 1.0).into_iter().enumerate();
        let values: Vec<f64> = match moment {
            Moment::ExpAvg => values.map(|(i, v)| v * sizes[i / BLOCK]).collect(),
            // As spread as squares are.
            Moment::ExpAvgSq => values.map(|(i, v)| (v * sizes[i / BLOCK]).powi(2)).collect(),
        };
        let (mut bytes, mut absmax) = (vec![0; len], vec![0.0f32; sizes.len()]);
        let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
        adamw8bit::quantise(moment, &values, &mut bytes, &mut absmax);
        Self { bytes, absmax: absmax.into_iter().map(f64::from).collect() }
    }

    fn zeros(len: usize) -> Self {
        Self { bytes: vec![0; len], absmax: vec![0.0; len.div_ceil(BLOCK)] }
    }

    /// What an update that leaves the moment at `values` makes of it.
    fn outputs(&self, moment: Moment, names: [&'static str; 2], values: &[f64]) -> [Output; 2] {
        let (mut bytes, mut absmax) = (vec![0; values.len()], vec![0.0; self.absmax.len()]);
        adamw8bit::quantise(moment, values, &mut bytes, &mut absmax);
        let start: Vec<f64> = self.bytes.iter().map(|&byte| f64::from(byte)).collect();
        let (parts, exact, scales) = (moment.parts(), values.to_vec(), absmax.clone());
        let judge = move |found: &[f64]| {
            for (i, (&found, &exact)) in found.iter().zip(&exact).enumerate() {
                let distance = |byte: usize| (parts[byte] * scales[i / BLOCK] - exact).abs();
                let least = distance(bytes[i] as usize);
                if distance(found as usize) > least * 1.001 + 1e-6 * exact.abs() {
                    return Err(format!("byte {i}: expected {}, found {found}, for {exact:e}", bytes[i]));
                }
            }
            Ok(())
        };
        let bytes = Output::judged(names[0], &[values.len()], DType::U8, judge).starting_at(&start);
        let absmax = Output::new(names[1], &[absmax.len()], DType::F32, &absmax).starting_at(&self.absmax);
        [bytes, absmax]
    }
}

fn case(t: &mut Table<'_>, len: usize, grad_dtype: DType, step: &AdamWStep, is_first: bool) {
    let (backend, dtype) = (t.backend, t.dtype);
    t.case(format!("{len} elements, gradients in {grad_dtype}, first {is_first}, {step:?}"));
    let (param, grad) = (t.values(len, 1.0), t.values_of(grad_dtype, len, 1.0));
    let grad = t.floats(&[len], grad_dtype, &grad);
    let moments = [Moment::ExpAvg, Moment::ExpAvgSq];
    let [m, v] = moments.map(|moment| if is_first { Start::zeros(len) } else { Start::random(t, moment, len) });
    let mut exp_avg = adamw8bit::dequantise(Moment::ExpAvg, &m.bytes, &m.absmax);
    let mut exp_avg_sq = adamw8bit::dequantise(Moment::ExpAvgSq, &v.bytes, &v.absmax);
    let mut updated = param.clone();
    adamw_step(&mut updated, &mut exp_avg, &mut exp_avg_sq, &grad.values, step);
    let p = Output::new("param", &[len], dtype, &rounded(&updated, dtype, step.rounding)).starting_at(&param);
    let [m, m_absmax] = m.outputs(Moment::ExpAvg, ["exp_avg", "exp_avg_absmax"], &exp_avg);
    let [v, v_absmax] = v.outputs(Moment::ExpAvgSq, ["exp_avg_sq", "exp_avg_sq_absmax"], &exp_avg_sq);
    t.run(&[p, m, m_absmax, v, v_absmax], |outputs| call(backend, outputs, &grad.tensor, step));
}

fn call(
    backend: &dyn Backend,
    [p, m, m_absmax, v, v_absmax]: &mut [Tensor; 5],
    grad: &Tensor,
    step: &AdamWStep,
) -> tensor::Result<()> {
    let (m, v) = (Quantised { bytes: m, absmax: m_absmax }, Quantised { bytes: v, absmax: v_absmax });
    backend.adamw8bit_step(p, m, v, grad, step)
}

/// AdamW with moments in 8 bits.
pub fn check_adamw8bit_step(backend: &dyn Backend, dtype: DType) {
    table("adamw8bit_step", backend, dtype, |t| {
        for &grad_dtype in t.output_dtypes() {
            for &len in LENGTHS {
                case(t, len, grad_dtype, &ADAMW, true);
                case(t, len, grad_dtype, &AdamWStep { step: 7, ..ADAMW }, false);
                case(t, len, grad_dtype, &AdamWStep { step: 7, rounding: by_chance(512), ..ADAMW }, false);
            }
            for step in [
                AdamWStep { weight_decay: 0.0, ..ADAMW },
                AdamWStep { eps: 0.5, step: 3, ..ADAMW },
                AdamWStep { beta1: 0.0, beta2: 0.95, step: 7, ..ADAMW },
                AdamWStep { grad_scale: 0.125, step: 100_000, ..ADAMW },
                AdamWStep { lr: 0.0, ..ADAMW },
                AdamWStep { rounding: by_chance(1023), ..ADAMW },
            ] {
                case(t, 600, grad_dtype, &step, false);
            }
            case(t, 600, grad_dtype, &AdamWStep { grad_scale: 0.0, ..ADAMW }, true);
        }
        let grad = t.any(&[300], dtype);
        let (p, int) = ((&[300][..], dtype), (&[300][..], DType::I32));
        let (bytes, absmax) = ((&[300][..], DType::U8), (&[2][..], DType::F32));
        let (short, one) = ((&[299][..], DType::U8), (&[1][..], DType::F32));
        let mut refuse = |wrong, outputs: [_; 5], grad: &Tensor| {
            t.refuse(wrong, outputs, |outputs| call(backend, outputs, grad, &ADAMW));
        };
        refuse(Wrong::Shape("exp_avg"), [p, short, absmax, bytes, absmax], &grad);
        refuse(Wrong::Shape("exp_avg_absmax"), [p, bytes, one, bytes, absmax], &grad);
        refuse(Wrong::Shape("exp_avg_sq"), [p, bytes, absmax, short, absmax], &grad);
        refuse(Wrong::Shape("exp_avg_sq_absmax"), [p, bytes, absmax, bytes, one], &grad);
        refuse(Wrong::DType("param"), [int, bytes, absmax, bytes, absmax], &grad);
        refuse(Wrong::DType("exp_avg"), [p, p, absmax, bytes, absmax], &grad);
        refuse(Wrong::DType("exp_avg_sq_absmax"), [p, bytes, absmax, bytes, (&[2], DType::I32)], &grad);
        let (turned, int) = (t.any(&[20, 15], dtype), t.any(&[300], DType::I32));
        let mut refuse = |wrong, grad: &Tensor| {
            t.refuse(wrong, [p, bytes, absmax, bytes, absmax], |outputs| call(backend, outputs, grad, &ADAMW));
        };
        refuse(Wrong::Shape("grad"), &turned);
        refuse(Wrong::DType("grad"), &int);
    });
}
