//! One rank's handle on a group: what ranks can do together.
//!
//! Every operation is called by all ranks of its group, in the same order; it returns at once and is done on the rank's
//! communication thread. Before any data moves, ranks compare what they are about to do: the operation, its bytes and dtype,
//! and the line of the call (not for `gather_bytes` and `broadcast`, whose callers often stand in branches). Where they differ
//! all of them end with `Error::Drifted`.
//!
//! Until an operation is waited for, nothing else may write the tensors it was given, nor read those that it writes.
//!
//! Numbers: sums are taken in f32, in rank order, and rounded once; they depend neither on the engine nor on time.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use tensor::{Backend, DType, Tensor};

use crate::collective::Collective;
use crate::operation::{Kind, Operation};
use crate::transfer;
use crate::worker::{Group, Pending, Traffic, Worker};
use crate::{Error, Result};

/// One rank's handle on a group; cheap to clone. All clones and all groups of a rank share one communication thread, which
/// works in order and ends with the last of them; the last one's drop waits for what is still going on.
#[derive(Clone)]
pub struct Communicator {
    worker: Arc<Worker>,
    /// Which of the worker's groups.
    group: usize,
    rank: usize,
    world_size: usize,
    /// Other ranks are only counted: nothing moves.
    is_planned: bool,
}

/// What [`Communicator::reduce_scatter`] gives back.
#[derive(Debug)]
pub struct Reduced {
    /// The sums.
    pub shard: Tensor,
    /// What was summed, as it was.
    pub full: Tensor,
}

impl Communicator {
    /// A group of one: everything works and moves nothing. Has no thread.
    pub fn alone() -> Self {
        Self { worker: Arc::new(Worker::alone()), group: 0, rank: 0, world_size: 1, is_planned: false }
    }

    /// The first rank of a group whose other ranks do not exist, for plans of memory: operations on tensors give back what they
    /// were given, at once, and all others see this rank alone.
    pub fn planned(world_size: usize) -> Self {
        Self { world_size, is_planned: true, ..Self::alone() }
    }

    /// The world of an engine, which is made on the rank's communication thread. Returns when it is there.
    pub fn start(engine: impl FnOnce() -> Result<Box<dyn Collective>> + Send + 'static) -> Result<Self> {
        let (worker, rank, world_size) = Worker::start(engine)?;
        Ok(Self { worker: Arc::new(worker), group: 0, rank, world_size, is_planned: false })
    }

    /// This rank's place in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// `full[r * len(shard) ..] = shard` of rank r; any dtype, moved as it is. Gives `full` back. `shard` may be a part of
    /// `full`.
    #[track_caller]
    pub fn all_gather(&self, backend: &Arc<dyn Backend>, full: Tensor, shard: &Tensor) -> Pending<Tensor> {
        let operation = Operation::new(Kind::AllGather, Location::caller()).of(shard.len_bytes(), Some(shard.dtype()));
        if let Err(error) = self.check_full("all_gather", &full, shard) {
            return Pending::done(Err(error));
        }
        if full.dtype() != shard.dtype() {
            return Pending::done(Err(wrong_dtype("all_gather", "full", "that of `shard`", &full)));
        }
        if self.is_planned {
            return Pending::done(Ok(full));
        }
        if self.world_size == 1 {
            return Pending::done(copy_alone(&**backend, full, shard));
        }
        let (group, backend, shard) = (self.group, Arc::clone(backend), shard.clone());
        self.worker.operate(operation, move |groups, operation| {
            transfer::all_gather(groups, group, operation, &*backend, full, &shard)
        })
    }

    /// `shard (+)=` sum over ranks of their `full[rank * len(shard) ..]`. Both are f32 or bf16, `full` alike on all ranks.
    /// `accumulate` adds to what the shard holds. Gives `full` back too, as it was.
    #[track_caller]
    pub fn reduce_scatter(
        &self,
        backend: &Arc<dyn Backend>,
        shard: Tensor,
        full: Tensor,
        accumulate: bool,
    ) -> Pending<Reduced> {
        let operation =
            Operation::new(Kind::ReduceScatter, Location::caller()).of(full.len_bytes(), Some(full.dtype()));
        let checks = [
            self.check_full("reduce_scatter", &full, &shard),
            check_float("reduce_scatter", "shard", &shard),
            check_float("reduce_scatter", "full", &full),
        ];
        if let Some(error) = checks.into_iter().find_map(Result::err) {
            return Pending::done(Err(error));
        }
        if self.is_planned {
            return Pending::done(Ok(Reduced { shard, full }));
        }
        let (group, backend) = (self.group, Arc::clone(backend));
        self.worker.operate(operation, move |groups, operation| {
            transfer::reduce_scatter(groups, group, operation, &*backend, shard, full, accumulate)
        })
    }

    /// `x =` sum of all ranks' `x`, in place; f32 or bf16, alike on all ranks.
    #[track_caller]
    pub fn all_reduce(&self, backend: &Arc<dyn Backend>, x: Tensor) -> Pending<Tensor> {
        let operation = Operation::new(Kind::AllReduce, Location::caller()).of(x.len_bytes(), Some(x.dtype()));
        if let Err(error) = check_float("all_reduce", "x", &x) {
            return Pending::done(Err(error));
        }
        if self.world_size == 1 || self.is_planned {
            return Pending::done(Ok(x));
        }
        let (group, backend) = (self.group, Arc::clone(backend));
        self.worker
            .operate(operation, move |groups, operation| transfer::all_reduce(groups, group, operation, &*backend, x))
    }

    /// Sums over ranks, in rank order; as many values on all ranks.
    #[track_caller]
    pub fn sum(&self, values: Vec<f64>) -> Pending<Vec<f64>> {
        let operation = Operation::new(Kind::Sum, Location::caller()).of(size_of_val(&*values), None);
        let group = self.group;
        self.worker.operate(operation, move |groups, operation| transfer::sum(groups, group, operation, &values))
    }

    /// Everyone's bytes, in rank order; lengths may differ. Called by all ranks, from one line or several.
    #[track_caller]
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
        let operation = Operation::new(Kind::GatherBytes, Location::caller()).of(mine.len(), None);
        let group = self.group;
        self.worker.operate(operation, move |groups, operation| transfer::gather_bytes(groups, group, operation, &mine))
    }

    /// The bytes of the rank `root`; what other ranks give is dropped. Called by all ranks, from one line or several.
    #[track_caller]
    pub fn broadcast(&self, root: usize, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        let mut operation = Operation::new(Kind::Broadcast, Location::caller());
        if root >= self.world_size {
            return Pending::done(Err(Error::Root { root, world_size: self.world_size }));
        }
        operation.root = Some(root as u32);
        let mine = if self.rank == root { bytes } else { Vec::new() };
        let (group, operation) = (self.group, operation.of(mine.len(), None));
        self.worker
            .operate(operation, move |groups, operation| transfer::broadcast(groups, group, operation, root, &mine))
    }

    /// Over when all ranks have called it.
    #[track_caller]
    pub fn barrier(&self) -> Pending<()> {
        let group = self.group;
        self.worker.operate(Operation::new(Kind::Barrier, Location::caller()), move |groups, operation| {
            groups.list[group].agree(operation).map(|_| ())
        })
    }

    /// The group of the ranks that give the same `color`, ordered by rank. Called by all ranks; blocks.
    #[track_caller]
    pub fn split(&self, color: usize) -> Result<Self> {
        let operation = Operation::new(Kind::Split, Location::caller());
        let parent = self.group;
        let split = self.worker.operate(operation, move |groups, operation| {
            let group = &mut groups.list[parent];
            group.agree(operation)?;
            let mut members = Vec::new();
            let world_ranks = &group.members;
            group.engine.all_gather(&(color as u64).to_le_bytes(), &mut |rank, theirs| {
                if theirs == (color as u64).to_le_bytes() {
                    members.push(world_ranks[rank]);
                }
                Ok(())
            })?;
            let engine = group.engine.split(color)?;
            let (rank, world_size) = (engine.rank(), engine.world_size());
            groups.list.push(Group::new(engine, members));
            Ok((groups.list.len() - 1, rank, world_size))
        });
        let (group, rank, world_size) = split.wait()?;
        Ok(Self { worker: Arc::clone(&self.worker), group, rank, world_size, is_planned: self.is_planned })
    }

    /// Tells all ranks of the world that this one has failed, and why: whatever they wait for ends with
    /// `Error::RankFailed`. With MPI it prints the cause and ends all processes.
    /// If it returns all the same, the process should end with a failure, which its launcher sees.
    pub fn fail(&self, cause: &str) {
        self.worker.fail(cause);
    }

    /// Bytes of tensors that this rank has received from others so far, in all its groups.
    pub fn traffic(&self) -> Traffic {
        self.worker.traffic()
    }

    fn check_full(&self, op: &'static str, full: &Tensor, shard: &Tensor) -> Result<()> {
        let (num_ranks, len) = (self.world_size, shard.num_elements());
        if full.num_elements() == num_ranks * len {
            return Ok(());
        }
        let expected = format!("{} elements (shards of {len} from {num_ranks} ranks)", num_ranks * len);
        Err(tensor::Error::Shape { op, name: "full", expected, found: full.shape() }.into())
    }
}

/// The one shard is the whole.
fn copy_alone(backend: &dyn Backend, mut full: Tensor, shard: &Tensor) -> Result<Tensor> {
    if !(full.shares_buffer(shard) && full.offset_bytes() == shard.offset_bytes()) {
        let shard = shard.reshape(full.shape())?;
        backend.copy(&mut full, &shard)?;
    }
    Ok(full)
}

fn check_float(op: &'static str, name: &'static str, x: &Tensor) -> Result<()> {
    if x.dtype().is_float() { Ok(()) } else { Err(wrong_dtype(op, name, "fp32 or bf16", x)) }
}

fn wrong_dtype(op: &'static str, name: &'static str, expected: &'static str, x: &Tensor) -> Error {
    let found: DType = x.dtype();
    tensor::Error::DType { op, name, expected, found }.into()
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(group {}, rank {} of {})", self.group, self.rank, self.world_size)
    }
}
