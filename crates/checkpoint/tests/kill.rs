//! A writer killed at random moments: a whole checkpoint is there all the same, and never an older one than before.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use checkpoint::{CheckpointName, latest_complete};

use crate::checkpoints::save;

const OUTPUT: &str = "FERROTUNE_TEST_KILL_OUTPUT";

/// The victim: saves without end, replacing one name and adding others.
#[test]
#[ignore = "started and killed by the test below"]
fn victim() {
    let Some(output) = std::env::var_os(OUTPUT).map(PathBuf::from) else { return };
    let mut step = newest(&output).unwrap_or(0);
    loop {
        step += 1;
        let name = if step.is_multiple_of(3) { CheckpointName::Step(step) } else { CheckpointName::Epoch(0) };
        save(&output, name, step);
    }
}

fn newest(output: &Path) -> Option<u64> {
    latest_complete(output).unwrap().checkpoint.map(|checkpoint| checkpoint.state.steps_run)
}

#[test]
fn a_whole_checkpoint_survives_every_kill() {
    let output = tempfile::tempdir().unwrap();
    save(output.path(), CheckpointName::Epoch(0), 1);
    let mut before = 1;
    for round in 0..12u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "kill::victim"])
            .env(OUTPUT, output.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(40_000 + 1_713 * round));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let latest = latest_complete(output.path()).unwrap();
        assert_eq!(latest.notices, Vec::<String>::new(), "round {round}");
        let now = latest.checkpoint.expect("one was there before").state.steps_run;
        // `epoch_0` is replaced by each save that does not add a step folder: at most that one save is lost.
        assert!(now >= before, "round {round}: {now} after {before}");
        before = now;
    }
    assert!(before > 1, "the victim never saved anything");
}
