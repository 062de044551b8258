//! `generate`: a prompt to a model, its answer on stdout.

use std::io::Write;
use std::sync::Arc;

use config::Merged;
use models::{Decoder, KvCache, ModelBatch};
use tensor::{Backend, Cx};
use tokenizers::{Message, ModelTokenizer, Role};
use train::{ParamStore, Policy};

use crate::components;
use crate::console::Console;
use crate::model_folder::{ModelFolder, notice_model_type};
use crate::sampling::Sampler;
use crate::settings::{GenerateSettings, Precision};
use crate::{Error, Launch, Result, Share};

pub(crate) const NAME: &str = "generate";

/// Runs the recipe.
pub(crate) fn run(config: &Merged, launch: &Launch<'_>) -> Result<()> {
    let mut problems = config::Problems::new();
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

    let dtype = settings.dtype.unwrap_or(Precision::Fp32).dtype();
    let mut store = ParamStore::new(Arc::clone(&backend), Arc::new(model.layout().clone()), dtype, Policy::default())?;
    match folder.weights() {
        Some(weights) => store.load_weights(weights)?,
        None => store.init_random(seed)?,
    }
    let sampler = Sampler { temperature: settings.temperature, top_k: settings.top_k, seed };
    let max_new_tokens = settings.max_new_tokens.min(limit - prompt.len());
    let started = std::time::Instant::now();
    let mut next = NextLogits::new(&model, &mut store, prompt.len() + max_new_tokens, settings.enable_kv_cache)?;
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

/// The checked config; `None` after its problems were reported.
pub(crate) fn check(config: &Merged, problems: &mut config::Problems) -> Option<GenerateSettings> {
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
    fn new(model: &'a Decoder, store: &'a mut ParamStore, capacity: usize, use_cache: bool) -> Result<Self> {
        let backend = Arc::clone(store.backend());
        let cache =
            if use_cache { Some(KvCache::new(&*backend, model.config(), store.dtype(), capacity)?) } else { None };
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
