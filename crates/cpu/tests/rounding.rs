//! Rounding by chance in the ops that update weights: its mean, what never moves, and that nobody else decides the bits.

use cpu::Isa;
use tensor::ops::adamw::AdamWStep;
use tensor::ops::adamw8bit::{BLOCK, Quantised};
use tensor::ops::rounding::{RandomBits, Rounding};
use tensor::ops::sgd::SgdStep;
use tensor::{Backend, DType, Tensor};

use super::backend;

const BITS: RandomBits = RandomBits { seed: 42, step: 3, unit: 7, start: 0 };

/// p -= g.
const SUBTRACT: SgdStep = SgdStep {
    lr: 1.0,
    momentum: 0.0,
    dampening: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    maximize: false,
    first: false,
    grad_scale: 1.0,
    rounding: Rounding::Stochastic(BITS),
};

/// What bf16 zeros become when these are added to them.
fn rounded(backend: &dyn Backend, values: &[f32]) -> Vec<f32> {
    let mut param = backend.zeros([values.len()].into(), DType::Bf16).expect("memory");
    let grad: Vec<f32> = values.iter().map(|v| -v).collect();
    let grad = backend.from_f32([values.len()], DType::F32, &grad).expect("memory");
    backend.sgd_step(&mut param, None, &grad, &SUBTRACT).expect("fits");
    backend.to_f32(&param).expect("a floating-point tensor")
}

#[test]
fn the_mean_of_a_hundred_thousand_roundings_is_within_four_sigma_of_the_value() {
    const COUNT: usize = 100_000;
    for isa in Isa::available() {
        let backend = backend(2, isa);
        for x in [1.0f32 + 1.0 / 1024.0, -1.0 - 1.0 / 1024.0, 0.999, -2.7654321, 1e-20, 5.7e30] {
            let lower = f32::from_bits(x.to_bits() & 0xffff_0000);
            let unit = f64::from(f32::from_bits(lower.to_bits() + 0x1_0000)) - f64::from(lower);
            let all = rounded(&backend, &vec![x; COUNT]);
            let mean = all.iter().map(|&v| f64::from(v)).sum::<f64>() / COUNT as f64;
            let chance = (f64::from(x) - f64::from(lower)) / unit;
            let sigma = unit.abs() * (chance * (1.0 - chance) / COUNT as f64).sqrt();
            let off = (mean - f64::from(x)).abs() / sigma;
            assert!(off <= 4.0, "{isa}: the mean of {x} is {mean}, {off} sigma off");
        }
    }
}

#[test]
fn what_bf16_holds_and_what_is_no_number_stays() {
    let backend = backend(2, Isa::detect());
    let held: Vec<f32> = (0..0x7f80u32).map(|upper| f32::from_bits(upper << 16)).collect();
    let found = rounded(&backend, &held);
    assert!(held.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()));
    for isa in Isa::available() {
        let odd = rounded(&super::backend(1, isa), &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN].repeat(50));
        for three in odd.chunks(3) {
            assert!(
                three[0] == f32::INFINITY && three[1] == f32::NEG_INFINITY && three[2].is_nan(),
                "{isa}: {three:?}"
            );
        }
    }
}

/// Parameter and states of AdamW in 8 bits, or in the parameter's dtype.
struct Updated {
    param: Tensor,
    states: Vec<Tensor>,
}

impl Updated {
    fn new(backend: &dyn Backend, len: usize, in_8_bits: bool) -> Self {
        let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
        let param = backend.from_f32([len], DType::Bf16, &values).expect("memory");
        let zeros = |len: usize, dtype| backend.zeros([len].into(), dtype).expect("memory");
        let (u8, f32) = ((len, DType::U8), (len.div_ceil(BLOCK), DType::F32));
        let states = if in_8_bits { vec![u8, f32, u8, f32] } else { vec![(len, DType::Bf16); 2] };
        Self { param, states: states.into_iter().map(|(len, dtype)| zeros(len, dtype)).collect() }
    }

    /// Updates the elements of some blocks.
    fn step(&mut self, backend: &dyn Backend, blocks: std::ops::Range<usize>, number: u64) {
        let len = self.param.num_elements();
        let elements = blocks.start * BLOCK..(blocks.end * BLOCK).min(len);
        let grad: Vec<f32> = elements.clone().map(|i| (i as f32 * 0.11 + number as f32).cos() * 1e-3).collect();
        let grad = backend.from_f32([grad.len()], DType::Bf16, &grad).expect("memory");
        let bits = RandomBits { step: number, start: elements.start as u64, ..BITS };
        let step = AdamWStep { lr: 1e-4, step: number, rounding: Rounding::Stochastic(bits), ..AdamWStep::FIRST };
        let mut param = self.param.rows(elements.clone()).expect("inside");
        let mut views: Vec<Tensor> = self
            .states
            .iter()
            .map(|t| t.rows(if t.num_elements() == len { elements.clone() } else { blocks.clone() }).expect("inside"))
            .collect();
        match &mut views[..] {
            [m, v] => backend.adamw_step(&mut param, m, v, &grad, &step),
            [m, m_absmax, v, v_absmax] => {
                let (m, v) = (Quantised { bytes: m, absmax: m_absmax }, Quantised { bytes: v, absmax: v_absmax });
                backend.adamw8bit_step(&mut param, m, v, &grad, &step)
            }
            _ => unreachable!("made above"),
        }
        .expect("shapes fit");
    }

    fn bytes(&self, backend: &dyn Backend) -> Vec<u8> {
        let all = [&self.param].into_iter().chain(&self.states);
        all.flat_map(|t| {
            let mut bytes = vec![0; t.len_bytes()];
            backend.download(&mut bytes, t).expect("as long");
            bytes
        })
        .collect()
    }
}

#[test]
fn neither_threads_nor_cuts_decide_the_bits() {
    let len = 200 * BLOCK + 77;
    for in_8_bits in [false, true] {
        let run = |threads: usize, cuts: &[usize]| {
            let backend = backend(threads, Isa::detect());
            let mut updated = Updated::new(&backend, len, in_8_bits);
            for number in 1..=3 {
                for pair in cuts.windows(2) {
                    updated.step(&backend, pair[0]..pair[1], number);
                }
            }
            updated.bytes(&backend)
        };
        let expected = run(1, &[0, 201]);
        for threads in [2, 3] {
            assert!(run(threads, &[0, 201]) == expected, "{threads} threads, 8 bits {in_8_bits}");
        }
        for cuts in [&[0, 100, 201][..], &[0, 1, 3, 66, 200, 201]] {
            assert!(run(2, cuts) == expected, "cut at {cuts:?}, 8 bits {in_8_bits}");
        }
    }
}
