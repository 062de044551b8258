//! The ranks as a table: replicas of the model by shards of each replica.
//!
//! ```text
//!               shard 0   shard 1
//! replica 0        0         1         shard:      0 1 | 2 3    gathers and reductions of parameters
//! replica 1        2         3         replicate:  0 2 | 1 3    sums of the gradients' shards
//! ```
//! The shard dimension is the fastest, so that its traffic, the larger, stays on one host where hosts hold consecutive ranks.

use crate::{Communicator, Error, Result};

/// One rank's groups in the table.
#[derive(Debug, Clone)]
pub struct Mesh {
    /// All ranks.
    pub world: Communicator,
    /// The ranks that together hold one replica: this rank's row.
    pub shard: Communicator,
    /// The ranks that hold the same shard: this rank's column.
    pub replicate: Communicator,
}

impl Mesh {
    /// The table of one rank.
    pub fn alone() -> Self {
        Self { world: Communicator::alone(), shard: Communicator::alone(), replicate: Communicator::alone() }
    }

    /// The first rank of a table whose other ranks do not exist, for plans of memory.
    pub fn planned(replicate: usize, shard: usize) -> Self {
        let group = Communicator::planned;
        Self { world: group(replicate * shard), shard: group(shard), replicate: group(replicate) }
    }

    /// The table of `replicate` rows and `shard` columns. All ranks of `world` call it, with the same numbers.
    /// `Error::Mesh` if `replicate * shard` is not the number of ranks.
    pub fn new(world: Communicator, replicate: usize, shard: usize) -> Result<Self> {
        let world_size = world.world_size();
        if replicate.checked_mul(shard) != Some(world_size) {
            return Err(Error::Mesh { replicate, shard, world_size });
        }
        // A dimension of one rank needs no group: the other one is the world.
        let (row, column) = if replicate == 1 {
            (world.clone(), Communicator::alone())
        } else if shard == 1 {
            (Communicator::alone(), world.clone())
        } else {
            (world.split(world.rank() / shard)?, world.split(world.rank() % shard)?)
        };
        Ok(Self { world, shard: row, replicate: column })
    }
}
