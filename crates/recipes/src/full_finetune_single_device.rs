//! `full_finetune_single_device`: every weight of a model trained on one device.
//!
//! Reads from top to bottom: check the config, look at everything on disk without loading it, load, train, save.

use std::sync::Arc;

use checkpoint::{CheckpointName, ExistingRun, check_output_dir, remove_previous_run};
use config::{Merged, Value};
use data::{Loader, LoaderOptions, Sampler};
use metrics::{MetricLoggerConfig, Progress, Throughput};
use optim::Schedule;
use tensor::DType;
use train::{ParamStore, Policy};

use crate::components;
use crate::console::Console;
use crate::model_folder::ModelFolder;
use crate::saving::{Position, Saver, component_record, find_resumed};
use crate::settings::{FullFinetuneSettings, Precision};
use crate::train_step::{StepReport, train_window};
use crate::{Error, OpenBackend, Result};

pub(crate) const NAME: &str = "full_finetune_single_device";

/// Runs the recipe.
pub(crate) fn run(config: &Merged, open_backend: &OpenBackend<'_>) -> Result<()> {
    // The config, as a whole: every problem of every section is reported together.
    let mut problems = config::Problems::new();
    let settings = check(config, &mut problems);
    let notices = problems.finish()?;
    let settings = &settings.expect("whatever could not be read is a problem");
    let console = Console::new(&settings.log_level);
    console.resolved_config(NAME, config);
    for notice in &notices {
        console.notice(&notice.to_string());
    }
    let dtype = settings.dtype.unwrap_or(Precision::Fp32).dtype();
    let seed = components::seed(settings.seed, console);
    let backend = open_backend(settings.device.as_deref().unwrap_or("auto"))?;
    console.info(&format!("Computing on {}.", backend.describe()));

    // The disk: headers, names, shapes and rows, before any weight is read.
    let checkpointer = &settings.checkpointer.0;
    let output_dir = &checkpointer.output_dir;
    let existing = match (settings.resume_from_checkpoint, settings.overwrite_output_dir) {
        (true, _) => ExistingRun::Continue,
        (false, true) => ExistingRun::Overwrite,
        (false, false) => ExistingRun::Refuse,
    };
    check_output_dir(output_dir, &[&checkpointer.checkpoint_dir], existing)?;
    let log_dir = settings.metric_logger.as_ref().and_then(MetricLoggerConfig::log_dir);
    for dir in [Some(settings.output_dir.as_path()), log_dir].into_iter().flatten() {
        check_output_dir(dir, &[&checkpointer.checkpoint_dir], ExistingRun::Continue)?;
    }
    let section = settings.model.clone().unwrap_or_default();
    let folder =
        ModelFolder::open(&checkpointer.checkpoint_dir, &checkpointer.checkpoint_files, section.reads_weights())?;
    let model = folder.build_model(&section, console)?;
    let tokenizer = components::open_tokenizer(settings.tokenizer.as_ref(), &folder)?;
    tokenizer.check_fits(model.config().vocab_size)?;
    let dataset = settings.dataset.build(&tokenizer)?;
    dataset.notices().lines().iter().for_each(|text| console.notice(text));
    components::check_rows(&dataset, model.config())?;
    let loader = Loader::new(
        Arc::new(dataset),
        LoaderOptions {
            batch_size: settings.batch_size,
            gradient_accumulation_steps: settings.gradient_accumulation_steps,
            sampler: Sampler { shuffle: settings.shuffle, ..Sampler::default() },
            drop_last: true,
            pad_id: tokenizer.pad_id() as i32,
        },
    )?;
    let natural_steps = loader.steps_per_epoch();
    let steps_per_epoch = settings.max_steps_per_epoch.map_or(natural_steps, |limit| limit.min(natural_steps)) as u64;
    if steps_per_epoch as usize == natural_steps && loader.dropped_rows() > 0 {
        console.notice(&format!(
            "{} of {} rows fill no whole step and are left out of each epoch",
            loader.dropped_rows(),
            loader.dataset().len()
        ));
    }
    let optimizer = component_record(config.root().at("optimizer"));
    let rows_per_step = (settings.batch_size * settings.gradient_accumulation_steps) as u64;
    let resumed = if settings.resume_from_checkpoint {
        Some(find_resumed(output_dir, rows_per_step, model.layout(), &optimizer, console)?)
    } else {
        None
    };
    let seed = resumed.as_ref().map_or(seed, |r| r.checkpoint.state.seed);
    let total_steps = (settings.epochs as u64).saturating_mul(steps_per_epoch);
    let start = resumed.as_ref().map_or(Position::default(), |r| r.position);
    // Epochs count too: one that was cut short by another `max_steps_per_epoch` is finished all the same.
    let nothing_left = start.steps_run >= total_steps || start.epochs_run >= settings.epochs as u64;
    if let Some(resumed) = resumed.as_ref().filter(|_| nothing_left) {
        let checkpoint = resumed.checkpoint.path().display().to_string();
        return Err(Error::NothingLeft { checkpoint, done: start.steps_run, total: total_steps });
    }
    if existing == ExistingRun::Overwrite {
        for removed in remove_previous_run(output_dir)? {
            console.notice(&format!("`{removed}` of an earlier run is removed from `{}`", output_dir.display()));
        }
    }

    // The weights.
    let policy = Policy {
        recompute_blocks: settings.enable_activation_checkpointing,
        optimizer_in_bwd: settings.optimizer_in_bwd,
        accumulate_in_f32: settings.gradient_accumulation_steps > 1 && dtype != DType::F32,
    };
    let mut store = ParamStore::new(Arc::clone(&backend), Arc::new(model.layout().clone()), dtype, policy)?;
    store.set_optimizer(settings.optimizer.clone());
    match (&resumed, folder.weights()) {
        (Some(resumed), _) => {
            store.load_weights(&resumed.checkpoint.weights()?)?;
            if let Some(states) = resumed.checkpoint.optimizer()? {
                store.load_optimizer(&states, resumed.optimizer_steps)?;
            }
            console.info(&format!(
                "Resuming from {} after {} steps.",
                resumed.checkpoint.path().display(),
                start.steps_run
            ));
        }
        (None, Some(weights)) => store.load_weights(weights)?,
        (None, None) => store.init_random(seed)?,
    }
    console.info(&format!("Model is initialized with precision {dtype}: {} weights.", model.layout().num_elements()));

    // Training.
    let schedule = settings.lr_scheduler.as_ref().map_or(Schedule::Constant, |s| s.schedule(total_steps));
    let saver = Saver {
        output_dir: output_dir.clone(),
        folder: &folder,
        made_files: components::made_files(folder.gguf_vocabulary().as_ref())?,
        keep_last: checkpointer.keep_last_n_checkpoints,
        seed,
        total_epochs: settings.epochs as u64,
        steps_per_epoch,
        max_steps_per_epoch: settings.max_steps_per_epoch.map(|n| n as u64),
        rows_per_step,
        optimizer,
        console,
    };
    let mut logger = settings.metric_logger.as_ref().map(MetricLoggerConfig::build).transpose()?;
    components::save_config(&settings.output_dir, config)?;
    let base_lr = settings.optimizer.lr();
    let mut at = start;
    for epoch in start.epochs_run..settings.epochs as u64 {
        let mut bar = Progress::start(steps_per_epoch, at.step_in_epoch, format!("{}|{}", epoch + 1, at.steps_run));
        let mut meter = Throughput::start();
        let left = (steps_per_epoch - at.step_in_epoch) as usize;
        for window in loader.windows(epoch as usize, at.step_in_epoch as usize).take(left) {
            let step = at.steps_run + 1;
            let lr = base_lr * schedule.factor(at.steps_run);
            let trained = train_window(&model, &mut store, &window, lr, settings.clip_grad_norm, step)
                .map_err(|error| diverged(error, output_dir))?;
            at = Position { steps_run: step, step_in_epoch: at.step_in_epoch + 1, ..at };
            if let Some(report) = trained {
                bar.advance(1, format!("{}|{step}|Loss: {:.4}", epoch + 1, report.loss));
                meter.add_tokens(report.num_tokens as u64);
                let rate = meter.finish_step();
                if step.is_multiple_of(settings.log_every_n_steps.unwrap_or(1)) {
                    let next_lr = base_lr * schedule.factor(step);
                    let metrics = metrics_of(&report, next_lr, rate.tokens_per_second(), settings);
                    logger.as_mut().map_or(Ok(()), |logger| logger.log(step, &metrics))?;
                }
            } else {
                console.notice(&format!("step {step} has no token to train on and is skipped"));
                bar.advance(1, format!("{}|{step}", epoch + 1));
            }
            if settings.save_every_n_steps.is_some_and(|n| step.is_multiple_of(n)) && step < total_steps {
                saver
                    .save(CheckpointName::Step(step), &model, &store, at.rolled_over(steps_per_epoch))
                    .map_err(|error| diverged(error, output_dir))?;
                meter.restart();
            }
        }
        at = Position { epochs_run: epoch + 1, step_in_epoch: 0, ..at };
        bar.finish();
        let last = epoch + 1 == settings.epochs as u64;
        let name = match settings.save_every_n_steps {
            None => Some(CheckpointName::Epoch(epoch)),
            Some(_) => last.then_some(CheckpointName::Step(at.steps_run)),
        };
        if let Some(name) = name {
            saver.save(name, &model, &store, at).map_err(|error| diverged(error, output_dir))?;
        }
    }
    logger.as_mut().map_or(Ok(()), |logger| logger.close())?;
    Ok(())
}

/// The metrics of a step, in the reference's names and order, then ours.
fn metrics_of<'a>(report: &StepReport, lr: f64, rate: f64, settings: &FullFinetuneSettings) -> Vec<(&'a str, f64)> {
    let mut all = vec![("loss", f64::from(report.loss as f32)), ("lr", lr), ("tokens_per_second_per_gpu", rate)];
    if settings.log_peak_memory_stats
        && let Some(memory) = metrics::ResidentMemory::read()
    {
        all.push(("peak_rss_gib", memory.peak_gib()));
    }
    if let (Some(norm), Some(_)) = (report.grad_norm, settings.clip_grad_norm) {
        all.push(("grad_norm", f64::from(norm as f32)));
    }
    all
}

/// Adds to a run that stopped being numbers what there is to go back to.
fn diverged(error: Error, output_dir: &std::path::Path) -> Error {
    match error {
        Error::NonFinite { .. } | Error::NonFiniteWeights { .. } => {
            let latest = checkpoint::latest_complete(output_dir).ok().and_then(|latest| latest.checkpoint);
            Error::Diverged { error: Box::new(error), last: latest.map(|c| c.path().to_path_buf()) }
        }
        other => other,
    }
}

/// The checked config; `None` after its problems were reported.
pub(crate) fn check(config: &Merged, problems: &mut config::Problems) -> Option<FullFinetuneSettings> {
    let settings = FullFinetuneSettings::check(config.root(), problems);
    // Looks at the config itself: what is wrong elsewhere hides nothing.
    refuse_combinations(config, problems);
    if let Some(settings) = &settings {
        let log_dir = settings.metric_logger.as_ref().and_then(MetricLoggerConfig::log_dir);
        components::check_output_dirs(&settings.checkpointer, Some(&settings.output_dir), log_dir, config, problems);
    }
    settings
}

/// Keys that are fine alone but not together, and keys without effect here.
fn refuse_combinations(config: &Merged, problems: &mut config::Problems) {
    let at = |key: &str| config.root().at(key).filter(|node| !node.is_null());
    let is_on = |key: &str| at(key).is_some_and(|node| *node.value() == Value::Bool(true));
    if is_on("optimizer_in_bwd") {
        if let Some(node) = at("clip_grad_norm") {
            problems
                .refuse(node, "`optimizer_in_bwd: True` updates before all gradients are known, so none can be clipped")
                .hint("set `clip_grad_norm=None`, or `optimizer_in_bwd=False`");
        }
        let accumulated = at("gradient_accumulation_steps");
        if let Some(node) = accumulated.filter(|node| matches!(node.value(), Value::Int(steps) if *steps > 1)) {
            problems
                .refuse(node, "`optimizer_in_bwd: True` updates in every micro-batch, so nothing can add up")
                .hint("set `gradient_accumulation_steps=1`, or `optimizer_in_bwd=False`");
        }
    }
    if let Some(node) = at("resize_token_embeddings").filter(|_| is_on("resize_token_embeddings")) {
        problems.refuse(node, "growing the embedding is not available yet in this version");
    }
    components::check_device(config, problems);
    components::check_collate(config, problems);
    components::check_packing(config, problems);
    components::check_model_type(config, problems);
    if is_on("enable_activation_offloading") {
        problems.notice("`enable_activation_offloading` has no effect: activations are in host memory already");
    }
    if is_on("enable_async_checkpointing") {
        problems.notice("`enable_async_checkpointing` has no effect: checkpoints are saved in the foreground");
    }
    if at("run_val_every_n_steps").is_some() {
        problems.notice(format!("`run_val_every_n_steps` has no effect: recipe `{NAME}` does not validate"));
    }
    components::notice_torch_only_keys(config, problems);
}
