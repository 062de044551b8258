//! What the test suites share; not part of the product.
//!
//! - [`op_table`]: one table of cases per op, run against any [`tensor::Backend`] and compared with the references.
//! - [`grad_check`]: backward functions against central differences of their forward functions.
//! - [`mod@compare`]: closeness of arrays, with messages that say where and by how much.
//! - [`random`]: seeded inputs.
//! - [`hub_server`]: a hub on loopback that also misbehaves.
//! - [`conformance`]: where the conformance pack is, and which of its cases are not built yet.
//!
//! ```text
//! crates/tensor: references in f64 --grad_check--> derivatives are right
//! crates/cpu:    op_table::check_all(&backend) --> f32 and bf16 kernels equal the references
//! ```

pub mod compare;
pub mod conformance;
pub mod grad_check;
pub mod hub_server;
pub mod op_table;
pub mod random;

pub use compare::{Mismatch, Tolerance, assert_close, assert_same_bits, compare, nmse};
pub use conformance::{conformance_dir, pending};
