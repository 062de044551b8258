//! Sizes at which ops take the paths that the op tables are too small for: several blocks of a sum, several ranges of tokens,
//! several chunks of a loss.

use std::slice;

use cpu::{CpuBackend, CpuConfig};
use tensor::ops::attention::{self, AttentionDims};
use tensor::ops::head_loss::{self, HeadLossOut};
use tensor::ops::matmul::{self, MatmulDims};
use tensor::{Backend, DType, Shape, Tensor};
use testing::compare::{Tolerance, assert_close};

/// Sums of thousands of terms in f32 against f64.
const BOUND: Tolerance = Tolerance::nmse(1e-11);

fn backends() -> impl Iterator<Item = CpuBackend> {
    [1, 2, 3].into_iter().map(|threads| {
        CpuBackend::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).expect("threads start")
    })
}

/// Normal numbers as an f32 tensor, and as f64.
fn normal(backend: &dyn Backend, seed: u64, shape: &[usize]) -> (Tensor, Vec<f64>) {
    normal_of(1.0, backend, seed, shape)
}

fn normal_of(std_dev: f64, backend: &dyn Backend, seed: u64, shape: &[usize]) -> (Tensor, Vec<f64>) {
    let shape = Shape::new(shape);
    let mut values = vec![0.0f32; shape.num_elements()];
    tensor::rng::Stream::new(seed, 1).fill_normal(&mut values, std_dev);
    let wide = values.iter().map(|&v| f64::from(v)).collect();
    (backend.from_f32(shape, DType::F32, &values).expect("small tensors fit"), wide)
}

fn wide(backend: &dyn Backend, x: &Tensor) -> Vec<f64> {
    backend.to_f32(x).expect("a floating-point tensor").into_iter().map(f64::from).collect()
}

#[test]
fn products_with_long_sums_and_many_rows() {
    for backend in backends() {
        let backend: &dyn Backend = &backend;
        for (m, n, k) in [(50, 130, 1500), (1700, 20, 30), (20, 100, 1300), (700, 200, 33)] {
            let dims = MatmulDims { m, n, k };
            let ((x, x_wide), (w, w_wide)) = (normal(backend, 1, &[m, k]), normal(backend, 2, &[n, k]));
            let (dy, dy_wide) = normal(backend, 3, &[m, n]);
            let what = format!("{dims:?} on {}", backend.describe());

            let (mut y, mut expected) = (dy.clone(), dy_wide.clone());
            backend.matmul_nt(&mut y, &x, &w, false).unwrap();
            matmul::matmul_nt(&mut expected, &x_wide, &w_wide, dims, false);
            assert_close(&format!("y of {what}"), &wide(backend, &y), &expected, BOUND);

            let (dy, _) = normal(backend, 3, &[m, n]);
            let (mut dx, mut expected) = normal(backend, 4, &[m, k]);
            backend.matmul_nn(&mut dx, &dy, &w, true).unwrap();
            matmul::matmul_nn(&mut expected, &dy_wide, &w_wide, dims, true);
            assert_close(&format!("dx of {what}"), &wide(backend, &dx), &expected, BOUND);

            let (mut dw, mut expected) = normal(backend, 5, &[n, k]);
            backend.matmul_tn(&mut dw, &dy, &x, true).unwrap();
            matmul::matmul_tn(&mut expected, &dy_wide, &x_wide, dims, true);
            assert_close(&format!("dw of {what}"), &wide(backend, &dw), &expected, BOUND);
        }
    }
}

#[test]
fn attention_over_several_ranges_of_tokens() {
    let plain = AttentionDims {
        batch: 1,
        tokens: 300,
        keys: 310,
        num_heads: 3,
        num_kv_heads: 1,
        head_dim: 20,
        query_offset: 5,
        window: None,
        scale: 0.2,
        soft_cap: None,
    };
    let variants = [
        plain,
        AttentionDims { batch: 2, num_kv_heads: 3, window: Some(40), ..plain },
        AttentionDims { soft_cap: Some(3.0), head_dim: 16, ..plain },
        AttentionDims { tokens: 1, keys: 301, query_offset: 300, ..plain },
    ];
    for backend in backends() {
        let backend: &dyn Backend = &backend;
        for dims in variants {
            // Documents of 130 tokens.
            let first = |t: usize| ((t + dims.query_offset) / 130 * 130) as i32;
            let doc_start: Vec<i32> = (0..dims.batch * dims.tokens).map(|i| first(i % dims.tokens)).collect();
            let doc_tensor = backend.from_i32([dims.batch, dims.tokens], &doc_start).unwrap();
            let q_shape = [dims.batch * dims.tokens, dims.num_heads * dims.head_dim];
            let k_shape = [dims.batch * dims.keys, dims.num_kv_heads * dims.head_dim];
            let lse_shape = [dims.batch, dims.num_heads, dims.tokens];
            let ((q, q_wide), (d_o, d_o_wide)) = (normal(backend, 1, &q_shape), normal(backend, 2, &q_shape));
            let ((k, k_wide), (v, v_wide)) = (normal(backend, 3, &k_shape), normal(backend, 4, &k_shape));
            let what = format!("{dims:?} on {}", backend.describe());

            let ((mut o, mut o_wide), (mut lse, mut lse_wide)) =
                (normal(backend, 5, &q_shape), normal(backend, 6, &lse_shape));
            backend.attention_forward(&mut o, &mut lse, &q, &k, &v, &doc_tensor, &dims).unwrap();
            attention::attention_forward(&mut o_wide, &mut lse_wide, &q_wide, &k_wide, &v_wide, &doc_start, &dims);
            assert_close(&format!("o of {what}"), &wide(backend, &o), &o_wide, BOUND);
            assert_close(&format!("lse of {what}"), &wide(backend, &lse), &lse_wide, BOUND);

            let (mut dq, mut dq_wide) = normal(backend, 7, &q_shape);
            let ((mut dk, mut dk_wide), (mut dv, mut dv_wide)) =
                (normal(backend, 8, &k_shape), normal(backend, 9, &k_shape));
            backend
                .attention_backward(&mut dq, &mut dk, &mut dv, &d_o, &q, &k, &v, &o, &lse, &doc_tensor, &dims)
                .unwrap();
            attention::attention_backward(
                &mut dq_wide,
                &mut dk_wide,
                &mut dv_wide,
                &d_o_wide,
                &q_wide,
                &k_wide,
                &v_wide,
                &o_wide,
                &lse_wide,
                &doc_start,
                &dims,
            );
            for (name, found, expected) in [("dq", &dq, &dq_wide), ("dk", &dk, &dk_wide), ("dv", &dv, &dv_wide)] {
                assert_close(&format!("{name} of {what}"), &wide(backend, found), expected, BOUND);
            }
        }
    }
}

#[test]
fn loss_over_several_chunks() {
    let (num_tokens, dim, vocab) = (300, 700, 230);
    let labels: Vec<i32> = (0..num_tokens as i32).map(|t| if t % 7 == 3 { -100 } else { t * 5 % vocab }).collect();
    for backend in backends() {
        let backend: &dyn Backend = &backend;
        let ((h, h_wide), (w, w_wide)) =
            (normal(backend, 1, &[num_tokens, dim]), normal_of(0.05, backend, 2, &[vocab as usize, dim]));
        let label_tensor = backend.from_i32([num_tokens], &labels).unwrap();
        for accumulate in [false, true] {
            let (mut loss, mut loss_wide) = normal(backend, 3, &[1]);
            let ((mut dh, mut dh_wide), (mut dw, mut dw_wide)) =
                (normal(backend, 4, &[num_tokens, dim]), normal(backend, 5, &[vocab as usize, dim]));
            let out = HeadLossOut { loss: &mut loss, dh: Some(&mut dh), dw: Some((&mut dw, accumulate)) };
            backend.head_loss(out, &h, &w, &label_tensor, 0.01, None).unwrap();
            let scale = f64::from(0.01f32);
            let dw_expected = Some((&mut *dw_wide, accumulate));
            let dh_expected = Some(&mut *dh_wide);
            let expected = &mut loss_wide[0];
            head_loss::head_loss(expected, dh_expected, dw_expected, &h_wide, &w_wide, &labels, dim, scale, None);
            let found = f64::from(backend.read_scalar(&loss).unwrap());
            assert_close("loss", slice::from_ref(&found), &loss_wide, BOUND);
            assert_close("dh", &wide(backend, &dh), &dh_wide, BOUND);
            assert_close("dw", &wide(backend, &dw), &dw_wide, BOUND);
        }
    }
}
