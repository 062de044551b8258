//! How a run ends: the message, the hint and the code.

use std::process::ExitCode;

use recipes::{Error, Result};

/// Says what went wrong, if anything did, and gives the exit code.
pub(crate) fn code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            recipes::notice(&message(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// `error: …`, its causes, a blank line and the hint.
fn message(error: &Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let line = inner.to_string();
        // Many errors print their cause themselves.
        if !text.contains(&line) {
            text.push_str(&format!("\n  caused by: {line}"));
        }
        cause = inner.source();
    }
    if let Some(hint) = error.hint() {
        text.push_str(&format!("\n\nhint: {hint}"));
    }
    text
}
