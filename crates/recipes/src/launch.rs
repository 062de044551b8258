//! What the program gives a recipe: ranks to run on, and a way to open the device of each.

use std::sync::Arc;

use dist::Communicator;
use tensor::Backend;

use crate::Result;

/// One of several ranks that share a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which of them, from 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

impl Share {
    /// The whole machine.
    pub const ALL: Self = Self { index: 0, of: 1 };
}

/// Opens the backend for a `device` key (`auto` when the config has none) on a share of the machine; given by the program,
/// which knows what it was built with.
pub type OpenBackend<'a> = dyn Fn(&str, Share) -> Result<Arc<dyn Backend>> + Sync + 'a;

/// Where ranks run.
#[derive(Debug, Clone)]
pub enum Ranks {
    /// As so many threads of this process.
    Threads(usize),
    /// As one process each, of which this is one.
    Processes {
        /// All of them.
        world: Communicator,
        /// This one among those on its machine.
        local: Share,
    },
}

impl Ranks {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Threads(count) => *count,
            Self::Processes { world, .. } => world.world_size(),
        }
    }

    /// The share of the machine that this process's first rank has.
    pub(crate) fn first_share(&self) -> Share {
        match self {
            Self::Threads(count) => Share { index: 0, of: *count },
            Self::Processes { local, .. } => *local,
        }
    }
}

/// How a recipe is started.
pub struct Launch<'a> {
    /// Opens devices.
    pub open_backend: &'a OpenBackend<'a>,
    /// The ranks.
    pub ranks: Ranks,
}

impl Launch<'_> {
    /// The backend for a `device` key.
    pub(crate) fn open(&self, device: Option<&str>, share: Share) -> Result<Arc<dyn Backend>> {
        (self.open_backend)(device.unwrap_or("auto"), share)
    }
}

impl std::fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch").field("ranks", &self.ranks).finish_non_exhaustive()
    }
}
