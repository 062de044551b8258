//! Ranks as threads under the table that MPI ranks pass too, laws, failures, and the model of the meeting point.
#![expect(clippy::unwrap_used, reason = "tests may stop at any error")]

mod failures;
mod laws;
mod model;
#[cfg(feature = "mpi")]
mod mpi;
mod table;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs `work` on a thread; fails if it takes longer. For what hangs when it is wrong.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || drop(sender.send(work())));
    match receiver.recv_timeout(limit) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("still not over after {limit:?}"),
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it ended without a value"))
        }
    }
}

#[test]
fn threads_pass_the_table() {
    assert!(table::CASES.len() > 5);
    for num_ranks in 1..=4 {
        for (name, case) in table::CASES {
            let run = move || dist::run_threads(num_ranks, |ranks| table::run(*case, &ranks));
            if let Err(failure) = within(Duration::from_secs(30), run) {
                panic!("`{name}` on {num_ranks} ranks: {failure}");
            }
        }
    }
}

#[test]
fn a_wrong_case_of_the_table_is_reported() {
    let failure = dist::run_threads(2, |ranks| table::run(table::wrong, &ranks)).unwrap_err();
    assert!(failure.to_string().contains("wrong on purpose"), "{failure}");
}

#[test]
#[should_panic(expected = "still not over")]
fn what_hangs_is_reported() {
    within(Duration::from_millis(50), || std::thread::sleep(Duration::from_secs(5)));
}
