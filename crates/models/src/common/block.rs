//! One decoder block: h + attention(norm(h)), then h + feed-forward(norm(h)).
//!
//! Families differ in whether weights on one input are one matrix, in whether queries, keys and values have a bias, in whether heads
//! of queries and keys are normed, and in windows.
//!
//! Shapes: h: (B*T, D); q: (B*T, N*H); k, v: (B*T, K*H) or (S, K*H) with a cache; gate, up: (B*T, F).

use tensor::ops::attention::AttentionDims;
use tensor::ops::rope::RopeDims;
use tensor::{Cx, ParamId, Result, Tensor, UnitId, Var};

use super::{DecoderConfig, KvCache};

/// What all blocks of one pass share.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    /// B: rows of the batch.
    pub(super) batch: usize,
    /// T: tokens of a row.
    pub(super) tokens: usize,
    /// (B*T, H) f32: cosines and sines.
    pub(super) rope_table: Tensor,
    /// (B, T) i32: where each token's document begins.
    pub(super) doc_start: Tensor,
    /// Earlier keys and values; `None` in training.
    pub(super) cache: Option<KvCache>,
}

/// Linear layers on one input.
#[derive(Debug)]
pub(super) enum Stacked<const N: usize> {
    /// A weight each.
    Apart([ParamId; N]),
    /// Their rows one after the other in one weight.
    Together(ParamId),
}

impl<const N: usize> Stacked<N> {
    /// Their outputs, of these sizes.
    fn forward(&self, cx: &mut Cx<'_>, x: &Var, sizes: [usize; N]) -> Result<[Var; N]> {
        match self {
            Self::Together(weight) => cx.linear_split(x, *weight, sizes),
            Self::Apart(weights) => {
                let outputs: Vec<Var> = weights.iter().map(|&w| cx.linear(x, w)).collect::<Result<_>>()?;
                Ok(outputs.try_into().expect("one for each weight"))
            }
        }
    }
}

/// A decoder block: which parameters it uses and how.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) unit: UnitId,
    pub(super) layer: usize,
    pub(super) attention_norm: ParamId,
    /// Weights of queries, keys and values.
    pub(super) qkv: Stacked<3>,
    /// Biases of q, k and v.
    pub(super) biases: Option<[ParamId; 3]>,
    /// Norms of the heads of q and k.
    pub(super) head_norms: Option<[ParamId; 2]>,
    pub(super) o_proj: ParamId,
    pub(super) mlp_norm: ParamId,
    /// Weights of the gate and of what it gates.
    pub(super) gate_up: Stacked<2>,
    pub(super) down_proj: ParamId,
}

impl Block {
    /// Runs the block.
    pub(super) fn forward(&self, cx: &mut Cx<'_>, h: &Var, config: &DecoderConfig, pass: &Pass) -> Result<Var> {
        let eps = config.rms_norm_eps as f32;
        let x = cx.rms_norm(h, self.attention_norm, eps)?;
        let attended = self.attention(cx, &x, config, pass)?;
        let h = cx.add(h, &attended)?;

        let x = cx.rms_norm(&h, self.mlp_norm, eps)?;
        let [gate, up] = self.gate_up.forward(cx, &x, [config.intermediate_size; 2])?;
        let activated = cx.swiglu(&gate, &up)?;
        let down = cx.linear(&activated, self.down_proj)?;
        cx.add(&h, &down)
    }

    fn attention(&self, cx: &mut Cx<'_>, x: &Var, config: &DecoderConfig, pass: &Pass) -> Result<Var> {
        let DecoderConfig { num_attention_heads: num_heads, num_key_value_heads: num_kv_heads, head_dim, .. } = *config;
        let (of_q, of_kv) = (num_heads * head_dim, num_kv_heads * head_dim);
        let [mut q, mut k, mut v] = self.qkv.forward(cx, x, [of_q, of_kv, of_kv])?;
        if let Some([of_q, of_k, of_v]) = self.biases {
            q = cx.bias(q, of_q)?;
            k = cx.bias(k, of_k)?;
            v = cx.bias(v, of_v)?;
        }
        if let Some([of_q, of_k]) = self.head_norms {
            q = cx.rms_norm(&q, of_q, config.rms_norm_eps as f32)?;
            k = cx.rms_norm(&k, of_k, config.rms_norm_eps as f32)?;
        }
        let q = cx.rope(q, &pass.rope_table, RopeDims { num_heads, head_dim })?;
        let k = cx.rope(k, &pass.rope_table, RopeDims { num_heads: num_kv_heads, head_dim })?;
        let (k, v, query_offset) = match &pass.cache {
            None => (k, v, 0),
            Some(cache) => {
                let (k, v) = cache.append(cx.backend(), self.layer, k.tensor(), v.tensor())?;
                (Var::constant(k), Var::constant(v), cache.len())
            }
        };
        let dims = AttentionDims {
            batch: pass.batch,
            tokens: pass.tokens,
            keys: pass.tokens + query_offset,
            num_heads,
            num_kv_heads,
            head_dim,
            query_offset,
            window: config.window_of(self.layer),
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
        };
        let o = cx.attention(&q, &k, &v, &pass.doc_start, &dims)?;
        cx.linear(&o, self.o_proj)
    }
}
