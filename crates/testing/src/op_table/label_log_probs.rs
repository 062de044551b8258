//! Tables of log-probabilities of labels, over the cases of the head's loss.
//!
//! Numbers: as `head_loss`. A log-probability is measured against 1e-3 at least: where a label is almost sure it is what is left of
//! logits.

use tensor::ops::{IGNORE_INDEX, label_log_probs};
use tensor::{Backend, DType, Tensor};

use super::case::{Output, Table, Wrong, table};
use super::head_loss::{BF16_NMSE, CASES, Case, F32_NMSE, Wanted, inputs};

/// Log-probabilities of labels.
pub fn check_label_log_probs_forward(backend: &dyn Backend, dtype: DType) {
    table("label_log_probs_forward", backend, dtype, |t| {
        for case in CASES {
            let &((num_tokens, dim, vocab), masked, _, soft_cap, h_std) = case;
            t.case(format!("T {num_tokens} D {dim} V {vocab}, masked {masked:?}, cap {soft_cap:?}, h of {h_std}"));
            let (h, labels) = inputs(t, case);
            let (w, label_tensor) = (t.normal(&[vocab, dim], 1.0), t.ints(&[num_tokens], &labels));
            let (mut log_probs, cap) = (vec![f64::NAN; num_tokens], soft_cap.map(f64::from));
            label_log_probs::label_log_probs_forward(&mut log_probs, &h.values, &w.values, &labels, dim, cap);
            let output = Output::new("log_probs", &[num_tokens], DType::F32, &log_probs).within(F32_NMSE).floor(1e-3);
            t.run(&[output], |[log_probs]| {
                backend.label_log_probs_forward(log_probs, &h.tensor, &w.tensor, &label_tensor, soft_cap)
            });
        }
        let (h, w, labels) = (t.any(&[4, 3], dtype), t.any(&[5, 3], dtype), t.ints(&[4], &[0, 1, IGNORE_INDEX, 4]));
        let (flat, float, outside) = (t.ints(&[2, 2], &[0; 4]), t.any(&[4], dtype), t.ints(&[4], &[0, 1, 2, 5]));
        let (wide, cast, out) = (t.any(&[5, 4], dtype), t.any(&[5, 3], t.other_dtype()), (&[4][..], DType::F32));
        let mut refuse = |wrong, out, w: &Tensor, labels: &Tensor| {
            t.refuse(wrong, [out], |[out]| backend.label_log_probs_forward(out, &h, w, labels, None));
        };
        refuse(Wrong::Shape("w"), out, &wide, &labels);
        refuse(Wrong::DType("w"), out, &cast, &labels);
        refuse(Wrong::Shape("labels"), out, &w, &flat);
        refuse(Wrong::DType("labels"), out, &w, &float);
        refuse(Wrong::Index(5), out, &w, &outside);
        refuse(Wrong::Shape("log_probs"), (&[3][..], DType::F32), &w, &labels);
        refuse(Wrong::DType("log_probs"), (&[4][..], DType::Bf16), &w, &labels);
    });
}

fn run_backward(t: &mut Table<'_>, case: &Case, want_dh: bool, want_dw: Wanted) {
    let (backend, dtype, &((num_tokens, dim, vocab), masked, scale, soft_cap, _)) = (t.backend, t.dtype, case);
    t.case(format!(
        "T {num_tokens} D {dim} V {vocab}, masked {masked:?}, scale {scale}, cap {soft_cap:?}, dh {want_dh}, dw {want_dw:?}"
    ));
    let (h, labels) = inputs(t, case);
    let (w, label_tensor) = (t.normal(&[vocab, dim], 1.0), t.ints(&[num_tokens], &labels));
    let mut upstream = t.values_of(DType::F32, num_tokens, f64::from(scale));
    for (upstream, _) in upstream.iter_mut().zip(&labels).filter(|(_, label)| **label == IGNORE_INDEX) {
        *upstream = f64::NAN;
    }
    let upstream = t.floats(&[num_tokens], DType::F32, &upstream);

    let (dw_dtype, dw_adds) = want_dw.unwrap_or((dtype, false));
    let dw_start = t.values_of(dw_dtype, vocab * dim, f64::from(scale));
    let (mut dh, mut dw) = (vec![f64::NAN; num_tokens * dim], dw_start.clone());
    label_log_probs::label_log_probs_backward(
        Some(&mut dh),
        Some((&mut dw, dw_adds)),
        &upstream.values,
        &h.values,
        &w.values,
        &labels,
        dim,
        soft_cap.map(f64::from),
    );
    let (nmse, floor) = (if dtype == DType::F32 { F32_NMSE } else { BF16_NMSE }, 0.1 * f64::from(scale));
    let dh_out = || Output::new("dh", &[num_tokens, dim], dtype, &dh).within(nmse).floor(floor);
    let dw_out = || {
        let output = Output::new("dw", &[vocab, dim], dw_dtype, &dw).within(nmse).floor(floor);
        if dw_adds { output.starting_at(&dw_start) } else { output }
    };
    let call = |dh: Option<&mut Tensor>, dw: Option<&mut Tensor>| {
        let dw = dw.map(|dw| (dw, dw_adds));
        backend.label_log_probs_backward(dh, dw, &upstream.tensor, &h.tensor, &w.tensor, &label_tensor, soft_cap)
    };
    match (want_dh, want_dw) {
        (_, None) => t.run(&[dh_out()], |[dh]| call(Some(dh), None)),
        (false, Some(_)) => t.run(&[dw_out()], |[dw]| call(None, Some(dw))),
        (true, Some(_)) => t.run(&[dh_out(), dw_out()], |[dh, dw]| call(Some(dh), Some(dw))),
    }
}

/// Gradients of h and w from one of each log-probability.
pub fn check_label_log_probs_backward(backend: &dyn Backend, dtype: DType) {
    table("label_log_probs_backward", backend, dtype, |t| {
        for case in CASES {
            run_backward(t, case, true, None);
            for &out in t.output_dtypes() {
                for (want_dh, dw_adds) in [(true, false), (true, true), (false, true)] {
                    run_backward(t, case, want_dh, Some((out, dw_adds)));
                }
            }
        }
        let (h, w, labels) = (t.any(&[4, 3], dtype), t.any(&[5, 3], dtype), t.ints(&[4], &[0, 1, IGNORE_INDEX, 4]));
        let (upstream, short, cast) = (t.any(&[4], DType::F32), t.any(&[3], DType::F32), t.any(&[4], DType::Bf16));
        let (outside, wide) = (t.ints(&[4], &[0, 1, 2, -1]), t.any(&[5, 4], dtype));
        let (dh, dw) = ((&[4, 3][..], dtype), (&[5, 3][..], dtype));
        let other = t.other_dtype();
        let mut refuse = |wrong, outputs: [_; 2], upstream: &Tensor, w: &Tensor, labels: &Tensor| {
            t.refuse(wrong, outputs, |[dh, dw]| {
                backend.label_log_probs_backward(Some(dh), Some((dw, false)), upstream, &h, w, labels, None)
            });
        };
        refuse(Wrong::Shape("w"), [dh, dw], &upstream, &wide, &labels);
        refuse(Wrong::Index(-1), [dh, dw], &upstream, &w, &outside);
        refuse(Wrong::Shape("d_log_probs"), [dh, dw], &short, &w, &labels);
        refuse(Wrong::DType("d_log_probs"), [dh, dw], &cast, &w, &labels);
        refuse(Wrong::Shape("dh"), [(&[3, 4], dtype), dw], &upstream, &w, &labels);
        refuse(Wrong::DType("dh"), [(&[4, 3], other), dw], &upstream, &w, &labels);
        refuse(Wrong::Shape("dw"), [dh, (&[3, 5], dtype)], &upstream, &w, &labels);
        refuse(Wrong::DType("dw"), [dh, (&[5, 3], DType::I32)], &upstream, &w, &labels);
    });
}
