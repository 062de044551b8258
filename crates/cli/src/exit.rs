//! How the program ends: the message, the hint and the exit code.

use std::process::ExitCode;

/// What ended a verb.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A recipe, or something it uses.
    #[error(transparent)]
    Recipe(#[from] recipes::Error),
    /// The config.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The hub.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// Arguments that cannot be used.
    #[error("{message}")]
    Usage {
        /// Heading and causes.
        message: String,
        /// One action that helps.
        hint: Option<String>,
    },
    /// A file could not be written.
    #[error("cannot write `{path}`")]
    Write {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// How a verb ends.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// Arguments that cannot be used.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    /// Adds the one action that helps to a usage error.
    pub(crate) fn hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Usage { message, .. } => Self::Usage { message, hint: Some(text.into()) },
            other => other,
        }
    }

    fn advice(&self) -> Option<String> {
        match self {
            Self::Recipe(error) => error.hint(),
            Self::Config(error) => error.hint(),
            Self::Hub(error) => error.hint(),
            Self::Usage { hint, .. } => hint.clone(),
            Self::Write { .. } => None,
        }
    }

    /// 1 for what failed while it ran, 2 for wrong usage, config or input.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Recipe(error) => error.exit_code(),
            Self::Config(error) => error.exit_code(),
            Self::Hub(error) => error.exit_code(),
            Self::Usage { .. } | Self::Write { .. } => 2,
        }
    }
}

/// Says what went wrong, if anything did, and gives the exit code.
pub(crate) fn code(outcome: Result) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            recipes::notice(&message(&failure));
            ExitCode::from(failure.exit_code())
        }
    }
}

/// `error: …`, its causes, a blank line and the hint.
fn message(failure: &Failure) -> String {
    let mut text = format!("error: {failure}");
    let mut cause = std::error::Error::source(failure);
    while let Some(inner) = cause {
        let line = inner.to_string();
        // Many errors print their cause themselves.
        if !text.contains(&line) {
            text.push_str(&format!("\n  caused by: {line}"));
        }
        cause = inner.source();
    }
    if let Some(hint) = failure.advice() {
        text.push_str(&format!("\n\nhint: {hint}"));
    }
    text
}
