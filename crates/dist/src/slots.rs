//! One slot a rank, filled by its rank and read by all, round after round: what thread ranks meet at.
//!
//! ```text
//! round r:   each rank fills its slot  ->  all have  ->  each rank reads all slots  ->  all have  ->  round r + 1
//! ```
//! A rank goes on as soon as it has read; it waits for the readers of its slot only when it wants to fill it again.
//! A lost rank (failed or ended) ends every wait that needs it; what all ranks have given is still read by all, so that
//! ranks who find something wrong in a round find it all alike.
//!
//! Waits sleep; nothing spins, for there may be more ranks than cores.
//!
//! Checked: tests/model.rs runs this file under every order of threads (which is why it knows nothing of the crate but the
//!          synchronisation types).

use std::sync::PoisonError;

use super::sync::{Condvar, Mutex, MutexGuard, RwLock};

/// A rank that takes part no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The rank, as its users count.
    pub(crate) rank: usize,
    /// Why it failed; `None` = it has ended.
    pub(crate) cause: Option<String>,
}

/// What a rank does with the bytes of each rank.
pub(crate) type Each<'a, E> = dyn FnMut(usize, &[u8]) -> Result<(), E> + 'a;

/// The meeting point of a group of ranks.
pub(crate) struct Slots {
    /// What each rank gave last.
    given: Vec<RwLock<Vec<u8>>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    round: u64,
    num_filled: usize,
    num_read: usize,
    /// The first rank that was lost.
    lost: Option<Lost>,
}

impl Slots {
    pub(crate) fn new(num_ranks: usize) -> Self {
        Self {
            given: (0..num_ranks).map(|_| RwLock::new(Vec::new())).collect(),
            state: Mutex::new(State { round: 0, num_filled: 0, num_read: 0, lost: None }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn num_ranks(&self) -> usize {
        self.given.len()
    }

    /// Gives `mine` and reads what every rank gave, in rank order. Blocks until all ranks of the group are in their call of
    /// the same `round`; a rank's first call is round 0, its next 1. Fails if a rank is lost before all have given theirs.
    pub(crate) fn exchange<E: From<Lost>>(
        &self,
        rank: usize,
        round: u64,
        mine: &[u8],
        each: &mut Each<'_, E>,
    ) -> Result<(), E> {
        drop(self.wait(self.lock(), |state| state.round == round)?);
        {
            let mut slot = self.given[rank].try_write().expect("nobody reads a slot between two rounds");
            slot.clear();
            slot.extend_from_slice(mine);
        }
        let all = self.num_ranks();
        let mut state = self.lock();
        state.num_filled += 1;
        if state.num_filled == all {
            self.changed.notify_all();
        }
        // The round cannot end before this rank has read.
        drop(self.wait(state, |state| state.num_filled == all)?);
        let result = self.given.iter().enumerate().try_for_each(|(rank, slot)| {
            each(rank, &slot.try_read().expect("nobody fills a slot while a rank has yet to read"))
        });
        // Also after an error of `each`: it concerns this rank only.
        let mut state = self.lock();
        state.num_read += 1;
        if state.num_read == all {
            (state.num_filled, state.num_read) = (0, 0);
            state.round += 1;
            self.changed.notify_all();
        }
        result
    }

    /// From here on no rank waits for this one. The first loss counts.
    pub(crate) fn lose(&self, lost: Lost) {
        self.lock().lost.get_or_insert(lost);
        self.changed.notify_all();
    }

    /// Sleeps until `reached`, which is looked at before losses are.
    fn wait<'a, E: From<Lost>>(
        &self,
        mut state: MutexGuard<'a, State>,
        reached: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, E> {
        while !reached(&state) {
            if let Some(lost) = &state.lost {
                return Err(lost.clone().into());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
