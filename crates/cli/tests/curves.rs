//! The conformance pack's loss curves, driven through the program.

use std::path::{Path, PathBuf};

use super::common::{LoggedStep, parse_log, read_log, succeed, tune};

/// A curve file: how the reference was run, and what it logged.
pub(crate) struct Curve {
    pub(crate) name: String,
    recipe: String,
    pub(crate) config: String,
    pub(crate) overrides: Vec<String>,
    /// The adapter to start from, in the pack's `training`.
    adapter: Option<String>,
    steps: Vec<LoggedStep>,
}

impl Curve {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("readable");
        let head = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {key}:")));
            line.unwrap_or_default().trim().to_owned()
        };
        Self {
            name: path.file_stem().expect("named").to_string_lossy().into_owned(),
            recipe: head("recipe"),
            config: head("config"),
            overrides: head("overrides").split_whitespace().map(str::to_owned).collect(),
            adapter: Some(head("adapter")).filter(|adapter| !adapter.is_empty()),
            steps: parse_log(&text),
        }
    }

    /// What names the adapter to start from, if there is one.
    pub(crate) fn start(&self) -> Option<String> {
        let path = |adapter: &String| format!("training/{adapter}/adapter_model.safetensors");
        self.adapter.as_ref().map(|adapter| format!("checkpointer.adapter_checkpoint={}", path(adapter)))
    }

    /// The recipe on ranks that does the same.
    pub(crate) fn recipe_on_ranks(&self) -> String {
        self.recipe.replace("single_device", "distributed")
    }

    /// Runs it with further overrides and compares every logged value.
    fn check(&self, conformance: &Path, threads: usize, more: &[&str]) {
        let out = tempfile::tempdir().expect("a temporary folder");
        let output_dir = out.path().join("run");
        let mut command = tune(conformance);
        command.env("FERROTUNE_NUM_THREADS", threads.to_string());
        command.args(["run", &self.recipe, "--config", &format!("training/{}", self.config)]);
        command.args(self.start()).args(&self.overrides).args(more).arg(format!("output_dir={}", output_dir.display()));
        succeed(&mut command);
        self.compare(&read_log(&output_dir), &format!("{} on {threads} threads {more:?}", self.name));
        if self.is_bf16() {
            assert_saved_as_bf16(&output_dir);
        }
    }

    fn is_bf16(&self) -> bool {
        self.overrides.iter().any(|o| o == "dtype=bf16")
    }

    /// Compares every value of the curve with what a run logged.
    pub(crate) fn compare(&self, found: &[LoggedStep], what: &str) {
        assert_eq!(found.len(), self.steps.len(), "{what}: number of steps");
        for (found, expected) in found.iter().zip(&self.steps) {
            assert_eq!(found.step, expected.step, "{what}");
            for (name, wanted) in &expected.values {
                let value = found.get(name).unwrap_or_else(|| panic!("{what}: step {} logs no {name}", found.step));
                let bound = match name.as_str() {
                    "loss" if self.is_bf16() => 2.5e-3,
                    "loss" => 2e-4,
                    "lr" => 1e-9 * wanted.abs() + f64::MIN_POSITIVE,
                    _ => 2e-4 * wanted.abs(),
                };
                let error = (value - wanted).abs();
                assert!(error <= bound, "{what}: step {}: {name} {value}, expected {wanted}", found.step);
            }
        }
    }
}

/// The weights of the last checkpoint are bfloat16 on disk.
fn assert_saved_as_bf16(output_dir: &Path) {
    let bytes = std::fs::read(output_dir.join("epoch_0/model.safetensors")).expect("saved");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("well formed");
    assert!(file.tensors().iter().all(|(_, t)| t.dtype() == safetensors::Dtype::BF16));
}

fn curves(conformance: &Path) -> Vec<Curve> {
    curves_in(&conformance.join("training/curves"))
}

/// The folder of curves that the pack lacks.
fn own_curves() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/curves")
}

/// The curve of that name that the pack lacks.
pub(crate) fn own_curve(name: &str) -> Curve {
    Curve::read(&own_curves().join(name).with_extension("txt"))
}

fn curves_in(dir: &Path) -> Vec<Curve> {
    let entries = std::fs::read_dir(dir).expect("listed");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("listed").path()).collect();
    paths.sort();
    paths.iter().map(|path| Curve::read(path)).collect()
}

/// The curve of that name.
pub(crate) fn curve(conformance: &Path, name: &str) -> Option<Curve> {
    curves(conformance).into_iter().find(|curve| curve.name == name)
}

#[test]
fn every_curve_of_a_built_recipe_is_the_references() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let mut cases = testing::conformance::Cases::new("curves");
    for curve in curves(&conformance) {
        const BUILT: [&str; 3] =
            ["full_finetune_single_device", "lora_finetune_single_device", "lora_dpo_single_device"];
        if !BUILT.contains(&curve.recipe.as_str()) {
            cases.skipped(&curve.name);
            continue;
        }
        for threads in [1, 2] {
            curve.check(&conformance, threads, &[]);
        }
        cases.ran(&curve.name);
    }
    cases.finish();
}

/// What torchtune 0.6.1's single-device recipes log on the models of the conformance pack after torchao 0.9.0's QAT quantizer has prepared them, as
/// its recipes for several devices do (`prepare`, and `swap_lora_linear_with_qat` for adapters). `qat_int4*`: groups of 16 are too small for the
/// constructor of `Int4WeightOnlyQATQuantizer`, so every linear layer became a `FakeQuantizedLinear` with its config for weights.
/// `*accum*`: that version weighs micro-batches by tokens counted before labels are shifted; the first label of each row was masked, so that it counts
/// what the loss is of.
///
/// Curves with every weight in codes around 0 have one step, whose gradients `grad_norm` shows: the largest weight of a group lies half-way between
/// two codes, so that the last bit of a trained weight decides between them, and no two programs agree on it. Codes with an offset have no such
/// weight, but scales in bf16: after three steps the reference itself, its weights nudged by 1e-7, leaves the tolerance. Under an adapter
/// weights stay.
#[test]
fn quantised_training_has_the_curves_of_the_reference() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let curves = curves_in(&own_curves());
    assert_eq!(curves.len(), 10);
    for curve in curves {
        curve.check(&conformance, 1, &[]);
        curve.check(&conformance, 2, &["enable_activation_checkpointing=True"]);
    }
}

#[test]
fn bf16_computes_in_bf16() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let (Some(bf16), Some(f32)) = (curve(&conformance, "bf16"), curve(&conformance, "base")) else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let output_dir = out.path().join("run");
    let mut command = tune(&conformance);
    command.args(["run", &bf16.recipe, "--config", &format!("training/{}", bf16.config)]);
    succeed(command.args(&bf16.overrides).arg(format!("output_dir={}", output_dir.display())));
    let last = |steps: &[LoggedStep]| steps.last().and_then(|s| s.get("loss")).expect("logged");
    let difference = (last(&read_log(&output_dir)) - last(&f32.steps)).abs();
    assert!(difference > 3e-3, "the last loss differs from the f32 curve by {difference} only");
}

#[test]
fn a_schedule_reaches_updates_inside_backward() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(cosine) = curve(&conformance, "cosine") else { return };
    cosine.check(&conformance, 2, &["optimizer_in_bwd=True"]);
}

#[test]
fn a_wrong_learning_rate_is_noticed() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(base) = curve(&conformance, "base") else { return };
    let wrong = std::panic::catch_unwind(|| base.check(&conformance, 2, &["optimizer.lr=1.1e-3"]));
    assert!(wrong.is_err(), "a curve with another learning rate passed");
}
