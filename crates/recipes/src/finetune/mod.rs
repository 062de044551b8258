//! Fine-tuning on one rank or many, of every weight or of an adapter, on rows or on pairs: what the recipes of it do.
//!
//! Reads from top to bottom: [`Run::prepare`] looks at everything on disk without loading weights, once a process;
//! [`Run::train`] loads, trains and saves, on every rank. All ranks make the same steps; the first one speaks and writes.

mod check;
mod goal;
mod ranks;

use std::sync::Arc;

use checkpoint::{CheckpointName, ExistingRun, WeightSource, check_output_dir, remove_previous_run};
use config::{Merged, Problems};
use data::{Items, Loader, LoaderOptions, Sampler};
use dist::{Communicator, Mesh, Traffic};
use metrics::{MetricLoggerConfig, Progress, Throughput};
use models::{Decoder, LoraConfig};
use optim::Schedule;
use tensor::ops::fake_quantise::{FakeQuant, Scheme};
use tensor::{Backend, DType};
use train::{Files, ParamStore, Policy};

use crate::adapter::open_adapter;
use crate::components;
use crate::console::Console;
use crate::memory_plan::{self, Shape};
use crate::model_folder::{ModelFolder, notice_model_type};
use crate::objectives::Goal;
use crate::profiling::{self, Profiling};
use crate::saving::{Position, Resumed, Saver, component_record, find_resumed};
use crate::settings::{CheckpointMode, FinetuneSettings, Place};
use crate::train_step::{StepKey, StepReport, train_window};
use crate::{Error, Launch, Result};

use check::check_layer_numbers;
pub(crate) use check::mesh_shape;
pub(crate) use goal::Aim;

/// A recipe of fine-tuning.
#[derive(Debug)]
pub(crate) struct Finetune {
    pub(crate) name: &'static str,
    /// An adapter is trained instead of every weight.
    pub(crate) trains_adapter: bool,
    /// It may run on several ranks.
    pub(crate) on_ranks: bool,
    /// Its linear layers are quantised for show.
    pub(crate) quantises: bool,
    /// What it trains for.
    pub(crate) aim: Aim,
}

impl Finetune {
    /// The checked config; `None` after its problems were reported.
    pub(crate) fn check(&self, config: &Merged, problems: &mut Problems) -> Option<FinetuneSettings> {
        check::check(self, config, problems)
    }
}

/// How many ranks share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshShape {
    /// Copies of the model.
    pub replicate: usize,
    /// Ranks that share one copy.
    pub shard: usize,
}

impl MeshShape {
    pub(crate) const ONE: Self = Self { replicate: 1, shard: 1 };

    pub(crate) fn num_ranks(self) -> usize {
        self.replicate * self.shard
    }
}

/// A run that nothing but weights is missing for.
pub(crate) struct Run<'a> {
    config: &'a Merged,
    settings: FinetuneSettings,
    console: Console,
    mesh: MeshShape,
    policy: Policy,
    dtype: DType,
    files: Option<Files>,
    /// Whether the folder of the files is not there before the run.
    makes_files_dir: bool,
    seed: u64,
    folder: ModelFolder,
    model: Decoder,
    /// The adapters, if only those are trained.
    lora: Option<LoraConfig>,
    /// An adapter to start from.
    adapter: Option<WeightSource>,
    goal: Goal,
    /// The folder of the model that the goal compares with.
    reference: Option<ModelFolder>,
    items: Arc<dyn Items>,
    pad_id: i32,
    steps_per_epoch: u64,
    total_steps: u64,
    resumed: Option<Resumed>,
    existing: ExistingRun,
}

impl<'a> Run<'a> {
    /// Looks at everything on disk: headers, names, shapes and rows, before any weight is read. `speaks`: whether this process
    /// tells what it does.
    pub(crate) fn prepare(
        recipe: &Finetune,
        config: &'a Merged,
        launch: &Launch<'_>,
        num_ranks: usize,
        speaks: bool,
    ) -> Result<Self> {
        let mut problems = Problems::new();
        let settings = recipe.check(config, &mut problems);
        let mesh = match &settings {
            Some(settings) if recipe.on_ranks => mesh_shape(settings, num_ranks, config, &mut problems),
            _ => MeshShape::ONE,
        };
        let notices = problems.finish()?;
        let settings = settings.expect("whatever could not be read is a problem");
        let console = if speaks { Console::new(&settings.log_level) } else { Console::silent() };
        console.resolved_config(recipe.name, config);
        for notice in notices {
            console.notice(&notice.to_string());
        }
        let seed = components::seed(settings.seed, console);
        let share = launch.ranks.first_share();
        let backend = launch.open(settings.device.as_deref(), share)?;
        console.info(&match mesh.num_ranks() {
            1 => format!("Computing on {}.", backend.describe()),
            n => format!("Computing on {n} ranks, each on {}.", backend.describe()),
        });

        let checkpointer = &settings.checkpointer.0;
        let output_dir = &checkpointer.output_dir;
        let existing = match (settings.resume_from_checkpoint, settings.overwrite_output_dir) {
            (true, _) => ExistingRun::Continue,
            (false, true) => ExistingRun::Overwrite,
            (false, false) => ExistingRun::Refuse,
        };
        // Only the process that speaks writes; looking means to try, and several at once would get into each other's way.
        if speaks {
            let read = [Some(&settings.checkpointer), settings.ref_checkpointer.as_ref()];
            let read_only: Vec<_> = read.into_iter().flatten().map(|c| c.0.checkpoint_dir.as_path()).collect();
            check_output_dir(output_dir, &read_only, existing)?;
            let log_dir = settings.metric_logger.as_ref().and_then(MetricLoggerConfig::log_dir);
            for dir in [Some(settings.output_dir.as_path()), log_dir].into_iter().flatten() {
                check_output_dir(dir, &read_only, ExistingRun::Continue)?;
            }
            profiling::check_dir(settings.profiler.as_ref(), &settings.output_dir, &read_only)?;
        }
        let section = settings.model_section();
        let folder =
            ModelFolder::open(&checkpointer.checkpoint_dir, &checkpointer.checkpoint_files, section.reads_weights())?;
        let model = folder.build_model(&section, console)?;
        notice_model_type(checkpointer.model_type, model.config(), console);
        check_layer_numbers(config, model.config().num_hidden_layers)?;
        let lora = section.lora.clone();
        let adapter = match (settings.adapter(), &lora) {
            (Some(path), Some(lora)) => Some(open_adapter(path, lora, &model, console)?),
            _ => None,
        };
        let (goal, reference) = recipe.open_goal(&settings, &model, console)?;
        let tokenizer = components::open_tokenizer(settings.tokenizer.as_ref(), &folder)?;
        tokenizer.check_fits(model.config().vocab_size)?;
        let items = settings.dataset.build(&tokenizer)?;
        items.rows().notices().lines().iter().for_each(|text| console.notice(text));
        components::check_rows(items.rows(), model.config())?;
        let pad_id = tokenizer.pad_id() as i32;
        let loader = loader_of(&settings, &items, pad_id, mesh, 0)?;
        let natural_steps = loader.steps_per_epoch() as u64;
        let steps_per_epoch = settings.max_steps_per_epoch.map_or(natural_steps, |most| natural_steps.min(most as u64));
        if steps_per_epoch == natural_steps && loader.dropped_rows() > 0 {
            console.notice(&format!(
                "{} of {} rows fill no whole step and are left out of each epoch",
                loader.dropped_rows(),
                items.num_items()
            ));
        }
        let optimizer = component_record(config.root().at("optimizer"));
        let rows_per_step = rows_per_step(&settings, mesh);
        let resumed = if settings.resume_from_checkpoint {
            Some(find_resumed(output_dir, rows_per_step, model.layout(), lora.as_ref(), &optimizer, console)?)
        } else {
            None
        };
        let seed = resumed.as_ref().map_or(seed, |r| r.checkpoint.state.seed);
        let total_steps = (settings.epochs as u64).saturating_mul(steps_per_epoch);
        if let Some(resumed) = &resumed {
            let at = resumed.position;
            // Epochs count too: one that was cut short by another `max_steps_per_epoch` is finished all the same.
            if at.steps_run >= total_steps || at.epochs_run >= settings.epochs as u64 {
                let checkpoint = resumed.checkpoint.path().display().to_string();
                return Err(Error::NothingLeft { checkpoint, done: at.steps_run, total: total_steps });
            }
        }
        let shape = Shape::of(&settings, mesh, items.rows().max_row_len());
        if let Some(resumed) = &resumed {
            resumed.check_states(model.layout(), &settings.optimizer, shape.dtype, console)?;
        }
        memory_plan::check(&goal, &model, &settings, &shape, &*backend, share.of, console)?;
        Ok(Self {
            lora,
            adapter,
            goal,
            reference,
            config,
            console,
            mesh,
            policy: shape.policy,
            dtype: shape.dtype,
            makes_files_dir: shape.files.as_ref().is_some_and(|files| !files.dir.exists()),
            files: shape.files,
            seed,
            folder,
            model,
            items,
            pad_id,
            steps_per_epoch,
            total_steps,
            resumed,
            existing,
            settings,
        })
    }

    /// The `device` key.
    pub(crate) fn device(&self) -> Option<&str> {
        self.settings.device.as_deref()
    }

    /// How the ranks share the work.
    pub(crate) fn mesh(&self) -> MeshShape {
        self.mesh
    }

    /// Loads, trains and saves: this rank's part of the run.
    pub(crate) fn train(&self, mesh: &Mesh, backend: &Arc<dyn Backend>) -> Result<()> {
        let settings = &self.settings;
        let is_first = mesh.world.rank() == 0;
        let console = if is_first { self.console } else { Console::silent() };
        let output_dir = &settings.checkpointer.0.output_dir;
        let seed = agree_on_seed(&mesh.world, self.seed)?;
        if is_first && self.existing == ExistingRun::Overwrite {
            for removed in remove_previous_run(output_dir)? {
                console.notice(&format!("`{removed}` of an earlier run is removed from `{}`", output_dir.display()));
            }
        }
        let loader = loader_of(settings, &self.items, self.pad_id, self.mesh, mesh.world.rank())?;
        let mut at = self.start();
        let left = (settings.epochs as u64 - at.epochs_run).saturating_mul(self.steps_per_epoch) - at.step_in_epoch;
        let rank = mesh.world.rank();
        let mut profiling = Profiling::new(settings.profiler.as_ref(), &settings.output_dir, rank, left, console);
        let backend = profiling.backend(backend);
        let mut store = self.load(mesh, &backend, seed, console)?;
        let compared_with = self.reference.as_ref().and_then(ModelFolder::weights);
        let mut objective = self.goal.objective(mesh, &backend, self.dtype, self.files.clone(), compared_with)?;

        let schedule = settings.lr_scheduler.as_ref().map_or(Schedule::Constant, |s| s.schedule(self.total_steps));
        let saver = self.saver(seed, console)?;
        let mut logger = None;
        if is_first {
            saver.notice_room(&store);
            logger = settings.metric_logger.as_ref().map(MetricLoggerConfig::build).transpose()?;
            components::save_config(&settings.output_dir, self.config)?;
        }
        let base_lr = settings.optimizer.lr();
        for epoch in at.epochs_run..settings.epochs as u64 {
            let label = format!("{}|{}", epoch + 1, at.steps_run);
            let mut bar = is_first.then(|| Progress::start(self.steps_per_epoch, at.step_in_epoch, label));
            let mut meter = Throughput::start();
            let left = (self.steps_per_epoch - at.step_in_epoch) as usize;
            let mut windows = loader.windows(epoch as usize, at.step_in_epoch as usize);
            for _ in 0..left {
                let step = at.steps_run + 1;
                profiling.begin_step(step);
                let window = {
                    let _span = store.backend().span(|| "data");
                    windows.next().expect("an epoch has as many steps as were counted")
                };
                let lr = base_lr * schedule.factor(at.steps_run);
                let key = StepKey { step, seed };
                let clip = settings.clip_grad_norm;
                let trained = train_window(&mut *objective, &self.model, &mut store, &window, lr, clip, key)
                    .map_err(|error| diverged(error, settings))?;
                at = Position { steps_run: step, step_in_epoch: at.step_in_epoch + 1, ..at };
                let mut label = format!("{}|{step}", epoch + 1);
                if let Some(report) = trained {
                    label = format!("{label}|Loss: {:.4}", report.loss);
                    meter.add_tokens(report.num_tokens as u64);
                    let rate = meter.finish_step();
                    if let Some(logger) =
                        logger.as_mut().filter(|_| step.is_multiple_of(settings.log_every_n_steps.unwrap_or(1)))
                    {
                        let next_lr = base_lr * schedule.factor(step);
                        let rate = rate.tokens_per_second() / mesh.world.world_size() as f64;
                        logger.log(step, &metrics_of(&report, next_lr, rate, settings))?;
                    }
                } else {
                    console.notice(&format!("step {step} has no token to train on and is skipped"));
                }
                if let Some(bar) = &mut bar {
                    bar.advance(1, label);
                }
                if profiling.end_step() {
                    meter.restart();
                }
                if settings.save_every_n_steps.is_some_and(|n| step.is_multiple_of(n)) && step < self.total_steps {
                    saver
                        .save(CheckpointName::Step(step), &self.model, &mut store, at.rolled_over(self.steps_per_epoch))
                        .map_err(|error| diverged(error, settings))?;
                    meter.restart();
                }
            }
            at = Position { epochs_run: epoch + 1, step_in_epoch: 0, ..at };
            if let Some(bar) = bar {
                bar.finish();
            }
            let last = epoch + 1 == settings.epochs as u64;
            let name = match settings.save_every_n_steps {
                None => Some(CheckpointName::Epoch(epoch)),
                Some(_) => last.then_some(CheckpointName::Step(at.steps_run)),
            };
            if let Some(name) = name {
                saver.save(name, &self.model, &mut store, at).map_err(|error| diverged(error, settings))?;
            }
        }
        logger.as_mut().map_or(Ok(()), |logger| logger.close())?;
        // Nobody leaves while another still reads from it.
        mesh.world.barrier().wait()?;
        drop((store, objective));
        if let Some(files) = self.files.as_ref().filter(|_| is_first && self.makes_files_dir) {
            // Files in it have no name; what somebody else has put there stays.
            let _ = std::fs::remove_dir(&files.dir);
        }
        if mesh.world.world_size() > 1 {
            let Traffic { gathered, reduced } = mesh.world.traffic();
            console.debug(&format!(
                "The first rank received {gathered} bytes of parameters and {reduced} bytes of gradients from the others."
            ));
        }
        Ok(())
    }

    fn start(&self) -> Position {
        self.resumed.as_ref().map_or(Position::default(), |r| r.position)
    }

    /// Homes with the values to start from.
    fn load(&self, mesh: &Mesh, backend: &Arc<dyn Backend>, seed: u64, console: Console) -> Result<ParamStore> {
        let layout = Arc::new(self.model.layout().clone());
        if let Some(files) = &self.files {
            std::fs::create_dir_all(&files.dir).map_err(|source| Error::Write { path: files.dir.clone(), source })?;
        }
        let mut store =
            ParamStore::on_mesh(Arc::clone(backend), layout, self.dtype, self.policy, mesh, self.files.clone())?;
        store.set_optimizer(self.settings.optimizer.clone(), seed);
        let has_adapter = self.lora.is_some();
        match (&self.resumed, self.folder.weights()) {
            (Some(resumed), _) if !has_adapter => store.load_weights(&resumed.checkpoint.weights()?)?,
            (_, Some(weights)) => {
                store.load_weights(weights)?;
                weights.release();
            }
            (_, None) => store.init_random(seed)?,
        }
        if has_adapter {
            match self.resumed.as_ref().map(|resumed| resumed.checkpoint.adapter()).transpose()?.flatten() {
                Some(adapter) => store.load_adapter(&adapter)?,
                None => match &self.adapter {
                    Some(adapter) => store.load_adapter(adapter)?,
                    None => store.init_adapters(seed)?,
                },
            }
        }
        if let Some(resumed) = &self.resumed {
            if let Some(states) = resumed.checkpoint.optimizer()? {
                store.load_optimizer(&states, resumed.optimizer_steps)?;
            }
            console.info(&format!(
                "Resuming from {} after {} steps.",
                resumed.checkpoint.path().display(),
                resumed.position.steps_run
            ));
        }
        if let Some(FakeQuant { scheme, group_size }) = self.settings.model_section().fake_quant {
            let inputs = if scheme == Scheme::Int8Int4 { ", their inputs to 8 bits" } else { "" };
            let from = self.settings.fake_quant_after_n_steps.filter(|steps| *steps > 0);
            let from = from.map_or(String::new(), |steps| format!(", from step {} on", steps + 1));
            console.info(&format!(
                "Weights of linear layers are rounded to 4 bits in groups of {group_size}{inputs}{from}."
            ));
        }
        let trained = match &self.lora {
            None => String::new(),
            Some(_) => format!(", {} of an adapter are trained", self.model.layout().num_trained()),
        };
        console.info(&format!(
            "Model is initialized with precision {}: {} weights{trained}.",
            self.dtype,
            self.model.layout().num_elements()
        ));
        Ok(store)
    }

    fn saver(&self, seed: u64, console: Console) -> Result<Saver<'_>> {
        let settings = &self.settings;
        Ok(Saver {
            output_dir: settings.checkpointer.0.output_dir.clone(),
            folder: &self.folder,
            made_files: components::made_files(self.folder.gguf_vocabulary().as_ref())?,
            keep_last: settings.checkpointer.0.keep_last_n_checkpoints,
            seed,
            total_epochs: settings.epochs as u64,
            steps_per_epoch: self.steps_per_epoch,
            max_steps_per_epoch: settings.max_steps_per_epoch.map(|n| n as u64),
            rows_per_step: rows_per_step(settings, self.mesh),
            lora: self.lora.as_ref(),
            adapter_only: settings.save_adapter_weights_only,
            optimizer: component_record(self.config.root().at("optimizer")),
            console,
        })
    }
}

/// The first rank's seed, which may be a random one.
fn agree_on_seed(world: &Communicator, seed: u64) -> Result<u64> {
    let bytes = world.broadcast(0, seed.to_le_bytes().to_vec()).wait()?;
    Ok(bytes.try_into().map_or(seed, u64::from_le_bytes))
}

fn rows_per_step(settings: &FinetuneSettings, mesh: MeshShape) -> u64 {
    (mesh.num_ranks() * settings.batch_size * settings.gradient_accumulation_steps) as u64
}

fn loader_of(
    settings: &FinetuneSettings,
    items: &Arc<dyn Items>,
    pad_id: i32,
    mesh: MeshShape,
    rank: usize,
) -> Result<Loader> {
    let sampler = Sampler { shuffle: settings.shuffle, num_replicas: mesh.num_ranks(), rank, ..Sampler::default() };
    let options = LoaderOptions {
        batch_size: settings.batch_size,
        gradient_accumulation_steps: settings.gradient_accumulation_steps,
        sampler,
        drop_last: true,
        pad_id,
    };
    Ok(Loader::new(Arc::clone(items), options)?)
}

/// What the store does, as the settings say.
pub(crate) fn policy_of(settings: &FinetuneSettings, dtype: DType) -> Policy {
    let recompute_every = match settings.ac_mode {
        None => usize::from(settings.enable_activation_checkpointing),
        Some(CheckpointMode::Nothing) => 0,
        Some(CheckpointMode::Full) => 1,
        Some(CheckpointMode::Selective) => settings.ac_option.map_or(1, |stride| stride.0),
    };
    Policy {
        recompute_every,
        optimizer_in_bwd: settings.optimizer_in_bwd,
        accumulate_in_f32: settings.gradient_accumulation_steps > 1 && dtype != DType::F32,
        reshard_after_forward: settings.fsdp_reshard_after_forward,
    }
}

/// What lives in files, as the settings say.
pub(crate) fn files_of(settings: &FinetuneSettings) -> Option<Files> {
    let offload = &settings.offload;
    let [parameters, gradients, optimizer] =
        [offload.parameters, offload.gradients, offload.optimizer].map(|place| place == Place::Disk);
    let dir = offload.dir.clone().unwrap_or_else(|| settings.output_dir.join("offload"));
    (parameters || gradients || optimizer).then_some(Files { dir, parameters, gradients, optimizer })
}

/// The metrics of a step, in the reference's names and order, then ours.
fn metrics_of<'a>(report: &StepReport, lr: f64, rate: f64, settings: &FinetuneSettings) -> Vec<(&'a str, f64)> {
    let mut all = vec![("loss", f64::from(report.loss as f32)), ("lr", lr), ("tokens_per_second_per_gpu", rate)];
    all.extend_from_slice(&report.metrics);
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
fn diverged(error: Error, settings: &FinetuneSettings) -> Error {
    match error {
        Error::NonFinite { .. } | Error::NonFiniteWeights { .. } => {
            let latest = checkpoint::latest_complete(&settings.checkpointer.0.output_dir).ok();
            let last = latest.and_then(|latest| latest.checkpoint).map(|checkpoint| checkpoint.path().to_path_buf());
            Error::Diverged { error: Box::new(error), last, is_clipped: settings.clip_grad_norm.is_some() }
        }
        other => other,
    }
}
