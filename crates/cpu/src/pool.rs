//! A caching pool of memory regions: what tensors give back is kept for the next tensors.
//!
//! Sizes are rounded up to eighths of powers of two, so that tensors of similar sizes share regions and a region wastes at
//! most an eighth. What is live and what is kept for reuse together never exceed the most that was ever live at once by more than an
//! eighth and [`SLACK_BYTES`]: like steps find everything again, and rows of ever new lengths do not pile up. Beyond that the
//! regions given back longest ago return to the system before a new one is made.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensor::MemoryStats;

use crate::region::Region;

/// The smallest region.
const MIN_BYTES: usize = 64;

/// What is kept beside an eighth of the live peak: for small models an eighth is less than what is used by turns.
const SLACK_BYTES: usize = 16 << 20;

/// The size of the region that `len_bytes` are put into; `None` if there is no such size.
fn size_class(len_bytes: usize) -> Option<usize> {
    let len_bytes = len_bytes.max(MIN_BYTES);
    let power = len_bytes.checked_next_power_of_two()?;
    // For 2^(p-1) < len <= 2^p the steps are 2^(p-1) / 8.
    Some(len_bytes.next_multiple_of(power / 16))
}

/// A region kept for reuse, and when it was given back.
struct Free {
    region: Region,
    since: u64,
}

#[derive(Default)]
struct State {
    free: BTreeMap<usize, Vec<Free>>,
    stats: MemoryStats,
    clock: u64,
    /// Regions are counted and hold nothing.
    is_planned: bool,
}

impl State {
    /// A kept region of `class`. Never a larger one, which a tensor of its own size would then miss: that way the second of
    /// two like steps finds everything.
    fn take(&mut self, class: usize) -> Option<Region> {
        let list = self.free.get_mut(&class)?;
        let region = list.pop().expect("a list without regions is removed").region;
        if list.is_empty() {
            self.free.remove(&class);
        }
        self.stats.cached_bytes -= class;
        Some(region)
    }

    fn count_live(&mut self, len_bytes: usize) {
        self.stats.taken_bytes += len_bytes as u64;
        self.stats.live_bytes += len_bytes;
        self.stats.peak_live_bytes = self.stats.peak_live_bytes.max(self.stats.live_bytes);
        self.stats.peak_held_bytes = self.stats.peak_held_bytes.max(self.stats.live_bytes + self.stats.cached_bytes);
    }

    /// Removes regions so that one more of `class` can be made.
    fn make_room(&mut self, class: usize) -> Vec<Region> {
        let live = self.stats.live_bytes + class;
        let peak = self.stats.peak_live_bytes.max(live);
        let most = peak + peak / 8 + SLACK_BYTES;
        let mut evicted = Vec::new();
        while live + self.stats.cached_bytes > most {
            let Some(region) = self.evict() else { break };
            evicted.push(region);
        }
        evicted
    }

    /// Removes the region that was given back longest ago.
    fn evict(&mut self) -> Option<Region> {
        // In each list the oldest comes first.
        let (&class, _) = self.free.iter().min_by_key(|(_, list)| list[0].since)?;
        let list = self.free.get_mut(&class)?;
        let oldest = list.remove(0);
        if list.is_empty() {
            self.free.remove(&class);
        }
        self.stats.cached_bytes -= class;
        Some(oldest.region)
    }
}

/// A shared pool of regions.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<State>>);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.stats()).finish()
    }
}

impl Pool {
    /// A pool that counts as any other does, of regions that hold nothing.
    pub(crate) fn planned() -> Self {
        Self(Arc::new(Mutex::new(State { is_planned: true, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that runs under the lock can leave the state half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A region of at least `len_bytes`, with any contents; `None` if the system has no memory left.
    pub(crate) fn take(&self, len_bytes: usize) -> Option<Region> {
        let class = size_class(len_bytes)?;
        let (kept, is_planned, evicted) = {
            let mut state = self.state();
            let kept = state.take(class);
            let evicted = if kept.is_none() { state.make_room(class) } else { Vec::new() };
            (kept, state.is_planned, evicted)
        };
        // Returning memory to the system is slow; others need not wait for it.
        drop(evicted);
        let region = match kept {
            None if is_planned => Region::planned(class),
            Some(mut region) => {
                poison(&mut region);
                region
            }
            None => match Region::new(class) {
                Some(region) => region,
                None => {
                    self.trim();
                    Region::new(class)?
                }
            },
        };
        self.state().count_live(region.len_bytes());
        Some(region)
    }

    /// A region of `len_bytes` zeros in a file in `dir`; it goes back by [`Pool::drop_in_file`].
    pub(crate) fn take_in_file(&self, len_bytes: usize, dir: &Path) -> io::Result<Region> {
        let is_planned = self.state().is_planned;
        let len_bytes = len_bytes.max(MIN_BYTES);
        let region = if is_planned { Region::planned(len_bytes) } else { Region::in_file(dir, len_bytes)? };
        let stats = &mut self.state().stats;
        stats.file_bytes += len_bytes;
        stats.peak_file_bytes = stats.peak_file_bytes.max(stats.file_bytes);
        Ok(region)
    }

    /// Ends a region in a file: its size may never be asked for again, so it is not kept.
    pub(crate) fn drop_in_file(&self, region: Region) {
        self.state().stats.file_bytes -= region.len_bytes();
        drop(region);
    }

    /// Takes a region back.
    pub(crate) fn give_back(&self, region: Region) {
        let mut state = self.state();
        let len_bytes = region.len_bytes();
        let since = state.clock;
        state.clock += 1;
        state.stats.live_bytes -= len_bytes;
        state.stats.cached_bytes += len_bytes;
        state.free.entry(len_bytes).or_default().push(Free { region, since });
    }

    /// Gives everything that is kept for reuse back to the system.
    pub(crate) fn trim(&self) {
        let mut state = self.state();
        let kept = std::mem::take(&mut state.free);
        state.stats.cached_bytes = 0;
        drop(state);
        drop(kept);
    }

    /// Bytes in use and kept, in whole regions.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.state().stats
    }
}

/// In debug builds, makes reused memory NaN, so that reading what was never written shows.
fn poison(region: &mut Region) {
    if cfg!(debug_assertions) && !region.is_planned() {
        region.bytes_mut().fill(0xff);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn live_and_cached(pool: &Pool) -> (usize, usize) {
        let stats = pool.stats();
        assert_eq!((stats.peak_live_bytes, stats.peak_held_bytes), (1024, 1024));
        (stats.live_bytes, stats.cached_bytes)
    }

    fn address(region: &Region) -> usize {
        region.start().as_ptr() as usize
    }

    #[test]
    fn sizes_are_eighths_of_powers_of_two() {
        for (len_bytes, class) in [(0, 64), (1, 64), (64, 64), (65, 72), (1000, 1024), (1025, 1152), (1153, 1280)] {
            assert_eq!(size_class(len_bytes), Some(class), "{len_bytes}");
        }
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    fn a_region_given_back_is_used_again() {
        let pool = Pool::default();
        let first = pool.take(1000).unwrap();
        let at = address(&first);
        pool.give_back(first);
        assert_eq!(live_and_cached(&pool), (0, 1024));
        let again = pool.take(980).unwrap();
        assert_eq!(address(&again), at);
        assert_eq!(live_and_cached(&pool), (1024, 0));
        pool.give_back(again);
        pool.trim();
        assert_eq!(live_and_cached(&pool), (0, 0));
    }

    #[test]
    fn larger_regions_are_not_spent_on_smaller_tensors() {
        let pool = Pool::default();
        let large = pool.take(1000).unwrap();
        pool.give_back(large);
        let small = pool.take(900).unwrap();
        assert_eq!(small.len_bytes(), 960);
        pool.give_back(small);
    }

    #[test]
    fn regions_given_back_longest_ago_leave_first() {
        const MIB: usize = 1 << 20;
        let pool = Pool::planned();
        for mib in [8, 32, 64] {
            let region = pool.take(mib * MIB).unwrap();
            pool.give_back(region);
        }
        // 8 + 32 + 64 are more than 64 with an eighth and the slack; without the first one they would still be.
        assert_eq!(pool.stats().cached_bytes, 64 * MIB);
        assert_eq!(pool.take(64 * MIB).unwrap().len_bytes(), 64 * MIB);
        assert_eq!(pool.stats().cached_bytes, 0);
    }

    #[test]
    fn ever_new_sizes_do_not_pile_up() {
        let pool = Pool::planned();
        let mut sizes = (1usize..).map(|step| (1 << 28) + (step * 37 % 64) * (1 << 22));
        for _ in 0..50 {
            let tensors: Vec<Region> = sizes.by_ref().take(8).map(|size| pool.take(size).unwrap()).collect();
            tensors.into_iter().for_each(|region| pool.give_back(region));
        }
        let stats = pool.stats();
        assert!(stats.peak_held_bytes <= stats.peak_live_bytes / 8 * 9 + SLACK_BYTES, "{stats:?}");
    }

    proptest! {
        #[test]
        fn classes_fit_and_waste_at_most_an_eighth(len_bytes in 64usize..1 << 40) {
            let class = size_class(len_bytes).unwrap();
            prop_assert!(class >= len_bytes);
            prop_assert!(class - len_bytes <= len_bytes / 8);
            prop_assert_eq!(size_class(class), Some(class));
        }

        #[test]
        fn memory_stays_within_an_eighth_of_the_live_peak(
            steps in prop::collection::vec((1usize..1 << 30, any::<bool>()), 1..200),
        ) {
            let pool = Pool::planned();
            let (mut held, mut live, mut peak) = (Vec::new(), 0, 0);
            for (len_bytes, give_back) in steps {
                if give_back && !held.is_empty() {
                    let region: Region = held.remove(len_bytes % held.len());
                    live -= region.len_bytes();
                    pool.give_back(region);
                } else {
                    let region = pool.take(len_bytes).unwrap();
                    prop_assert!(region.len_bytes() >= len_bytes);
                    live += region.len_bytes();
                    held.push(region);
                }
                peak = peak.max(live);
                let stats = pool.stats();
                prop_assert_eq!((stats.live_bytes, stats.peak_live_bytes), (live, peak));
                prop_assert!(stats.live_bytes + stats.cached_bytes <= peak + peak / 8 + SLACK_BYTES);
            }
            for region in held {
                pool.give_back(region);
            }
            prop_assert_eq!(pool.stats().live_bytes, 0);
        }
    }
}
