//! The fast CPU backend: one file an op, SIMD chosen at run time, a team of threads of its own.
//!
//! ```text
//! backend.rs    the trait's methods, one line each
//!   <op>.rs     checks of the contract, borrows of the tensors, tasks for the crew
//!     pack.rs   blocks of tensors as f32, and back          tile/      products of blocks in registers
//!     pairs/    the same for bf16 factors as they are
//!     crew.rs   tasks over workers, outputs split by rows   scratch.rs f32 arrays of each worker
//!   buffer.rs   memory of tensors with a borrow count       pool.rs    its reuse     region.rs  where it comes from
//!   team.rs     threads                                     os.rs      cores
//!   plan.rs     a backend that only counts memory
//!   isa.rs      instruction sets                            numbers.rs element types, exp, sums
//!   rounding.rs how weights are rounded
//! ```
//!
//! The environment variable `FERROTUNE_CPU_ISA` (`portable`, `avx2`, `avx512`, `avx512bf16`, `neon` or `neonbf16`) overrides the
//! instruction set.
//!
//! Numbers: the same inputs and number of threads give the same bits, whichever worker takes which task.

mod adamw;
mod adamw8bit;
mod attention;
mod backend;
mod bias;
mod buffer;
#[cfg(feature = "counting-alloc")]
pub mod counting_alloc;
mod crew;
mod dora;
mod dropout;
mod elementwise;
mod embedding;
mod error;
mod fake_quantise;
mod glu;
mod head_loss;
mod isa;
mod label_log_probs;
mod matmul;
mod nf4;
mod numbers;
mod os;
mod pack;
mod pairs;
mod plan;
mod pool;
mod region;
mod rms_norm;
mod rope;
mod rounding;
mod scratch;
mod sgd;
mod team;
mod tile;

pub use backend::{CpuBackend, CpuConfig};
pub use error::Error;
pub use isa::Isa;
pub use plan::PlanBackend;
