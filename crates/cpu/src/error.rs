//! What can go wrong when a CPU backend starts. Ops fail with [`tensor::Error`].

use crate::Isa;

/// Why a backend could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment variable names no instruction set.
    #[error(
        "unknown instruction set `{found}` in `{variable}`: expected one of `{names}`",
        variable = Isa::VARIABLE,
        names = Isa::NAMES.join("`, `")
    )]
    UnknownIsa {
        /// Its value.
        found: String,
    },
    /// The environment variable names an instruction set that this processor or build does not have.
    #[error("this processor has no `{name}`, which `{variable}` asks for: found `{available}`", variable = Isa::VARIABLE)]
    MissingIsa {
        /// Its value.
        name: String,
        /// What there is, joined for the message.
        available: String,
    },
    /// A worker thread could not be started.
    #[error("could not start worker thread {index} of {num_threads}")]
    Thread {
        /// Which one, from 1; the calling thread is 0.
        index: usize,
        /// How many threads were asked for.
        num_threads: usize,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// One action that helps, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownIsa { .. } | Self::MissingIsa { .. } => {
                Some(format!("unset `{}` to use the best that this processor has", Isa::VARIABLE))
            }
            Self::Thread { .. } => Some("use fewer threads".to_owned()),
        }
    }
}
