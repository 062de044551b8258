//! Every backward reference against central differences of its forward reference, in f64, over awkward shapes.

use tensor::ops::attention::{self, AttentionDims};
use tensor::ops::dropout::{self, Dropout};
use tensor::ops::glu::{self, Activation};
use tensor::ops::matmul::{self, MatmulDims};
use tensor::ops::rms_norm::{self, NormWeight, RmsNorm};
use tensor::ops::rope::{self, RopeDims};
use tensor::ops::{IGNORE_INDEX, bias, dora, embedding, head_loss, label_log_probs};
use tensor::rng::Stream;
use testing::grad_check::{GradError, assert_gradients, check};
use testing::random::{indices, normal};

#[test]
fn matmul() {
    for (m, n, k) in [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, 17, 3), (17, 1, 33), (5, 7, 9), (33, 17, 3)] {
        let dims = MatmulDims { m, n, k };
        assert_gradients(
            &format!("matmul {dims:?}"),
            &[("x", normal(1, m * k, 1.0)), ("w", normal(2, n * k, 1.0))],
            |x| {
                let mut y = vec![0.0; m * n];
                matmul::matmul_nt(&mut y, &x[0], &x[1], dims, false);
                y
            },
            |x, dy| {
                let (mut dx, mut dw) = (vec![f64::NAN; m * k], vec![f64::NAN; n * k]);
                matmul::matmul_nn(&mut dx, dy, &x[1], dims, false);
                matmul::matmul_tn(&mut dw, dy, &x[0], dims, false);
                vec![dx, dw]
            },
        );
    }
}

#[test]
fn bias() {
    for (rows, dim) in [(0, 3), (1, 1), (1, 17), (17, 1), (5, 33)] {
        assert_gradients(
            &format!("bias M {rows} N {dim}"),
            &[("y", normal(1, rows * dim, 1.0)), ("b", normal(2, dim, 1.0))],
            |x| {
                let mut y = x[0].clone();
                bias::bias_in_place(&mut y, &x[1]);
                y
            },
            |_, dy| {
                let mut db = vec![f64::NAN; dim];
                bias::bias_backward(&mut db, dy, false);
                vec![dy.to_vec(), db]
            },
        );
    }
}

#[test]
fn embedding() {
    for (num_tokens, dim, vocab, scale) in [(0, 3, 5, 1.0), (1, 1, 1, 1.0), (17, 3, 5, 7.5), (33, 17, 65, 1.0)] {
        let tokens = indices(1, num_tokens, vocab);
        assert_gradients(
            &format!("embedding T {num_tokens} D {dim} V {vocab} scale {scale}"),
            &[("w", normal(2, vocab * dim, 1.0))],
            |x| {
                let mut y = vec![0.0; num_tokens * dim];
                embedding::embedding_forward(&mut y, &tokens, &x[0], dim, scale);
                y
            },
            |_, dy| {
                let mut dw = vec![f64::NAN; vocab * dim];
                embedding::embedding_backward(&mut dw, dy, &tokens, dim, scale, false);
                vec![dw]
            },
        );
    }
}

fn rms_norm_forward(x: &[f64], w: &[f64], norm: RmsNorm) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut rstd) = (vec![0.0; x.len()], vec![0.0; x.len() / w.len()]);
    rms_norm::rms_norm_forward(&mut y, &mut rstd, x, w, norm);
    (y, rstd)
}

#[test]
fn rms_norm() {
    for (rows, dim) in [(0, 3), (1, 1), (1, 17), (17, 1), (5, 33), (33, 65)] {
        for (eps, std_dev, weight) in [
            (1e-5, 1.0, NormWeight::Plain),
            (0.5, 0.5, NormWeight::Plain),
            (1e-5, 1.0, NormWeight::FromOne),
            (0.5, 0.5, NormWeight::FromOne),
        ] {
            let norm = RmsNorm { eps, weight };
            assert_gradients(
                &format!("rms_norm N {rows} D {dim} {norm:?}"),
                &[("x", normal(1, rows * dim, std_dev)), ("w", normal(2, dim, 1.0))],
                |x| rms_norm_forward(&x[0], &x[1], norm).0,
                |x, dy| {
                    let (_, rstd) = rms_norm_forward(&x[0], &x[1], norm);
                    let (mut dx, mut dw) = (vec![f64::NAN; rows * dim], vec![f64::NAN; dim]);
                    let (dx_arg, dw_arg) = (Some((&mut dx[..], false)), Some((&mut dw[..], false)));
                    rms_norm::rms_norm_backward(dx_arg, dw_arg, dy, &x[0], &x[1], &rstd, norm);
                    vec![dx, dw]
                },
            );
        }
    }
}

#[test]
fn dora_scale() {
    for (rows, dim) in [(0, 3), (1, 1), (5, 17), (33, 4)] {
        let norm: Vec<f64> = (0..dim).map(|i| 0.5 + i as f64).collect();
        assert_gradients(
            &format!("dora_scale M {rows} N {dim}"),
            &[("z", normal(1, rows * dim, 1.0)), ("magnitude", normal(2, dim, 1.0))],
            |x| {
                let mut y = vec![0.0; rows * dim];
                dora::dora_scale_forward(&mut y, &x[0], &x[1], &norm);
                y
            },
            |x, dy| {
                let (mut dz, mut dmagnitude) = (vec![f64::NAN; rows * dim], vec![f64::NAN; dim]);
                let of_magnitude = Some((&mut dmagnitude[..], false));
                dora::dora_scale_backward(&mut dz, of_magnitude, dy, &x[0], &x[1], &norm);
                vec![dz, dmagnitude]
            },
        );
    }
}

#[test]
fn dropout() {
    for (len, probability) in [(1, 0.5), (33, 0.1), (257, 0.9)] {
        let dropout = Dropout { probability, stream: Stream::new(5, 6) };
        let dropped = |x: &[f64]| {
            let mut y = x.to_vec();
            dropout::dropout_in_place(&mut y, &dropout);
            y
        };
        assert_gradients(
            &format!("dropout {len} p {probability}"),
            &[("x", normal(1, len, 1.0))],
            |x| dropped(&x[0]),
            |_, dy| vec![dropped(dy)],
        );
    }
}

#[test]
fn rope() {
    for (num_tokens, num_heads, head_dim) in [(0, 1, 2), (1, 1, 2), (3, 3, 6), (17, 2, 34)] {
        let dims = RopeDims { num_heads, head_dim };
        let positions: Vec<i32> = (0..num_tokens as i32).map(|t| 7 * t + 1).collect();
        let inv_freq: Vec<f32> = (0..head_dim / 2).map(|i| 0.7f32.powi(i as i32)).collect();
        let mut table = vec![0.0; num_tokens * head_dim];
        rope::rope_table(&mut table, &positions, &inv_freq);
        let rotate = |x: &[f64], inverse: bool| {
            let mut y = x.to_vec();
            rope::rope_in_place(&mut y, &table, dims, inverse);
            y
        };
        for inverse in [false, true] {
            assert_gradients(
                &format!("rope T {num_tokens} {dims:?} inverse {inverse}"),
                &[("x", normal(1, num_tokens * num_heads * head_dim, 1.0))],
                |x| rotate(&x[0], inverse),
                |_, dy| vec![rotate(dy, !inverse)],
            );
        }
    }
}

#[test]
fn glu() {
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for len in [0, 1, 3, 17, 129, 600] {
            assert_gradients(
                &format!("glu of {len} with {activation:?}"),
                &[("gate", normal(1, len, 3.0)), ("up", normal(2, len, 1.0))],
                |x| {
                    let mut h = vec![0.0; len];
                    glu::glu_forward(&mut h, &x[0], &x[1], activation);
                    h
                },
                |x, dh| {
                    let (mut dgate, mut dup) = (vec![f64::NAN; len], vec![f64::NAN; len]);
                    glu::glu_backward(&mut dgate, &mut dup, dh, &x[0], &x[1], activation);
                    vec![dgate, dup]
                },
            );
        }
    }
}

const ATTENTION: AttentionDims = AttentionDims {
    batch: 1,
    tokens: 9,
    keys: 9,
    num_heads: 2,
    num_kv_heads: 1,
    head_dim: 5,
    query_offset: 0,
    window: None,
    scale: 0.4,
    soft_cap: None,
};

fn attention_forward(x: &[Vec<f64>], doc_start: &[i32], dims: &AttentionDims) -> (Vec<f64>, Vec<f64>) {
    let (mut o, mut lse) = (vec![f64::NAN; x[0].len()], vec![0.0; dims.batch * dims.num_heads * dims.tokens]);
    attention::attention_forward(&mut o, &mut lse, &x[0], &x[1], &x[2], doc_start, dims);
    (o, lse)
}

fn attention_backward(x: &[Vec<f64>], d_o: &[f64], doc_start: &[i32], dims: &AttentionDims) -> Vec<Vec<f64>> {
    let (o, lse) = attention_forward(x, doc_start, dims);
    let [mut dq, mut dk, mut dv] = [0, 1, 2].map(|i| vec![f64::NAN; x[i].len()]);
    let (q, k, v) = (&x[0], &x[1], &x[2]);
    attention::attention_backward(&mut dq, &mut dk, &mut dv, d_o, q, k, v, &o, &lse, doc_start, dims);
    vec![dq, dk, dv]
}

fn attention_inputs(dims: &AttentionDims) -> [(&'static str, Vec<f64>); 3] {
    let q_len = dims.batch * dims.tokens * dims.num_heads * dims.head_dim;
    let k_len = dims.batch * dims.keys * dims.num_kv_heads * dims.head_dim;
    [("q", normal(1, q_len, 1.0)), ("k", normal(2, k_len, 1.0)), ("v", normal(3, k_len, 1.0))]
}

#[test]
fn attention() {
    let base = ATTENTION;
    let cases = [
        base,
        AttentionDims { batch: 0, ..base },
        AttentionDims { tokens: 0, keys: 0, ..base },
        AttentionDims { tokens: 1, keys: 1, head_dim: 1, ..base },
        AttentionDims { batch: 2, num_heads: 6, num_kv_heads: 3, ..base },
        AttentionDims { num_heads: 3, num_kv_heads: 3, head_dim: 3, ..base },
        AttentionDims { tokens: 17, keys: 17, window: Some(1), ..base },
        AttentionDims { tokens: 17, keys: 17, window: Some(4), ..base },
        AttentionDims { window: Some(100), ..base },
        AttentionDims { soft_cap: Some(1.5), ..base },
        AttentionDims { soft_cap: Some(3.0), window: Some(3), batch: 2, ..base },
        AttentionDims { tokens: 1, keys: 9, query_offset: 8, ..base },
        AttentionDims { tokens: 5, keys: 20, query_offset: 11, window: Some(7), batch: 2, ..base },
    ];
    for dims in cases {
        let num_rows = dims.batch * dims.tokens;
        // One document; documents of six rows; starts that lie outside of the keys.
        let packed = |i: usize| ((i % dims.tokens + dims.query_offset) / 6 * 6) as i32;
        let outside = |i: usize| if i.is_multiple_of(2) { -5 } else { 1000 };
        for (name, doc_start) in [
            ("one document", vec![0; num_rows]),
            ("packed documents", (0..num_rows).map(packed).collect()),
            ("starts outside", (0..num_rows).map(outside).collect::<Vec<i32>>()),
        ] {
            assert_gradients(
                &format!("attention, {name}, {dims:?}"),
                &attention_inputs(&dims),
                |x| attention_forward(x, &doc_start, &dims).0,
                |x, d_o| attention_backward(x, d_o, &doc_start, &dims),
            );
        }
    }
}

#[test]
fn a_wrong_attention_gradient_is_reported() {
    // The cap's slope left out of the gradient.
    let dims = AttentionDims { soft_cap: Some(1.0), ..ATTENTION };
    let uncapped = AttentionDims { soft_cap: None, ..dims };
    let doc_start = vec![0; dims.tokens];
    let result = check(
        &attention_inputs(&dims),
        |x| attention_forward(x, &doc_start, &dims).0,
        |x, d_o| attention_backward(x, d_o, &doc_start, &uncapped),
    );
    assert!(matches!(&result, Err(GradError::Wrong { input, .. }) if input == "q"), "{result:?}");
}

/// The loss as the only output, so that dy is a factor on the scale.
fn check_head_loss(name: &str, labels: &[i32], (dim, vocab): (usize, usize), scale: f64, cap: Option<f64>) {
    assert_gradients(
        &format!("head_loss, {name}, T {} D {dim} V {vocab} scale {scale} cap {cap:?}", labels.len()),
        &[("h", normal(1, labels.len() * dim, 1.0)), ("w", normal(2, vocab * dim, 1.0))],
        |x| {
            let mut loss = 0.0;
            head_loss::head_loss(&mut loss, None, None, &x[0], &x[1], labels, dim, scale, cap);
            vec![loss]
        },
        |x, dy| {
            let (mut dh, mut dw) = (vec![f64::NAN; x[0].len()], vec![f64::NAN; x[1].len()]);
            let (dh_arg, dw_arg) = (Some(&mut dh[..]), Some((&mut dw[..], false)));
            head_loss::head_loss(&mut 0.0, dh_arg, dw_arg, &x[0], &x[1], labels, dim, scale * dy[0], cap);
            vec![dh, dw]
        },
    );
}

#[test]
fn head_loss() {
    for (num_tokens, dim, vocab) in [(0, 3, 5), (1, 1, 1), (1, 3, 2), (9, 7, 17), (17, 5, 33)] {
        let labels = indices(3, num_tokens, vocab);
        let masked = |keep: fn(usize) -> bool| {
            let label = |(t, &label): (usize, &i32)| if keep(t) { label } else { IGNORE_INDEX };
            labels.iter().enumerate().map(label).collect::<Vec<i32>>()
        };
        for cap in [None, Some(3.0)] {
            check_head_loss("no mask", &labels, (dim, vocab), 1.0, cap);
            check_head_loss("scaled", &labels, (dim, vocab), 1.0 / 64.0, cap);
            check_head_loss("every third masked", &masked(|t| t % 3 != 0), (dim, vocab), 0.5, cap);
            check_head_loss("all masked", &masked(|_| false), (dim, vocab), 1.0, cap);
        }
    }
}

#[test]
fn label_log_probs() {
    for (num_tokens, dim, vocab) in [(0, 3, 5), (1, 1, 1), (1, 3, 2), (9, 7, 17), (17, 5, 33)] {
        for (masks_some, cap) in [(false, None), (false, Some(3.0)), (true, None), (true, Some(0.5))] {
            let mut labels = indices(3, num_tokens, vocab);
            labels.iter_mut().step_by(3).filter(|_| masks_some).for_each(|label| *label = IGNORE_INDEX);
            assert_gradients(
                &format!("label_log_probs, T {num_tokens} D {dim} V {vocab}, cap {cap:?}, labels {labels:?}"),
                &[("h", normal(1, num_tokens * dim, 1.0)), ("w", normal(2, vocab * dim, 1.0))],
                |x| {
                    let mut log_probs = vec![f64::NAN; num_tokens];
                    label_log_probs::label_log_probs_forward(&mut log_probs, &x[0], &x[1], &labels, dim, cap);
                    log_probs
                },
                |x, dy| {
                    let (mut dh, mut dw) = (vec![f64::NAN; x[0].len()], vec![f64::NAN; x[1].len()]);
                    let (dh_arg, dw_arg) = (Some(&mut dh[..]), Some((&mut dw[..], false)));
                    label_log_probs::label_log_probs_backward(dh_arg, dw_arg, dy, &x[0], &x[1], &labels, dim, cap);
                    vec![dh, dw]
                },
            );
        }
    }
}

#[test]
fn a_wrong_head_gradient_is_reported() {
    // The cap left out of the gradient.
    let (labels, scale, dim) = ([3, 0, 4], 1.0, 7);
    let result = check(
        &[("h", normal(1, labels.len() * dim, 1.0)), ("w", normal(2, 5 * dim, 1.0))],
        |x| {
            let mut loss = 0.0;
            head_loss::head_loss(&mut loss, None, None, &x[0], &x[1], &labels, dim, scale, Some(1.0));
            vec![loss]
        },
        |x, dy| {
            let (mut dh, mut dw) = (vec![f64::NAN; x[0].len()], vec![f64::NAN; x[1].len()]);
            let (dh_arg, dw_arg) = (Some(&mut dh[..]), Some((&mut dw[..], false)));
            head_loss::head_loss(&mut 0.0, dh_arg, dw_arg, &x[0], &x[1], &labels, dim, scale * dy[0], None);
            vec![dh, dw]
        },
    );
    assert!(matches!(&result, Err(GradError::Wrong { input, .. }) if input == "h"), "{result:?}");
}

#[test]
fn accumulating_gradients_adds_to_what_was_there() {
    let dims = MatmulDims { m: 3, n: 5, k: 7 };
    let [x, w, dy] = [(1, 21), (2, 35), (3, 15)].map(|(stream, len)| normal(stream, len, 1.0));
    let start = normal(4, 35, 1.0);
    let plus_start = |gradient: Vec<f64>| gradient.iter().zip(&start).map(|(g, s)| g + s).collect::<Vec<f64>>();
    let assert_adds = |name: &str, len: usize, backward: &dyn Fn(&mut [f64], bool)| {
        let (mut fresh, mut added) = (vec![f64::NAN; len], start[..len].to_vec());
        backward(&mut fresh, false);
        backward(&mut added, true);
        testing::assert_close(name, &added, &plus_start(fresh), testing::Tolerance::nmse(1e-28));
    };
    assert_adds("matmul_nn", 21, &|dx, add| matmul::matmul_nn(dx, &dy, &w, dims, add));
    assert_adds("matmul_tn", 35, &|dw, add| matmul::matmul_tn(dw, &dy, &x, dims, add));
    assert_adds("bias", 5, &|db, add| bias::bias_backward(db, &dy, add));
    assert_adds("embedding", 15, &|dw, add| embedding::embedding_backward(dw, &dy[..9], &[4, 0, 4], 3, 2.5, add));
    let norm = RmsNorm { eps: 1e-5, weight: NormWeight::Plain };
    let (norm_w, rstd) = (&w[..7], rms_norm_forward(&x, &w[..7], norm).1);
    let dnorm = normal(5, 21, 1.0);
    assert_adds("rms_norm dx", 21, &|dx, add| {
        rms_norm::rms_norm_backward(Some((dx, add)), None, &dnorm, &x, norm_w, &rstd, norm);
    });
    assert_adds("rms_norm dw", 7, &|dw, add| {
        rms_norm::rms_norm_backward(None, Some((dw, add)), &dnorm, &x, norm_w, &rstd, norm);
    });
    assert_adds("head_loss", 35, &|dw, add| {
        head_loss::head_loss(&mut 0.0, None, Some((dw, add)), &x, &w, &[1, 4, IGNORE_INDEX], 7, 0.3, None);
    });
    assert_adds("label_log_probs", 35, &|dw, add| {
        let labels = [1, 4, IGNORE_INDEX];
        label_log_probs::label_log_probs_backward(None, Some((dw, add)), &dy[..3], &x, &w, &labels, 7, None);
    });
}
