//! Low-rank adapters (LoRA, DoRA, QLoRA): which layers get one, and where their parameters are.
//!
//! Names are PEFT's: `base_model.model.` before the layer's own name, `.lora_A.weight`, `.lora_B.weight`, `.lora_magnitude_vector` after
//! it. Layers whose weights a family keeps in one matrix have adapters of their own, on rows of it.
//!
//! Start: A uniform within 1/sqrt(K), B zeros, so that an adapter changes nothing at first.
//! Source: Hu et al. 2021, arXiv:2106.09685; Liu et al. 2024, arXiv:2402.09353; Dettmers et al. 2023, arXiv:2305.14314.

use std::ops::Range;

use tensor::{AdapterSpec, Init, ModelLayout, ParamId, ParamKind, ParamSpec, Shape, UnitId};

use super::block::{Block, Stacked};
use crate::families::Family;

/// A linear layer that may get an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoraModule {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// What heads give together.
    O,
    /// The gate.
    Gate,
    /// What is gated.
    Up,
    /// Back to the hidden size.
    Down,
    /// The output head.
    Head,
}

impl LoraModule {
    /// All of them, in the order of a block.
    pub const ALL: [Self; 8] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down, Self::Head];

    /// Its name in `adapter_config.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q => "q_proj",
            Self::K => "k_proj",
            Self::V => "v_proj",
            Self::O => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
            Self::Head => "lm_head",
        }
    }

    /// Its name in the model.
    fn path(self, layer: usize) -> String {
        let name = self.name();
        match self {
            Self::Q | Self::K | Self::V | Self::O => format!("model.layers.{layer}.self_attn.{name}"),
            Self::Gate | Self::Up | Self::Down => format!("model.layers.{layer}.mlp.{name}"),
            Self::Head => name.to_owned(),
        }
    }
}

/// What the adapters of a model are like.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// R: rows of A, columns of B.
    pub rank: usize,
    /// The change is multiplied by alpha / rank.
    pub alpha: f64,
    /// Share of the inputs of A that is set to zero in training.
    pub dropout: f64,
    /// The layers that get one, each once.
    pub modules: Vec<LoraModule>,
    /// Whether each also trains a length for every row of its weight.
    pub use_dora: bool,
    /// Whether weights of linear layers in blocks are held in 4 bits.
    pub quantize_base: bool,
}

impl LoraConfig {
    /// What `B A` is multiplied by.
    pub fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }
}

/// The adapters of a block.
#[derive(Debug, Default)]
pub(super) struct BlockAdapters {
    pub(super) qkv: [Option<AdapterSpec>; 3],
    pub(super) o: Option<AdapterSpec>,
    pub(super) gate_up: [Option<AdapterSpec>; 2],
    pub(super) down: Option<AdapterSpec>,
}

/// Freezes a model and gives its blocks adapters, whose parameters are numbered after all others.
pub(super) fn adapt(layout: &mut ModelLayout, blocks: &mut [Block], family: Family, sizes: &Sizes, lora: &LoraConfig) {
    layout.params.iter_mut().for_each(|param| param.kind = ParamKind::Frozen);
    for block in blocks {
        for module in LoraModule::ALL {
            let Some((weight, rows)) = block.weight_of(module, sizes) else { continue };
            let adapts = lora.modules.contains(&module);
            if lora.quantize_base && (adapts || family.quantises_all()) {
                layout.params[weight.0 as usize].kind = ParamKind::Nf4;
            }
            if adapts {
                let adapter = add(layout, block.unit, &module.path(block.layer), (weight, rows), lora);
                if let Some(slot) = block.adapters.slot(module) {
                    *slot = Some(adapter);
                }
            }
        }
    }
}

/// Gives the head an adapter, if it is to have one.
pub(super) fn adapt_head(
    layout: &mut ModelLayout,
    unit: UnitId,
    weight: ParamId,
    lora: &LoraConfig,
) -> Option<AdapterSpec> {
    let rows = 0..layout.param(weight).shape.rows_cols().0;
    let module = LoraModule::Head;
    lora.modules.contains(&module).then(|| add(layout, unit, &module.path(0), (weight, rows), lora))
}

/// Widths of a block's layers.
pub(super) struct Sizes {
    /// Of queries.
    pub(super) q: usize,
    /// Of keys, and of values.
    pub(super) kv: usize,
    /// Of the feed-forward layer.
    pub(super) f: usize,
    /// Of the residual stream.
    pub(super) d: usize,
}

fn add(
    layout: &mut ModelLayout,
    unit: UnitId,
    module: &str,
    (weight, rows): (ParamId, Range<usize>),
    lora: &LoraConfig,
) -> AdapterSpec {
    let columns = layout.param(weight).shape.rows_cols().1;
    let module = format!("base_model.model.{module}");
    let mut param = |name: &str, dims: &[usize], meaning, init| {
        let id = ParamId(layout.params.len() as u32);
        let (name, shape) = (format!("{module}.{name}"), Shape::new(dims));
        layout.params.push(ParamSpec { name, shape, meaning, init, kind: ParamKind::Trained, fake_quant: None });
        layout.units[unit.0 as usize].owns.push(id);
        id
    };
    let a = param("lora_A.weight", &[lora.rank, columns], "(lora_rank, inputs of the layer)", Init::Uniform);
    let b = param("lora_B.weight", &[rows.len(), lora.rank], "(outputs of the layer, lora_rank)", Init::Zeros);
    // Set to the lengths of the weight's rows when these are known.
    let magnitude =
        lora.use_dora.then(|| param("lora_magnitude_vector", &[rows.len()], "(outputs of the layer)", Init::Ones));
    let adapter = AdapterSpec { weight, rows, a, b, magnitude, scale: lora.scale(), dropout: lora.dropout as f32 };
    layout.adapters.push(adapter.clone());
    adapter
}

impl BlockAdapters {
    fn slot(&mut self, module: LoraModule) -> Option<&mut Option<AdapterSpec>> {
        Some(match module {
            LoraModule::Q => &mut self.qkv[0],
            LoraModule::K => &mut self.qkv[1],
            LoraModule::V => &mut self.qkv[2],
            LoraModule::O => &mut self.o,
            LoraModule::Gate => &mut self.gate_up[0],
            LoraModule::Up => &mut self.gate_up[1],
            LoraModule::Down => &mut self.down,
            LoraModule::Head => return None,
        })
    }
}

impl Block {
    /// Where the weight of a layer is, if the block has it.
    fn weight_of(&self, module: LoraModule, sizes: &Sizes) -> Option<(ParamId, Range<usize>)> {
        let Sizes { q, kv, f, d } = *sizes;
        Some(match module {
            LoraModule::Q => self.qkv.part(0, [q, kv, kv]),
            LoraModule::K => self.qkv.part(1, [q, kv, kv]),
            LoraModule::V => self.qkv.part(2, [q, kv, kv]),
            LoraModule::O => (self.o_proj, 0..d),
            LoraModule::Gate => self.gate_up.part(0, [f, f]),
            LoraModule::Up => self.gate_up.part(1, [f, f]),
            LoraModule::Down => (self.down_proj, 0..d),
            LoraModule::Head => return None,
        })
    }
}

impl<const N: usize> Stacked<N> {
    /// The weight of a layer, and which rows of it are the layer's.
    fn part(&self, index: usize, sizes: [usize; N]) -> (ParamId, Range<usize>) {
        match self {
            Self::Apart(weights) => (weights[index], 0..sizes[index]),
            Self::Together(weight) => {
                let start = sizes[..index].iter().sum();
                (*weight, start..start + sizes[index])
            }
        }
    }
}
