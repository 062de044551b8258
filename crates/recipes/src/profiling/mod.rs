//! Profiling a run: which steps are recorded, and what is written about them.
//!
//! For a recipe that has a `profiler` section:
//! ```text
//! let mut profiling = Profiling::new(section, output_dir, rank, steps_of_this_run, console);
//! let backend = profiling.backend(backend);     // the same one, unless the run is profiled
//! for each step {
//!     profiling.begin_step(step);               // before its data is asked for
//!     ...                                       // spans and ops of `backend` are recorded if the step is active
//!     profiling.end_step();                     // a window that ends here, or with the run, is written
//! }
//! ```
//! Every rank records itself and writes `iteration_<last step>/rank<rank>_trace.json` (see `trace`) and
//! `rank<rank>_ops.txt` (see `table`); the first rank also shows its table on stderr.
//!
//! Errors:  a profile that cannot be written is told and costs nothing but itself: training goes on. What can be known before,
//!          [`check_dir`] finds before weights are read.
//! Checked: `tests/profiling.rs` of the program: whole runs with and without.

mod schedule;
mod section;
mod table;
mod trace;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tensor::Backend;
use tensor::profile::{RecordOptions, Recorder, RecordingBackend, Span, Window};

use crate::console::Console;
use crate::{Error, Result};

use schedule::{Phase, Schedule};
pub use section::ProfilerConfig;
pub(crate) use section::{PROFILERS, Profiler};
use table::OpTable;

/// Rows of the table on stderr; the file has all.
const SHOWN_ROWS: usize = 25;

/// One rank's profiling.
pub(crate) struct Profiling(Option<Active>);

/// Profiling that is on.
struct Active {
    recorder: Arc<Recorder>,
    schedule: Schedule,
    dir: PathBuf,
    rank: usize,
    console: Console,
    /// Steps of this run.
    num_steps: u64,
    /// How many of them are over.
    num_over: u64,
    /// Steps of the window that is being recorded.
    window: Vec<u64>,
    /// The step that is running.
    step: Option<Span>,
}

impl Profiling {
    /// Profiling as the section says, of a rank of a run that will make `num_steps` steps.
    pub(crate) fn new(
        section: Option<&Profiler>,
        output_dir: &Path,
        rank: usize,
        num_steps: u64,
        console: Console,
    ) -> Self {
        let Some(Profiler(config)) = section.filter(|section| section.0.enabled) else { return Self(None) };
        let wanted = config.schedule();
        let schedule = wanted.fitted(num_steps);
        notice_short_run(wanted, schedule, num_steps, console);
        Self(Some(Active {
            recorder: Recorder::new(RecordOptions { shapes: config.record_shapes, memory: config.profile_memory }),
            schedule,
            dir: config.dir(output_dir),
            rank,
            console,
            num_steps,
            num_over: 0,
            window: Vec::new(),
            step: None,
        }))
    }

    /// The backend to run on: a recorded one if the run is profiled.
    pub(crate) fn backend(&self, backend: &Arc<dyn Backend>) -> Arc<dyn Backend> {
        match &self.0 {
            None => Arc::clone(backend),
            Some(active) => Arc::new(RecordingBackend::new(Arc::clone(backend), Arc::clone(&active.recorder))),
        }
    }

    /// Begins a step, of which its data is a part; `step` is its number in messages, from 1.
    pub(crate) fn begin_step(&mut self, step: u64) {
        let Some(active) = &mut self.0 else { return };
        match active.schedule.phase(active.num_over) {
            Phase::Wait => {}
            Phase::Warmup if active.recorder.is_active() => {}
            Phase::Warmup => active.recorder.start(),
            Phase::Active { first, .. } => {
                if first {
                    active.recorder.start();
                }
                active.window.push(step);
            }
        }
        active.step = Some(Span::begin(Some(&active.recorder), || format!("step {step}")));
    }

    /// Ends a step; true if a profile was written, which takes time of its own.
    pub(crate) fn end_step(&mut self) -> bool {
        let Some(active) = &mut self.0 else { return false };
        active.step = None;
        let phase = active.schedule.phase(active.num_over);
        active.num_over += 1;
        let is_last = matches!(phase, Phase::Active { last: true, .. }) || active.num_over == active.num_steps;
        if is_last {
            active.end_window();
        }
        is_last
    }
}

impl Active {
    /// Stops recording, and writes the window if there is one.
    fn end_window(&mut self) {
        if !self.recorder.is_active() {
            return;
        }
        let window = self.recorder.stop();
        let steps = std::mem::take(&mut self.window);
        let Some(&last) = steps.last() else { return };
        let table = OpTable::new(&window, steps.len() as u64);
        if let Err(error) = self.write(&window, &table, &steps) {
            let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            // Of every rank, because every rank writes.
            metrics::notice(&format!(
                "notice: the profile of rank {} up to step {last} is lost: {error}{hint}",
                self.rank
            ));
            return;
        }
        let dir = self.window_dir(last);
        self.console.show(&format!("Profile of {} in {}:\n{}", listed(&steps), dir.display(), table.shown(SHOWN_ROWS)));
    }

    fn window_dir(&self, last_step: u64) -> PathBuf {
        self.dir.join(format!("iteration_{last_step}"))
    }

    fn write(&self, window: &Window, table: &OpTable, steps: &[u64]) -> Result<()> {
        let dir = self.window_dir(*steps.last().expect("a window has steps"));
        std::fs::create_dir_all(&dir).map_err(|source| unwritable(&dir, source))?;
        let about = json!({"program": "ferrotune", "rank": self.rank, "steps": steps});
        let write_trace = |out: &mut dyn Write| trace::write_trace(out, window, self.rank, &about);
        write_whole(&dir.join(format!("rank{}_trace.json", self.rank)), write_trace)?;
        let write_table = |out: &mut dyn Write| write!(out, "{}", table.shown(usize::MAX));
        write_whole(&dir.join(format!("rank{}_ops.txt", self.rank)), write_table)
    }
}

/// Looks whether profiles can be written, if the run is profiled; leaves no trace of it.
pub(crate) fn check_dir(section: Option<&Profiler>, output_dir: &Path, read_only: &[&Path]) -> Result<()> {
    let Some(Profiler(config)) = section.filter(|section| section.0.enabled) else { return Ok(()) };
    let dir = config.dir(output_dir);
    checkpoint::check_output_dir(&dir, read_only, checkpoint::ExistingRun::Continue).map_err(|error| match error {
        checkpoint::Error::OutputUnwritable { source, .. } => unwritable(&dir, source),
        other => other.into(),
    })
}

fn unwritable(dir: &Path, source: io::Error) -> Error {
    Error::ProfileDir { dir: dir.to_path_buf(), source }
}

/// Writes a file under another name first: who finds it finds all of it.
fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = File::create(&partial).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()
    });
    written.and_then(|()| std::fs::rename(&partial, path)).map_err(|source| {
        let _ = std::fs::remove_file(&partial);
        Error::Write { path: path.to_path_buf(), source }
    })
}

/// Tells a run that is too short for what was asked.
fn notice_short_run(wanted: Schedule, fitted: Schedule, num_steps: u64, console: Console) {
    let steps = if num_steps == 1 { "1 step".to_owned() } else { format!("{num_steps} steps") };
    let (skipped, found) = (wanted.wait.saturating_add(wanted.warmup), fitted.first_window(num_steps));
    if wanted != fitted {
        console.notice(&format!(
            "the profiler is to begin after {skipped} steps, the run has {steps}: its last one is profiled"
        ));
    } else if found < wanted.active {
        console.notice(&format!(
            "the profiler is to record {} steps after {skipped}, the run has {steps}: it records {found}",
            wanted.active
        ));
    }
}

/// `steps 3 to 5`, or `step 3`: steps of a window follow one another.
fn listed(steps: &[u64]) -> String {
    match steps {
        [first, .., last] => format!("steps {first} to {last}"),
        [only] => format!("step {only}"),
        [] => String::new(),
    }
}
