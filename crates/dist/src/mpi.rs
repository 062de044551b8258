//! Ranks as processes that an MPI launcher started.
//!
//! All MPI calls, the first and the last included, are made on the communication thread, whose thread-local variable holds
//! everything of MPI; engines only say which of its communicators they mean.
//!
//! Before data of any size, ranks exchange a frame of 128 bytes (little-endian):
//! ```text
//! length u64 (all ones: this rank has ended) | the first 120 bytes, zeros behind them
//! ```
//! If nobody has more than that, the frames are all there is; headers of operations fit. Frames are exchanged without blocking
//! and looked for with pauses: MPI libraries burn a core while they wait, and this is where a rank waits for slower ones.
//! What follows is blocking, as all ranks are there.
//!
//! A rank that ends sends its last frame in all groups, so that one who still waits for it learns so. A rank that fails prints
//! why and ends all processes. If one is killed, the launcher ends the others.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::mpi::datatype::PartitionMut;
use ::mpi::environment::Universe;
use ::mpi::request::{LocalScope, Request, scope};
use ::mpi::topology::{Color, Communicator as _, SimpleCommunicator};
use ::mpi::traits::CommunicatorCollectives;
use ::mpi::{Count, Threading, initialize_with_threading};

use crate::collective::{Alarm, Collective};
use crate::operation::MAX_HEADER_BYTES;
use crate::{Communicator, Error, Result};

const LENGTH_BYTES: usize = 8;
const FRAME_BYTES: usize = LENGTH_BYTES + MAX_HEADER_BYTES;
/// The length in a rank's last frame.
const ENDED: u64 = u64::MAX;

/// Starts MPI for this process and returns its communicator of all ranks; once a process. All ranks call it. The last clone
/// of the communicator ends MPI when it is dropped, and waits for the other ranks to do so.
pub fn start() -> Result<Communicator> {
    Communicator::start(|| Ok(Box::new(MpiEngine::world()?)))
}

thread_local! {
    static LIBRARY: RefCell<Option<Library>> = const { RefCell::new(None) };
}

/// Everything of MPI.
struct Library {
    /// The world is the first; they are freed before MPI ends, by the order of fields.
    groups: Vec<Group>,
    _universe: Universe,
    /// A cause that another thread wants to fail with.
    failed: Arc<Mutex<Option<String>>>,
    /// What one exchange receives.
    received: Vec<u8>,
}

struct Group {
    communicator: SimpleCommunicator,
    /// The rank in the world of each rank.
    members: Vec<usize>,
}

impl Group {
    fn rank(&self) -> usize {
        self.communicator.rank() as usize
    }
}

impl Library {
    fn start() -> Result<Self> {
        let (universe, _) = initialize_with_threading(Threading::Funneled).ok_or(Error::MpiStarted)?;
        let communicator = universe.world();
        let members = (0..communicator.size() as usize).collect();
        let groups = vec![Group { communicator, members }];
        Ok(Self { groups, _universe: universe, failed: Arc::default(), received: Vec::new() })
    }

    /// Exchanges frames. Returns the length of what each rank has to give.
    fn exchange_frames(&mut self, group: usize, mine: &[u8]) -> Result<Vec<usize>> {
        let Self { groups, failed, received, .. } = self;
        let members = &groups[group].members;
        let frame = frame(mine.len() as u64, mine);
        received.resize(members.len() * FRAME_BYTES, 0);
        scope(|scope| {
            let communicator = &groups[group].communicator;
            let request = communicator.immediate_all_gather_into(scope, &frame[..], &mut received[..]);
            wait_for(vec![request], || {
                if let Some(cause) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    fail(&groups[0], &cause);
                }
            });
        });
        let lengths = received.chunks_exact(FRAME_BYTES).zip(members).map(|(frame, &rank)| match length(frame) {
            ENDED => Err(Error::RankEnded { rank, waiting: None }),
            length => Ok(length as usize),
        });
        lengths.collect()
    }

    fn all_gather(
        &mut self,
        group: usize,
        mine: &[u8],
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let lengths = self.exchange_frames(group, mine)?;
        if lengths.iter().all(|&length| length <= MAX_HEADER_BYTES) {
            let frames = self.received.chunks_exact(FRAME_BYTES);
            return frames
                .zip(lengths)
                .enumerate()
                .try_for_each(|(rank, (frame, length))| each(rank, &frame[LENGTH_BYTES..][..length]));
        }
        self.received.resize(lengths.iter().sum(), 0);
        let counts: Vec<Count> = lengths.iter().map(|&length| length as Count).collect();
        let starts: Vec<Count> =
            counts.iter().scan(0, |end, &count| Some(std::mem::replace(end, *end + count))).collect();
        let mut parts = PartitionMut::new(&mut self.received[..], &counts[..], &starts[..]);
        self.groups[group].communicator.all_gather_varcount_into(mine, &mut parts);
        for (rank, (&start, length)) in starts.iter().zip(lengths).enumerate() {
            each(rank, &self.received[start as usize..][..length])?;
        }
        Ok(())
    }

    fn all_to_all(
        &mut self,
        group: usize,
        mine: &[u8],
        piece_len: usize,
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.received.resize(mine.len(), 0);
        self.groups[group].communicator.all_to_all_into(mine, &mut self.received[..]);
        self.received.chunks_exact(piece_len.max(1)).enumerate().try_for_each(|(rank, piece)| each(rank, piece))
    }

    /// Returns the place of the group that is split off.
    fn split(&mut self, group: usize, color: usize) -> Result<usize> {
        let mut members = Vec::new();
        // Colors of MPI are small numbers: the first rank of a color stands for it.
        let mut first = None;
        let world_ranks = self.groups[group].members.clone();
        self.all_gather(group, &(color as u64).to_le_bytes(), &mut |rank, theirs| {
            if theirs == (color as u64).to_le_bytes() {
                first.get_or_insert(rank);
                members.push(world_ranks[rank]);
            }
            Ok(())
        })?;
        let parent = &self.groups[group];
        let color = Color::with_value(first.expect("a rank has its own color") as Count);
        let communicator = parent.communicator.split_by_color_with_key(color, parent.rank() as Count);
        let communicator = communicator.expect("every rank has a color, so it has a group");
        self.groups.push(Group { communicator, members });
        Ok(self.groups.len() - 1)
    }
}

impl Drop for Library {
    /// Tells all groups at once, since the others may wait in any of them. One that still waits for this rank fails, which
    /// ends this process while it waits here or in the end of MPI.
    fn drop(&mut self) {
        let last = frame(ENDED, &[]);
        let mut received: Vec<_> =
            self.groups.iter().map(|group| vec![0u8; group.members.len() * FRAME_BYTES]).collect();
        scope(|scope| {
            let requests = self.groups.iter().zip(&mut received).map(|(group, received)| {
                group.communicator.immediate_all_gather_into(scope, &last[..], &mut received[..])
            });
            wait_for(requests.collect(), || {});
        });
    }
}

fn frame(length: u64, bytes: &[u8]) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    let inline = bytes.len().min(MAX_HEADER_BYTES);
    frame[LENGTH_BYTES..][..inline].copy_from_slice(&bytes[..inline]);
    frame
}

fn length(frame: &[u8]) -> u64 {
    u64::from_le_bytes(*frame.first_chunk().expect("a frame begins with its length"))
}

/// Waits for all requests: at first giving way to other threads only, then with pauses that grow with the time waited.
fn wait_for<'a>(mut requests: Vec<Request<'a, [u8], &LocalScope<'a>>>, meanwhile: impl Fn()) {
    const AT_ONCE: Duration = Duration::from_micros(200);
    const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
    let start = Instant::now();
    loop {
        requests = requests.into_iter().filter_map(|request| request.test().err()).collect();
        if requests.is_empty() {
            return;
        }
        meanwhile();
        let waited = start.elapsed();
        if waited < AT_ONCE {
            std::thread::yield_now();
        } else {
            std::thread::sleep((waited / 16).clamp(PAUSES.0, PAUSES.1));
        }
    }
}

/// Prints the cause and ends all processes.
#[expect(clippy::print_stderr, reason = "no other code of this process runs after it")]
fn fail(world: &Group, cause: &str) -> ! {
    eprintln!("error: rank {}: {cause}", world.rank());
    world.communicator.abort(1)
}

/// One rank's end of a group.
struct MpiEngine {
    /// Which of the library's groups.
    group: usize,
    rank: usize,
    world_size: usize,
    failed: Arc<Mutex<Option<String>>>,
}

impl MpiEngine {
    /// Starts MPI on this thread.
    fn world() -> Result<Self> {
        let library = Library::start()?;
        let engine = Self::of(&library, 0);
        LIBRARY.set(Some(library));
        Ok(engine)
    }

    fn of(library: &Library, group: usize) -> Self {
        let (rank, world_size) = (library.groups[group].rank(), library.groups[group].members.len());
        Self { group, rank, world_size, failed: Arc::clone(&library.failed) }
    }
}

fn with_library<T>(work: impl FnOnce(&mut Library) -> T) -> T {
    LIBRARY.with_borrow_mut(|library| work(library.as_mut().expect("only the communication thread calls an engine")))
}

impl Collective for MpiEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&mut self, mine: &[u8], each: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        with_library(|library| library.all_gather(self.group, mine, each))
    }

    fn all_to_all(
        &mut self,
        mine: &[u8],
        piece_len: usize,
        each: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        with_library(|library| library.all_to_all(self.group, mine, piece_len, each))
    }

    fn split(&mut self, color: usize) -> Result<Box<dyn Collective>> {
        with_library(|library| {
            let group = library.split(self.group, color)?;
            Ok(Box::new(Self::of(library, group)) as Box<dyn Collective>)
        })
    }

    fn fail(&self, cause: &str) {
        with_library(|library| fail(&library.groups[0], cause));
    }

    fn alarm(&self) -> Alarm {
        let failed = Arc::clone(&self.failed);
        Arc::new(move |cause| {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| cause.to_owned());
        })
    }
}

impl Drop for MpiEngine {
    fn drop(&mut self) {
        // The world ends, and MPI with it.
        if self.group == 0 {
            drop(LIBRARY.take());
        }
    }
}
