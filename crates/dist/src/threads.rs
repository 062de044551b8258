//! Ranks as threads of one process.
//!
//! A group meets at [`Slots`]: every exchange is one round, in which a rank's bytes are copied into its slot once and read
//! there by all. A failed rank is written into the slots of all groups, so that nobody waits for it anywhere; a rank that ends
//! into those of its own groups.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::collective::{Alarm, Collective};
use crate::slots::{Lost, Slots};
use crate::worker::panic_message;
use crate::{Communicator, Error, Result};

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        match lost.cause {
            Some(cause) => Self::RankFailed { rank: lost.rank, cause },
            None => Self::RankEnded { rank: lost.rank, waiting: None },
        }
    }
}

/// What all ranks of the process share.
struct World {
    state: Mutex<WorldState>,
}

struct WorldState {
    groups: Vec<Arc<Slots>>,
    /// Groups that not all their ranks have found yet, by parent group, number of the split and color: the group, and how
    /// many ranks have found it.
    forming: BTreeMap<(usize, u64, usize), (usize, usize)>,
    /// The first rank that failed.
    failed: Option<Lost>,
}

impl World {
    fn new(num_ranks: usize) -> Arc<Self> {
        let groups = vec![Arc::new(Slots::new(num_ranks))];
        Arc::new(Self { state: Mutex::new(WorldState { groups, forming: BTreeMap::new(), failed: None }) })
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        // Nothing under this lock panics half-way, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, rank: usize, cause: &str) {
        let mut state = self.lock();
        if state.failed.is_none() {
            let lost = Lost { rank, cause: Some(cause.to_owned()) };
            for slots in &state.groups {
                slots.lose(lost.clone());
            }
            state.failed = Some(lost);
        }
    }

    /// The group of `num_ranks` ranks that a split makes: the first rank that asks makes it.
    fn group(&self, split: (usize, u64, usize), num_ranks: usize) -> (usize, Arc<Slots>) {
        let mut state = self.lock();
        let WorldState { groups, forming, failed } = &mut *state;
        let (group, num_found) = forming.entry(split).or_insert_with(|| {
            let slots = Slots::new(num_ranks);
            if let Some(lost) = failed {
                slots.lose(lost.clone());
            }
            groups.push(Arc::new(slots));
            (groups.len() - 1, 0)
        });
        *num_found += 1;
        let (group, all_found) = (*group, *num_found == num_ranks);
        if all_found {
            forming.remove(&split);
        }
        (group, Arc::clone(&groups[group]))
    }
}

/// One rank's end of a group.
struct ThreadEngine {
    world: Arc<World>,
    world_rank: usize,
    slots: Arc<Slots>,
    /// Which group of the world.
    group: usize,
    rank: usize,
    num_rounds: u64,
    num_splits: u64,
}

impl ThreadEngine {
    fn new(world: &Arc<World>, rank: usize) -> Self {
        let slots = Arc::clone(&world.lock().groups[0]);
        let world = Arc::clone(world);
        Self { world, world_rank: rank, slots, group: 0, rank, num_rounds: 0, num_splits: 0 }
    }

    fn exchange(&mut self, mine: &[u8], each: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let round = self.num_rounds;
        self.num_rounds += 1;
        self.slots.exchange(self.rank, round, mine, each)
    }
}

impl Collective for ThreadEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.slots.num_ranks()
    }

    fn all_gather(&mut self, mine: &[u8], each: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.exchange(mine, each)
    }

    fn all_to_all(
        &mut self,
        mine: &[u8],
        piece_len: usize,
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let start = self.rank * piece_len;
        self.exchange(mine, &mut |rank, theirs| each(rank, &theirs[start..start + piece_len]))
    }

    fn split(&mut self, color: usize) -> Result<Box<dyn Collective>> {
        let mut members = Vec::new();
        self.exchange(&color.to_ne_bytes(), &mut |rank, theirs| {
            if theirs == color.to_ne_bytes() {
                members.push(rank);
            }
            Ok(())
        })?;
        let split = (self.group, self.num_splits, color);
        self.num_splits += 1;
        let (group, slots) = self.world.group(split, members.len());
        let rank = members.iter().position(|&rank| rank == self.rank).expect("a rank has its own color");
        let world = Arc::clone(&self.world);
        Ok(Box::new(Self { world, world_rank: self.world_rank, slots, group, rank, num_rounds: 0, num_splits: 0 }))
    }

    fn fail(&self, cause: &str) {
        self.world.fail(self.world_rank, cause);
    }

    fn alarm(&self) -> Alarm {
        let (world, rank) = (Arc::clone(&self.world), self.world_rank);
        Arc::new(move |cause| world.fail(rank, cause))
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.slots.lose(Lost { rank: self.world_rank, cause: None });
    }
}

/// How the work of a rank went wrong.
#[derive(Debug)]
pub enum Cause<E> {
    /// It returned an error.
    Error(E),
    /// It panicked; what the panic said.
    Panic(String),
}

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panic(message) => write!(f, "panic: {message}"),
        }
    }
}

/// The failure that came first, and whose it was.
#[derive(Debug)]
pub struct Failure<E> {
    /// The rank in the world.
    pub rank: usize,
    /// How its work went wrong.
    pub cause: Cause<E>,
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} failed: {}", self.rank, self.cause)
    }
}

impl<E: fmt::Display + fmt::Debug> std::error::Error for Failure<E> {}

/// Does one rank's work. If it returns an error or panics, all ranks are told with [`Communicator::fail`] (which with MPI
/// ends all processes).
pub fn run_rank<T, E: fmt::Display>(
    communicator: &Communicator,
    work: impl FnOnce(Communicator) -> Result<T, E>,
) -> Result<T, Cause<E>> {
    let result = catch_unwind(AssertUnwindSafe(|| work(communicator.clone())));
    let cause = match result {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => Cause::Error(error),
        Err(panic) => Cause::Panic(panic_message(&*panic)),
    };
    // The alternate form shows all causes of an error that has some.
    communicator.fail(&format!("{cause:#}"));
    Err(cause)
}

/// Ranks as threads of this process: runs `work(communicator)` on `num_ranks` threads. Panics are caught. Returns all results
/// in rank order, or the failure that came first; it wakes all other ranks out of what they wait in.
///
/// With one rank there is no group: its work gets [`Communicator::alone`].
pub fn run_threads<T: Send, E: Send + fmt::Display>(
    num_ranks: usize,
    work: impl Fn(Communicator) -> Result<T, E> + Sync,
) -> Result<Vec<T>, Failure<E>> {
    let world = World::new(num_ranks);
    let run = |rank: usize| {
        let communicator = if num_ranks == 1 {
            Communicator::alone()
        } else {
            let engine = ThreadEngine::new(&world, rank);
            Communicator::start(move || Ok(Box::new(engine))).map_err(|error| {
                world.fail(rank, &error.to_string());
                Cause::Panic(error.to_string())
            })?
        };
        run_rank(&communicator, &work)
    };
    let results = std::thread::scope(|scope| {
        let spawn = |rank: usize| {
            let spawned =
                std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, move || run(rank));
            spawned.map_err(|error| {
                let message = format!("could not start the thread of a rank: {error}");
                world.fail(rank, &message);
                Cause::Panic(message)
            })
        };
        let threads: Vec<_> = (0..num_ranks).map(spawn).collect();
        let join = |panic: Box<dyn Any + Send>| Err(Cause::Panic(panic_message(&*panic)));
        threads.into_iter().map(|thread| thread?.join().unwrap_or_else(join)).collect::<Vec<_>>()
    });
    // A rank that only heard of the failure may come before the one that failed.
    let first = world.lock().failed.as_ref().map(|lost| lost.rank);
    let mut failures = Vec::new();
    let mut values = Vec::with_capacity(num_ranks);
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(cause) => failures.push(Failure { rank, cause }),
        }
    }
    failures.sort_by_key(|failure| (Some(failure.rank) != first, failure.rank));
    failures.into_iter().next().map_or(Ok(values), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_formed_after_a_failure_is_told_of_it() {
        let world = World::new(2);
        let split = (0, 0, 7);
        let (group, before) = world.group(split, 2);
        world.fail(1, "why");
        let (same, _) = world.group(split, 2);
        assert_eq!(group, same);
        let (other, after) = world.group((0, 1, 7), 2);
        assert_ne!(group, other);
        for slots in [before, after] {
            let error = slots.exchange(0, 0, &[], &mut |_, _| Ok::<_, Error>(())).unwrap_err();
            assert!(matches!(&error, Error::RankFailed { rank: 1, cause } if cause == "why"), "{error}");
        }
    }

    #[test]
    fn the_first_failure_counts() {
        let world = World::new(3);
        world.fail(2, "first");
        world.fail(0, "second");
        assert_eq!(world.lock().failed, Some(Lost { rank: 2, cause: Some("first".to_owned()) }));
    }

    #[test]
    fn no_ranks_give_no_results() {
        assert_eq!(run_threads(0, |_| Ok::<_, Error>(1)).unwrap(), [0; 0]);
    }
}
