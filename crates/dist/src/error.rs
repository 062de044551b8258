//! What can go wrong between ranks.

use crate::Operation;

/// Result of everything that ranks do together.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why ranks could not work together. After any of these the group is broken: later operations of the rank end with the
/// same error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank has failed; this one has not.
    #[error("rank {rank} failed: {cause}")]
    RankFailed {
        /// Its rank in the world.
        rank: usize,
        /// What it said.
        cause: String,
    },
    /// Another rank has ended, without a failure, while this one waits for it.
    #[error("rank {rank} has ended while other ranks wait for it{}", in_operation(waiting.as_deref()))]
    RankEnded {
        /// Its rank in the world.
        rank: usize,
        /// What this rank waits in; `None` only inside of an engine.
        waiting: Option<Box<Operation>>,
    },
    /// Two ranks are in different operations, or in one operation with arguments that do not fit together.
    #[error("ranks have drifted apart: rank {expected_rank} is in {expected}, but rank {found_rank} is in {found}")]
    Drifted {
        /// A rank of the group, by its rank in the world.
        expected_rank: usize,
        /// What it is in.
        expected: Box<Operation>,
        /// The first rank that is in something else.
        found_rank: usize,
        /// What that one is in.
        found: Box<Operation>,
    },
    /// What another rank sent is not the header of an operation.
    #[error("rank {rank} sent something that is no operation of this program")]
    ForeignHeader {
        /// Its rank in the world.
        rank: usize,
    },
    /// A tensor does not fit the operation, or the backend failed.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// The dimensions of a mesh do not multiply to the number of ranks.
    #[error(
        "a mesh of {replicate} x {shard} does not fit: expected {world_size} ranks (replicate x shard), found {}",
        replicate.saturating_mul(*shard)
    )]
    Mesh {
        /// Ranks along the dimension that holds copies.
        replicate: usize,
        /// Ranks along the dimension that holds shards.
        shard: usize,
        /// Ranks there are.
        world_size: usize,
    },
    /// The rank to send from does not exist.
    #[error("no rank {root} to send from: expected a rank below {world_size}")]
    Root {
        /// The rank asked for.
        root: usize,
        /// Ranks there are.
        world_size: usize,
    },
    /// An operation panicked on this rank's communication thread.
    #[error("panic during an operation between ranks: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The rank's communication thread has ended.
    #[error("the communication thread of this rank has ended")]
    Stopped,
    /// A thread could not be started.
    #[error("could not start the communication thread of a rank: {reason}")]
    Thread {
        /// What the system said.
        reason: String,
    },
    /// MPI was started before in this process; it can be started once.
    #[error("MPI was already started in this process")]
    MpiStarted,
}

impl Error {
    /// One action that helps, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Mesh { world_size, .. } => Some(format!(
                "choose `data_parallel_replicate_dim` and `data_parallel_shard_dim` so that their product is {world_size}"
            )),
            Self::ForeignHeader { .. } => Some("start the same build of the program on all hosts".to_owned()),
            _ => None,
        }
    }

    /// The same error, where it lacks one with the operation that it happened in.
    pub(crate) fn during(mut self, operation: &Operation) -> Self {
        if let Self::RankEnded { waiting: waiting @ None, .. } = &mut self {
            *waiting = Some(Box::new(operation.clone()));
        }
        self
    }
}

fn in_operation(operation: Option<&Operation>) -> String {
    operation.map_or_else(String::new, |operation| format!(" in {operation}"))
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::operation::Kind;

    #[test]
    fn messages_name_ranks_and_places() {
        let here = Operation::new(Kind::Barrier, Location::caller());
        let line = here.line();
        let ended = Error::RankEnded { rank: 3, waiting: None };
        assert_eq!(ended.to_string(), "rank 3 has ended while other ranks wait for it");
        let file = here.file().to_owned();
        let expected =
            format!("rank 3 has ended while other ranks wait for it in `barrier` (operation 0) at {file}:{line}");
        assert_eq!(ended.during(&here).to_string(), expected);

        let mesh = Error::Mesh { replicate: 2, shard: 3, world_size: 4 };
        assert_eq!(mesh.to_string(), "a mesh of 2 x 3 does not fit: expected 4 ranks (replicate x shard), found 6");
        assert!(mesh.hint().unwrap().ends_with("so that their product is 4"));
    }
}
