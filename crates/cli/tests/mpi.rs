//! Ranks as processes under `mpirun`: the curves of threads to the bit, one voice, and what ends all processes.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::common::{read_log, succeed, tune};
use super::curves::{Curve, curve};

const RECIPE: &str = "full_finetune_distributed";

/// What Open MPI needs to run as many processes as it is told, as anyone, without burning the cores that others compute on.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
];

/// `mpirun` of the program in a folder, up to the program's arguments.
fn mpirun(dir: &Path, num_ranks: usize, options: &[&str]) -> Command {
    let inner = tune(dir);
    let mut command = Command::new("mpirun");
    command.current_dir(dir).envs(OPEN_MPI).env("FERROTUNE_NUM_THREADS", "1");
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "hf");
    command.args(["-n", &num_ranks.to_string()]).args(options).arg(inner.get_program());
    command
}

fn arguments(curve: &Curve, split: [usize; 3], more: &[&str], out: &Path) -> Vec<String> {
    let [_, batch, accumulation] = split;
    let mut all: Vec<String> =
        ["run", RECIPE, "--config", &format!("training/{}", curve.config)].map(str::to_owned).to_vec();
    all.extend(curve.overrides.iter().cloned());
    all.extend([format!("batch_size={batch}"), format!("gradient_accumulation_steps={accumulation}")]);
    all.extend(more.iter().map(|&change| change.to_owned()));
    all.push(format!("output_dir={}", out.display()));
    all
}

fn weights(out: &Path) -> Vec<u8> {
    std::fs::read(out.join("epoch_0/model.safetensors")).expect("saved")
}

/// The same run on threads: the bits to have.
fn on_threads(conformance: &Path, curve: &Curve, split: [usize; 3], more: &[&str], out: &Path) -> Vec<u8> {
    let mut command = tune(conformance);
    let all = arguments(curve, split, more, out);
    command.env("FERROTUNE_NUM_THREADS", "1").args(["run", "--nproc_per_node", &split[0].to_string()]);
    succeed(command.args(&all[1..]));
    weights(out)
}

#[test]
fn processes_give_the_references_curve_and_the_bits_of_threads() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let tcp: &[&str] = &["--mca", "btl", "tcp,self"];
    let mut cases: Vec<(&str, [usize; 3], &[&str], &str)> = vec![
        ("accum4_sgd", [2, 2, 2], &[], "enable_activation_checkpointing=True"),
        ("accum4_sgd", [4, 2, 1], &[], "optimizer_in_bwd=True"),
        ("accum4_clip", [4, 2, 1], &[], "data_parallel_replicate_dim=2"),
        ("packed", [2, 1, 1], &[], "fsdp_reshard_after_forward=False"),
        ("accum4_clip", [2, 2, 2], tcp, "seed=123"),
    ];
    for name in ["accum4", "accum4_sgd", "accum4_clip"] {
        for split in [[2, 2, 2], [4, 2, 1]] {
            cases.push((name, split, &[], "fsdp_cpu_offload=True"));
            cases.push((name, split, &[], "fsdp_cpu_offload=False"));
        }
    }
    for (name, split, options, change) in cases {
        let Some(curve) = curve(&conformance, name) else { continue };
        let dir = |engine: &str| out.path().join(format!("{name}_{}_{change}_{engine}", split[0]));
        let mut command = mpirun(&conformance, split[0], options);
        succeed(command.args(arguments(&curve, split, &[change], &dir("mpi"))));
        curve.compare(&read_log(&dir("mpi")), &format!("{name} on {} processes, {change}", split[0]));
        let expected = on_threads(&conformance, &curve, split, &[change], &dir("threads"));
        assert!(weights(&dir("mpi")) == expected, "{name} on {} processes, {change}: other bits", split[0]);
    }
}

#[test]
fn the_program_starts_mpirun_itself() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(curve) = curve(&conformance, "accum4") else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut command = tune(&conformance);
    command.envs(OPEN_MPI).env("FERROTUNE_NUM_THREADS", "1").args([
        "run",
        "--launcher",
        "mpi",
        "--nproc_per_node",
        "2",
    ]);
    let output = succeed(command.args(&arguments(&curve, [2, 2, 2], &[], out.path())[1..]));
    curve.compare(&read_log(out.path()), "started by the program");
    let said = String::from_utf8_lossy(&output.stderr).matches("Memory of each rank").count();
    assert_eq!(said, 1, "only the first rank speaks");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_wrong_is_said_once() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let dir = format!("output_dir={}", out.path().join("run").display());
    let config = ["run", RECIPE, "--config", "training/tiny_full.yaml", &dir];
    for (change, message) in
        [("batch_size=0", "expected an integer >= 1"), ("checkpointer.checkpoint_dir=nowhere", "`nowhere`")]
    {
        let mut command = mpirun(&conformance, 2, &[]);
        let output = command.args(config).arg(change).output().expect("mpirun starts");
        let text = stderr(&output);
        assert!(!output.status.success(), "{text}");
        assert_eq!(text.matches("error: ").count(), 1, "{text}");
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn processes_with_different_configs_stop_before_they_train() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let run = |more: &str| {
        let dir = format!("output_dir={}", out.path().join("run").display());
        ["run", RECIPE, "--config", "training/tiny_full.yaml", &dir, "seed=1", more].map(str::to_owned)
    };
    for (change, difference) in [
        ("seed=2", "rank 0: `seed: 1`, rank 1: `seed: 2`"),
        ("offload.optimizer=disk", "rank 0: no `offload.optimizer`, rank 1: `offload.optimizer: \"disk\"`"),
    ] {
        let mut command = mpirun(&conformance, 1, &[]);
        command.args(run("seed=1")).arg(":").args(["-n", "1"]).arg(tune(&conformance).get_program()).args(run(change));
        let output = command.output().expect("mpirun starts");
        let text = stderr(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("rank 1 has another config than rank 0"), "{text}");
        assert!(text.contains(difference), "{text}");
        assert!(!out.path().join("run").exists(), "nothing was written");
    }
}

/// Waits until a command has ended, however it ends; panics after a minute.
fn wait(mut command: std::process::Child, what: &str) -> (std::process::ExitStatus, Duration) {
    let start = Instant::now();
    loop {
        if let Some(status) = command.try_wait().expect("a child") {
            return (status, start.elapsed());
        }
        if start.elapsed() > Duration::from_mins(1) {
            let _ = command.kill();
            panic!("{what}: still running after a minute");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes whose command line contains a word.
fn processes(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("listed");
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_word = |id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(word) && !line.starts_with("mpirun")
    };
    ids.filter(has_word).collect()
}

#[test]
fn a_killed_process_ends_all_within_seconds() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let word = format!("output_dir={}", out.path().join("killed").display());
    let mut command = mpirun(&conformance, 2, &[]);
    command.args(["run", RECIPE, "--config", "training/tiny_full.yaml", &word, "epochs=10000"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mpirun starts");
    let log = out.path().join("killed/logs");
    let start = Instant::now();
    while std::fs::read_dir(&log).map_or(0, Iterator::count) == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "training never began");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ranks = processes(&word);
    assert_eq!(ranks.len(), 2, "two ranks run");
    succeed(Command::new("kill").args(["-9", &ranks[1].to_string()]));
    let (status, elapsed) = wait(child, "after a kill");
    assert!(!status.success() && elapsed < Duration::from_secs(10), "{status} after {elapsed:?}");
    assert!(processes(&word).is_empty(), "no rank is left");
}

#[test]
fn ctrl_c_ends_all_processes() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let word = format!("output_dir={}", out.path().join("interrupted").display());
    let mut command = mpirun(&conformance, 2, &[]);
    command.args(["run", RECIPE, "--config", "training/tiny_full.yaml", &word, "epochs=10000"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mpirun starts");
    let start = Instant::now();
    while !out.path().join("interrupted/epoch_0").exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "no epoch ever ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    succeed(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let (status, elapsed) = wait(child, "after Ctrl-C");
    assert!(!status.success() && elapsed < Duration::from_secs(10), "{status} after {elapsed:?}");
    assert!(processes(&word).is_empty(), "no rank is left");
}

#[test]
fn a_failure_while_training_ends_all_with_its_cause() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let dir = format!("output_dir={}", out.path().join("diverged").display());
    let mut command = mpirun(&conformance, 2, &[]);
    command.args(["run", RECIPE, "--config", "training/tiny_full.yaml", &dir, "optimizer.lr=1e30"]);
    let start = Instant::now();
    let output = command.output().expect("mpirun starts");
    let text = stderr(&output);
    assert!(!output.status.success() && start.elapsed() < Duration::from_secs(20), "{text}");
    assert_eq!(text.matches("loss is not finite at step").count(), 1, "{text}");
    assert_eq!(
        text.matches("hint: start again with a lower `optimizer.lr`, or `clip_grad_norm=1.0`").count(),
        1,
        "{text}"
    );
}
