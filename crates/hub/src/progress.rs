//! Who is told how a download goes.

use std::sync::{Arc, OnceLock};

/// Follows downloads. All functions may be called from any thread.
pub trait Progress: Send + Sync {
    /// A file begins; `done` of its `total` bytes are here already.
    fn begin(&self, path: &str, total: Option<u64>, done: u64);
    /// So many bytes of the current file are here.
    fn reached(&self, bytes: u64);
    /// The current file is complete; `fetched` is false if it was so before.
    fn end(&self, fetched: bool);
    /// The current file is given up.
    fn abandon(&self);
    /// Something worth a line happened.
    fn notice(&self, text: &str);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>, _: u64) {}
    fn reached(&self, _: u64) {}
    fn end(&self, _: bool) {}
    fn abandon(&self) {}
    fn notice(&self, _: &str) {}
}

static INSTALLED: OnceLock<Arc<dyn Progress>> = OnceLock::new();

/// Sets who is told of the downloads of every [`crate::Hub`] made from now on, as a program's log is set. Only the first
/// call counts.
pub fn install_progress(progress: Arc<dyn Progress>) {
    let _ = INSTALLED.set(progress);
}

pub(crate) fn installed() -> Arc<dyn Progress> {
    INSTALLED.get().cloned().unwrap_or_else(|| Arc::new(Silent))
}
