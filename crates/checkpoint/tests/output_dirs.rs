//! Which output folders are taken, and what is said of the others.

use std::fs;
use std::path::Path;

use checkpoint::{CheckpointName, Error, ExistingRun, check_output_dir, remove_previous_run};

use crate::checkpoints::save;

fn check(output: &Path, model: &Path) -> checkpoint::Result<()> {
    check_output_dir(output, &[model], ExistingRun::Refuse)
}

#[test]
fn a_fresh_folder_is_tried_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    let output = dir.path().join("deep/er/out");
    check(&output, &model).unwrap();
    assert!(!dir.path().join("deep").exists());
    fs::create_dir_all(&output).unwrap();
    check(&output, &model).unwrap();
    assert_eq!(fs::read_dir(&output).unwrap().count(), 0);
}

#[test]
fn the_checkpoint_folder_and_what_is_in_it_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir_all(&model).unwrap();
    let same = check(&model, &model).unwrap_err();
    assert_eq!(
        same.to_string(),
        format!("output folder `{0}` is the same as checkpoint folder `{0}`", model.display())
    );
    for inside in ["out", "a/b/c", "./out", "x/../out"] {
        let output = model.join(inside);
        let error = check(&output, &model).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("output folder `{}` is inside checkpoint folder `{}`", output.display(), model.display())
        );
        assert!(error.hint().unwrap().contains("outside"));
    }
    assert_eq!(fs::read_dir(&model).unwrap().count(), 0, "nothing was made there");
    for beside in ["model_out", "model/../out", "mod"] {
        check(&dir.path().join(beside), &model).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn links_do_not_hide_the_checkpoint_folder() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir_all(&model).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&model, &link).unwrap();
    assert!(matches!(check(&link.join("out"), &model), Err(Error::OutputInsideCheckpoint { equal: false, .. })));
    assert!(matches!(check(&link, &model), Err(Error::OutputInsideCheckpoint { equal: true, .. })));
    assert!(matches!(check(&model.join("out"), &link), Err(Error::OutputInsideCheckpoint { .. })));
}

#[test]
fn another_runs_folder_needs_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let (model, output) = (dir.path().join("model"), dir.path().join("out"));
    save(&output, CheckpointName::Epoch(0), 1);
    fs::create_dir_all(output.join("logs")).unwrap();
    fs::write(output.join("logs/log_1.txt"), "Step 1").unwrap();
    fs::write(output.join("notes.txt"), "mine").unwrap();
    let error = check(&output, &model).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("output folder `{}` holds another run\n  found `epoch_0`, `logs/log_1.txt`", output.display())
    );
    let hint = error.hint().unwrap();
    assert!(hint.contains("resume_from_checkpoint=True") && hint.contains("overwrite_output_dir=True"), "{hint}");
    for word in [ExistingRun::Continue, ExistingRun::Overwrite] {
        check_output_dir(&output, &[&model], word).unwrap();
    }
    fs::create_dir_all(output.join(".step_7.partial")).unwrap();
    assert_eq!(remove_previous_run(&output).unwrap(), [".step_7.partial", "epoch_0", "logs/log_1.txt"]);
    check(&output, &model).unwrap();
    assert!(output.join("notes.txt").exists(), "what no run wrote is left alone");
}

#[test]
fn a_place_that_cannot_be_written_to_is_said_up_front() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for output in [file.clone(), file.join("out")] {
        let error = check(&output, &dir.path().join("model")).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot write to output folder `{}`", output.display()));
    }
}
