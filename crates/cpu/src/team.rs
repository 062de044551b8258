//! A team of threads that run one piece of work together.
//!
//! The thread that calls [`Team::run`] is worker 0; the others belong to the team, wait for work (spinning for a moment, then
//! parked), and end when the team is dropped. Between runs of a training step no thread starts, parks or wakes. Nothing is
//! shared with other teams: there is no global pool.
//!
//! Panics:  a panic of any worker reaches the caller of `run`, after all workers have finished.
#![expect(unsafe_code, reason = "workers borrow the caller's closure, which outlives the run")]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

use crate::{Error, os};

/// How often a waiting thread looks before it parks: some tens of microseconds, longer than the pauses between ops.
const SPINS: usize = 2000;

thread_local! {
    /// Whether this thread is inside of a run.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// One run: what to do and who waits for it.
#[derive(Clone)]
struct Job {
    /// Borrowed from the caller of `run`, who does not return before all workers are done with it.
    work: *const (dyn Fn(usize) + Sync),
    caller: Thread,
}

struct Shared {
    /// Counts runs; a change tells the workers that `job` holds another one.
    epoch: AtomicUsize,
    /// Written by the caller while `remaining` is 0, read by workers after the epoch changed.
    job: UnsafeCell<Option<Job>>,
    /// Workers that have not finished the current run.
    remaining: AtomicUsize,
    /// The first panic of the current run.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: the job is written only while no worker reads it and published by the epoch (release, acquire); the closure that it
// points to is `Sync`. All other fields are thread-safe themselves.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in the job is never followed outside of a run.
unsafe impl Send for Shared {}

/// Threads that run one piece of work together.
pub(crate) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held during a run: callers on several threads take turns.
    turn: Mutex<()>,
}

impl Team {
    /// A team of `num_threads`, the caller counted. `Error::Thread` if the system gives no more threads.
    ///
    /// Where there are cores enough, its threads keep to those from number `first_core` of the allowed ones on; the first of
    /// these is left to the caller.
    pub(crate) fn new(num_threads: usize, first_core: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            remaining: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let mut team = Self { shared, helpers: Vec::new(), turn: Mutex::new(()) };
        let cores = os::allowed_cores();
        for index in 1..num_threads {
            let shared = Arc::clone(&team.shared);
            let core = (first_core + num_threads <= cores.len()).then(|| cores[first_core + index]);
            let helper = std::thread::Builder::new().name(format!("cpu-{index}")).spawn(move || {
                if let Some(core) = core {
                    os::pin_to_core(core);
                }
                shared.help(index);
            });
            team.helpers.push(helper.map_err(|source| Error::Thread { index, num_threads, source })?);
        }
        Ok(team)
    }

    /// Threads of the team, the caller counted.
    pub(crate) fn num_threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work(worker)` once for every worker, 0 to [`Team::num_threads`] - 1, at the same time; returns when all are done.
    /// Panics: with a worker's panic; if called from inside of a run.
    pub(crate) fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        assert!(!RUNNING.get(), "a team was asked to run from inside of a run");
        if self.helpers.is_empty() {
            let _running = Running::start();
            work(0);
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime changes. Workers use the reference before they count themselves finished, and this
        // function returns or unwinds after `wait` has seen all of them finished.
        let lasting = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        let job = Job { work: lasting, caller: std::thread::current() };
        // SAFETY: `remaining` is 0 (the previous run was waited for) and we hold the turn, so nobody else looks at the job.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.remaining.store(self.helpers.len(), Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::Release);
        for helper in &self.helpers {
            helper.thread().unpark();
        }
        let own = {
            let _running = Running::start();
            catch_unwind(AssertUnwindSafe(|| work(0)))
        };
        self.shared.wait();
        let of_helper = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if let Some(panic) = of_helper {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::Release);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // Panics of work are caught inside of the thread, so joining cannot fail.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// The life of worker `index`.
    fn help(&self, index: usize) {
        let _running = Running::start();
        let mut seen = 0;
        loop {
            wait_until(|| self.epoch.load(Ordering::Acquire) != seen);
            seen = seen.wrapping_add(1);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the epoch was read with acquire after the caller wrote the job, and the caller writes it again only
            // after this worker has counted itself finished.
            let job = unsafe { (*self.job.get()).clone() }.expect("a run begins with a job");
            // SAFETY: the caller of `run` keeps the closure alive until this worker has counted itself finished.
            let work = unsafe { &*job.work };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(index))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            if self.remaining.fetch_sub(1, Ordering::Release) == 1 {
                job.caller.unpark();
            }
        }
    }

    /// Returns when all workers have finished the current run.
    fn wait(&self) {
        wait_until(|| self.remaining.load(Ordering::Acquire) == 0);
    }
}

/// Spins for a moment, then parks until `done`; whoever makes it true unparks this thread.
fn wait_until(done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    while !done() {
        std::thread::park();
    }
}

/// Marks this thread as inside of a run, until drop.
struct Running;

impl Running {
    fn start() -> Self {
        RUNNING.set(true);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const SIZES: [usize; 4] = [1, 2, 3, 5];

    #[test]
    fn every_worker_runs_once_in_every_run() {
        for num_threads in SIZES {
            let team = Team::new(num_threads, 0).unwrap();
            assert_eq!(team.num_threads(), num_threads);
            let counts: Vec<AtomicU64> = (0..num_threads).map(|_| AtomicU64::new(0)).collect();
            let num_runs = if cfg!(miri) { 5 } else { 3000 };
            for run in 0..num_runs {
                team.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == run + 1));
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let team = Team::new(3, 0).unwrap();
        let sum = AtomicU64::new(0);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            team.run(&|worker| {
                sum.fetch_add(worker as u64, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 15);
    }

    #[test]
    fn panics_of_any_worker_reach_the_caller_and_the_team_goes_on() {
        let team = Team::new(3, 0).unwrap();
        for panicking in 0..3 {
            let finished = AtomicU64::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|worker| {
                    assert!(worker != panicking, "worker {worker} fails");
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let panic = result.expect_err("the panic is passed on");
            assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("worker {panicking} fails"));
            assert_eq!(finished.into_inner(), 2, "the others finish first");
        }
        let sum = AtomicU64::new(0);
        team.run(&|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 3);
    }

    #[test]
    fn a_run_inside_of_a_run_is_refused() {
        for num_threads in SIZES {
            let team = Team::new(num_threads, 0).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| team.run(&|_| team.run(&|_| {}))));
            let panic = result.expect_err("nested runs panic");
            assert_eq!(panic.downcast_ref::<&str>().unwrap(), &"a team was asked to run from inside of a run");
            team.run(&|_| {});
        }
    }

    #[test]
    fn several_threads_take_turns() {
        let team = Team::new(2, 0).unwrap();
        let sum = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        team.run(&|_| {
                            sum.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 50 * 2);
    }
}
