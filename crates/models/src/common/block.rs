//! One decoder block: h + attention(norm(h)), then h + feed-forward(norm(h)).
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

/// A decoder block: which parameters it uses and how.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) unit: UnitId,
    pub(super) layer: usize,
    pub(super) attention_norm: ParamId,
    pub(super) q_proj: ParamId,
    pub(super) k_proj: ParamId,
    pub(super) v_proj: ParamId,
    pub(super) o_proj: ParamId,
    pub(super) mlp_norm: ParamId,
    pub(super) gate_proj: ParamId,
    pub(super) up_proj: ParamId,
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
        let gate = cx.linear(&x, self.gate_proj)?;
        let up = cx.linear(&x, self.up_proj)?;
        let activated = cx.swiglu(&gate, &up)?;
        let down = cx.linear(&activated, self.down_proj)?;
        cx.add(&h, &down)
    }

    fn attention(&self, cx: &mut Cx<'_>, x: &Var, config: &DecoderConfig, pass: &Pass) -> Result<Var> {
        let DecoderConfig { num_attention_heads: num_heads, num_key_value_heads: num_kv_heads, head_dim, .. } = *config;
        let q = cx.linear(x, self.q_proj)?;
        let k = cx.linear(x, self.k_proj)?;
        let v = cx.linear(x, self.v_proj)?;
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
            window: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
        };
        let o = cx.attention(&q, &k, &v, &pass.doc_start, &dims)?;
        cx.linear(&o, self.o_proj)
    }
}
