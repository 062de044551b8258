//! Runs of the program: what a checkpoint must hold so that a run can go on as if it had never stopped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::common::{LoggedStep, parse_log, read_log, succeed, tune};
use super::tiny_folder;

/// Steps of an epoch: 13 rows, two a step, the last one left out.
pub(crate) const STEPS: u64 = 6;

/// A folder to run in: a model to start from in `base`, rows and a config.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    recipe: &'static str,
}

impl Place {
    /// With 13 rows.
    pub(crate) fn new() -> Self {
        Self::with_rows((0..13).map(tiny_folder::row))
    }

    pub(crate) fn with_rows(rows: impl IntoIterator<Item = serde_json::Value>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let place = Self { dir, recipe: "full_finetune_single_device" };
        tiny_folder::write_model(&place.at("base"), true);
        tiny_folder::write_rows(&place.at("rows.json"), rows);
        std::fs::write(place.at("run.yaml"), CONFIG).expect("writable");
        place
    }

    /// Trains by another recipe.
    pub(crate) fn with_recipe(self, recipe: &'static str) -> Self {
        Self { recipe, ..self }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Trains into the folder `out`; gives what was said on stderr.
    pub(crate) fn train(&self, out: &str, overrides: &[&str]) -> String {
        self.train_on(2, out, overrides)
    }

    pub(crate) fn train_on(&self, threads: usize, out: &str, overrides: &[&str]) -> String {
        self.train_with(self.recipe, threads, out, overrides)
    }

    pub(crate) fn train_with(&self, recipe: &str, threads: usize, out: &str, overrides: &[&str]) -> String {
        let mut command = tune(self.dir.path());
        command.env("FERROTUNE_NUM_THREADS", threads.to_string());
        command.args(["run", recipe, "--config", "run.yaml", &format!("output_dir={out}")]);
        let output = succeed(command.args(overrides));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Goes on in the folder `out` from a checkpoint of another run, as if that run had been stopped after it.
    pub(crate) fn resume(&self, from: &str, checkpoint: &str, out: &str, overrides: &[&str]) -> String {
        copy_folder(&self.at(from).join(checkpoint), &self.at(out).join(checkpoint));
        let resumed = ["resume_from_checkpoint=True"];
        self.train(out, &[overrides, &resumed].concat())
    }

    /// Panics unless both runs have the same checkpoint.
    #[track_caller]
    pub(crate) fn assert_same_checkpoint(&self, what: &str, found: &str, expected: &str, checkpoint: &str) {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let read = |out: &str| std::fs::read(self.at(out).join(checkpoint).join(file)).ok();
            let (found, expected) = (read(found), read(expected));
            assert_eq!(found.is_some(), expected.is_some(), "{what}: both have {checkpoint}/{file}");
            if let (Some(found), Some(expected)) = (found, expected) {
                testing::assert_same_bits(&format!("{what}: {checkpoint}/{file}"), &found, &expected);
            } else {
                assert_ne!(file, "model.safetensors", "{what}: {checkpoint} has weights");
            }
        }
    }

    /// The logged steps without what depends on the clock.
    pub(crate) fn log(&self, out: &str) -> Vec<LoggedStep> {
        let mut steps = read_log(&self.at(out));
        steps.iter_mut().for_each(|step| step.values.retain(|(name, _)| name != "tokens_per_second_per_gpu"));
        steps
    }
}

const CONFIG: &str = "
output_dir: out
model: {init: random}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: base
  output_dir: ${output_dir}
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: json
  data_files: rows.json
tokenizer: {_component_: ferrotune.tokenizers.auto, path: base, max_seq_len: 32}
seed: 11
shuffle: True
batch_size: 2
epochs: 2
optimizer: {_component_: torch.optim.AdamW, lr: 3e-3}
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${output_dir}/logs
";

const COSINE: [&str; 2] = [
    "lr_scheduler._component_=torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
    "lr_scheduler.num_warmup_steps=2",
];
pub(crate) const BF16: &str = "dtype=bf16";
pub(crate) const IN_BACKWARD: &str = "optimizer_in_bwd=True";
const EVERY_STEP: &str = "save_every_n_steps=1";

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for entry in std::fs::read_dir(from).expect("a checkpoint is there") {
        let entry = entry.expect("listed");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

fn folders(out: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(out).expect("listed").map(|entry| entry.expect("listed").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("epoch_") || name.starts_with("step_"));
    names.sort();
    names
}

/// Checks that a run that goes on after each of these steps ends as one that was never stopped, and that a run which was
/// stopped twice does too.
pub(crate) fn check_resuming(what: &str, overrides: &[&str], total_steps: u64, stops: &[u64]) {
    check_resuming_of(&Place::new, what, overrides, total_steps, stops);
}

/// The same for runs in another place.
pub(crate) fn check_resuming_of(
    place: &dyn Fn() -> Place,
    what: &str,
    overrides: &[&str],
    total_steps: u64,
    stops: &[u64],
) {
    let place = place();
    let overrides = [&[EVERY_STEP], overrides].concat();
    place.train("whole", &overrides);
    let whole = place.log("whole");
    assert_eq!(whole.len() as u64, total_steps, "{what}: steps");
    let last = format!("step_{total_steps}");
    let weights = |step: &str| std::fs::read(place.at("whole").join(step).join("model.safetensors")).expect("saved");
    assert_ne!(weights("step_1"), weights(&last), "{what}: something is learnt");
    for &stop in stops {
        let (what, out) = (format!("{what}, stopped after step {stop}"), format!("after_{stop}"));
        let said = place.resume("whole", &format!("step_{stop}"), &out, &overrides);
        assert!(said.contains(&format!("after {stop} steps")), "{what}: {said}");
        assert_eq!(place.log(&out), whole[stop as usize..], "{what}: log");
        for step in stop + 1..=total_steps {
            place.assert_same_checkpoint(&what, &out, "whole", &format!("step_{step}"));
        }
    }
    // A checkpoint of a resumed run, resumed again.
    let (first, second) = (stops[0], stops[0] + 1);
    let out = format!("after_{first}_and_{second}");
    place.resume(&format!("after_{first}"), &format!("step_{second}"), &out, &overrides);
    place.assert_same_checkpoint(&format!("{what}, stopped twice"), &out, "whole", &last);
    assert_eq!(place.log(&out), whole[second as usize..], "{what}, stopped twice: log");
}

#[test]
fn resuming_in_f32() {
    check_resuming("f32, cosine", &COSINE, 2 * STEPS, &[1, 4, STEPS, 8]);
}

#[test]
fn resuming_in_bf16_with_updates_inside_backward() {
    let overrides = [&COSINE[..], &[BF16, IN_BACKWARD]].concat();
    check_resuming("bf16, cosine, updates inside backward", &overrides, 2 * STEPS, &[3, STEPS, 9]);
}

#[test]
fn resuming_with_accumulation_and_clipping() {
    let overrides = ["gradient_accumulation_steps=2", "clip_grad_norm=0.5", "enable_activation_checkpointing=True"];
    for dtype in ["dtype=fp32", BF16] {
        check_resuming(dtype, &[&overrides[..], &[dtype]].concat(), STEPS, &[2, 3]);
    }
}

#[test]
fn resuming_sgd() {
    let sgd = ["optimizer._component_=torch.optim.SGD", "optimizer.lr=0.5"];
    check_resuming("SGD", &sgd, 2 * STEPS, &[5]);
    let momentum = ["optimizer.momentum=0.9", "optimizer.dampening=0.3", "optimizer.lr=0.1", "shuffle=False"];
    check_resuming("SGD with momentum", &[&sgd[..], &momentum].concat(), 2 * STEPS, &[5]);
}

#[test]
fn resuming_an_epoch_cut_short() {
    let overrides = ["max_steps_per_epoch=4", "epochs=3", "save_every_n_steps=2"];
    let place = Place::new();
    place.train("whole", &overrides);
    assert_eq!(folders(&place.at("whole")), ["step_10", "step_12", "step_2", "step_4", "step_6", "step_8"]);
    for stop in [4, 6] {
        let out = format!("after_{stop}");
        place.resume("whole", &format!("step_{stop}"), &out, &overrides);
        place.assert_same_checkpoint(&out, &out, "whole", "step_12");
        assert_eq!(place.log(&out), place.log("whole")[stop..], "{out}: log");
    }
}

#[test]
fn resuming_at_the_end_of_an_epoch() {
    for overrides in [vec!["epochs=3"], [&["epochs=3", BF16, IN_BACKWARD], &COSINE[..]].concat()] {
        let place = Place::new();
        place.train("whole", &overrides);
        assert_eq!(folders(&place.at("whole")), ["epoch_0", "epoch_1", "epoch_2"]);
        place.resume("whole", "epoch_0", "once", &overrides);
        assert_eq!(folders(&place.at("once")), ["epoch_0", "epoch_1", "epoch_2"]);
        place.resume("once", "epoch_1", "twice", &overrides);
        for out in ["once", "twice"] {
            place.assert_same_checkpoint(out, out, "whole", "epoch_2");
        }
        assert_eq!(place.log("once"), place.log("whole")[STEPS as usize..], "log");
        assert_eq!(place.log("twice"), place.log("whole")[2 * STEPS as usize..], "log");
    }
}

#[test]
fn more_epochs_go_on_counting() {
    let place = Place::new();
    place.train("whole", &["epochs=3"]);
    place.train("grown", &["epochs=1"]);
    let said = place.train("grown", &["epochs=3", "resume_from_checkpoint=True"]);
    for (text, shown) in [("1|6|Loss: ", false), ("2|12|Loss: ", true), ("3|18|Loss: ", true)] {
        assert_eq!(said.contains(text), shown, "epochs and steps are counted on: {said}");
    }
    assert_eq!(folders(&place.at("grown")), ["epoch_0", "epoch_1", "epoch_2"]);
    for epoch in ["epoch_0", "epoch_1", "epoch_2"] {
        place.assert_same_checkpoint("grown by two epochs", "grown", "whole", epoch);
    }
    let state = std::fs::read_to_string(place.at("grown/epoch_2/recipe_state.json")).expect("sealed");
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!((&state["epochs_run"], &state["steps_run"]), (&3.into(), &(3 * STEPS).into()));

    place.train("by_step", &["epochs=1", "save_every_n_steps=4"]);
    place.train("by_step", &["epochs=3", "save_every_n_steps=4", "resume_from_checkpoint=True"]);
    let last = std::fs::read(place.at("by_step/step_18/model.safetensors")).expect("the last checkpoint");
    let expected = std::fs::read(place.at("whole/epoch_2/model.safetensors")).expect("the last checkpoint");
    testing::assert_same_bits("grown by two epochs, saved by steps", &last, &expected);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let place = Place::new();
    for dtype in ["fp32", "bf16"] {
        let out = |name: &str| format!("{dtype}_{name}");
        let dtype = format!("dtype={dtype}");
        place.train(&out("first"), &[&dtype]);
        place.train(&out("again"), &[&dtype]);
        place.train(&out("other"), &[&dtype, "seed=12"]);
        place.assert_same_checkpoint("the same seed", &out("again"), &out("first"), "epoch_1");
        assert_eq!(place.log(&out("again")), place.log(&out("first")));
        assert_ne!(place.log(&out("other")), place.log(&out("first")), "another seed");
        place.train_on(1, &out("one_thread"), &[&dtype]);
        for (found, expected) in place.log(&out("one_thread")).iter().zip(&place.log(&out("first"))) {
            let loss = |step: &LoggedStep| step.get("loss").expect("logged");
            let bound = if dtype == BF16 { 0.05 } else { 1e-3 };
            assert!((loss(found) - loss(expected)).abs() < bound, "one thread: {found:?}, two: {expected:?}");
        }
    }
}

/// Rows of which the first and the fourth are cut before anything that could be learnt.
fn rows_with_masked_ones() -> Vec<serde_json::Value> {
    let long = serde_json::json!({"input": "x".repeat(50), "output": "y"});
    let row = |index: usize| if index.is_multiple_of(3) { long.clone() } else { tiny_folder::row(index) };
    (0..6).map(row).collect()
}

#[test]
fn a_step_without_a_token_to_train_on_is_skipped() {
    let one_by_one = ["batch_size=1", "shuffle=False", EVERY_STEP];
    let adamw = vec![];
    let sgd = vec!["optimizer._component_=torch.optim.SGD", "optimizer.momentum=0.9", "optimizer.dampening=0.5"];
    for optimizer in [adamw, sgd] {
        let overrides = [&one_by_one[..], &optimizer].concat();
        let place = Place::with_rows(rows_with_masked_ones());
        let said = place.train("whole", &overrides);
        for step in [1, 4, 7, 10] {
            let line = format!("notice: step {step} has no token to train on and is skipped");
            assert!(said.contains(&line), "{optimizer:?}: {said}");
        }
        assert!(said.contains("2 of 6 rows without a token to train on"), "{said}");
        let logged: Vec<u64> = place.log("whole").iter().map(|step| step.step).collect();
        assert_eq!(logged, [2, 3, 5, 6, 8, 9, 11, 12], "{optimizer:?}");

        // The same run without those rows.
        let without = Place::with_rows(rows_with_masked_ones().into_iter().filter(|row| row["output"] != "y"));
        without.train("whole", &overrides);
        let weights = |place: &Place, file: &str| std::fs::read(place.at("whole").join(file)).expect("saved");
        let (found, expected) =
            (weights(&place, "step_12/model.safetensors"), weights(&without, "step_8/model.safetensors"));
        testing::assert_same_bits(&format!("{optimizer:?}: skipped steps change nothing"), &found, &expected);

        for stop in [1, 3, 4, 7] {
            let (what, out) = (format!("{optimizer:?}, stopped after step {stop}"), format!("after_{stop}"));
            place.resume("whole", &format!("step_{stop}"), &out, &overrides);
            place.assert_same_checkpoint(&what, &out, "whole", "step_12");
        }
    }
}

#[test]
fn a_difference_between_runs_is_noticed() {
    let place = Place::new();
    place.train("one", &[]);
    place.train("other", &["optimizer.lr=2.9e-3"]);
    let same = std::panic::catch_unwind(|| place.assert_same_checkpoint("runs", "other", "one", "epoch_1"));
    assert!(same.is_err(), "runs with different learning rates have the same checkpoint");
    assert_eq!(parse_log("Step 1 | loss:2.5 \n")[0].get("loss"), Some(2.5));
}

#[test]
fn an_infinite_limit_logs_the_norm_and_clips_nothing() {
    let place = Place::new();
    place.train("free", &[]);
    place.train("limited", &["clip_grad_norm=inf", "log_level=WARNING"]);
    assert!(place.log("free").iter().all(|step| step.get("grad_norm").is_none()));
    assert!(place.log("limited").iter().all(|step| step.get("grad_norm").is_some_and(|norm| norm > 0.0)));
    place.assert_same_checkpoint("infinite limit", "limited", "free", "epoch_1");
}

/// A command that may write no file of more than some KiB.
#[cfg(target_os = "linux")]
fn with_small_files(place: &Place, kib: u32, arguments: &[&str]) -> Output {
    let inner = tune(&place.at(""));
    let mut command = Command::new("bash");
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let script = format!("trap '' XFSZ && ulimit -f {kib} && exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(inner.get_program()).args(arguments).current_dir(place.at(""));
    command.output().expect("a shell starts")
}

#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_one_before() {
    let place = Place::new();
    place.train("out", &["epochs=1"]);
    let resumed =
        ["run", "full_finetune_single_device", "--config", "run.yaml", "output_dir=out", "resume_from_checkpoint=True"];
    let output = with_small_files(&place, 8, &resumed);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: cannot write `out") && stderr.contains("File too large"), "{stderr}");
    assert_eq!(folders(&place.at("out")), ["epoch_0"], "{stderr}");
    succeed(tune(&place.at("")).args(resumed));
    place.train("whole", &[]);
    place.assert_same_checkpoint("after a full disk", "out", "whole", "epoch_1");
}
