//! The newcomer's command: the configs of `examples/first_run` train a model from nothing that then answers.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::common::{read_log, succeed, tune};

/// What the README and the settings of the example promise.
const MAX_WEIGHTS: usize = 300_000;
const MAX_BYTES: u64 = 2_000_000;

/// The working folder of the README's commands.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command at the root. One thread: more do not help a model this small, and other tests run beside this one.
fn tune_at_root() -> Command {
    let mut command = tune(&root());
    command.env("FERROTUNE_NUM_THREADS", "1");
    command
}

fn train(output_dir: &Path, overrides: &[&str]) {
    let mut command = tune_at_root();
    command.args(["run", "full_finetune_single_device", "--config", "examples/first_run/train.yaml"]);
    succeed(command.args(overrides).arg(format!("output_dir={}", output_dir.display())));
}

/// What `generate` prints on stdout.
fn generate(overrides: &[&str]) -> String {
    let mut command = tune_at_root();
    command.args(["run", "generate", "--config", "examples/first_run/generate.yaml"]);
    let output = succeed(command.args(overrides));
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

fn rows() -> Vec<(String, String)> {
    let bytes = std::fs::read(root().join("examples/first_run/rows.json")).expect("the example has rows");
    let rows: Vec<Value> = serde_json::from_slice(&bytes).expect("a list of rows");
    let text = |row: &Value, key: &str| row[key].as_str().expect("a text").to_owned();
    rows.iter().map(|row| (text(row, "question"), text(row, "answer"))).collect()
}

#[test]
fn an_untrained_model_cannot_answer_and_a_trained_one_can() {
    let rows = rows();
    let (question, answer) = &rows[0];
    let untrained = ["model.init=random", "checkpointer.checkpoint_dir=examples/first_run/model"];
    let before = generate(&untrained);
    assert!(!before.contains(answer), "{before}");

    let out = tempfile::tempdir().expect("a temporary folder");
    let output_dir = out.path().join("first_run");
    train(&output_dir, &["max_steps_per_epoch=2", "epochs=1"]);
    // Once more into the same folder, as it stands.
    train(&output_dir, &[]);

    let log = read_log(&output_dir);
    let loss = |index: usize| log[index].get("loss").expect("logged");
    assert_eq!(log.len(), 576);
    assert!(loss(0) > 6.0, "the first loss is {}", loss(0));
    let last: f64 = (log.len() - 24..log.len()).map(loss).sum::<f64>() / 24.0;
    assert!(last < 0.1, "the loss of the last epoch is {last}");

    let trained = format!("checkpointer.checkpoint_dir={}", output_dir.join("step_576").display());
    // The prompt of the config is the first question; others are asked as the config's comment says.
    assert_eq!(&generate(&[&trained]), answer, "asked: {question}");
    for (question, answer) in rows.iter().step_by(19) {
        assert_eq!(&generate(&[&trained, &format!("prompt.user={question}")]), answer, "asked: {question}");
    }

    let bytes = std::fs::read(output_dir.join("step_576/model.safetensors")).expect("saved");
    let weights = safetensors::SafeTensors::deserialize(&bytes).expect("well formed");
    let num_weights: usize = weights.tensors().iter().map(|(_, t)| t.shape().iter().product::<usize>()).sum();
    assert!(num_weights <= MAX_WEIGHTS, "{num_weights} weights");
}

#[test]
fn the_example_is_small_and_plain() {
    let mut num_files = 0;
    let mut bytes = 0;
    let mut folders = vec![root().join("examples/first_run")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed") {
            let path = entry.expect("listed").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                num_files += 1;
                bytes += path.metadata().expect("readable").len();
            }
        }
    }
    assert!(num_files >= 6 && bytes < MAX_BYTES, "{num_files} files of {bytes} bytes");
    let rows = rows();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    for (question, answer) in &rows {
        assert!(question.is_ascii() && answer.is_ascii(), "{question} {answer}");
        let same = rows.iter().filter(|(other, _)| other == question).count();
        assert_eq!(same, 1, "`{question}` has more than one answer");
    }
}
