//! `generate`: a prompt to a model, its answer on stdout.

use std::io::Write;
use std::sync::Arc;

use config::{Merged, Problems};
use models::{Decoder, KvCache, ModelBatch};
use tensor::{Backend, Cx, DType};
use tokenizers::{Message, ModelTokenizer, Role};
use train::{ParamStore, Policy};

use crate::components;
use crate::console::Console;
use crate::memory_plan::{MemoryPlan, Remedy, check_free};
use crate::model_folder::{ModelFolder, notice_model_type};
use crate::sampling::Sampler;
use crate::settings::{GenerateSettings, Precision, PromptSettings};
use crate::{Error, Launch, PlanReport, Result, Share};

pub(crate) const NAME: &str = "generate";

/// Runs the recipe.
pub(crate) fn run(config: &Merged, launch: &Launch<'_>) -> Result<()> {
    let mut problems = Problems::new();
    let settings = check(config, &mut problems);
    let notices = problems.finish()?;
    let settings = settings.expect("whatever could not be read is a problem");
    let console = Console::new(&settings.log_level);
    console.resolved_config(NAME, config);
    for notice in &notices {
        console.notice(&notice.to_string());
    }
    let seed = components::seed(settings.seed, console);
    let backend = launch.open(settings.device.as_deref(), Share::ALL)?;

    let checkpointer = &settings.checkpointer.0;
    let section = settings.model.clone().unwrap_or_default();
    let folder =
        ModelFolder::open(&checkpointer.checkpoint_dir, &checkpointer.checkpoint_files, section.reads_weights())?;
    let model = folder.build_model(&section, console)?;
    notice_model_type(checkpointer.model_type, model.config(), console);
    let tokenizer = components::open_tokenizer(settings.tokenizer.as_ref(), &folder)?;
    let prompt = prompt_tokens(&settings, &tokenizer)?;
    let limit = model.config().max_position_embeddings;
    if prompt.len() >= limit {
        return Err(Error::PromptTooLong { found: prompt.len(), limit });
    }
    if let Some(&token) = prompt.iter().max().filter(|&&t| t as usize >= model.config().vocab_size) {
        return Err(Error::TokenOutside { token, vocab_size: model.config().vocab_size });
    }

    let size = AnswerSize::of(&settings, prompt.len(), limit);
    let plan = size.plan(&model, &*backend)?;
    console.info(&format!("Memory: {plan}."));
    let total_with = |settings: &GenerateSettings| {
        Ok(AnswerSize::of(settings, prompt.len(), limit).plan(&model, &*backend)?.total())
    };
    check_free(plan, 1, &settings, REMEDIES, total_with)?;
    let mut store = size.store(&model, &backend)?;
    match folder.weights() {
        Some(weights) => store.load_weights(weights)?,
        None => store.init_random(seed)?,
    }
    let sampler = Sampler { temperature: settings.temperature, top_k: settings.top_k, seed };
    let max_new_tokens = size.new_tokens;
    let started = std::time::Instant::now();
    let mut next = NextLogits::new(&model, &mut store, &size)?;
    let mut answer: Vec<u32> = Vec::new();
    let mut fresh = prompt;
    while answer.len() < max_new_tokens {
        let logits = next.after(&fresh)?;
        let token = sampler.choose(&logits, answer.len() as u64) as u32;
        if tokenizer.stop_tokens().contains(&token) {
            break;
        }
        answer.push(token);
        fresh = vec![token as i32];
    }
    let elapsed = started.elapsed().as_secs_f64();
    print_answer(&tokenizer.decode(&answer, true))?;
    let rate = answer.len() as f64 / elapsed;
    console.info(&format!("Time for inference: {elapsed:.2} sec total, {rate:.2} tokens/sec"));
    Ok(())
}

/// Tokens that chat formats put around the messages, a system message of their own included; most put far fewer.
const TOKENS_AROUND: usize = 128;

/// Tokens of an answer that are planned: what is kept for reuse settles within them.
const PLANNED_TOKENS: usize = 128;

/// The plan of a config that checks clean. Its tokenizer may not be there yet, but no text has more tokens than bytes.
pub(crate) fn plan(config: &Merged, launch: &Launch<'_>) -> Result<PlanReport> {
    let mut problems = Problems::new();
    let settings = check(config, &mut problems);
    problems.finish()?;
    let settings = settings.expect("whatever could not be read is a problem");
    let section = settings.model.clone().unwrap_or_default();
    let model = ModelFolder::describe(&settings.checkpointer.0.checkpoint_dir, &section)?;
    let limit = model.config().max_position_embeddings;
    let PromptSettings { system, user } = &settings.prompt;
    let bytes = system.as_ref().map_or(0, String::len) + user.len();
    let prompt = (bytes + TOKENS_AROUND).min(limit.saturating_sub(1));
    let size = AnswerSize::of(&settings, prompt, limit);
    let backend = launch.open(settings.device.as_deref(), Share::ALL)?;
    let most = format!("a prompt of up to {prompt} tokens and an answer of {}", size.new_tokens);
    Ok(PlanReport { plan: size.plan(&model, &*backend)?, num_ranks: 1, most })
}

/// What saves memory.
const REMEDIES: &[Remedy<GenerateSettings>] = &[
    Remedy { text: "enable_kv_cache=True", applies: |s| !s.enable_kv_cache, change: |s| s.enable_kv_cache = true },
    Remedy {
        text: "dtype=bf16",
        applies: |s| s.dtype != Some(Precision::Bf16),
        change: |s| s.dtype = Some(Precision::Bf16),
    },
];

/// What the memory of an answer depends on, beside the model.
struct AnswerSize {
    dtype: DType,
    /// Tokens of the prompt.
    prompt: usize,
    /// Most tokens of the answer.
    new_tokens: usize,
    /// Whether keys and values are kept.
    keeps: bool,
}

impl AnswerSize {
    /// The answer to a prompt of so many tokens, of a model that sees at most `limit`.
    fn of(settings: &GenerateSettings, prompt: usize, limit: usize) -> Self {
        Self {
            dtype: settings.dtype.unwrap_or(Precision::Fp32).dtype(),
            prompt,
            new_tokens: settings.max_new_tokens.min(limit - prompt),
            keeps: settings.enable_kv_cache,
        }
    }

    fn capacity(&self) -> usize {
        self.prompt + self.new_tokens
    }

    fn store(&self, model: &Decoder, backend: &Arc<dyn Backend>) -> Result<ParamStore> {
        let layout = Arc::new(model.layout().clone().frozen());
        Ok(ParamStore::new(Arc::clone(backend), layout, self.dtype, Policy::default())?)
    }

    /// Memory on a backend like `backend`.
    fn plan(&self, model: &Decoder, backend: &dyn Backend) -> Result<MemoryPlan> {
        let planner = backend.planner();
        let mut store = self.store(model, &planner)?;
        let before = planner.memory().live_bytes;
        let mut next = NextLogits::new(model, &mut store, self)?;
        let cache = planner.memory().live_bytes - before;
        let steps = self.new_tokens.min(PLANNED_TOKENS);
        // Without a cache the last token costs a pass over all others.
        let first = if self.keeps { self.prompt } else { self.capacity() - steps };
        next.after(&vec![0; first])?;
        for _ in 0..steps {
            next.after(&[0])?;
        }
        Ok(MemoryPlan::of_counts(store.most_held(), cache as u64, planner.memory(), 0))
    }
}

/// The checked config; `None` after its problems were reported.
pub(crate) fn check(config: &Merged, problems: &mut Problems) -> Option<GenerateSettings> {
    let settings = GenerateSettings::check(config.root(), problems);
    if let Some(node) = config.root().at("quantizer").filter(|node| !node.is_absent()) {
        problems.refuse(node, "quantised weights are not available yet in this version");
    }
    if let Some(node) = config.root().at("checkpointer.adapter_checkpoint")
        && settings.as_ref().is_some_and(|settings| settings.checkpointer.0.adapter_to_load().is_some())
    {
        problems
            .refuse(node, "answering with an adapter of its own file is not available yet in this version")
            .hint("a fine-tuning also saves a folder of weights with the adapter worked in: name that as `checkpointer.checkpoint_dir`");
    }
    if let Some(node) = config.root().at("model._component_")
        && settings.as_ref().and_then(|settings| settings.model.as_ref()).is_some_and(|model| model.lora.is_some())
    {
        problems.refuse(node, "recipe `generate` takes no adapter").hint("name the builder without `lora_`");
    }
    components::check_device(config, problems);
    components::notice_torch_only_keys(config, problems);
    components::check_model_type("checkpointer", config, problems);
    settings
}

/// Puts the answer on stdout, which carries nothing else.
fn print_answer(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    written.map_err(|source| Error::Write { path: "stdout".into(), source })
}

/// The prompt as a conversation that the assistant is about to answer.
fn prompt_tokens(settings: &GenerateSettings, tokenizer: &ModelTokenizer) -> Result<Vec<i32>> {
    let mut messages = Vec::new();
    if let Some(system) = &settings.prompt.system {
        messages.push(Message::new(Role::System, system.clone()));
    }
    messages.push(Message::new(Role::User, settings.prompt.user.clone()));
    messages.push(Message::new(Role::Assistant, ""));
    let (tokens, _) = tokenizer.tokenize_messages(&messages, true)?;
    Ok(tokens.into_iter().map(|t| t as i32).collect())
}

/// The logits after a growing sequence.
struct NextLogits<'a> {
    model: &'a Decoder,
    store: &'a mut ParamStore,
    backend: Arc<dyn Backend>,
    /// Keys and values so far; `None` = compute everything anew each time.
    cache: Option<KvCache>,
    /// All tokens so far, for when there is no cache.
    tokens: Vec<i32>,
}

impl<'a> NextLogits<'a> {
    fn new(model: &'a Decoder, store: &'a mut ParamStore, size: &AnswerSize) -> Result<Self> {
        let backend = Arc::clone(store.backend());
        let cache = || KvCache::new(&*backend, model.config(), size.dtype, size.capacity());
        let cache = size.keeps.then(cache).transpose()?;
        Ok(Self { model, store, backend, cache, tokens: Vec::new() })
    }

    /// The logits of the token after all tokens given so far and `fresh`.
    fn after(&mut self, fresh: &[i32]) -> Result<Vec<f32>> {
        let backend = Arc::clone(&self.backend);
        let mut cx = Cx::inference(&*backend, self.store);
        let logits = match &mut self.cache {
            Some(cache) => self.model.next_logits(&mut cx, fresh, cache)?,
            None => {
                self.tokens.extend_from_slice(fresh);
                let n = self.tokens.len();
                let positions: Vec<i32> = (0..n as i32).collect();
                let batch = ModelBatch {
                    tokens: backend.from_i32([1, n], &self.tokens)?,
                    positions: backend.from_i32([1, n], &positions)?,
                    doc_start: backend.from_i32([1, n], &vec![0; n])?,
                };
                self.model.logits(&mut cx, &batch)?.rows(n - 1..n)?
            }
        };
        Ok(backend.to_f32(&logits)?)
    }
}

#[cfg(test)]
mod tests {
    use cpu::{CpuBackend, CpuConfig};

    use super::*;

    const CONFIG_JSON: &str = r#"{"model_type": "llama", "vocab_size": 3000, "hidden_size": 128, "intermediate_size": 320,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#;

    #[test]
    fn a_plan_is_what_an_answer_holds() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("config.json"), CONFIG_JSON).expect("written");
        let model = ModelFolder::describe(dir.path(), &models::ModelSection::default()).expect("a model");
        for (dtype, keeps) in [(DType::F32, true), (DType::Bf16, true), (DType::F32, false), (DType::Bf16, false)] {
            let size = AnswerSize { dtype, prompt: 400, new_tokens: 40, keeps };
            let backend: Arc<dyn Backend> = Arc::new(
                CpuBackend::new(CpuConfig { threads: Some(2), ..CpuConfig::default() }).expect("a backend starts"),
            );
            let plan = size.plan(&model, &*backend).expect("planned");
            let mut store = size.store(&model, &backend).expect("room");
            store.init_random(0).expect("filled");
            let mut next = NextLogits::new(&model, &mut store, &size).expect("room");
            next.after(&[0; 400]).expect("logits");
            for _ in 0..size.new_tokens {
                next.after(&[1]).expect("logits");
            }
            let memory = backend.memory();
            let (found, expected) = (memory.peak_held_bytes + memory.scratch_bytes, plan.total() as usize);
            assert!(found.abs_diff(expected) <= expected / 20, "{dtype}, {keeps}: planned {plan:?}, held {memory:?}");
            let of_cache = if keeps { 2 * 6 * 440 * 64 * dtype.size_bytes() as u64 } else { 0 };
            assert!(plan.cache >= of_cache && plan.cache <= of_cache + of_cache / 10, "{dtype}: {plan:?}");
            assert_eq!((plan.gradients, plan.optimizer), (0, 0));
        }
    }
}
