//! What ranks do together: collectives on threads of one process and on MPI, and the mesh of ranks.
//!
//! ```text
//! communicator.rs   Communicator: operations with owned tensors, waited for later      mesh.rs  world = replicas x shards
//!   operation.rs    what each rank says before data moves; ranks that differ stop
//!   worker.rs       the communication thread of a rank, which owns its groups
//!     transfer.rs   tensors in chunks through host memory      numbers.rs  sums in f32, one rounding
//!     collective.rs the contract of an engine: bytes between ranks, nothing else
//!       threads.rs  ranks as threads; slots.rs is where they meet
//!       mpi.rs      ranks as processes (feature `mpi`); environment.rs says whether a launcher started them
//! ```
//!
//! All ranks of a group call the same operations in the same order. A rank that fails ends the waits of all others with its
//! cause; ranks that drift apart all stop, with both places in the code.
//!
//! ```
//! let sums = dist::run_threads(2, |ranks| ranks.sum(vec![ranks.rank() as f64, 1.0]).wait()).unwrap();
//! assert_eq!(sums, [[1.0, 2.0], [1.0, 2.0]]);
//! ```

mod collective;
mod communicator;
mod environment;
mod error;
mod mesh;
#[cfg(feature = "mpi")]
pub mod mpi;
mod numbers;
mod operation;
mod slots;
mod sync;
mod threads;
mod transfer;
mod worker;

pub use collective::{Alarm, Collective};
pub use communicator::{Communicator, Reduced};
pub use environment::{MpiEnvironment, lone_slurm_task, mpi_environment};
pub use error::{Error, Result};
pub use mesh::Mesh;
pub use operation::Operation;
pub use threads::{Cause, Failure, run_rank, run_threads};
pub use worker::{Pending, Traffic};
