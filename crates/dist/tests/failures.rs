//! A rank that fails, ends or drifts stops all ranks, with its cause.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dist::{Alarm, Cause, Collective, Communicator, Error, Failure, Mesh, run_threads};
use tensor::{Buffer, DType, Device, DeviceKind, Tensor};

use crate::table::backend;
use crate::within;

/// How long a failure may take to end all ranks.
const LIMIT: Duration = Duration::from_secs(1);

/// Runs ranks whose work fails, in time, and collects how it ended for each of them.
fn run_failing(
    num_ranks: usize,
    work: impl Fn(&Communicator) -> dist::Result<()> + Send + Sync + 'static,
) -> (Failure<Error>, Vec<dist::Result<()>>) {
    let run = move || {
        let outcomes: Vec<std::sync::Mutex<dist::Result<()>>> = (0..num_ranks).map(|_| Ok(()).into()).collect();
        let failure = run_threads(num_ranks, |ranks| {
            let result = work(&ranks);
            outcomes[ranks.rank()].lock().unwrap().clone_from(&result);
            result
        });
        let outcomes = outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap()).collect();
        (failure.expect_err("the work fails"), outcomes)
    };
    let start = Instant::now();
    let ended = within(Duration::from_secs(20), run);
    assert!(start.elapsed() < LIMIT, "took {:?}", start.elapsed());
    ended
}

/// Runs three ranks of which the last does something else; returns the message that all of them ended with.
fn drift(usual: fn(&Communicator) -> dist::Result<()>, other: fn(&Communicator) -> dist::Result<()>) -> String {
    let work = move |ranks: &Communicator| if ranks.rank() == 2 { other(ranks) } else { usual(ranks) };
    let (_, outcomes) = run_failing(3, work);
    let messages: Vec<String> = outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
    assert!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
    assert_eq!(messages[0].matches("failures.rs:").count(), 2, "both places: {}", messages[0]);
    messages[0].clone()
}

fn reduce(ranks: &Communicator, len: usize, dtype: DType) -> dist::Result<()> {
    let backend = backend();
    ranks.all_reduce(&backend, backend.zeros([len].into(), dtype).unwrap()).wait().map(|_| ())
}

#[test]
fn a_rank_that_skips_an_operation_stops_all() {
    let message = drift(
        |ranks| {
            ranks.barrier().wait()?;
            ranks.barrier().wait()
        },
        |ranks| ranks.barrier().wait(),
    );
    assert!(message.starts_with("ranks have drifted apart: rank 0 is in `barrier` (operation 0) at "), "{message}");
    assert!(message.contains(", but rank 2 is in `barrier` (operation 0) at "), "{message}");
}

#[test]
fn a_rank_in_another_operation_stops_all() {
    let message =
        drift(|ranks| ranks.sum(vec![1.0]).wait().map(|_| ()), |ranks| ranks.gather_bytes(vec![1]).wait().map(|_| ()));
    assert!(message.contains("rank 0 is in `sum` of 8 bytes (operation 0)"), "{message}");
    assert!(message.contains("rank 2 is in `gather_bytes` of 1 bytes (operation 0)"), "{message}");
}

#[test]
fn a_rank_with_another_size_or_dtype_stops_all() {
    let message = drift(|ranks| reduce(ranks, 10, DType::F32), |ranks| reduce(ranks, 11, DType::F32));
    assert!(message.contains("rank 0 is in `all_reduce` of 40 bytes in fp32"), "{message}");
    assert!(message.contains("rank 2 is in `all_reduce` of 44 bytes in fp32"), "{message}");
    let message = drift(|ranks| reduce(ranks, 10, DType::F32), |ranks| reduce(ranks, 20, DType::Bf16));
    assert!(message.contains("rank 2 is in `all_reduce` of 40 bytes in bf16"), "{message}");
    let message = drift(|r| r.broadcast(0, vec![]).wait().map(|_| ()), |r| r.broadcast(1, vec![]).wait().map(|_| ()));
    assert!(message.contains("`broadcast` of 0 bytes from rank 1"), "{message}");
}

#[test]
fn drift_inside_of_a_group_names_ranks_of_the_world() {
    let (_, outcomes) = run_failing(4, |ranks| {
        let mesh = Mesh::new(ranks.clone(), 2, 2)?;
        if ranks.rank() == 3 { mesh.shard.barrier().wait() } else { mesh.shard.sum(vec![]).wait().map(|_| ()) }
    });
    for outcome in &outcomes[2..] {
        let Err(Error::Drifted { expected_rank: 2, found_rank: 3, .. }) = outcome else { panic!("{outcome:?}") };
    }
}

#[test]
fn a_rank_that_ends_too_early_stops_those_who_wait_for_it() {
    let (failure, outcomes) = run_failing(2, |ranks| if ranks.rank() == 1 { Ok(()) } else { ranks.barrier().wait() });
    assert_eq!(failure.rank, 0);
    let message = outcomes[0].as_ref().unwrap_err().to_string();
    let expected = "rank 1 has ended while other ranks wait for it in `barrier` (operation 0) at ";
    assert!(message.starts_with(expected), "{message}");
    assert!(outcomes[1].is_ok());
}

#[test]
fn an_error_of_one_rank_ends_all_with_its_cause() {
    let (failure, outcomes) = run_failing(4, |ranks| {
        // The others wait in different groups, none of which the failing rank calls.
        let mesh = Mesh::new(ranks.clone(), 2, 2)?;
        match ranks.rank() {
            3 => {
                std::thread::sleep(Duration::from_millis(50));
                Err(Error::Root { root: 9, world_size: 4 })
            }
            2 => mesh.shard.barrier().wait(),
            _ => mesh.world.barrier().wait(),
        }
    });
    assert_eq!(failure.to_string(), "rank 3 failed: no rank 9 to send from: expected a rank below 4");
    for outcome in &outcomes[..3] {
        let Err(Error::RankFailed { rank: 3, cause }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(cause, "no rank 9 to send from: expected a rank below 4");
    }
}

#[test]
fn a_panic_of_one_rank_ends_all_with_its_words() {
    let (failure, outcomes) = run_failing(3, |ranks| {
        assert!(ranks.rank() != 1, "rank 1 has had enough");
        ranks.barrier().wait()?;
        ranks.barrier().wait()
    });
    assert_eq!(failure.rank, 1);
    assert!(matches!(&failure.cause, Cause::Panic(message) if message == "rank 1 has had enough"));
    assert_eq!(outcomes[2].as_ref().unwrap_err().to_string(), "rank 1 failed: panic: rank 1 has had enough");
}

#[test]
fn whatever_follows_a_failure_of_another_rank_fails_too() {
    let (_, outcomes) = run_failing(3, |ranks| {
        let group = ranks.split(ranks.rank() / 2)?;
        if ranks.rank() == 2 {
            return Err(Error::Root { root: 9, world_size: 3 });
        }
        while group.barrier().wait().is_ok() {}
        let error = group.split(0).unwrap_err();
        assert!(matches!(error, Error::RankFailed { rank: 2, .. }), "{error}");
        Err(error)
    });
    assert_eq!(outcomes.len(), 3);
}

#[test]
fn an_error_in_the_middle_of_an_operation_ends_all() {
    let (failure, outcomes) = run_failing(2, |ranks| gather_foreign(ranks, false));
    let message = "tensor is on another device: expected cpu, found cpu";
    assert_eq!(failure.to_string(), format!("rank 0 failed: {message}"));
    let Err(Error::RankFailed { rank: 0, cause }) = &outcomes[1] else { panic!("{:?}", outcomes[1]) };
    assert_eq!(cause, message);
}

#[test]
fn a_panic_in_the_middle_of_an_operation_ends_all() {
    let (failure, _) = run_failing(2, |ranks| gather_foreign(ranks, true));
    assert_eq!(failure.to_string(), "rank 0 failed: panic during an operation between ranks: a buffer that panics");
}

/// Gathers; rank 0 gives a tensor that its backend cannot read. After the error, it can do nothing more.
fn gather_foreign(ranks: &Communicator, panics: bool) -> dist::Result<()> {
    let backend = backend();
    let full = backend.zeros([4].into(), DType::F32)?;
    let shard = if ranks.rank() == 0 {
        Tensor::from_buffer(Arc::new(Foreign { panics }), 0, [2].into(), DType::F32)
    } else {
        full.rows(0..2)?
    };
    let error = ranks.all_gather(&backend, full, &shard).wait().unwrap_err();
    if ranks.rank() == 0 {
        let again = ranks.barrier().wait().unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
    }
    Err(error)
}

/// Memory that is not the backend's.
#[derive(Debug)]
struct Foreign {
    panics: bool,
}

impl Buffer for Foreign {
    fn device(&self) -> Device {
        assert!(!self.panics, "a buffer that panics");
        Device { kind: DeviceKind::Cpu, index: 0 }
    }

    fn len_bytes(&self) -> usize {
        8
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn wrong_tensors_are_errors_before_anything_is_sent() {
    let ranks = Communicator::alone();
    let backend = backend();
    let zeros = |len: usize, dtype| backend.zeros([len].into(), dtype).unwrap();
    let message = |error: Error| error.to_string();
    let error = ranks.all_gather(&backend, zeros(3, DType::F32), &zeros(2, DType::F32)).wait().unwrap_err();
    assert_eq!(
        message(error),
        "wrong shape for `full` of `all_gather`: expected 2 elements (shards of 2 from 1 ranks), found (3)"
    );
    let error = ranks.all_gather(&backend, zeros(2, DType::F32), &zeros(2, DType::Bf16)).wait().unwrap_err();
    assert_eq!(message(error), "wrong dtype for `full` of `all_gather`: expected that of `shard`, found fp32");
    let error = ranks.all_reduce(&backend, zeros(2, DType::I32)).wait().unwrap_err();
    assert_eq!(message(error), "wrong dtype for `x` of `all_reduce`: expected fp32 or bf16, found int32");
    let error = ranks.reduce_scatter(&backend, zeros(2, DType::F32), zeros(2, DType::I32), true).wait().unwrap_err();
    assert_eq!(message(error), "wrong dtype for `full` of `reduce_scatter`: expected fp32 or bf16, found int32");
    let error = ranks.broadcast(1, vec![]).wait().unwrap_err();
    assert_eq!(message(error), "no rank 1 to send from: expected a rank below 1");
    assert_eq!(ranks.sum(vec![2.0]).wait().unwrap(), [2.0], "the group still works");
}

/// An engine of one rank that says when it is dropped.
#[derive(Default)]
struct Watched {
    dropped: Arc<AtomicBool>,
    /// Operations never end, whatever the alarm says.
    stuck: bool,
}

impl Collective for Watched {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_gather(&mut self, mine: &[u8], each: &mut dyn FnMut(usize, &[u8]) -> dist::Result<()>) -> dist::Result<()> {
        if self.stuck {
            loop {
                std::thread::park();
            }
        }
        // Headers arrive garbled.
        each(0, &mine[1..])
    }

    fn all_to_all(
        &mut self,
        mine: &[u8],
        _: usize,
        each: &mut dyn FnMut(usize, &[u8]) -> dist::Result<()>,
    ) -> dist::Result<()> {
        each(0, mine)
    }

    fn split(&mut self, _: usize) -> dist::Result<Box<dyn Collective>> {
        Ok(Box::new(Self { dropped: Arc::clone(&self.dropped), stuck: self.stuck }))
    }

    fn fail(&self, _: &str) {}

    fn alarm(&self) -> Alarm {
        Arc::new(|_| {})
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_last_communicator_waits_for_its_engine_to_end() {
    let dropped = Arc::new(AtomicBool::new(false));
    let engine = Watched { dropped: Arc::clone(&dropped), stuck: false };
    let ranks = Communicator::start(move || Ok(Box::new(engine))).unwrap();
    let clone = ranks.clone();
    drop(ranks);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(clone);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn an_engine_that_cannot_start_or_garbles_headers_is_an_error() {
    let error = Communicator::start(|| Err(Error::MpiStarted)).unwrap_err();
    assert_eq!(error.to_string(), "MPI was already started in this process");
    let ranks = Communicator::start(|| Ok(Box::new(Watched::default()))).unwrap();
    let error = ranks.barrier().wait().unwrap_err();
    assert_eq!(error.to_string(), "rank 0 sent something that is no operation of this program");
    assert!(error.hint().is_some());
}

#[test]
fn a_failing_rank_does_not_wait_for_what_never_ends() {
    within(Duration::from_secs(10), || {
        let ranks = Communicator::start(|| Ok(Box::new(Watched { dropped: Arc::default(), stuck: true }))).unwrap();
        drop(ranks.barrier());
        ranks.fail("the launcher ends the others");
    });
}
