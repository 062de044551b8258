//! The contract between communicators and engines: a group of ranks that can give bytes to one another.
//!
//! An engine moves bytes and nothing else. Sums, dtypes, chunks and the comparison of what ranks are about to do stand above
//! it in [`crate::Communicator`], so that all engines give the same bits.

use std::sync::Arc;

use crate::Result;

/// Ends the waits of all ranks from any thread, with the cause; the first cause counts.
pub type Alarm = Arc<dyn Fn(&str) + Send + Sync>;

/// An engine: moves bytes between the ranks of one group. Blocking; only the rank's communication thread calls it, after
/// it has made it or been given it, and drops it.
///
/// A rank that drops its engine while others still wait for it ends their waits with `Error::RankEnded`.
pub trait Collective: Send {
    /// This rank's place in the group.
    fn rank(&self) -> usize;
    /// How many ranks the group has.
    fn world_size(&self) -> usize;
    /// Every rank gives `mine` (lengths may differ between ranks); `each(rank, bytes)` is called once for each rank, in
    /// rank order. All ranks' bytes together are below 2 GiB.
    fn all_gather(&mut self, mine: &[u8], each: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()>;
    /// Every rank gives one piece per rank, side by side in `mine` with `piece_len` bytes each; `each(rank, piece)` gets
    /// what each rank gave for this one, in rank order. `piece_len` is the same on all ranks.
    fn all_to_all(
        &mut self,
        mine: &[u8],
        piece_len: usize,
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()>;
    /// A group of the ranks that give the same `color`, ordered by rank. Collective over all.
    fn split(&mut self, color: usize) -> Result<Box<dyn Collective>>;
    /// Tells all others that this rank has failed, and why: their waits end with `Error::RankFailed`.
    fn fail(&self, cause: &str);
    /// What does the same as [`Collective::fail`] from other threads, while this one waits.
    fn alarm(&self) -> Alarm;
}

/// The group of one rank.
pub(crate) struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_gather(&mut self, mine: &[u8], each: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        each(0, mine)
    }

    fn all_to_all(
        &mut self,
        mine: &[u8],
        _piece_len: usize,
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        each(0, mine)
    }

    fn split(&mut self, _color: usize) -> Result<Box<dyn Collective>> {
        Ok(Box::new(Self))
    }

    fn fail(&self, _cause: &str) {}

    fn alarm(&self) -> Alarm {
        Arc::new(|_| {})
    }
}
