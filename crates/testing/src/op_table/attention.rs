//! Tables of attention.
//!
//! Numbers: f32 within 1e-11, more where scores are large: the error of an exponential grows with the score. bf16 within
//! 2e-5 forward and 1e-4 backward: a backend may round probabilities and their gradients once more, to feed them to a bf16
//! product.

use tensor::ops::attention::{self, AttentionDims};
use tensor::{Backend, DType, Tensor};

use super::case::{Input, Output, Table, Wrong, table};
use crate::random;

const BF16_FORWARD_NMSE: f64 = 2e-5;
const BF16_BACKWARD_NMSE: f64 = 1e-4;

/// Where documents start in each batch row.
#[derive(Debug, Clone, Copy)]
enum Documents {
    /// One document.
    One,
    /// Several, of random lengths.
    Packed,
    /// Starts outside of the keys, which clamp: before the first key, and beyond the query's own.
    Outside,
}

/// A case: its sizes, its documents, and the size of its queries.
#[derive(Debug, Clone, Copy)]
struct Case {
    dims: AttentionDims,
    documents: Documents,
    query_std: f64,
}

/// Batch rows, tokens, heads, key/value heads, head size; as many keys as tokens.
const fn case(batch: usize, tokens: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Case {
    let dims = AttentionDims {
        batch,
        tokens,
        keys: tokens,
        num_heads,
        num_kv_heads,
        head_dim,
        query_offset: 0,
        window: None,
        scale: 0.25,
        soft_cap: None,
    };
    Case { dims, documents: Documents::One, query_std: 1.0 }
}

impl Case {
    const fn packed(mut self) -> Self {
        self.documents = Documents::Packed;
        self
    }

    const fn outside(mut self) -> Self {
        self.documents = Documents::Outside;
        self
    }

    const fn window(mut self, window: usize) -> Self {
        self.dims.window = Some(window);
        self
    }

    const fn soft_cap(mut self, soft_cap: f32) -> Self {
        self.dims.soft_cap = Some(soft_cap);
        self
    }

    /// A cache of `keys` key rows, of which those before `query_offset` are older than the queries.
    const fn cached(mut self, keys: usize, query_offset: usize) -> Self {
        self.dims.keys = keys;
        self.dims.query_offset = query_offset;
        self
    }

    const fn query_std(mut self, query_std: f64) -> Self {
        self.query_std = query_std;
        self
    }

    fn f32_nmse(&self) -> f64 {
        1e-11 * (self.query_std * self.query_std / 10.0).max(1.0)
    }
}

const CASES: &[Case] = &[
    case(0, 3, 2, 1, 4),
    case(2, 0, 2, 1, 4),
    case(1, 1, 1, 1, 1),
    case(2, 3, 2, 1, 4),
    case(1, 17, 3, 3, 8).packed(),
    case(2, 33, 4, 2, 16).packed(),
    case(1, 65, 9, 3, 64).packed(),
    case(1, 64, 2, 2, 33),
    case(1, 33, 2, 1, 17).window(1),
    case(2, 33, 2, 1, 16).window(5).packed(),
    case(1, 33, 2, 1, 16).window(100),
    case(1, 129, 2, 1, 32).window(64),
    case(1, 33, 2, 1, 16).soft_cap(2.0),
    case(1, 65, 2, 1, 16).soft_cap(5.0).window(17).packed(),
    case(1, 33, 2, 1, 16).outside(),
    case(1, 1, 4, 2, 32).cached(20, 19),
    case(2, 1, 4, 2, 32).cached(64, 33),
    case(2, 3, 2, 1, 8).cached(40, 30).packed(),
    case(1, 33, 2, 1, 8).cached(99, 65).window(40),
    case(1, 33, 2, 1, 16).query_std(60.0),
    case(1, 130, 2, 1, 80).packed(),
    case(2, 200, 2, 1, 64).packed(),
];

/// The inputs of a case. Key rows that no query may see are NaN, as memory of a cache that is not filled yet may be.
struct Inputs {
    q: Input,
    k: Input,
    v: Input,
    doc_start: Tensor,
    doc_start_values: Vec<i32>,
}

fn inputs(t: &mut Table<'_>, case: &Case) -> Inputs {
    let AttentionDims { batch, tokens, keys, num_heads, num_kv_heads, head_dim, query_offset, .. } = case.dims;
    t.case(format!("{case:?}"));
    let q = t.normal(&[batch * tokens, num_heads * head_dim], case.query_std);
    let [k, v] = [(); 2].map(|()| {
        let columns = num_kv_heads * head_dim;
        let mut values = t.values(batch * keys * columns, 1.0);
        for row in (0..batch * keys).filter(|row| row % keys >= tokens + query_offset) {
            values[row * columns..][..columns].fill(f64::NAN);
        }
        t.floats(&[batch * keys, columns], t.dtype, &values)
    });
    let doc_start_values: Vec<i32> = (0..batch).flat_map(|b| doc_starts(b, case)).collect();
    let doc_start = t.ints(&[batch, tokens], &doc_start_values);
    Inputs { q, k, v, doc_start, doc_start_values }
}

/// The document start of each query token of batch row `b`.
fn doc_starts(b: usize, case: &Case) -> Vec<i32> {
    let (tokens, offset) = (case.dims.tokens, case.dims.query_offset);
    match case.documents {
        Documents::One => vec![0; tokens],
        Documents::Outside => (0..tokens).map(|t| if t % 2 == 0 { -3 } else { 10_000 }).collect(),
        Documents::Packed => {
            let cuts = random::sample(100 + b as u64, 4, tokens + offset);
            let start_of = |row| cuts.iter().copied().filter(|&cut| cut <= row).max().unwrap_or(0) as i32;
            (0..tokens).map(|t| start_of(t + offset)).collect()
        }
    }
}

/// The reference's o and lse.
fn reference(inputs: &Inputs, dims: &AttentionDims) -> (Vec<f64>, Vec<f64>) {
    let (mut o, mut lse) = (vec![0.0; inputs.q.values.len()], vec![0.0; dims.batch * dims.num_heads * dims.tokens]);
    let Inputs { q, k, v, doc_start_values, .. } = inputs;
    attention::attention_forward(&mut o, &mut lse, &q.values, &k.values, &v.values, doc_start_values, dims);
    (o, lse)
}

/// Outputs and log-sum-exps.
pub fn check_attention_forward(backend: &dyn Backend, dtype: DType) {
    table("attention_forward", backend, dtype, |t| {
        for case in CASES {
            let (inputs, dims) = (inputs(t, case), &case.dims);
            let nmse = if dtype == DType::F32 { case.f32_nmse() } else { BF16_FORWARD_NMSE };
            let (o, lse) = reference(&inputs, dims);
            let lse_shape = [dims.batch, dims.num_heads, dims.tokens];
            let outputs = [
                Output::new("o", &[dims.batch * dims.tokens, dims.num_heads * dims.head_dim], dtype, &o).within(nmse),
                Output::new("lse", &lse_shape, DType::F32, &lse).within(case.f32_nmse()).floor(0.3),
            ];
            let Inputs { q, k, v, doc_start, .. } = &inputs;
            t.run(&outputs, |[o, lse]| {
                backend.attention_forward(o, lse, &q.tensor, &k.tensor, &v.tensor, doc_start, dims)
            });
        }
        refuse_forward(t);
    });
}

fn refuse_forward(t: &mut Table<'_>) {
    let (backend, dtype, other) = (t.backend, t.dtype, t.other_dtype());
    let dims = case(2, 3, 4, 2, 8).dims;
    let (q, k, doc_start) = (t.any(&[6, 32], dtype), t.any(&[6, 16], dtype), t.ints(&[2, 3], &[0; 6]));
    let (o, lse) = ((&[6, 32][..], dtype), (&[2, 4, 3][..], DType::F32));
    let (cast, wide, flat) = (t.any(&[6, 16], other), t.any(&[6, 32], dtype), t.ints(&[6], &[0; 6]));
    let float = t.any(&[2, 3], dtype);
    let mut refuse = |wrong, outputs: [_; 2], k: &Tensor, v: &Tensor, doc_start: &Tensor, dims: AttentionDims| {
        t.refuse(wrong, outputs, |[o, lse]| backend.attention_forward(o, lse, &q, k, v, doc_start, &dims));
    };
    refuse(Wrong::Shape("k"), [o, lse], &wide, &k, &doc_start, dims);
    refuse(Wrong::Shape("v"), [o, lse], &k, &wide, &doc_start, dims);
    refuse(Wrong::Shape("o"), [(&[6, 16], dtype), lse], &k, &k, &doc_start, dims);
    refuse(Wrong::Shape("lse"), [o, (&[2, 3, 4], DType::F32)], &k, &k, &doc_start, dims);
    refuse(Wrong::Shape("doc_start"), [o, lse], &k, &k, &flat, dims);
    refuse(Wrong::Shape("k"), [o, lse], &k, &k, &doc_start, AttentionDims { num_kv_heads: 3, ..dims });
    refuse(Wrong::Shape("k"), [o, lse], &k, &k, &doc_start, AttentionDims { num_kv_heads: 0, ..dims });
    refuse(Wrong::Shape("k"), [o, lse], &k, &k, &doc_start, AttentionDims { query_offset: 1, ..dims });
    refuse(Wrong::DType("v"), [o, lse], &k, &cast, &doc_start, dims);
    refuse(Wrong::DType("lse"), [o, (&[2, 4, 3], DType::Bf16)], &k, &k, &doc_start, dims);
    refuse(Wrong::DType("doc_start"), [o, lse], &k, &k, &float, dims);
}

/// Gradients of q, k and v.
pub fn check_attention_backward(backend: &dyn Backend, dtype: DType) {
    table("attention_backward", backend, dtype, |t| {
        for case in CASES {
            let (inputs, dims) = (inputs(t, case), &case.dims);
            let nmse = if dtype == DType::F32 { case.f32_nmse() } else { BF16_BACKWARD_NMSE };
            let (o, lse) = reference(&inputs, dims);
            let Inputs { q, k, v, doc_start, doc_start_values } = &inputs;
            let (q_shape, k_shape) = (q.tensor.dims(), k.tensor.dims());
            let (o, d_o) = (t.floats(q_shape, dtype, &o), t.normal(q_shape, 1.0));
            let lse = t.floats(&[dims.batch, dims.num_heads, dims.tokens], DType::F32, &lse);
            let [mut dq, mut dk, mut dv] = [q, k, v].map(|of| vec![0.0; of.values.len()]);
            attention::attention_backward(
                &mut dq,
                &mut dk,
                &mut dv,
                &d_o.values,
                &q.values,
                &k.values,
                &v.values,
                &o.values,
                &lse.values,
                doc_start_values,
                dims,
            );
            // A query that sees one key has no gradient by its score: terms of about the head's size cancel.
            let outputs = [("dq", q_shape, &dq), ("dk", k_shape, &dk), ("dv", k_shape, &dv)]
                .map(|(name, shape, d)| Output::new(name, shape, dtype, d).within(nmse).floor(0.3));
            t.run(&outputs, |[dq, dk, dv]| {
                let (q, k, v, o) = (&q.tensor, &k.tensor, &v.tensor, &o.tensor);
                backend.attention_backward(dq, dk, dv, &d_o.tensor, q, k, v, o, &lse.tensor, doc_start, dims)
            });
        }
        refuse_backward(t);
    });
}

fn refuse_backward(t: &mut Table<'_>) {
    let (backend, dtype, other) = (t.backend, t.dtype, t.other_dtype());
    let dims = case(2, 3, 4, 2, 8).dims;
    let (q, k, doc_start) = (t.any(&[6, 32], dtype), t.any(&[6, 16], dtype), t.ints(&[2, 3], &[0; 6]));
    let (lse, short, cast) = (t.any(&[2, 4, 3], DType::F32), t.any(&[3, 32], dtype), t.any(&[6, 32], other));
    let (dq, dk) = ((&[6, 32][..], dtype), (&[6, 16][..], dtype));
    let mut refuse = |wrong, outputs: [_; 3], d_o: &Tensor, dims: AttentionDims| {
        t.refuse(wrong, outputs, |[dq, dk, dv]| {
            backend.attention_backward(dq, dk, dv, d_o, &q, &k, &k, &q, &lse, &doc_start, &dims)
        });
    };
    refuse(Wrong::Shape("d_o"), [dq, dk, dk], &short, dims);
    refuse(Wrong::DType("d_o"), [dq, dk, dk], &cast, dims);
    refuse(Wrong::Shape("dk"), [dq, dq, dk], &q, dims);
    refuse(Wrong::DType("dv"), [dq, dk, (&[6, 16], other)], &q, dims);
    refuse(Wrong::Shape("k"), [dq, dk, dk], &q, AttentionDims { num_kv_heads: 3, ..dims });
}
