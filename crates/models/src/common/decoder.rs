//! The decoder-only transformer: embedding, blocks, final norm and head.
//!
//! Shapes: tokens, labels, positions, doc_start: (B, T) i32; h: (B*T, D); logits: (rows, V) f32.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use tensor::ops::fake_quantise::FakeQuant;
use tensor::{
    AdapterSpec, Backend, Cx, DType, Init, ModelLayout, ParamId, ParamKind, ParamSpec, Result, Shape, Tensor, UnitId,
    UnitKind, UnitSpec, Var,
};

use super::block::{Block, Pass, Stacked};
use super::lora::{BlockAdapters, LoraConfig, LoraModule, Sizes, adapt, adapt_head};
use super::rope::inverse_frequencies;
use super::{DecoderConfig, KvCache};

/// A batch on the device.
#[derive(Debug, Clone)]
pub struct ModelBatch {
    /// (B, T) i32: token ids.
    pub tokens: Tensor,
    /// (B, T) i32: rotary positions.
    pub positions: Tensor,
    /// (B, T) i32: the row index at which each token's document begins.
    pub doc_start: Tensor,
}

/// A decoder: its shape, the parameters it wants and the code that runs them. It holds no weights.
#[derive(Debug)]
pub struct Decoder {
    config: Arc<DecoderConfig>,
    layout: ModelLayout,
    embedding: ParamId,
    blocks: Vec<Arc<Block>>,
    head: Head,
    inv_freq: Vec<f32>,
}

/// Parameters of the last unit.
#[derive(Debug, Clone)]
struct Head {
    unit: UnitId,
    norm: ParamId,
    weight: ParamId,
    adapter: Option<AdapterSpec>,
}

const EMBEDDING_UNIT: UnitId = UnitId(0);

impl Decoder {
    /// A decoder of the given shape, with Hugging Face's parameter names, that is trained whole.
    pub fn new(config: DecoderConfig) -> crate::Result<Self> {
        Self::with_adapters(config, None)
    }

    /// A decoder of which only adapters are trained, if there are any.
    pub fn with_adapters(config: DecoderConfig, lora: Option<&LoraConfig>) -> crate::Result<Self> {
        config.validate()?;
        let mut list = LayoutBuilder::default();
        let [d, v] = [config.hidden_size, config.vocab_size];
        let embedding = list.param("model.embed_tokens.weight", &[v, d], "(vocab_size, hidden_size)", Init::Normal);
        list.unit(UnitKind::Embedding, vec![]);
        let mut blocks: Vec<Block> = (0..config.num_hidden_layers).map(|layer| list.block(layer, &config)).collect();
        let norm = list.param("model.norm.weight", &[d], "(hidden_size)", config.norm_init());
        let (weight, borrows) = if config.tie_word_embeddings {
            (embedding, vec![embedding])
        } else {
            (list.param("lm_head.weight", &[v, d], "(vocab_size, hidden_size)", Init::Normal), vec![])
        };
        let mut head = Head { unit: list.unit(UnitKind::Head, borrows), norm, weight, adapter: None };
        if let Some(lora) = lora {
            let sizes = Sizes {
                q: config.num_attention_heads * config.head_dim,
                kv: config.num_key_value_heads * config.head_dim,
                f: config.intermediate_size,
                d: config.hidden_size,
            };
            if config.tie_word_embeddings && lora.modules.contains(&LoraModule::Head) {
                return Err(crate::Error::TiedHead);
            }
            adapt(&mut list.layout, &mut blocks, config.family, &sizes, lora);
            head.adapter = adapt_head(&mut list.layout, head.unit, head.weight, lora);
        }
        let inv_freq = inverse_frequencies(&config);
        let blocks = blocks.into_iter().map(Arc::new).collect();
        Ok(Self { config: Arc::new(config), layout: list.layout, embedding, blocks, head, inv_freq })
    }

    /// The same model, its linear layers quantised for show: those that have an adapter, or all of them if there is none. Layers with a bias
    /// and a head that is the embedding stay as they are, as in the reference.
    pub fn quantised(mut self, quant: FakeQuant) -> crate::Result<Self> {
        let layout = &self.layout;
        let biased: HashSet<ParamId> = self.blocks.iter().flat_map(|block| block.biased()).copied().collect();
        let mut weights: Vec<ParamId> = if layout.adapters.is_empty() {
            let is_linear = |id: &&ParamId| layout.param(**id).shape.dims().len() == 2 && !biased.contains(id);
            let of_blocks = layout.units.iter().filter(|unit| unit.kind == UnitKind::Block);
            let head = Some(&self.head.weight).filter(|_| !self.config.tie_word_embeddings);
            of_blocks.flat_map(|unit| &unit.owns).filter(is_linear).chain(head).copied().collect()
        } else {
            layout.adapters.iter().map(|adapter| adapter.weight).collect()
        };
        weights.sort_unstable();
        weights.dedup();
        let twos = |id: &ParamId| layout.param(*id).shape.rows_cols().1.trailing_zeros();
        let fits = 1 << weights.iter().map(twos).min().unwrap_or_default().min(8);
        for &id in &weights {
            let param = layout.param(id);
            let (rows, width) = param.shape.rows_cols();
            let (name, group_size) = (param.name.clone(), quant.group_size);
            if biased.contains(&id) {
                return Err(crate::Error::AdaptedBias { name });
            }
            if width % group_size != 0 {
                return Err(crate::Error::GroupSize { name, width, group_size, fits });
            }
            let adapters = layout.adapters.iter().filter(|adapter| adapter.weight == id);
            let adapted: usize = adapters.map(|adapter| adapter.rows.len()).sum();
            if adapted != 0 && adapted != rows {
                return Err(crate::Error::PartlyAdapted { name });
            }
        }
        for id in weights {
            self.layout.params[id.0 as usize].fake_quant = Some(quant);
        }
        Ok(self)
    }

    /// Its shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Its parameters and units.
    pub fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    /// The scaled cross entropy of a batch, (1) f32; `labels` (B, T) i32 are aligned with the tokens they are predicted
    /// at. `scale` must be final: gradients are born with it.
    pub fn loss(&self, cx: &mut Cx<'_>, batch: &ModelBatch, labels: &Tensor, scale: f32) -> Result<Tensor> {
        let h = self.hidden(cx, batch, None)?;
        let (head, config) = (self.head.clone(), Arc::clone(&self.config));
        let labels = labels.reshape([labels.num_elements()])?;
        let loss = cx.unit(head.unit, &[h], move |cx, inputs| {
            let x = cx.rms_norm(&inputs[0], head.norm, config.norm())?;
            let cap = final_soft_cap(&config);
            match &head.adapter {
                None => cx.head_loss(&x, head.weight, &labels, scale, cap),
                Some(adapter) => cx.head_loss_adapted(&x, adapter, &labels, scale, cap),
            }
        })?;
        Ok(loss.tensor().clone())
    }

    /// The log-probability of each label, (B*T) f32, 0 for masked ones; `labels` (B, T) i32 are aligned with the tokens they are
    /// predicted at. With `parts` also the mean of all logits of each of so many equal parts of the batch's rows: (parts) f32.
    pub fn label_log_probs(
        &self,
        cx: &mut Cx<'_>,
        batch: &ModelBatch,
        labels: &Tensor,
        parts: Option<usize>,
    ) -> Result<(Var, Option<Tensor>)> {
        let h = self.hidden(cx, batch, None)?;
        let (head, config) = (self.head.clone(), Arc::clone(&self.config));
        let labels = labels.reshape([labels.num_elements()])?;
        // A unit has one output; this one is only looked at.
        let means = Rc::new(OnceCell::new());
        let seen = Rc::clone(&means);
        let log_probs = cx.unit(head.unit, &[h], move |cx, inputs| {
            let x = cx.rms_norm(&inputs[0], head.norm, config.norm())?;
            if let (Some(parts), None) = (parts, seen.get()) {
                let _ = seen.set(cx.mean_logits(&x, head.weight, parts, final_soft_cap(&config))?);
            }
            cx.label_log_probs(&x, head.weight, &labels, final_soft_cap(&config))
        })?;
        Ok((log_probs, means.get().cloned()))
    }

    /// The logits of every token of a batch: (B*T, V) f32.
    pub fn logits(&self, cx: &mut Cx<'_>, batch: &ModelBatch) -> Result<Tensor> {
        let h = self.hidden(cx, batch, None)?;
        self.head_logits(cx, h)
    }

    /// The logits after the last of `tokens` (T) of one sequence, whose earlier tokens are in `cache`: (1, V) f32. The
    /// tokens join the cache. `Error::Shape` of the ops if they do not fit.
    pub fn next_logits(&self, cx: &mut Cx<'_>, tokens: &[i32], cache: &mut KvCache) -> Result<Tensor> {
        let backend = cx.backend();
        let num_tokens = tokens.len();
        let positions: Vec<i32> = (cache.len()..cache.len() + num_tokens).map(|p| p as i32).collect();
        let batch = ModelBatch {
            tokens: backend.from_i32([1, num_tokens], tokens)?,
            positions: backend.from_i32([1, num_tokens], &positions)?,
            doc_start: backend.from_i32([1, num_tokens], &vec![0; num_tokens])?,
        };
        let h = self.hidden(cx, &batch, Some(cache))?;
        cache.advance(num_tokens);
        let last = h.tensor().rows(num_tokens - 1..num_tokens)?;
        self.head_logits(cx, Var::constant(last))
    }

    /// Embedding and blocks: (B*T, D).
    fn hidden(&self, cx: &mut Cx<'_>, batch: &ModelBatch, cache: Option<&KvCache>) -> Result<Var> {
        let pass = Arc::new(self.pass(cx.backend(), batch, cache)?);
        let (tokens, embedding, scale) = (batch.tokens.clone(), self.embedding, self.config.embedding_scale());
        let mut h = cx.unit(EMBEDDING_UNIT, &[], move |cx, _| cx.embedding(&tokens, embedding, scale))?;
        for block in &self.blocks {
            let (unit, block) = (block.unit, Arc::clone(block));
            let (config, pass) = (Arc::clone(&self.config), Arc::clone(&pass));
            h = cx.unit(unit, &[h], move |cx, inputs| block.forward(cx, &inputs[0], &config, &pass))?;
        }
        Ok(h)
    }

    fn head_logits(&self, cx: &mut Cx<'_>, h: Var) -> Result<Tensor> {
        let (head, config) = (self.head.clone(), Arc::clone(&self.config));
        let logits = cx.unit(head.unit, &[h], move |cx, inputs| {
            let x = cx.rms_norm(&inputs[0], head.norm, config.norm())?;
            let cap = final_soft_cap(&config);
            Ok(Var::constant(match &head.adapter {
                None => cx.logits(&x, head.weight, cap)?,
                Some(adapter) => cx.logits_adapted(&x, adapter, cap)?,
            }))
        })?;
        Ok(logits.tensor().clone())
    }

    fn pass(&self, backend: &dyn Backend, batch: &ModelBatch, cache: Option<&KvCache>) -> Result<Pass> {
        let (batch_size, tokens) = batch.tokens.shape().rows_cols();
        let mut inv_freq = backend.alloc(Shape::from([self.inv_freq.len()]), DType::F32)?;
        let bytes: Vec<u8> = self.inv_freq.iter().flat_map(|f| f.to_ne_bytes()).collect();
        backend.upload(&mut inv_freq, &bytes)?;
        let mut rope_table = backend.alloc(Shape::from([batch_size * tokens, self.config.head_dim]), DType::F32)?;
        backend.rope_table(&mut rope_table, &batch.positions, &inv_freq)?;
        let doc_start = batch.doc_start.clone();
        Ok(Pass { batch: batch_size, tokens, rope_table, doc_start, cache: cache.cloned() })
    }
}

/// The soft cap on logits.
fn final_soft_cap(config: &DecoderConfig) -> Option<f32> {
    config.final_logit_softcapping.map(|cap| cap as f32)
}

/// Numbers parameters and units as they are listed.
#[derive(Default)]
struct LayoutBuilder {
    layout: ModelLayout,
    /// Parameters listed since the last unit.
    open: Vec<ParamId>,
}

impl LayoutBuilder {
    fn param(&mut self, name: impl Into<String>, dims: &[usize], meaning: &'static str, init: Init) -> ParamId {
        let id = ParamId(self.layout.params.len() as u32);
        self.layout.params.push(ParamSpec {
            name: name.into(),
            shape: Shape::new(dims),
            meaning,
            init,
            kind: ParamKind::Trained,
            fake_quant: None,
        });
        self.open.push(id);
        id
    }

    /// Closes a unit: it owns the parameters listed since the last one.
    fn unit(&mut self, kind: UnitKind, borrows: Vec<ParamId>) -> UnitId {
        let id = UnitId(self.layout.units.len() as u32);
        self.layout.units.push(UnitSpec { kind, owns: std::mem::take(&mut self.open), borrows });
        id
    }

    fn block(&mut self, layer: usize, config: &DecoderConfig) -> Block {
        let (d, f) = (config.hidden_size, config.intermediate_size);
        let q = config.num_attention_heads * config.head_dim;
        let kv = config.num_key_value_heads * config.head_dim;
        let (q_rows, kv_rows) =
            ("(num_attention_heads * head_dim, hidden_size)", "(num_key_value_heads * head_dim, hidden_size)");
        let of_norm = config.norm_init();
        let mut param = |name: &str, dims: &[usize], meaning, init| {
            self.param(format!("model.layers.{layer}.{name}"), dims, meaning, init)
        };
        let (of_q, of_kv, h) =
            ("(num_attention_heads * head_dim)", "(num_key_value_heads * head_dim)", config.head_dim);
        let biases = config.attention_bias.then(|| {
            [("q", q, of_q), ("k", kv, of_kv), ("v", kv, of_kv)]
                .map(|(name, len, meaning)| param(&format!("self_attn.{name}_proj.bias"), &[len], meaning, Init::Zeros))
        });
        let head_norms = config.qk_norm.then(|| {
            ["q", "k"].map(|name| param(&format!("self_attn.{name}_norm.weight"), &[h], "(head_dim)", of_norm))
        });
        let mut weight =
            |name: &str, dims: &[usize], meaning, init| param(&format!("{name}.weight"), dims, meaning, init);
        let attention_norm = weight("input_layernorm", &[d], "(hidden_size)", of_norm);
        let qkv = if config.stacks_weights {
            let rows = "((num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size)";
            Stacked::Together(weight("self_attn.qkv_proj", &[q + 2 * kv, d], rows, Init::Normal))
        } else {
            Stacked::Apart([
                weight("self_attn.q_proj", &[q, d], q_rows, Init::Normal),
                weight("self_attn.k_proj", &[kv, d], kv_rows, Init::Normal),
                weight("self_attn.v_proj", &[kv, d], kv_rows, Init::Normal),
            ])
        };
        let o_proj = weight("self_attn.o_proj", &[d, q], "(hidden_size, num_attention_heads * head_dim)", Init::Normal);
        let mut post_norm = |name| config.post_norms.then(|| weight(name, &[d], "(hidden_size)", of_norm));
        let attention_post_norm = post_norm("post_attention_layernorm");
        let mlp_post_norm = post_norm("post_feedforward_layernorm");
        let mlp_norm = if config.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let mlp_norm = weight(mlp_norm, &[d], "(hidden_size)", of_norm);
        let gate_up = if config.stacks_weights {
            Stacked::Together(weight(
                "mlp.gate_up_proj",
                &[2 * f, d],
                "(2 * intermediate_size, hidden_size)",
                Init::Normal,
            ))
        } else {
            Stacked::Apart(["gate", "up"].map(|name| {
                weight(&format!("mlp.{name}_proj"), &[f, d], "(intermediate_size, hidden_size)", Init::Normal)
            }))
        };
        let down_proj = weight("mlp.down_proj", &[d, f], "(hidden_size, intermediate_size)", Init::Normal);
        let unit = self.unit(UnitKind::Block, vec![]);
        Block {
            unit,
            layer,
            attention_norm,
            qkv,
            biases,
            head_norms,
            o_proj,
            attention_post_norm,
            mlp_norm,
            gate_up,
            down_proj,
            mlp_post_norm,
            adapters: BlockAdapters::default(),
        }
    }
}
