//! What a backend does and when: ops with their time, work and memory, and named spans of code around them.
//!
//! [`RecordingBackend`] is a backend around another one that tells a [`Recorder`] about every op. Code that holds a backend puts
//! spans around what it does ([`span`](crate::Backend#method.span)); on a backend that nobody records they cost nothing. A recorder
//! keeps events between [`Recorder::start`] and [`Recorder::stop`] only.
//!
//! ```text
//! RecordingBackend::matmul_nt -> begin: shapes, work, clock -> inner.matmul_nt -> end: clock, Event -> Recorder
//! backend.span(|| "forward")  -> Span, an Event when it is dropped                                 -> Recorder
//! Recorder::stop              -> Window: events of all threads, in the order in which they ended
//! ```
//!
//! Numbers: times are nanoseconds since the first event of the process, on a monotonic clock that all threads share.
//! Checked: the unit tests here; `cpu/tests/profile.rs`, and `cli/tests/profiling.rs` for whole runs with and without.

mod backend;
pub mod flops;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

pub use backend::RecordingBackend;

use crate::{DType, MemoryStats, Shape, Tensor};

/// What is recorded besides times and work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordOptions {
    /// Shapes of operands.
    pub shapes: bool,
    /// Memory in use after each op and each allocation.
    pub memory: bool,
}

/// What an op was given and what it had to do.
#[derive(Debug, Clone, PartialEq)]
pub struct OpWork {
    /// Shapes of its main operands, if shapes are recorded.
    pub shapes: Vec<Shape>,
    /// Element type of the first of them.
    pub dtype: DType,
    /// Multiplications and additions of the matrix products that it is made of; 0 for other ops.
    pub flops: f64,
    /// Bytes of the operands that it reads and of those that it writes; both for one that it works on in place.
    pub bytes: u64,
    /// Bytes of the buffers that it was the first to write to, and of what it worked in besides.
    pub allocated_bytes: u64,
}

/// An op or a span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The op's name in `Backend`, or what the code calls the span.
    pub name: Cow<'static, str>,
    /// The thread, an index into [`Window::threads`].
    pub thread: usize,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What it did; `None` for a span.
    pub op: Option<OpWork>,
}

impl Event {
    /// How long it took.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// Memory in use at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySample {
    /// When.
    pub at_ns: u64,
    /// How much.
    pub stats: MemoryStats,
}

/// Everything between a start and a stop.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// When recording started.
    pub start_ns: u64,
    /// When it stopped.
    pub end_ns: u64,
    /// Events that began and ended in between, in the order in which they ended.
    pub events: Vec<Event>,
    /// Names of the threads that events happened on; the first is the one that started the recording.
    pub threads: Vec<String>,
    /// Memory over time, if it is recorded.
    pub memory: Vec<MemorySample>,
}

impl Window {
    /// How long it was.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }
}

/// Collects events of a backend; one a rank, shared by its threads.
#[derive(Debug)]
pub struct Recorder {
    options: RecordOptions,
    is_active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    start_ns: u64,
    events: Vec<Event>,
    threads: Vec<(ThreadId, String)>,
    memory: Vec<MemorySample>,
    /// Buffers that nothing was written to since they were allocated: their bytes by their address.
    unwritten: HashMap<usize, u64>,
}

impl State {
    /// The index of the calling thread.
    fn thread(&mut self) -> usize {
        let current = std::thread::current();
        let known = self.threads.iter().position(|(id, _)| *id == current.id());
        known.unwrap_or_else(|| {
            let number = self.threads.len();
            let name = current.name().map_or_else(|| format!("thread {number}"), str::to_owned);
            self.threads.push((current.id(), name));
            number
        })
    }
}

impl Recorder {
    /// A recorder that is not recording yet.
    pub fn new(options: RecordOptions) -> Arc<Self> {
        Arc::new(Self { options, is_active: AtomicBool::new(false), state: Mutex::default() })
    }

    /// What is recorded.
    pub fn options(&self) -> RecordOptions {
        self.options
    }

    /// Whether events are kept at this moment.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Starts anew, without the events so far.
    pub fn start(&self) {
        let mut state = self.state();
        *state = State { start_ns: now_ns(), ..State::default() };
        state.thread();
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Stops, and gives what was recorded since the start.
    pub fn stop(&self) -> Window {
        self.is_active.store(false, Ordering::Relaxed);
        let state = std::mem::take(&mut *self.state());
        Window {
            start_ns: state.start_ns,
            end_ns: now_ns(),
            events: state.events,
            threads: state.threads.into_iter().map(|(_, name)| name).collect(),
            memory: state.memory,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an event, unless it began before the start or ends after the stop.
    fn push(&self, name: Cow<'static, str>, start_ns: u64, end_ns: u64, op: Option<OpWork>) {
        let mut state = self.state();
        if self.is_active() && start_ns >= state.start_ns {
            let thread = state.thread();
            state.events.push(Event { name, thread, start_ns, end_ns, op });
        }
    }

    fn push_memory(&self, stats: MemoryStats) {
        let sample = MemorySample { at_ns: now_ns(), stats };
        self.state().memory.push(sample);
    }

    /// Remembers a buffer that nothing was written to.
    fn allocated(&self, tensor: &Tensor) {
        self.state().unwritten.insert(address(tensor), tensor.buffer().len_bytes() as u64);
    }

    /// Bytes of the buffers of `outputs` that nothing was written to before.
    fn first_written(&self, outputs: &[&Tensor]) -> u64 {
        let mut state = self.state();
        outputs.iter().filter_map(|tensor| state.unwritten.remove(&address(tensor))).sum()
    }
}

/// Tells buffers apart while they live.
fn address(tensor: &Tensor) -> usize {
    std::ptr::from_ref(tensor.buffer()).cast::<()>().addr()
}

/// Nanoseconds since the first call in this process.
pub fn now_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A stretch of code; its event is kept when this is dropped.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<Open>);

#[derive(Debug)]
struct Open {
    recorder: Arc<Recorder>,
    name: Cow<'static, str>,
    start_ns: u64,
}

impl Span {
    /// Begins a span, if there is a recorder and it records.
    pub fn begin<N: Into<Cow<'static, str>>>(recorder: Option<&Arc<Recorder>>, name: impl FnOnce() -> N) -> Self {
        let recorder = recorder.filter(|recorder| recorder.is_active());
        Self(recorder.map(|r| Open { recorder: Arc::clone(r), name: name().into(), start_ns: now_ns() }))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(Open { recorder, name, start_ns }) = self.0.take() {
            recorder.push(name, start_ns, now_ns(), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(window: &Window) -> Vec<&str> {
        window.events.iter().map(|event| &*event.name).collect()
    }

    #[test]
    fn spans_are_kept_between_start_and_stop_only() {
        let recorder = Recorder::new(RecordOptions::default());
        let span = |name: &'static str| Span::begin(Some(&recorder), || name);
        drop(span("before"));
        let across = span("across the start");
        recorder.start();
        drop(across);
        let outer = span("outer");
        drop(span("inner"));
        drop(outer);
        let open = span("across the stop");
        let window = recorder.stop();
        drop(open);
        assert_eq!(names(&window), ["inner", "outer"]);
        assert_eq!(names(&recorder.stop()), [""; 0]);
    }

    #[test]
    fn a_start_forgets_what_was_recorded_and_what_is_open() {
        let recorder = Recorder::new(RecordOptions::default());
        recorder.start();
        drop(Span::begin(Some(&recorder), || "first"));
        let open = Span::begin(Some(&recorder), || "open");
        std::thread::sleep(std::time::Duration::from_millis(1));
        recorder.start();
        drop(open);
        drop(Span::begin(Some(&recorder), || "second"));
        assert_eq!(names(&recorder.stop()), ["second"]);
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        let recorder = Recorder::new(RecordOptions::default());
        recorder.start();
        drop(Span::begin(Some(&recorder), || "here"));
        let other = Arc::clone(&recorder);
        let work = move || drop(Span::begin(Some(&other), || "there"));
        std::thread::Builder::new().name("other".to_owned()).spawn(work).unwrap().join().unwrap();
        let window = recorder.stop();
        assert_eq!(window.threads.len(), 2);
        assert_eq!(window.threads[1], "other");
        let places: Vec<(&str, usize)> = window.events.iter().map(|event| (&*event.name, event.thread)).collect();
        assert_eq!(places, [("here", 0), ("there", 1)]);
    }

    #[test]
    fn events_lie_inside_of_the_window() {
        let recorder = Recorder::new(RecordOptions::default());
        recorder.start();
        let outer = Span::begin(Some(&recorder), || "outer");
        drop(Span::begin(Some(&recorder), || format!("inner {}", 1)));
        drop(outer);
        let window = recorder.stop();
        let [inner, outer] = &window.events[..] else { panic!("{window:?}") };
        let times = [window.start_ns, outer.start_ns, inner.start_ns, inner.end_ns, outer.end_ns, window.end_ns];
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(outer.duration_ns(), outer.end_ns - outer.start_ns);
    }
}
