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

/// Two hosts on this one: network namespaces with a cable between them, and what stands in for a remote shell. Gone when dropped.
struct Hosts {
    dir: tempfile::TempDir,
    names: [String; 2],
}

impl Hosts {
    const ADDRESSES: [&'static str; 2] = ["10.217.43.1", "10.217.43.2"];

    /// `None` where this may not be done: it takes root and the program `ip`.
    fn new() -> Option<Self> {
        let names = ["a", "b"].map(|side| format!("tune-{side}-{}", std::process::id()));
        let hosts = Self { dir: tempfile::tempdir().expect("a temporary folder"), names };
        let [a, b] = &hosts.names;
        let ip = |arguments: &str| {
            Command::new("ip").args(arguments.split(' ')).output().is_ok_and(|output| output.status.success())
        };
        let there = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add cable netns {a} type veth peer name cable netns {b}"))
            && hosts.names.iter().zip(Self::ADDRESSES).all(|(name, address)| {
                ip(&format!("-n {name} addr add {address}/24 dev cable"))
                    && ip(&format!("-n {name} link set cable up"))
                    && ip(&format!("-n {name} link set lo up"))
            });
        let of_address = |(name, address): (&String, &str)| format!("{address}) host={name};; ");
        let cases: String = hosts.names.iter().zip(Self::ADDRESSES).map(of_address).collect();
        // Each with a name of its own, by which Open MPI tells hosts apart.
        let shell = format!(
            "#!/bin/sh\ncase $1 in {cases}*) exit 1;; esac\nshift\nexec ip netns exec $host unshare --uts sh -c \"hostname $host; $*\"\n"
        );
        let path = hosts.dir.path().join("shell");
        std::fs::write(&path, shell).expect("written");
        let made = Command::new("chmod").arg("+x").arg(&path).status().is_ok_and(|status| status.success());
        (there && made).then_some(hosts)
    }

    /// `mpirun` of the program on the first host, a process on each.
    fn mpirun(&self, dir: &Path) -> Command {
        let shell = self.dir.path().join("shell");
        let mut command = Command::new(&shell);
        command.current_dir(dir).envs(OPEN_MPI).env("FERROTUNE_NUM_THREADS", "1").env("HF_HUB_OFFLINE", "1");
        let [a, b] = Self::ADDRESSES;
        command.args([a, "mpirun", "--host", &format!("{a}:1,{b}:1"), "--bind-to", "none"]);
        command.args(["--mca", "plm_rsh_agent", &shell.display().to_string(), "--mca", "btl", "tcp,self"]);
        command.args(["--mca", "btl_tcp_if_include", "cable", "--mca", "oob_tcp_if_include", "cable"]);
        command.arg(tune(dir).get_program());
        command
    }

    /// Bytes that the first host has sent to the other.
    fn bytes_sent(&self) -> u64 {
        let file = "/sys/class/net/cable/statistics/tx_bytes";
        // `ip netns exec` shows the namespace's own /sys.
        let output = Command::new("ip").args(["netns", "exec", &self.names[0], "cat", file]).output().expect("starts");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn two_hosts_log_the_curve_of_one() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(hosts) = Hosts::new() else {
        println!("skipped: no network namespaces here (they take root and iproute2)");
        return;
    };
    for name in ["accum4_sgd", "accum4_clip"] {
        let Some(curve) = curve(&conformance, name) else { continue };
        let out = tempfile::tempdir().expect("a temporary folder");
        let dir = |engine: &str| out.path().join(engine);
        let before = hosts.bytes_sent();
        let change = ["fsdp_cpu_offload=True"];
        succeed(hosts.mpirun(&conformance).args(arguments(&curve, [2, 2, 2], &change, &dir("hosts"))));
        curve.compare(&read_log(&dir("hosts")), &format!("{name} on two hosts"));
        let expected = on_threads(&conformance, &curve, [2, 2, 2], &change, &dir("threads"));
        assert!(weights(&dir("hosts")) == expected, "{name} on two hosts: other bits");
        // Four steps of two micro-batches: shards of 1.5 MB of weights, and as many of gradients, cross in each.
        let sent = hosts.bytes_sent() - before;
        assert!(sent > 10_000_000, "{name}: only {sent} bytes went from host to host");
    }
}

#[test]
fn a_process_killed_on_one_host_ends_those_on_the_other() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(curve) = curve(&conformance, "accum4") else { return };
    let Some(hosts) = Hosts::new() else {
        println!("skipped: no network namespaces here (they take root and iproute2)");
        return;
    };
    let out = tempfile::tempdir().expect("a temporary folder");
    let more = ["epochs=5000", "max_steps_per_epoch=null", "save_every_n_steps=1000000"];
    let mut command = hosts.mpirun(&conformance);
    command.args(arguments(&curve, [2, 2, 2], &more, &out.path().join("run")));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let deadline = Instant::now() + Duration::from_mins(1);
    let log = out.path().join("run/logs");
    while !log.is_dir() || read_log(&out.path().join("run")).is_empty() {
        assert!(Instant::now() < deadline, "no step within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
    let pids = Command::new("ip").args(["netns", "pids", &hosts.names[1]]).output().expect("starts");
    let pids = String::from_utf8_lossy(&pids.stdout).into_owned();
    let is_ours =
        |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tune");
    let victim = pids.split_whitespace().find(is_ours).expect("a process runs on the second host");
    assert!(Command::new("kill").args(["-KILL", victim]).status().is_ok_and(|status| status.success()));
    let (status, took) = wait(child, "a process killed on the second host");
    assert!(!status.success());
    assert!(took < Duration::from_secs(10), "ended after {took:?}");
}
