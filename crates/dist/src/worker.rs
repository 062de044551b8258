//! The communication thread of a rank: it owns the rank's groups and does their operations, in the order they came in.
//!
//! An operation is a job in a queue, its result a [`Pending`]. The thread starts with the rank's first communicator and ends
//! with the last; a rank that is alone has none, its jobs run where they are made.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::collective::{Alarm, Alone, Collective};
use crate::{Error, Operation, Result};

/// How long a failing rank waits for the others to be told.
const FAIL_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of an operation that may still be going on. Dropping it is fine: the operation goes on, its result is dropped.
#[must_use = "an error of the operation is told by `wait`"]
#[derive(Debug)]
pub struct Pending<T>(State<T>);

#[derive(Debug)]
enum State<T> {
    Done(Result<T>),
    Running(Receiver<Result<T>>),
}

impl<T> Pending<T> {
    pub(crate) fn done(result: Result<T>) -> Self {
        Self(State::Done(result))
    }

    /// Blocks until the operation is over.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            State::Done(result) => result,
            State::Running(receiver) => receiver.recv().unwrap_or(Err(Error::Stopped)),
        }
    }
}

/// Bytes of tensors that a rank has received from others, in all its groups. Messages and headers are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// By `all_gather`.
    pub gathered: u64,
    /// By `reduce_scatter` and `all_reduce`.
    pub reduced: u64,
}

/// The counts behind [`Traffic`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) gathered: AtomicU64,
    pub(crate) reduced: AtomicU64,
}

/// A group as its rank's communication thread holds it.
pub(crate) struct Group {
    pub(crate) engine: Box<dyn Collective>,
    /// The rank in the world of each rank of the group.
    pub(crate) members: Vec<usize>,
    /// Operations so far.
    num_operations: u64,
}

impl Group {
    pub(crate) fn new(engine: Box<dyn Collective>, members: Vec<usize>) -> Self {
        Self { engine, members, num_operations: 0 }
    }

    fn world(engine: Box<dyn Collective>) -> Self {
        let members = (0..engine.world_size()).collect();
        Self::new(engine, members)
    }

    /// Compares what all ranks are about to do; returns the bytes that each of them gives. Every operation begins with it.
    pub(crate) fn agree(&mut self, operation: &mut Operation) -> Result<Vec<usize>> {
        operation.sequence = self.num_operations;
        self.num_operations += 1;
        let mine = operation.encode();
        let mut num_bytes = Vec::with_capacity(self.members.len());
        let mut first: Option<Operation> = None;
        let mut drifted = None;
        let members = &self.members;
        self.engine.all_gather(&mine, &mut |rank, header| {
            let theirs = Operation::decode(header).ok_or(Error::ForeignHeader { rank: members[rank] })?;
            num_bytes.push(theirs.num_bytes as usize);
            let first = first.get_or_insert_with(|| theirs.clone());
            if drifted.is_none() && !theirs.agrees_with(first) {
                drifted = Some((rank, theirs));
            }
            Ok(())
        })?;
        let (Some((rank, found)), Some(expected)) = (drifted, first) else { return Ok(num_bytes) };
        Err(Error::Drifted {
            expected_rank: members[0],
            expected: Box::new(expected),
            found_rank: members[rank],
            found: Box::new(found),
        })
    }
}

/// Memory that operations reuse.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sums: Vec<f32>,
}

/// Everything that the communication thread owns.
pub(crate) struct Groups {
    /// The world comes first; groups live as long as the thread.
    pub(crate) list: Vec<Group>,
    pub(crate) stage: Stage,
    pub(crate) counters: Arc<Counters>,
    /// The error of the first operation that failed.
    broken: Option<Error>,
}

impl Groups {
    fn new(world: Box<dyn Collective>, counters: Arc<Counters>) -> Self {
        Self { list: vec![Group::world(world)], stage: Stage::default(), counters, broken: None }
    }

    /// Does one operation, unless one before it failed.
    fn operate<T>(
        &mut self,
        mut operation: Operation,
        work: impl FnOnce(&mut Self, &mut Operation) -> Result<T>,
    ) -> Result<T> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let result = catch_unwind(AssertUnwindSafe(|| work(self, &mut operation)))
            .unwrap_or_else(|panic| Err(Error::Panicked { message: panic_message(&*panic) }));
        let result = result.map_err(|error| error.during(&operation));
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Others may be in the middle of the operation that failed here, and its caller may not have looked.
        if let Some(error) = &self.broken {
            self.list[0].engine.fail(&error.to_string());
        }
    }
}

type Job = Box<dyn FnOnce(&mut Groups) + Send>;

/// Where a rank's operations are done.
pub(crate) struct Worker {
    place: Place,
    alarm: Alarm,
    counters: Arc<Counters>,
    /// The thread did not come out of an operation after a failure: nobody waits for its end.
    stuck: AtomicBool,
}

enum Place {
    /// On the calling thread.
    Here(Box<Mutex<Groups>>),
    /// On a thread; both are there until drop.
    Thread { jobs: Option<Sender<Job>>, thread: Option<JoinHandle<()>> },
}

impl Worker {
    /// For a rank that is alone.
    pub(crate) fn alone() -> Self {
        let counters = Arc::new(Counters::default());
        let groups = Groups::new(Box::new(Alone), Arc::clone(&counters));
        Self {
            place: Place::Here(Box::new(Mutex::new(groups))),
            alarm: Alone.alarm(),
            counters,
            stuck: AtomicBool::new(false),
        }
    }

    /// Starts a thread that makes the engine of the world and works for it. Returns with the rank and the world's size when
    /// the engine is there.
    pub(crate) fn start(
        engine: impl FnOnce() -> Result<Box<dyn Collective>> + Send + 'static,
    ) -> Result<(Self, usize, usize)> {
        let counters = Arc::new(Counters::default());
        let shared = Arc::clone(&counters);
        let (jobs, queue) = channel::<Job>();
        let (started, start) = channel();
        let work = move || {
            let engine = match engine() {
                Ok(engine) => engine,
                Err(error) => return drop(started.send(Err(error))),
            };
            let told = started.send(Ok((engine.rank(), engine.world_size(), engine.alarm())));
            let mut groups = Groups::new(engine, shared);
            if told.is_ok() {
                for job in queue {
                    job(&mut groups);
                }
            }
        };
        // A name says whose thread it is in a list of threads; the system may cut it after 15 bytes.
        let name = std::thread::current().name().map_or_else(|| "dist".to_owned(), |name| format!("{name} dist"));
        let spawned = std::thread::Builder::new().name(name).spawn(work);
        let thread = spawned.map_err(|error| Error::Thread { reason: error.to_string() })?;
        let (rank, world_size, alarm) = start.recv().unwrap_or(Err(Error::Stopped))?;
        let place = Place::Thread { jobs: Some(jobs), thread: Some(thread) };
        Ok((Self { place, alarm, counters, stuck: AtomicBool::new(false) }, rank, world_size))
    }

    /// Queues an operation.
    pub(crate) fn operate<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Groups, &mut Operation) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.run(move |groups| groups.operate(operation, work))
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce(&mut Groups) -> Result<T> + Send + 'static) -> Pending<T> {
        match &self.place {
            Place::Here(groups) => Pending::done(work(&mut groups.lock().unwrap_or_else(PoisonError::into_inner))),
            Place::Thread { jobs, .. } => {
                let (sender, receiver) = channel();
                // What the work holds (tensors) is dropped before its result can be seen. Nobody may be left to see it.
                let job: Job = Box::new(move |groups| drop(sender.send(work(groups))));
                match jobs.as_ref().expect("there until drop").send(job) {
                    Ok(()) => Pending(State::Running(receiver)),
                    Err(_) => Pending::done(Err(Error::Stopped)),
                }
            }
        }
    }

    /// Tells all ranks that this one has failed; with MPI, ends all processes.
    pub(crate) fn fail(&self, cause: &str) {
        // The alarm ends what the thread may be waiting in; then the engine speaks for itself.
        (self.alarm)(cause);
        let cause = cause.to_owned();
        let told = self.run(move |groups| {
            groups.list[0].engine.fail(&cause);
            Ok(())
        });
        if let State::Running(receiver) = told.0
            && matches!(receiver.recv_timeout(FAIL_TIMEOUT), Err(RecvTimeoutError::Timeout))
        {
            self.stuck.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic { gathered: read(&self.counters.gathered), reduced: read(&self.counters.reduced) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Place::Thread { jobs, thread } = &mut self.place {
            drop(jobs.take());
            let thread = thread.take().expect("there until drop");
            // Engines say goodbye when the thread ends, which must not be cut short by the end of the process.
            if !self.stuck.load(Ordering::Relaxed) && thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// The words of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}
