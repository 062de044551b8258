//! Checkpoint folders: complete or not there, found again, damaged ones passed over, old ones replaced and forgotten.

use std::fs;
use std::path::Path;

use checkpoint::{
    Checkpoint, CheckpointDir, CheckpointName, Error, OptimizerRecord, RecipeState, SamplerPosition, TensorSpec,
    keep_last_checkpoints, latest_complete,
};
use proptest::prelude::*;
use serde_json::json;
use tensor::DType;

use crate::{f32_bytes, read_floats, write_f32};

pub fn state(steps_run: u64) -> RecipeState {
    RecipeState {
        epochs_run: steps_run / 10,
        total_epochs: 3,
        steps_run,
        total_training_steps: Some(30),
        max_steps_per_epoch: None,
        seed: u64::MAX,
        sampler: SamplerPosition { epoch: 1, rows_used: 12 },
        optimizer: OptimizerRecord {
            name: "torch.optim.AdamW".into(),
            hyperparameters: json!({ "lr": 3e-4, "betas": [0.9, 0.999], "eps": 1e-8 }).as_object().unwrap().clone(),
        },
        payload: json!({ "note": "anything", "pi": 0.1f32 as f64 }),
    }
}

fn specs() -> [TensorSpec; 1] {
    [TensorSpec { name: "w".into(), dtype: DType::F32, shape: vec![4] }]
}

/// Writes everything but the seal.
fn begun(output: &Path, name: CheckpointName, value: f32) -> CheckpointDir {
    let mut dir = CheckpointDir::begin(output, name, 1000).unwrap();
    dir.write_weights::<Error>(&specs(), &mut |_, sink| sink.write(&f32_bytes(value, 4))).unwrap();
    dir.write_optimizer::<Error>(&specs(), &mut |_, sink| sink.write(&f32_bytes(-value, 4))).unwrap();
    dir.write_config(json!({ "model_type": "llama" }).as_object().unwrap()).unwrap();
    dir
}

pub fn save(output: &Path, name: CheckpointName, steps: u64) -> Checkpoint {
    begun(output, name, steps as f32).commit(&state(steps)).unwrap()
}

fn latest_steps(output: &Path) -> (Option<u64>, Vec<String>) {
    let latest = latest_complete(output).unwrap();
    (latest.checkpoint.map(|checkpoint| checkpoint.state.steps_run), latest.notices)
}

#[test]
fn everything_comes_back() {
    let output = tempfile::tempdir().unwrap();
    let nested = output.path().join("a/b");
    save(&nested, CheckpointName::Epoch(0), 7);
    let (found, notices) = latest_complete(&nested).unwrap().required(&nested).unwrap();
    assert!(notices.is_empty());
    assert_eq!(found.path(), nested.join("epoch_0"));
    assert_eq!(found.state, state(7));
    assert_eq!(read_floats(&found.weights().unwrap(), "w"), [7.0; 4]);
    assert_eq!(read_floats(&found.optimizer().unwrap().unwrap(), "w"), [-7.0; 4]);
    let names: Vec<&str> = found.files().keys().map(String::as_str).collect();
    assert_eq!(names, ["config.json", "model.safetensors", "optimizer.safetensors"]);
    let entries = fs::read_dir(&nested).unwrap().count();
    assert_eq!(entries, 1, "no partial or replaced folder is left");
}

#[test]
fn the_newest_is_the_one_with_most_steps() {
    let output = tempfile::tempdir().unwrap();
    assert_eq!(latest_steps(output.path()), (None, vec![]));
    assert_eq!(latest_steps(&output.path().join("absent")), (None, vec![]));
    save(output.path(), CheckpointName::Step(25), 25);
    save(output.path(), CheckpointName::Epoch(9), 9);
    save(output.path(), CheckpointName::Epoch(10), 10);
    fs::create_dir(output.path().join("logs")).unwrap();
    assert_eq!(latest_steps(output.path()), (Some(25), vec![]));
}

#[test]
fn nothing_to_resume_says_why() {
    let output = tempfile::tempdir().unwrap();
    fs::create_dir(output.path().join("epoch_0")).unwrap();
    let error = latest_complete(output.path()).unwrap().required(output.path()).unwrap_err();
    let path = output.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot resume: no complete checkpoint in `{path}`\n  checkpoint `epoch_0` is passed over: `{path}/epoch_0` is \
             not a complete checkpoint: it has no `recipe_state.json`"
        )
    );
}

#[test]
fn a_folder_never_completed_is_never_found() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 5);
    // Killed before the seal: nothing cleans up.
    std::mem::forget(begun(output.path(), CheckpointName::Epoch(1), 6.0));
    assert!(output.path().join(".epoch_1.partial").is_dir());
    assert_eq!(latest_steps(output.path()), (Some(5), vec![]));
    // The next writer of that name starts afresh.
    save(output.path(), CheckpointName::Epoch(1), 6);
    assert!(!output.path().join(".epoch_1.partial").exists());
    assert_eq!(latest_steps(output.path()), (Some(6), vec![]));
}

#[test]
fn a_writer_that_fails_leaves_the_old_checkpoint_and_no_rubbish() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 5);
    let mut dir = CheckpointDir::begin(output.path(), CheckpointName::Epoch(0), 0).unwrap();
    let failed = dir.write_weights::<Error>(&specs(), &mut |_, sink| sink.write(&[0; 3]));
    assert!(matches!(failed, Err(Error::TensorBytes { .. })));
    drop(dir);
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 1);
    assert_eq!(latest_steps(output.path()), (Some(5), vec![]));
}

#[test]
fn replacing_swaps_whole_folders() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 5);
    fs::write(output.path().join("epoch_0/model-00009-of-00009.safetensors"), b"stale").unwrap();
    let old = Checkpoint::open(&output.path().join("epoch_0")).unwrap().weights().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 6);
    assert_eq!(latest_steps(output.path()), (Some(6), vec![]));
    assert!(!output.path().join("epoch_0/model-00009-of-00009.safetensors").exists());
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 1);
    assert_eq!(read_floats(&old, "w"), [5.0; 4], "a mapped old file stays readable");
}

#[test]
fn killed_between_the_renames_the_old_one_is_still_found() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 5);
    fs::rename(output.path().join("epoch_0"), output.path().join(".epoch_0.replaced")).unwrap();
    assert_eq!(latest_steps(output.path()), (Some(5), vec![]));
    // The next writer puts it back before it starts, so that failing again loses nothing.
    drop(begun(output.path(), CheckpointName::Epoch(0), 6.0));
    assert_eq!(latest_complete(output.path()).unwrap().checkpoint.unwrap().path(), output.path().join("epoch_0"));
    // Killed after both renames, before the deletion: the new one counts.
    let copy = output.path().join(".epoch_0.replaced");
    fs::create_dir(&copy).unwrap();
    save(output.path(), CheckpointName::Epoch(0), 6);
    assert!(!copy.exists());
    assert_eq!(latest_steps(output.path()), (Some(6), vec![]));
}

#[test]
fn any_file_one_byte_short_makes_the_one_before_count() {
    for file in ["model.safetensors", "optimizer.safetensors", "config.json", "recipe_state.json"] {
        let output = tempfile::tempdir().unwrap();
        save(output.path(), CheckpointName::Epoch(0), 10);
        save(output.path(), CheckpointName::Epoch(1), 20);
        let path = output.path().join("epoch_1").join(file);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (steps, notices) = latest_steps(output.path());
        assert_eq!(steps, Some(10), "{file}");
        assert_eq!(notices.len(), 1, "{file}");
        assert!(notices[0].starts_with("checkpoint `epoch_1` is passed over: "), "{}", notices[0]);
        assert!(notices[0].contains(file), "{}", notices[0]);
    }
}

#[test]
fn a_flipped_bit_is_found_by_its_checksum() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 10);
    save(output.path(), CheckpointName::Epoch(1), 20);
    let path = output.path().join("epoch_1/optimizer.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let (steps, notices) = latest_steps(output.path());
    assert_eq!(steps, Some(10));
    assert!(notices[0].contains("is damaged, expected checksum"), "{}", notices[0]);
}

#[test]
fn a_missing_file_and_another_schema_are_passed_over() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 10);
    save(output.path(), CheckpointName::Epoch(1), 20);
    save(output.path(), CheckpointName::Epoch(2), 30);
    fs::remove_file(output.path().join("epoch_2/config.json")).unwrap();
    let seal = output.path().join("epoch_1/recipe_state.json");
    let text = fs::read_to_string(&seal).unwrap().replace("\"schema_version\": 1", "\"schema_version\": 99");
    fs::write(&seal, text).unwrap();
    let (steps, notices) = latest_steps(output.path());
    assert_eq!(steps, Some(10));
    assert_eq!(notices.len(), 2);
    assert!(notices[0].contains("schema version 99, expected 1"), "{}", notices[0]);
    assert!(notices[1].contains("config.json"), "{}", notices[1]);
}

#[test]
fn the_seal_says_what_the_files_are() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Step(3), 3);
    let text = fs::read(output.path().join("step_3/recipe_state.json")).unwrap();
    let seal: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let weights = fs::read(output.path().join("step_3/model.safetensors")).unwrap();
    assert_eq!(seal["schema_version"], 1);
    assert_eq!(seal["steps_run"], 3);
    assert_eq!(seal["seed"], u64::MAX);
    assert_eq!(seal["files"]["model.safetensors"]["bytes"], weights.len());
    assert_eq!(seal["files"]["model.safetensors"]["crc32"], crc32fast::hash(&weights));
}

#[test]
fn a_file_is_written_once() {
    let output = tempfile::tempdir().unwrap();
    let mut dir = begun(output.path(), CheckpointName::Epoch(0), 1.0);
    for file in ["config.json", "recipe_state.json"] {
        assert!(matches!(dir.write_file(file, b"{}"), Err(Error::FileTwice { .. })), "{file}");
    }
}

#[test]
fn side_files_go_along_and_weights_do_not() {
    let source = tempfile::tempdir().unwrap();
    let from = source.path();
    write_f32(&from.join("model.safetensors"), &[("w", 1, 1.0)]);
    for (file, text) in [
        ("config.json", "{\"old\": 1}"),
        ("tokenizer.json", "{}"),
        ("README.md", "read me"),
        (".gitattributes", "hidden"),
        ("pytorch_model.bin", "pickle"),
        ("model.safetensors.index.json", "{}"),
        ("adapter_config.json", "{}"),
    ] {
        fs::write(from.join(file), text).unwrap();
    }
    fs::create_dir_all(from.join("original/deep")).unwrap();
    fs::create_dir_all(from.join(".cache")).unwrap();
    fs::create_dir_all(from.join("only_weights")).unwrap();
    fs::write(from.join("original/deep/params.json"), "{\"dim\": 1}").unwrap();
    fs::write(from.join("original/consolidated.00.pth"), "pickle").unwrap();
    fs::write(from.join(".cache/x.json"), "hidden").unwrap();
    fs::write(from.join("only_weights/a.bin"), "pickle").unwrap();
    save(from, CheckpointName::Epoch(0), 1);
    fs::File::create(from.join("huge.txt")).unwrap().set_len(101 << 20).unwrap();
    let mut read_only = fs::metadata(from.join("README.md")).unwrap().permissions();
    read_only.set_readonly(true);
    fs::set_permissions(from.join("README.md"), read_only).unwrap();

    let output = tempfile::tempdir().unwrap();
    let mut dir = begun(output.path(), CheckpointName::Epoch(0), 1.0);
    let notices = dir.copy_side_files(from).unwrap();
    assert_eq!(notices, ["`huge.txt` is not copied: 101.0 MiB is more than 100.0 MiB"]);
    let saved = dir.commit(&state(1)).unwrap();
    saved.verify().unwrap();
    let names: Vec<&str> = saved.files().keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "README.md",
            "config.json",
            "model.safetensors",
            "optimizer.safetensors",
            "original/deep/params.json",
            "tokenizer.json"
        ]
    );
    assert!(!saved.path().join("only_weights").exists());
    assert!(fs::read_to_string(saved.path().join("config.json")).unwrap().contains("llama"), "the written one wins");
    assert!(!fs::metadata(saved.path().join("README.md")).unwrap().permissions().readonly());
}

#[test]
fn only_the_last_checkpoints_of_a_kind_are_kept() {
    let output = tempfile::tempdir().unwrap();
    for epoch in [0, 1, 2, 10] {
        save(output.path(), CheckpointName::Epoch(epoch), epoch);
    }
    save(output.path(), CheckpointName::Step(1), 1);
    fs::create_dir(output.path().join("epoch_3")).unwrap();
    let removed = keep_last_checkpoints(output.path(), 2, CheckpointName::Epoch(10)).unwrap();
    assert_eq!(removed, [CheckpointName::Epoch(0), CheckpointName::Epoch(1)]);
    let mut left: Vec<_> =
        fs::read_dir(output.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["epoch_10", "epoch_2", "epoch_3", "step_1"]);
    // The one just written stays, even if an older run left higher numbers.
    let removed = keep_last_checkpoints(output.path(), 1, CheckpointName::Epoch(2)).unwrap();
    assert_eq!(removed, [CheckpointName::Epoch(10)]);
}

#[test]
fn too_little_room_is_said_before_anything_is_written() {
    let output = tempfile::tempdir().unwrap();
    let error = CheckpointDir::begin(output.path(), CheckpointName::Epoch(0), u64::MAX).unwrap_err();
    assert!(matches!(error, Error::DiskSpace { needed_bytes: u64::MAX, .. }), "{error}");
    assert!(error.to_string().contains(" needed, "), "{error}");
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A learning rate must come back to the last bit, or a resumed run drifts.
    #[test]
    fn numbers_in_the_state_survive_to_the_bit(bits: u64) {
        let value = f64::from_bits(bits);
        prop_assume!(value.is_finite());
        let state = RecipeState { payload: json!(value), ..state(1) };
        let text = serde_json::to_string(&state).unwrap();
        let back: RecipeState = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(back.payload.as_f64().unwrap().to_bits(), bits);
    }
}
