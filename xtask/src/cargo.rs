//! Cargo as a child process, run at the workspace's root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A cargo command, not started yet.
pub(crate) struct Cargo(Command);

/// `cargo <args>` with the cargo that runs this program.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Cargo {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root()).args(args);
    Cargo(command)
}

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the workspace").to_owned()
}

impl Cargo {
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.0.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs it with this terminal; anything but success is an error.
    pub(crate) fn run(mut self) -> Result<()> {
        let shown = self.shown();
        let status = self.0.status().with_context(|| format!("cannot start `{shown}`"))?;
        if !status.success() {
            bail!("`{shown}` failed ({status})");
        }
        Ok(())
    }

    /// Runs it and returns what it writes to stdout.
    pub(crate) fn stdout(mut self) -> Result<Vec<u8>> {
        let shown = self.shown();
        let output = self.0.output().with_context(|| format!("cannot start `{shown}`"))?;
        if !output.status.success() {
            bail!("`{shown}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(output.stdout)
    }

    /// The command as one would type it.
    fn shown(&self) -> String {
        self.0.get_args().fold("cargo".to_owned(), |shown, arg| format!("{shown} {}", arg.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_shows_it() {
        let error = cargo(["no-such-subcommand"]).stdout().unwrap_err();
        assert!(error.to_string().starts_with("`cargo no-such-subcommand` failed"), "{error}");
        assert!(cargo(["--version"]).stdout().unwrap().starts_with(b"cargo "));
    }
}
