//! Config text to checked values: YAML with positions, overrides, interpolation, typed components.
//!
//! A config passes through stages, each a type of its own:
//!
//! 1. [`Written`]: the file's tree; every value knows its file, line and column, scalars keep their text.
//!    Command-line arguments are applied to it ([`Written::with_overrides`]).
//! 2. [`Merged`]: every `${…}` replaced. This is what `tune cat --resolved` prints.
//! 3. checked: a component's section as a struct declared with [`component!`].
//!
//! Each stage tells all of its problems in one error, and [`Written::resolve_or_check`] those of the last two together: a value
//! whose `${…}` cannot be replaced is broken ([`Node::is_broken`]), and nothing more is said of it.
//!
//! ```
//! config::choice! {
//!     /// Number format of the weights.
//!     pub enum Dtype {
//!         /// 16 bits.
//!         Bf16 = "bf16",
//!         /// 32 bits.
//!         Fp32 = "fp32",
//!     }
//! }
//!
//! config::component! {
//!     /// AdamW: Adam with decoupled weight decay.
//!     pub struct AdamWConfig {
//!         /// Learning rate, > 0.
//!         pub lr: f64 [positive] = 1e-3,
//!         /// Decay rates of the two moments, each in [0, 1).
//!         pub betas: [f64; 2] [0.0..1.0] = [0.9, 0.999],
//!         /// Decay of the weights per step, as a share of the learning rate.
//!         pub weight_decay: f64 [0.0..] = 0.01,
//!     }
//! }
//!
//! config::component! {
//!     /// What one run needs.
//!     pub struct RunConfig {
//!         /// Where results go.
//!         pub output_dir: std::path::PathBuf,
//!         /// Rows in one micro-batch, >= 1.
//!         pub batch_size: usize [1..] = 2,
//!         /// Largest norm of the gradients; `null` = no limit.
//!         pub clip_grad_norm: Option<f64> [positive] = None,
//!         /// Number format of weights and activations.
//!         pub dtype: Dtype = Dtype::Bf16,
//!         /// The optimizer's section.
//!         pub optimizer: AdamWConfig = AdamWConfig::default(),
//!     }
//! }
//!
//! let file = "
//! output_dir: /tmp/out
//! optimizer:
//!   _component_: torch.optim.AdamW
//!   lr: 2e-5
//! logs: ${output_dir}/logs
//! ";
//! let run = config::Written::parse("run.yaml", file)?.with_overrides(&["batch_size=4", "optimizer.lr=1e-4"])?.resolve()?;
//! assert_eq!(run.root().at("logs").and_then(|node| node.as_str()), Some("/tmp/out/logs"));
//!
//! let mut problems = config::Problems::new();
//! let checked = RunConfig::check(run.root(), &mut problems);
//! let notices = problems.finish()?; // one error with every problem, or the notices
//! let checked = checked.expect("there was no problem");
//! assert_eq!((checked.batch_size, checked.optimizer.lr), (4, 1e-4));
//! assert_eq!(notices[0].to_string(), "unknown key `logs` is ignored");
//! assert_eq!(AdamWConfig::FIELDS[0].default_text().as_deref(), Some("1e-3"));
//! # Ok::<(), config::Error>(())
//! ```
//!
//! Errors: one enum, [`Error`]; but for files that cannot be read it is a list of problems. All end a program with status 2,
//!         before any weights are read.
//! Panics: never on what a user wrote.

pub mod check;
mod choice;
mod component;
mod error;
mod from_node;
mod json_text;
mod merged;
mod names;
mod node;
mod number;
mod overrides;
mod path;
mod problems;
mod reference;
mod resolve;
mod scalar;
mod section;
mod source;
mod suggest;
mod written;
mod yaml_text;

pub use check::Check;
pub use error::{Error, OverrideFault, ReferenceFault, YamlFault};
pub use from_node::{FromNode, Leaf};
pub use json_text::to_json;
pub use merged::Merged;
pub use names::Names;
pub use node::{Key, Map, Node, Value};
pub use number::python_float;
pub use overrides::Overrides;
pub use problems::{Notice, Problem, ProblemKind, ProblemList, Problems};
pub use scalar::resolve_plain;
pub use section::{Described, FieldSpec};
pub use source::{Origin, Position, Source};
pub use suggest::{most_alike, nearest};
pub use written::Written;
pub use yaml_text::{Order, to_yaml};

/// What the macros call.
#[doc(hidden)]
pub mod __private {
    pub use crate::choice::{choose, one_of};
    pub use crate::section::{Section, accepts};
}
