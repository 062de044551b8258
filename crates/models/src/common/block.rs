//! One decoder block: h + attention(norm(h)), then h + feed-forward(norm(h)).
//!
//! Families differ in whether weights on one input are one matrix, in whether queries, keys and values have a bias, in whether heads
//! of queries and keys are normed, in whether what is added to h is normed too, in the activation, in caps and in windows.
//!
//! Shapes: h: (B*T, D); q: (B*T, N*H); k, v: (B*T, K*H) or (S, K*H) with a cache; gate, up: (B*T, F).

use tensor::ops::attention::AttentionDims;
use tensor::ops::rms_norm::RmsNorm;
use tensor::ops::rope::RopeDims;
use tensor::{AdapterSpec, Cx, ParamId, Result, Tensor, UnitId, Var};

use super::lora::BlockAdapters;
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
            Self::Apart(weights) => cx.linears(x, *weights),
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
    /// Norm of what attention adds.
    pub(super) attention_post_norm: Option<ParamId>,
    pub(super) mlp_norm: ParamId,
    /// Weights of the gate and of what it gates.
    pub(super) gate_up: Stacked<2>,
    pub(super) down_proj: ParamId,
    /// Norm of what the feed-forward layer adds.
    pub(super) mlp_post_norm: Option<ParamId>,
    pub(super) adapters: BlockAdapters,
}

impl Block {
    /// Weights of the layers that add a bias.
    pub(super) fn biased(&self) -> &[ParamId] {
        match &self.qkv {
            _ if self.biases.is_none() => &[],
            Stacked::Apart(weights) => weights,
            Stacked::Together(weight) => std::slice::from_ref(weight),
        }
    }

    /// Runs the block.
    pub(super) fn forward(&self, cx: &mut Cx<'_>, h: &Var, config: &DecoderConfig, pass: &Pass) -> Result<Var> {
        let norm = config.norm();
        let x = cx.rms_norm(h, self.attention_norm, norm)?;
        let attended = self.attention(cx, &x, config, pass)?;
        let attended = normed(cx, attended, self.attention_post_norm, norm)?;
        let h = cx.add(h, &attended)?;

        let x = cx.rms_norm(&h, self.mlp_norm, norm)?;
        let gate_up = self.gate_up.forward(cx, &x, [config.intermediate_size; 2])?;
        let [gate, up] = adapted(cx, gate_up, &x, &self.adapters.gate_up)?;
        let activated = cx.glu(&gate, &up, config.hidden_act)?;
        let down = cx.linear(&activated, self.down_proj)?;
        let [down] = adapted(cx, [down], &activated, std::slice::from_ref(&self.adapters.down))?;
        let down = normed(cx, down, self.mlp_post_norm, norm)?;
        cx.add(&h, &down)
    }

    fn attention(&self, cx: &mut Cx<'_>, x: &Var, config: &DecoderConfig, pass: &Pass) -> Result<Var> {
        let DecoderConfig { num_attention_heads: num_heads, num_key_value_heads: num_kv_heads, head_dim, .. } = *config;
        let (of_q, of_kv) = (num_heads * head_dim, num_kv_heads * head_dim);
        let qkv = self.qkv.forward(cx, x, [of_q, of_kv, of_kv])?;
        let [mut q, mut k, mut v] = adapted(cx, qkv, x, &self.adapters.qkv)?;
        if let Some([of_q, of_k, of_v]) = self.biases {
            q = cx.bias(q, of_q)?;
            k = cx.bias(k, of_k)?;
            v = cx.bias(v, of_v)?;
        }
        if let Some([of_q, of_k]) = self.head_norms {
            q = cx.rms_norm(&q, of_q, config.norm())?;
            k = cx.rms_norm(&k, of_k, config.norm())?;
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
            scale: config.attention_scale(),
            soft_cap: config.attn_logit_softcapping.map(|cap| cap as f32),
        };
        let o = cx.attention(&q, &k, &v, &pass.doc_start, &dims)?;
        let y = cx.linear(&o, self.o_proj)?;
        let [y] = adapted(cx, [y], &o, std::slice::from_ref(&self.adapters.o))?;
        Ok(y)
    }
}

/// Outputs of linear layers on one input, with what their adapters change.
fn adapted<const N: usize>(
    cx: &mut Cx<'_>,
    outputs: [Var; N],
    x: &Var,
    adapters: &[Option<AdapterSpec>],
) -> Result<[Var; N]> {
    let change = |(y, adapter): (Var, &Option<AdapterSpec>)| match adapter {
        None => Ok(y),
        Some(adapter) => cx.adapt(y, x, adapter),
    };
    let changed: Vec<Var> = outputs.into_iter().zip(adapters).map(change).collect::<Result<_>>()?;
    Ok(changed.try_into().expect("one for each output"))
}

/// `x` after a norm, where there is one.
fn normed(cx: &mut Cx<'_>, x: Var, weight: Option<ParamId>, norm: RmsNorm) -> Result<Var> {
    match weight {
        Some(weight) => cx.rms_norm(&x, weight, norm),
        None => Ok(x),
    }
}
