//! How the program ends: the message, the hint and the exit code.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The exit code after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

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
        source: io::Error,
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
            Self::Usage { .. } => 2,
            Self::Write { .. } => 1,
        }
    }
}

/// Says what went wrong, if anything did, and gives the exit code.
pub(crate) fn code(outcome: Result) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // A reader of the answer that has gone away is no failure.
        Err(Failure::Recipe(recipes::Error::Write { path, source }))
            if path == Path::new("stdout") && source.kind() == io::ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        // Another process of the run has said why.
        Err(Failure::Recipe(error @ recipes::Error::ToldByRank { .. })) => ExitCode::from(error.exit_code()),
        Err(failure) => {
            recipes::notice(&recipes::told(&failure, failure.advice().as_deref()));
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Shows what stands in the place of arguments: help, the version, or what is wrong with them; and gives the exit code.
pub(crate) fn parsed(mut answer: clap::Error) -> ExitCode {
    advise_change(&mut answer);
    let shown = answer.print().and_then(|()| io::stdout().flush());
    match u8::try_from(answer.exit_code()) {
        Ok(0) => code(crate::commands::printed(shown)),
        wrong => ExitCode::from(wrong.unwrap_or(1)),
    }
}

/// Where a verb takes changes to a config, an unknown flag is most often one of them, written as a flag.
fn advise_change(answer: &mut clap::Error) {
    let Some(ContextValue::String(flag)) = answer.get(ContextKind::InvalidArg) else { return };
    let takes_changes = |usage: &ContextValue| usage.to_string().contains("KEY=VALUE");
    let is_unknown = answer.kind() == ErrorKind::UnknownArgument && answer.get(ContextKind::SuggestedArg).is_none();
    if let Some(key) = flag.strip_prefix("--")
        && is_unknown
        && answer.get(ContextKind::Usage).is_some_and(takes_changes)
    {
        let key = key.split('=').next().unwrap_or(key).replace('-', "_");
        let tip = format!("changes to the config are written '{key}=VALUE'");
        answer.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}
