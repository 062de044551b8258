//! Clocks of benchmarks: wall time, and the time in which the calling thread had a core.

use std::time::{Duration, Instant};

/// A clock for durations.
#[derive(Clone, Copy)]
pub(crate) enum Clock {
    /// Time as it passes.
    Wall(Instant),
    /// The time for which this thread has had a core.
    Thread,
}

impl Clock {
    /// Wall time.
    pub(crate) fn wall() -> Self {
        Self::Wall(Instant::now())
    }

    /// A time to subtract from a later one.
    pub(crate) fn now(self) -> Duration {
        match self {
            Self::Wall(start) => start.elapsed(),
            Self::Thread => thread_time(),
        }
    }
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "the standard library has no such clock")]
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(not(unix))]
fn thread_time() -> Duration {
    panic!("clock=cpu is there on Unix only")
}
