//! What can go wrong while logging, in the words a user sees.

use std::io;
use std::path::PathBuf;

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder for log files could not be made.
    #[error("cannot create the log folder `{}`", path.display())]
    CreateDir {
        /// The folder, as configured.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The log file could not be opened for appending.
    #[error("cannot open the log file `{}`", path.display())]
    OpenLog {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A record could not be written to the log file.
    #[error("cannot write step {step} to the log file `{}`", path.display())]
    WriteLog {
        /// The file.
        path: PathBuf,
        /// The step whose record is lost.
        step: u64,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The log file could not be brought to disk.
    #[error("cannot sync the log file `{}`", path.display())]
    SyncLog {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A record was logged after the log file had been closed.
    #[error("cannot write step {step} to the log file `{}`: it is closed", path.display())]
    Closed {
        /// The file.
        path: PathBuf,
        /// The step whose record is lost.
        step: u64,
    },
    /// Stdout did not take a record.
    #[error("cannot write step {step} to stdout")]
    WriteStdout {
        /// The step whose record is lost.
        step: u64,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl Error {
    /// One action that is likely to help, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::CreateDir { .. } | Self::OpenLog { .. } => {
                Some("set `metric_logger.log_dir` to a folder you can write to".to_owned())
            }
            Self::WriteLog { .. } | Self::SyncLog { .. } => {
                Some("check that the disk of `metric_logger.log_dir` has space left".to_owned())
            }
            Self::Closed { .. } | Self::WriteStdout { .. } => None,
        }
    }
}
