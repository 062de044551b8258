//! Small random models and rows to train them on, shared by the tests of this folder.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{CheckpointFiles, WeightSource};
use cpu::{CpuBackend, CpuConfig};
use data::{Batch, Dataset};
use dist::Mesh;
use models::facts::{Facts, Sources};
use models::families::{Family, from_config_json};
use models::{Decoder, DecoderConfig, ModelBatch};
use optim::{AdamW, AdamWConfig, Moments, Optimizer, SgdConfig};
use recipes::objectives::{NextToken, Objective};
use recipes::train_step::{StepKey, StepReport, train_window};
use tensor::ops::glu::Activation;
use tensor::ops::rms_norm::NormWeight;
use tensor::{Backend, Cx, DType, Tensor};
use train::{Files, ParamStore, Policy};

/// V of [`shape`].
pub(crate) const VOCAB: usize = 40;

/// Names and values of parameters, gradients or states.
pub(crate) type Named = Vec<(String, Vec<f32>)>;

/// A backend with so many threads.
pub(crate) fn backend(threads: usize) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).expect("starts"))
}

/// A model of two blocks, its query heads grouped, with or without a head of its own.
pub(crate) fn shape(tie_word_embeddings: bool) -> DecoderConfig {
    DecoderConfig {
        family: Family::Llama,
        vocab_size: VOCAB,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        max_position_embeddings: 64,
        tie_word_embeddings,
        stacks_weights: false,
        attention_bias: false,
        qk_norm: false,
        sliding_window: None,
        hidden_act: Activation::Silu,
        norm_weight: NormWeight::Plain,
        post_norms: false,
        scales_embedding: false,
        query_pre_attn_scalar: None,
        attn_logit_softcapping: None,
        final_logit_softcapping: None,
    }
}

/// AdamW with PyTorch's numbers and some decay.
pub(crate) fn adamw() -> Optimizer {
    Optimizer::AdamW(AdamWConfig { weight_decay: 0.1, ..AdamWConfig::default() }.into())
}

/// AdamW with PyTorch's numbers and its moments stored so.
pub(crate) fn adamw_in(moments: Moments) -> Optimizer {
    Optimizer::AdamW(AdamW { moments, ..AdamWConfig::default().into() })
}

/// SGD with the given momentum.
pub(crate) fn sgd(momentum: f64) -> Optimizer {
    Optimizer::Sgd(SgdConfig { momentum, ..SgdConfig::default() })
}

/// A row of each length, with so many labels ignored at its beginning, of tokens drawn from `seed`.
pub(crate) fn rows(seed: u64, lengths: &[(usize, usize)]) -> Dataset {
    let mut all = Dataset::new();
    for (index, &(len, masked)) in (0..).zip(lengths) {
        let tokens = testing::random::indices(seed + index, len, VOCAB);
        let next = |i: usize| if i < masked || i + 1 == len { data::IGNORE_INDEX } else { tokens[i + 1] };
        let labels: Vec<i32> = (0..len).map(next).collect();
        all.push(&tokens, &labels);
    }
    all
}

/// These rows as one batch, padded with 0.
pub(crate) fn batch(dataset: &Dataset, rows: impl IntoIterator<Item = usize>) -> Batch {
    data::collate(dataset, &rows.into_iter().collect::<Vec<_>>(), 0)
}

/// A model in training.
pub(crate) struct Trainer {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) model: Decoder,
    pub(crate) store: ParamStore,
    /// What it trains for: next tokens, unless a test says otherwise.
    pub(crate) objective: Box<dyn Objective>,
    steps: u64,
}

impl Trainer {
    /// A random model on a backend of its own.
    pub(crate) fn new(
        config: DecoderConfig,
        dtype: DType,
        policy: Policy,
        optimizer: Optimizer,
        threads: usize,
    ) -> Self {
        Self::on_mesh(config, dtype, policy, optimizer, backend(threads), &Mesh::alone(), None)
    }

    /// This rank's part of a random model, some of it in files.
    pub(crate) fn on_mesh(
        config: DecoderConfig,
        dtype: DType,
        policy: Policy,
        optimizer: Optimizer,
        backend: Arc<dyn Backend>,
        mesh: &Mesh,
        files: Option<Files>,
    ) -> Self {
        Self::of_model(Decoder::new(config).expect("possible"), dtype, policy, optimizer, backend, mesh, files)
    }

    /// This rank's part of a random model that may have adapters.
    pub(crate) fn of_model(
        model: Decoder,
        dtype: DType,
        policy: Policy,
        optimizer: Optimizer,
        backend: Arc<dyn Backend>,
        mesh: &Mesh,
        files: Option<Files>,
    ) -> Self {
        let layout = Arc::new(model.layout().clone());
        let mut store = ParamStore::on_mesh(Arc::clone(&backend), layout, dtype, policy, mesh, files).expect("fits");
        store.init_random(7).expect("fits");
        store.init_adapters(8).expect("fits");
        store.set_optimizer(optimizer, 0);
        Self { backend, model, store, objective: Box::new(NextToken::default()), steps: 0 }
    }

    /// One optimizer step without clipping.
    pub(crate) fn step(&mut self, window: &[Batch], lr: f64) -> Option<StepReport> {
        self.steps += 1;
        let key = StepKey { step: self.steps, seed: 3 };
        train_window(&mut *self.objective, &self.model, &mut self.store, window, lr, None, key).expect("trains")
    }

    /// Takes over the weights of another model of the same shape, rounded to its own dtype.
    pub(crate) fn copy_weights(&mut self, from: &Self) {
        let (to, from) = (self.store.parameters().expect("whole"), from.store.parameters().expect("whole"));
        for ((_, mut to), (_, from)) in to.into_iter().zip(from) {
            self.backend.copy(&mut to, &from).expect("same shapes");
        }
    }

    /// All weights.
    pub(crate) fn weights(&self) -> Named {
        let weights = self.store.parameters().expect("whole");
        weights.into_iter().map(|(name, t)| (name, self.values(&t))).collect()
    }

    /// The gradients of the last step.
    pub(crate) fn gradients(&mut self) -> Named {
        let gradients = self.store.gradients().expect("computed");
        gradients.into_iter().map(|(name, t)| (name, self.values(&t))).collect()
    }

    /// All optimizer states.
    pub(crate) fn states(&self) -> Named {
        let states = self.store.optimizer_states().expect("viewed");
        states.into_iter().map(|(name, t)| (name, self.values(&t))).collect()
    }

    fn values(&self, t: &Tensor) -> Vec<f32> {
        self.backend.to_f32(t).expect("a floating-point tensor")
    }
}

/// Runs `full_finetune_single_device` on two threads.
pub(crate) fn run_full_finetune(config: &config::Merged) -> recipes::Result<()> {
    let recipe = recipes::registry::find("full_finetune_single_device").expect("built");
    let open_backend: &recipes::OpenBackend<'_> = &|_, _| Ok(backend(2));
    recipes::run(recipe, config, &recipes::Launch { open_backend, ranks: recipes::Ranks::Threads(1) })
}

/// The model that a saved folder holds, in f32.
pub(crate) fn open_folder(folder: &Path) -> (Decoder, ParamStore) {
    let config = std::fs::read_to_string(folder.join("config.json")).expect("a saved folder has a config.json");
    let weights = WeightSource::open_folder(folder, &CheckpointFiles::Found).expect("readable");
    open_weights(&config, &weights)
}

/// The model that a GGUF file holds, in f32.
pub(crate) fn open_gguf(file: &Path) -> (Decoder, ParamStore) {
    let weights = WeightSource::open_gguf(file).expect("readable");
    let config = serde_json::Value::Object(weights.gguf().expect("a GGUF file").config.clone());
    open_weights(&config.to_string(), &weights)
}

fn open_weights(config_json: &str, weights: &WeightSource) -> (Decoder, ParamStore) {
    let (facts, nothing) = (from_config_json(config_json).expect("supported"), Facts::default());
    let sources =
        Sources { user: &nothing, folder: Some(&facts), builder: &nothing, builder_name: "auto", reads_weights: true };
    let model = Decoder::new(sources.resolve().expect("complete").0).expect("possible");
    train::check_weights(model.layout(), weights).expect("the weights fit");
    let layout = Arc::new(model.layout().clone());
    let mut store = ParamStore::new(backend(2), layout, DType::F32, Policy::default()).expect("fits");
    store.load_weights(weights).expect("readable");
    (model, store)
}

/// The logits of every token of one row: (T, V), row-major.
pub(crate) fn logits(model: &Decoder, store: &mut ParamStore, tokens: &[i32]) -> Vec<f32> {
    let backend = Arc::clone(store.backend());
    let shape = [1, tokens.len()];
    let positions: Vec<i32> = (0..tokens.len() as i32).collect();
    let row = |values: &[i32]| backend.from_i32(shape, values).expect("fits");
    let batch = ModelBatch { tokens: row(tokens), positions: row(&positions), doc_start: row(&vec![0; tokens.len()]) };
    let logits = model.logits(&mut Cx::inference(&*backend, store), &batch).expect("runs");
    backend.to_f32(&logits).expect("f32")
}

/// The norm of the difference of all values, relative to the norm of `expected`.
pub(crate) fn relative_error(found: &Named, expected: &Named) -> f64 {
    let names = |all: &Named| all.iter().map(|(name, v)| (name.clone(), v.len())).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "names and lengths");
    let flat = |all: &Named| all.iter().flat_map(|(_, v)| v.iter().copied().map(f64::from)).collect::<Vec<f64>>();
    testing::nmse(&flat(found), &flat(expected)).sqrt()
}

/// Panics unless each tensor is as close to the expected one of its name as `bound`, relative to its norm.
#[track_caller]
pub(crate) fn assert_each_close(what: &str, found: &Named, expected: &Named, bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of tensors");
    for (found, expected) in found.iter().zip(expected) {
        let error = relative_error(&vec![found.clone()], &vec![expected.clone()]);
        assert!(error <= bound, "{what}: {} is off by {error:e} of its norm, bound {bound:e}", expected.0);
    }
}

/// Panics unless both hold the same names and bits.
#[track_caller]
pub(crate) fn assert_same(what: &str, found: &Named, expected: &Named) {
    assert_eq!(found.len(), expected.len(), "{what}: number of tensors");
    assert!(!found.is_empty(), "{what}: there is something to compare");
    for ((found_name, found), (name, expected)) in found.iter().zip(expected) {
        assert_eq!(found_name, name, "{what}: names");
        let bits = |v: &[f32]| v.iter().flat_map(|x| x.to_bits().to_ne_bytes()).collect::<Vec<u8>>();
        testing::assert_same_bits(&format!("{what}: {name}"), &bits(found), &bits(expected));
    }
}
