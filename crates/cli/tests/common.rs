//! Running the program and reading what it leaves behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Variables of this machine that would change where the program looks for a hub, or who it says it is.
const HUB_VARIABLES: [&str; 20] = [
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_DATASETS_OFFLINE",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "FERROTUNE_HUB_RETRY_MS",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// `tune` in a folder, with two threads and without a hub: no test asks a real one.
pub(crate) fn tune(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tune"));
    command.current_dir(dir).env("FERROTUNE_NUM_THREADS", "2").env_remove("FERROTUNE_CPU_ISA");
    for variable in HUB_VARIABLES {
        command.env_remove(variable);
    }
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "hf");
    command
}

/// Runs to the end; panics with all output unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    assert!(
        output.status.success(),
        "{command:?} failed with {}\nstdout:\n{}\nstderr:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

/// One logged step: its number, and names and values in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LoggedStep {
    pub(crate) step: u64,
    pub(crate) values: Vec<(String, f64)>,
}

impl LoggedStep {
    /// The value of a metric.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }
}

/// Steps of a text log: `Step 3 | loss:7.47 lr:0.001 `.
pub(crate) fn parse_log(text: &str) -> Vec<LoggedStep> {
    let parse = |line: &str| {
        let (step, values) = line.strip_prefix("Step ")?.split_once(" | ")?;
        let values = values.split_whitespace().map(|pair| {
            let (name, value) = pair.rsplit_once(':').expect("name:value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        Some(LoggedStep { step: step.parse().expect("a number"), values: values.collect() })
    };
    text.lines().filter_map(parse).collect()
}

/// The only log of a run's output folder.
pub(crate) fn read_log(output_dir: &Path) -> Vec<LoggedStep> {
    let logs: Vec<PathBuf> = std::fs::read_dir(output_dir.join("logs"))
        .expect("the run logs")
        .map(|entry| entry.expect("listed").path())
        .collect();
    assert_eq!(logs.len(), 1, "one log file");
    parse_log(&std::fs::read_to_string(&logs[0]).expect("readable"))
}
