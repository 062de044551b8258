//! Tables of the token embedding.
//!
//! Numbers: the forward pass is exact without a scale; the rest is within [`nmse_bound`](super::nmse_bound).

use tensor::ops::embedding;
use tensor::{Backend, DType};

use super::case::{Output, Table, Wrong, table};

/// (T, D, V).
const DIMS: &[(usize, usize, usize)] =
    &[(0, 3, 5), (1, 1, 1), (3, 17, 4), (33, 65, 129), (65, 33, 3), (129, 64, 300), (17, 576, 33)];

fn refuse_tokens(t: &mut Table<'_>, mut refuse: impl FnMut(&mut Table<'_>, i32)) {
    for token in [5, -1, i32::MAX, i32::MIN] {
        refuse(t, token);
    }
}

/// None, and the root of a hidden size.
const SCALES: [f32; 2] = [1.0, 6.928_203];

/// `y[t] = scale w[tokens[t]]`.
pub fn check_embedding_forward(backend: &dyn Backend, dtype: DType) {
    table("embedding_forward", backend, dtype, |t| {
        for &(num_tokens, dim, vocab) in DIMS {
            for scale in SCALES {
                t.case(format!("T {num_tokens} D {dim} V {vocab} scale {scale}"));
                let (indices, w) = (t.indices(num_tokens, vocab), t.normal(&[vocab, dim], 1.0));
                let tokens = t.ints(&[num_tokens], &indices);
                let mut y = vec![0.0; num_tokens * dim];
                embedding::embedding_forward(&mut y, &indices, &w.values, dim, scale.into());
                let y = Output::new("y", &[num_tokens, dim], dtype, &y);
                let y = if scale == 1.0 { y.within(0.0) } else { y };
                t.run(&[y], |[y]| backend.embedding_forward(y, &tokens, &w.tensor, scale));
            }
        }
        t.case("tokens of two dimensions");
        let (indices, w) = (t.indices(6, 5), t.normal(&[5, 3], 1.0));
        let tokens = t.ints(&[2, 3], &indices);
        let mut y = vec![0.0; 18];
        embedding::embedding_forward(&mut y, &indices, &w.values, 3, 1.0);
        t.run(&[Output::new("y", &[6, 3], dtype, &y).within(0.0)], |[y]| {
            backend.embedding_forward(y, &tokens, &w.tensor, 1.0)
        });

        let (w, y, other) = (t.any(&[5, 3], dtype), (&[4, 3][..], dtype), t.other_dtype());
        let (tokens, float, flat) = (t.ints(&[4], &[0, 1, 2, 3]), t.any(&[4], dtype), t.any(&[15], dtype));
        t.refuse(Wrong::Shape("w"), [y], |[y]| backend.embedding_forward(y, &tokens, &flat, 1.0));
        t.refuse(Wrong::Shape("y"), [(&[3, 4], dtype)], |[y]| backend.embedding_forward(y, &tokens, &w, 1.0));
        t.refuse(Wrong::DType("y"), [(&[4, 3], other)], |[y]| backend.embedding_forward(y, &tokens, &w, 1.0));
        t.refuse(Wrong::DType("tokens"), [y], |[y]| backend.embedding_forward(y, &float, &w, 1.0));
        refuse_tokens(t, |t, token| {
            let tokens = t.ints(&[4], &[0, 1, 2, token]);
            t.refuse(Wrong::Index(token.into()), [y], |[y]| backend.embedding_forward(y, &tokens, &w, 1.0));
        });
    });
}

/// `dw[tokens[t]] += scale dy[t]`.
pub fn check_embedding_backward(backend: &dyn Backend, dtype: DType) {
    table("embedding_backward", backend, dtype, |t| {
        for &(num_tokens, dim, vocab) in DIMS {
            for &out in t.output_dtypes() {
                for (accumulate, scale) in [false, true].into_iter().flat_map(|adds| SCALES.map(|scale| (adds, scale)))
                {
                    t.case(format!(
                        "T {num_tokens} D {dim} V {vocab} scale {scale} into {out}, accumulate {accumulate}"
                    ));
                    let (indices, dy) = (t.indices(num_tokens, vocab), t.normal(&[num_tokens, dim], 1.0));
                    let tokens = t.ints(&[num_tokens], &indices);
                    let start = t.values_of(out, vocab * dim, 1.0);
                    let mut dw = start.clone();
                    embedding::embedding_backward(&mut dw, &dy.values, &indices, dim, scale.into(), accumulate);
                    let mut dw = Output::new("dw", &[vocab, dim], out, &dw);
                    if accumulate {
                        dw = dw.starting_at(&start);
                    }
                    t.run(&[dw], |[dw]| backend.embedding_backward(dw, &dy.tensor, &tokens, scale, accumulate));
                }
            }
        }
        let (dy, dw) = (t.any(&[4, 3], dtype), (&[5, 3][..], dtype));
        let (tokens, float, flat) = (t.ints(&[4], &[0, 1, 2, 3]), t.any(&[4], dtype), t.any(&[12], dtype));
        let int = (&[5, 3][..], DType::I32);
        t.refuse(Wrong::Shape("dy"), [dw], |[dw]| backend.embedding_backward(dw, &flat, &tokens, 1.0, false));
        t.refuse(Wrong::Shape("dw"), [(&[15], dtype)], |[dw]| backend.embedding_backward(dw, &dy, &tokens, 1.0, false));
        t.refuse(Wrong::DType("dw"), [int], |[dw]| backend.embedding_backward(dw, &dy, &tokens, 1.0, false));
        t.refuse(Wrong::DType("tokens"), [dw], |[dw]| backend.embedding_backward(dw, &dy, &float, 1.0, false));
        refuse_tokens(t, |t, token| {
            let tokens = t.ints(&[4], &[0, 1, 2, token]);
            t.refuse(Wrong::Index(token.into()), [dw], |[dw]| backend.embedding_backward(dw, &dy, &tokens, 1.0, false));
        });
    });
}
