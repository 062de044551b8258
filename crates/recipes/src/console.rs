//! What recipes say on stderr: notices always, information by `log_level`.

use config::Merged;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Debug,
    Info,
    Quiet,
    /// Not even notices: another rank says them.
    Silent,
}

/// Speaks on stderr, around a progress bar if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Console {
    level: Level,
}

impl Console {
    /// A console for a `log_level` key.
    pub(crate) fn new(log_level: &str) -> Self {
        let level = match log_level {
            "DEBUG" => Level::Debug,
            "INFO" => Level::Info,
            _ => Level::Quiet,
        };
        Self { level }
    }

    /// A console that says nothing, for all ranks but the first.
    pub(crate) fn silent() -> Self {
        Self { level: Level::Silent }
    }

    /// Something the user should know although nothing is wrong.
    pub(crate) fn notice(self, text: &str) {
        if self.level < Level::Silent {
            metrics::notice(&format!("notice: {text}"));
        }
    }

    /// What the user has asked to see, whatever the `log_level`.
    pub(crate) fn show(self, text: &str) {
        if self.level < Level::Silent {
            metrics::notice(text.trim_end());
        }
    }

    /// What the recipe does.
    pub(crate) fn info(self, text: &str) {
        if self.level <= Level::Info {
            metrics::notice(text);
        }
    }

    /// What happened inside, for those who look for it.
    pub(crate) fn debug(self, text: &str) {
        if self.level <= Level::Debug {
            metrics::notice(text);
        }
    }

    /// The config that runs, as the reference prints it: keys sorted.
    pub(crate) fn resolved_config(self, recipe: &str, config: &Merged) {
        if self.level <= Level::Info {
            metrics::notice(&format!(
                "Running {recipe} with resolved config:\n\n{}",
                config.to_yaml(config::Order::Sorted)
            ));
        }
    }
}
