//! Ranks as MPI processes, started through `mpirun`: the table, and how failures end all processes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::table;

/// How long a failure may take to end all processes, the start of MPI included.
const FAILURE_LIMIT: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_mins(2);

/// The program that all ranks run; cargo builds examples before it runs tests.
fn rank_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).expect("tests lie in `deps`");
    let program = folder.join("examples/mpi_ranks");
    assert!(program.is_file(), "no `{}`: build with `--features mpi --examples`", program.display());
    program
}

/// `mpirun` on this host, whoever runs it and however few cores there are.
fn mpirun(num_ranks: usize, options: &[&str], case: &str) -> Command {
    let version = Command::new("mpirun").arg("--version").output().expect("`mpirun` comes with the MPI library");
    let mut command = Command::new("mpirun");
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        command.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        if std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
            command.arg("--allow-run-as-root");
        }
        command.args(options);
    }
    command.args(["-n", &num_ranks.to_string()]).arg(rank_program()).arg(case);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait(child: &mut Child, limit: Duration) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > limit {
            child.kill().unwrap();
            panic!("`mpirun` still runs after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How it ended, what it said on stdout and on stderr.
fn run(num_ranks: usize, options: &[&str], case: &str, limit: Duration) -> (ExitStatus, String, String) {
    fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let mut child = mpirun(num_ranks, options, case).spawn().unwrap();
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let status = wait(&mut child, limit);
    (status, stdout.join().unwrap(), stderr.join().unwrap())
}

fn passes_the_table(num_ranks: usize, options: &[&str]) {
    let (status, stdout, stderr) = run(num_ranks, options, "table", LIMIT);
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    for (name, _) in table::CASES {
        let line = format!("passed on {num_ranks}: {name}");
        assert!(stdout.lines().any(|found| found == line), "no `{line}` in:\n{stdout}\n{stderr}");
    }
}

/// Runs a case that fails, in time; returns what it said on stderr.
fn fails(num_ranks: usize, case: &str) -> String {
    let start = Instant::now();
    let (status, stdout, stderr) = run(num_ranks, &[], case, LIMIT);
    assert!(start.elapsed() < FAILURE_LIMIT, "took {:?}", start.elapsed());
    assert!(!status.success(), "{stdout}\n{stderr}");
    assert!(!stderr.contains("survived"), "{stderr}");
    stderr
}

#[track_caller]
fn assert_says(stderr: &str, expected: &str) {
    assert!(stderr.lines().any(|line| line.starts_with(expected)), "no `{expected}` in:\n{stderr}");
}

#[test]
fn two_processes_pass_the_table() {
    passes_the_table(2, &[]);
}

#[test]
fn two_processes_pass_the_table_over_tcp() {
    passes_the_table(2, &["--mca", "btl", "tcp,self"]);
}

#[test]
fn four_processes_pass_the_table() {
    passes_the_table(4, &[]);
}

#[test]
fn one_process_without_a_launcher_is_no_rank() {
    let output = Command::new(rank_program()).arg("table").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a launcher started this process"));
}

#[test]
fn a_wrong_case_is_reported() {
    assert!(fails(2, "wrong").contains("wrong on purpose"));
}

#[test]
fn an_error_of_one_process_ends_all_with_its_cause() {
    let cause = "error: rank 1: no rank 9 to send from: expected a rank below 4";
    let stderr = fails(4, "error");
    assert_says(&stderr, cause);
    assert_eq!(stderr.matches("error: rank").count(), 1, "only the first failure: {stderr}");
    assert_says(&fails(4, "error in wait"), cause);
}

#[test]
fn a_panic_of_one_process_ends_all_with_its_words() {
    assert_says(&fails(2, "panic"), "error: rank 1: panic: rank 1 has had enough");
}

#[test]
fn processes_that_drift_apart_all_stop() {
    let stderr = fails(2, "drift");
    let expected = "ranks have drifted apart: rank 0 is in `barrier` (operation 0) at ";
    assert!(stderr.contains(expected), "{stderr}");
    assert!(stderr.contains(", but rank 1 is in `sum` of 8 bytes (operation 0) at "), "{stderr}");
}

#[test]
fn a_process_that_ends_too_early_stops_those_who_wait_for_it() {
    let expected = "error: rank 0: rank 1 has ended while other ranks wait for it in `barrier` (operation 0) at ";
    assert_says(&fails(2, "ends early"), expected);
}

#[test]
fn killing_one_process_ends_all() {
    let mut child = mpirun(2, &[], "wait to be killed").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut processes = [None, None];
    while processes.contains(&None) {
        let line = lines.next().expect("both ranks tell their process").unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let ["rank", rank, "has", "process", process] = words[..] else { panic!("{line}") };
        processes[rank.parse::<usize>().unwrap()] = Some(process.to_owned());
    }
    let [other, killed] = processes.map(|process| process.expect("both are there"));
    let start = Instant::now();
    assert!(Command::new("kill").args(["-KILL", &killed]).status().unwrap().success());
    let status = wait(&mut child, LIMIT);
    assert!(start.elapsed() < FAILURE_LIMIT, "took {:?}", start.elapsed());
    assert!(!status.success());
    while is_running(&other) {
        assert!(start.elapsed() < FAILURE_LIMIT, "rank 0 still runs as {other}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process is there and no zombie that its parent has yet to see.
fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|state| !state.starts_with('Z')))
}
