//! Table of the output head and its loss.
//!
//! Numbers: f32 within 1e-11, under a soft cap too. Gradients over bf16 inputs within 1e-4: gradients of logits may be rounded to bf16 to feed
//! them to a product, and parts of dw once more in each chunk. The loss is f32 in both.

use tensor::ops::IGNORE_INDEX;
use tensor::ops::head_loss::{self, HeadLossOut};
use tensor::{Backend, DType, Tensor};

use super::case::{Input, Output, Table, Wrong, table};

pub(super) const F32_NMSE: f64 = 1e-11;
pub(super) const BF16_NMSE: f64 = 1e-4;

/// Which labels are masked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Masked {
    None,
    All,
    AllButTheLast,
    EveryOther,
    /// In runs of seven, so that chunks of few and of many unmasked tokens occur.
    Runs,
}

impl Masked {
    pub(super) fn masks(self, t: usize, num_tokens: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::AllButTheLast => t + 1 < num_tokens,
            Self::EveryOther => t.is_multiple_of(2),
            Self::Runs => (t / 7).is_multiple_of(2),
        }
    }
}

/// (T, D, V), the mask, the scale, the soft cap, the size of h.
pub(super) type Case = ((usize, usize, usize), Masked, f32, Option<f32>, f64);

pub(super) const CASES: &[Case] = &[
    ((0, 4, 5), Masked::None, 1.0, None, 1.0),
    ((1, 1, 1), Masked::None, 1.0, None, 1.0),
    ((3, 17, 5), Masked::None, 0.25, None, 1.0),
    ((3, 17, 5), Masked::All, 1.0, None, 1.0),
    ((17, 8, 33), Masked::AllButTheLast, 1.0, None, 1.0),
    ((33, 16, 129), Masked::EveryOther, 1.0 / 16.0, None, 1.0),
    ((65, 33, 300), Masked::Runs, 0.01, None, 0.3),
    ((5, 16, 65), Masked::None, 1.0, None, 100.0),
    ((5, 16, 65), Masked::None, 0.0, None, 1.0),
    ((300, 24, 130), Masked::Runs, 1.0 / 150.0, None, 0.5),
    ((1100, 8, 40), Masked::EveryOther, 1.0 / 550.0, None, 1.0),
    ((3, 17, 5), Masked::None, 0.25, Some(2.0), 1.0),
    ((65, 33, 300), Masked::Runs, 0.01, Some(30.0), 1.0),
    ((5, 16, 65), Masked::None, 1.0, Some(30.0), 10.0),
    ((300, 24, 130), Masked::Runs, 1.0 / 150.0, Some(0.5), 0.5),
];

/// A gradient that is wanted: into which dtype, and whether it accumulates.
pub(super) type Wanted = Option<(DType, bool)>;

/// h and labels of a case.
pub(super) fn inputs(t: &mut Table<'_>, case: &Case) -> (Input, Vec<i32>) {
    let &((num_tokens, dim, vocab), masked, _, _, h_std) = case;
    let mut labels = t.indices(num_tokens, vocab);
    let mut h = t.values(num_tokens * dim, h_std);
    for token in (0..num_tokens).filter(|&token| masked.masks(token, num_tokens)) {
        // Masked tokens are dropped: nothing that they hold reaches a result.
        labels[token] = IGNORE_INDEX;
        h[token * dim..][..dim].fill(f64::NAN);
    }
    (t.floats(&[num_tokens, dim], t.dtype, &h), labels)
}

fn run(t: &mut Table<'_>, case: &Case, want_dh: bool, want_dw: Wanted) {
    let (backend, dtype, &((num_tokens, dim, vocab), masked, scale, soft_cap, _)) = (t.backend, t.dtype, case);
    t.case(format!(
        "T {num_tokens} D {dim} V {vocab}, masked {masked:?}, scale {scale}, cap {soft_cap:?}, dh {want_dh}, dw {want_dw:?}"
    ));
    let (h, labels) = inputs(t, case);
    let (w, label_tensor) = (t.normal(&[vocab, dim], 1.0), t.ints(&[num_tokens], &labels));

    let (dw_dtype, dw_adds) = want_dw.unwrap_or((dtype, false));
    let dw_start = t.values_of(dw_dtype, vocab * dim, f64::from(scale));
    let (mut loss, mut dh, mut dw) = (1.5, vec![0.0; num_tokens * dim], dw_start.clone());
    let (dh_arg, dw_arg) = (Some(&mut dh[..]), Some((&mut dw[..], dw_adds)));
    let (scale_wide, cap_wide) = (f64::from(scale), soft_cap.map(f64::from));
    head_loss::head_loss(&mut loss, dh_arg, dw_arg, &h.values, &w.values, &labels, dim, scale_wide, cap_wide);

    // Where softmax is almost sure, gradients are what is left of terms of the size of scale.
    let (nmse, floor) = (if dtype == DType::F32 { F32_NMSE } else { BF16_NMSE }, 0.1 * f64::from(scale));
    let loss_out = || Output::new("loss", &[1], DType::F32, &[loss]).starting_at(&[1.5]).within(F32_NMSE);
    let dh_out = || Output::new("dh", &[num_tokens, dim], dtype, &dh).within(nmse).floor(floor);
    let dw_out = || {
        let output = Output::new("dw", &[vocab, dim], dw_dtype, &dw).within(nmse).floor(floor);
        if dw_adds { output.starting_at(&dw_start) } else { output }
    };
    let call = |loss: &mut Tensor, dh: Option<&mut Tensor>, dw: Option<&mut Tensor>| {
        let out = HeadLossOut { loss, dh, dw: dw.map(|dw| (dw, dw_adds)) };
        backend.head_loss(out, &h.tensor, &w.tensor, &label_tensor, scale, soft_cap)
    };
    match (want_dh, want_dw) {
        (false, None) => t.run(&[loss_out()], |[loss]| call(loss, None, None)),
        (true, None) => t.run(&[loss_out(), dh_out()], |[loss, dh]| call(loss, Some(dh), None)),
        (false, Some(_)) => t.run(&[loss_out(), dw_out()], |[loss, dw]| call(loss, None, Some(dw))),
        (true, Some(_)) => t.run(&[loss_out(), dh_out(), dw_out()], |[loss, dh, dw]| call(loss, Some(dh), Some(dw))),
    }
}

/// Loss and gradients of h and w.
pub fn check_head_loss(backend: &dyn Backend, dtype: DType) {
    table("head_loss", backend, dtype, |t| {
        for case in CASES {
            for want_dh in [false, true] {
                run(t, case, want_dh, None);
            }
            for &out in t.output_dtypes() {
                for (want_dh, dw_adds) in [(true, false), (true, true), (false, true)] {
                    run(t, case, want_dh, Some((out, dw_adds)));
                }
            }
        }
        t.case("a NaN in an unmasked token reaches the loss");
        let (h, w) = (t.floats(&[2, 3], dtype, &[1.0, f64::NAN, 0.0, 1.0, 2.0, 3.0]), t.normal(&[5, 3], 1.0));
        let labels = t.ints(&[2], &[1, IGNORE_INDEX]);
        let loss = Output::new("loss", &[1], DType::F32, &[f64::NAN]).starting_at(&[0.0]);
        t.run(&[loss], |[loss]| {
            let out = HeadLossOut { loss, dh: None, dw: None };
            backend.head_loss(out, &h.tensor, &w.tensor, &labels, 1.0, None)
        });
        refuse(t);
    });
}

fn refuse(t: &mut Table<'_>) {
    let (backend, dtype, other) = (t.backend, t.dtype, t.other_dtype());
    let (h, w, labels) = (t.any(&[4, 3], dtype), t.any(&[5, 3], dtype), t.ints(&[4], &[0, 1, IGNORE_INDEX, 4]));
    let (loss, dh, dw) = ((&[1][..], DType::F32), (&[4, 3][..], dtype), (&[5, 3][..], dtype));
    let (wide, cast, flat) = (t.any(&[5, 4], dtype), t.any(&[5, 3], other), t.ints(&[2, 2], &[0; 4]));
    let float = t.any(&[4], dtype);
    let bad_labels = [5, -1, -99, i32::MIN].map(|label| (label, t.ints(&[4], &[0, 1, 2, label])));
    let mut refuse = |wrong, outputs: [_; 3], w: &Tensor, labels: &Tensor| {
        t.refuse(wrong, outputs, |[loss, dh, dw]| {
            let out = HeadLossOut { loss, dh: Some(dh), dw: Some((dw, false)) };
            backend.head_loss(out, &h, w, labels, 1.0, None)
        });
    };
    refuse(Wrong::Shape("w"), [loss, dh, dw], &wide, &labels);
    refuse(Wrong::DType("w"), [loss, dh, dw], &cast, &labels);
    refuse(Wrong::Shape("labels"), [loss, dh, dw], &w, &flat);
    refuse(Wrong::DType("labels"), [loss, dh, dw], &w, &float);
    refuse(Wrong::Shape("loss"), [(&[2], DType::F32), dh, dw], &w, &labels);
    refuse(Wrong::DType("loss"), [(&[1], DType::Bf16), dh, dw], &w, &labels);
    refuse(Wrong::Shape("dh"), [loss, (&[3, 4], dtype), dw], &w, &labels);
    refuse(Wrong::DType("dh"), [loss, (&[4, 3], other), dw], &w, &labels);
    refuse(Wrong::Shape("dw"), [loss, dh, (&[3, 5], dtype)], &w, &labels);
    refuse(Wrong::DType("dw"), [loss, dh, (&[5, 3], DType::I32)], &w, &labels);
    for (label, labels) in &bad_labels {
        refuse(Wrong::Index((*label).into()), [loss, dh, dw], &w, labels);
    }
}
