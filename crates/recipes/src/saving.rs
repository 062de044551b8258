//! Checkpoints of a run: writing them whole, finding the one to go on from.

use std::path::{Path, PathBuf};

use checkpoint::{
    ADAPTER_CONFIG_FILE, Checkpoint, CheckpointDir, CheckpointName, OptimizerRecord, RecipeState, SamplerPosition,
    keep_last_checkpoints, latest_complete,
};
use models::{Decoder, LoraConfig};
use optim::Optimizer;
use serde_json::{Map, Value};
use tensor::{DType, ModelLayout};
use train::ParamStore;

use crate::adapter::{base_name, check_same, config_of};
use crate::console::Console;
use crate::memory_plan::gib;
use crate::model_folder::ModelFolder;
use crate::{Error, Result};

/// Files beside the weights that a saved folder needs, as names and texts.
pub(crate) type SideFiles = Vec<(String, String)>;

/// The key of a checkpoint's payload that holds the number of updates that the optimizer has made.
const OPTIMIZER_STEPS: &str = "optimizer_steps";

/// Where a run stands, counted in finished epochs and optimizer steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Finished epochs.
    pub(crate) epochs_run: u64,
    /// Finished optimizer steps of the whole run.
    pub(crate) steps_run: u64,
    /// Finished optimizer steps of the running epoch.
    pub(crate) step_in_epoch: u64,
}

impl Position {
    /// The same place, said as the start of the next epoch if this one is finished.
    pub(crate) fn rolled_over(self, steps_per_epoch: u64) -> Self {
        if self.step_in_epoch < steps_per_epoch {
            return self;
        }
        Self { epochs_run: self.epochs_run + 1, step_in_epoch: 0, ..self }
    }
}

/// What stays the same over the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Saver<'a> {
    pub(crate) output_dir: PathBuf,
    pub(crate) folder: &'a ModelFolder,
    /// Files made for a folder that has none to copy (a GGUF source).
    pub(crate) made_files: SideFiles,
    pub(crate) keep_last: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) total_epochs: u64,
    pub(crate) steps_per_epoch: u64,
    pub(crate) max_steps_per_epoch: Option<u64>,
    pub(crate) rows_per_step: u64,
    /// The adapters, if only those are trained.
    pub(crate) lora: Option<&'a LoraConfig>,
    /// Adapters are saved alone.
    pub(crate) adapter_only: bool,
    pub(crate) optimizer: OptimizerRecord,
    pub(crate) console: Console,
}

impl Saver<'_> {
    /// Writes a checkpoint that other programs load as a Hugging Face folder and a later run can go on from. All ranks call it;
    /// the first one writes, those that share its copy of the model pass their shards on to it.
    pub(crate) fn save(
        &self,
        name: CheckpointName,
        model: &Decoder,
        store: &mut ParamStore,
        at: Position,
    ) -> Result<()> {
        let _span = store.backend().span(|| "save");
        if !store.weights_are_finite()? {
            return Err(Error::NonFiniteWeights { step: at.steps_run });
        }
        self.write(name, model, store, at).map_err(|error| Error::NotSaved { source: Box::new(error) })
    }

    /// Tells at the start when the disk has no room for a checkpoint.
    pub(crate) fn notice_room(&self, store: &ParamStore) {
        let (needed, free) = (self.bytes(store), checkpoint::free_bytes(&self.output_dir));
        if let Some(free) = free.filter(|free| *free < needed) {
            self.console.notice(&format!(
                "a checkpoint of this run takes {}, and `{}` has {} free: make room before the first one is saved",
                gib(needed),
                self.output_dir.display(),
                gib(free)
            ));
        }
    }

    /// Bytes of a checkpoint once a step was made.
    fn bytes(&self, store: &ParamStore) -> u64 {
        store.checkpoint_bytes(!self.adapter_only)
    }

    fn write(&self, name: CheckpointName, model: &Decoder, store: &mut ParamStore, at: Position) -> Result<()> {
        let started = std::time::Instant::now();
        if !store.saves() {
            return Ok(());
        }
        let writes = store.world().rank() == 0;
        let mut dir = writes.then(|| CheckpointDir::begin(&self.output_dir, name, self.bytes(store))).transpose()?;
        match self.lora {
            None => store.write_weights(dir.as_mut())?,
            Some(_) => {
                if !self.adapter_only {
                    store.write_merged_weights(dir.as_mut())?;
                }
                store.write_adapter(dir.as_mut())?;
            }
        }
        store.write_optimizer(dir.as_mut())?;
        let Some(mut dir) = dir else { return Ok(()) };
        dir.write_config(&self.folder.saved_config(model.config(), store.dtype()))?;
        if let Some(lora) = self.lora {
            let text = Value::Object(config_of(lora).to_json(&base_name(self.folder.dir())));
            dir.write_file(ADAPTER_CONFIG_FILE, format!("{text:#}\n").as_bytes())?;
        }
        for (file, text) in &self.made_files {
            dir.write_file(file, text.as_bytes())?;
        }
        if !self.folder.is_gguf() {
            for text in dir.copy_side_files(self.folder.dir())? {
                self.console.notice(&text);
            }
        }
        let saved = dir.commit(&self.state(at, store.step()))?;
        self.console.info(&format!(
            "Checkpoint saved to {} in {:.2} seconds.",
            saved.path().display(),
            started.elapsed().as_secs_f64()
        ));
        if let Some(keep) = self.keep_last {
            for removed in keep_last_checkpoints(&self.output_dir, keep, name)? {
                self.console.info(&format!("Checkpoint {removed} removed, {keep} are kept."));
            }
        }
        Ok(())
    }

    fn state(&self, at: Position, optimizer_steps: u64) -> RecipeState {
        RecipeState {
            epochs_run: at.epochs_run,
            total_epochs: self.total_epochs,
            steps_run: at.steps_run,
            total_training_steps: Some(self.total_epochs.saturating_mul(self.steps_per_epoch)),
            max_steps_per_epoch: self.max_steps_per_epoch,
            seed: self.seed,
            sampler: SamplerPosition { epoch: at.epochs_run, rows_used: at.step_in_epoch * self.rows_per_step },
            optimizer: self.optimizer.clone(),
            // Fewer than `steps_run` if a step had no token to train on.
            payload: serde_json::json!({ OPTIMIZER_STEPS: optimizer_steps }),
        }
    }
}

/// A checkpoint to go on from.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) position: Position,
    /// Updates that the optimizer has made.
    pub(crate) optimizer_steps: u64,
}

impl Resumed {
    /// `Error::CannotResume` unless the checkpoint's optimizer states, if it has any, are those that `optimizer` keeps of weights
    /// in `dtype`.
    pub(crate) fn check_states(
        &self,
        layout: &ModelLayout,
        optimizer: &Optimizer,
        dtype: DType,
        console: Console,
    ) -> Result<()> {
        let Some(states) = self.checkpoint.optimizer()? else { return Ok(()) };
        let cannot = |error: train::Error| Error::CannotResume {
            checkpoint: self.checkpoint.path().display().to_string(),
            reason: match error {
                // Not the model is wrong, as the error by itself says.
                train::Error::Checkpoint(checkpoint::Error::Names(names)) => {
                    format!("its optimizer states are not those that `optimizer` keeps: {names}")
                }
                other => format!("its optimizer states are not those that `optimizer` keeps\n  {other}"),
            },
        };
        for text in train::check_optimizer(layout, optimizer, dtype, &states).map_err(cannot)? {
            console.notice(&text);
        }
        Ok(())
    }
}

/// The newest complete checkpoint in `output_dir`, and where it stands when a step uses `rows_per_step` rows.
///
/// `Error::CannotResume` if its weights are not the model's, or another optimizer made it.
pub(crate) fn find_resumed(
    output_dir: &Path,
    rows_per_step: u64,
    layout: &ModelLayout,
    lora: Option<&LoraConfig>,
    optimizer: &OptimizerRecord,
    console: Console,
) -> Result<Resumed> {
    let (checkpoint, notices) = latest_complete(output_dir)?.required(output_dir)?;
    for text in notices {
        console.notice(&text);
    }
    let state = &checkpoint.state;
    let cannot = |reason: String| Error::CannotResume { checkpoint: checkpoint.path().display().to_string(), reason };
    let step_in_epoch = state.sampler.rows_used / rows_per_step;
    if !state.sampler.rows_used.is_multiple_of(rows_per_step) {
        return Err(cannot(format!(
            "it has used {} rows of its epoch, which is no multiple of ranks * batch_size * gradient_accumulation_steps = {rows_per_step}",
            state.sampler.rows_used
        )));
    }
    // An optimizer has several spellings that end alike, and being paged says nothing about its states.
    let last = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or_default();
        last.strip_prefix("Paged").unwrap_or(last).to_owned()
    };
    if last(&state.optimizer.name) != last(&optimizer.name) {
        let (made_by, wanted) = (&state.optimizer.name, &optimizer.name);
        return Err(cannot(format!("expected `optimizer` to be `{made_by}`, which made it, found `{wanted}`")));
    }
    match lora {
        None => {
            train::check_weights(layout, &checkpoint.weights()?).map_err(|error| cannot(error.to_string()))?;
        }
        Some(lora) => {
            let Some(adapter) = checkpoint.adapter()? else {
                return Err(cannot("it has no adapter".to_owned()));
            };
            train::check_adapter(layout, &adapter).map_err(|error| cannot(error.to_string()))?;
            if let Some(found) = checkpoint.adapter_config()? {
                check_same(&found, lora, &checkpoint.path().join(ADAPTER_CONFIG_FILE))
                    .map_err(|error| cannot(error.to_string()))?;
            }
        }
    }
    let position = Position { epochs_run: state.sampler.epoch, steps_run: state.steps_run, step_in_epoch };
    let optimizer_steps = state.payload.get(OPTIMIZER_STEPS).and_then(Value::as_u64).unwrap_or(state.steps_run);
    Ok(Resumed { checkpoint, position, optimizer_steps })
}

/// A component's name and keys, for the record in a checkpoint.
pub(crate) fn component_record(section: Option<&config::Node>) -> OptimizerRecord {
    let mut hyperparameters = match section.map(|section| config::to_json(section, config::Order::File)) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let name = hyperparameters.shift_remove("_component_");
    let name = name.and_then(|n| n.as_str().map(str::to_owned)).unwrap_or_default();
    OptimizerRecord { name, hyperparameters }
}
