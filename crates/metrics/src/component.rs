//! The config section `metric_logger`: which logger, with what, under torchtune's names.

use std::path::{Path, PathBuf};

use config::{FromNode, Names, Node, Problems};

use crate::disk::{DiskLogger, OutputFormat};
use crate::error::Error;
use crate::logger::{MetricLogger, StdoutLogger};
use crate::screen::notice;

config::component! {
    /// Writes the metrics of each step to a file.
    pub struct DiskLoggerConfig {
        /// Folder of the log file; made if needed.
        pub log_dir: PathBuf,
        /// How a record is written: `txt` (`Step 3 | loss:7.47 lr:0.001`) or `jsonl` (one object a line).
        pub output_fmt: OutputFormat = OutputFormat::Txt,
        /// Name of the log file in `log_dir`; `null` = `log_<unix seconds>.<output_fmt>`.
        pub filename: Option<String> = None,
    }
}

config::component! {
    /// Writes the metrics of each step to stdout.
    pub struct StdoutLoggerConfig {}
}

/// The checked section `metric_logger`.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricLoggerConfig {
    /// To a file.
    Disk(DiskLoggerConfig),
    /// To stdout.
    Stdout(StdoutLoggerConfig),
}

/// Reads the section of one logger.
type Check = fn(&Node, &mut Problems) -> Option<MetricLoggerConfig>;

/// Components of `metric_logger`.
pub const METRIC_LOGGERS: Names<Check> = Names {
    role: "metric logger",
    built: &[
        (&["torchtune.training.metric_logging.DiskLogger"], |node, problems| {
            DiskLoggerConfig::check(node, problems).map(MetricLoggerConfig::Disk)
        }),
        (&["torchtune.training.metric_logging.StdoutLogger"], |node, problems| {
            StdoutLoggerConfig::check(node, problems).map(MetricLoggerConfig::Stdout)
        }),
    ],
    not_built: &[
        "torchtune.training.metric_logging.WandBLogger",
        "torchtune.training.metric_logging.TensorBoardLogger",
        "torchtune.training.metric_logging.CometLogger",
        "torchtune.training.metric_logging.MLFlowLogger",
    ],
};

impl MetricLoggerConfig {
    /// The config of a `metric_logger` section, or `None` after all of its problems were reported.
    pub fn check(section: &Node, problems: &mut Problems) -> Option<Self> {
        METRIC_LOGGERS.choose(section, problems)?(section, problems)
    }

    /// The folder that the logger writes to, if it writes to one.
    pub fn log_dir(&self) -> Option<&Path> {
        match self {
            Self::Disk(config) => Some(&config.log_dir),
            Self::Stdout(_) => None,
        }
    }

    /// Opens the logger; a log file is named in a notice.
    pub fn build(&self) -> Result<Box<dyn MetricLogger>, Error> {
        match self {
            Self::Disk(config) => {
                let logger = DiskLogger::open(&config.log_dir, config.output_fmt, config.filename.as_deref())?;
                notice(&format!("Writing logs to {}", logger.path().display()));
                Ok(Box::new(logger))
            }
            Self::Stdout(_) => Ok(Box::new(StdoutLogger)),
        }
    }
}

impl FromNode for MetricLoggerConfig {
    fn expected() -> String {
        "a metric logger's section".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        Self::check(node, problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Written;

    fn check(section: &str, overrides: &[&str]) -> Result<(MetricLoggerConfig, Vec<String>), String> {
        let text = format!("output_dir: out\nmetric_logger:\n  {}\n", section.replace('\n', "\n  "));
        let run = Written::parse("run.yaml", &text).unwrap().with_overrides(overrides).unwrap().resolve().unwrap();
        let mut problems = Problems::new();
        let config = MetricLoggerConfig::check(run.root().at("metric_logger").unwrap(), &mut problems);
        let notices = problems.finish().map_err(|error| format!("{error}\nhint: {:?}", error.hint()))?;
        Ok((config.unwrap(), notices.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn the_shipped_form() {
        let section = "_component_: torchtune.training.metric_logging.DiskLogger\nlog_dir: ${output_dir}/logs";
        let (config, notices) = check(section, &[]).unwrap();
        let expected = DiskLoggerConfig { log_dir: "out/logs".into(), output_fmt: OutputFormat::Txt, filename: None };
        assert_eq!(config, MetricLoggerConfig::Disk(expected));
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn all_keys_and_the_short_name() {
        let section = "_component_: torchtune.training.DiskLogger\nlog_dir: a\noutput_fmt: jsonl\nfilename: run.log";
        let (config, _) = check(section, &[]).unwrap();
        let expected = DiskLoggerConfig {
            log_dir: "a".into(),
            output_fmt: OutputFormat::Jsonl,
            filename: Some("run.log".to_owned()),
        };
        assert_eq!(config, MetricLoggerConfig::Disk(expected));
    }

    #[test]
    fn a_switch_on_the_command_line_drops_the_folder_with_a_notice() {
        let section = "_component_: torchtune.training.metric_logging.DiskLogger\nlog_dir: a";
        let switch = "metric_logger._component_=torchtune.training.metric_logging.StdoutLogger";
        let (config, notices) = check(section, &[switch]).unwrap();
        assert_eq!(config, MetricLoggerConfig::Stdout(StdoutLoggerConfig {}));
        assert_eq!(notices.len(), 1);
        assert!(notices[0].contains("`metric_logger.log_dir` is dropped"), "{notices:?}");
    }

    #[test]
    fn problems_name_the_key() {
        let disk = "_component_: torchtune.training.metric_logging.DiskLogger";
        let error = check(disk, &[]).unwrap_err();
        assert!(error.contains("metric_logger.log_dir"), "{error}");
        let error = check(&format!("{disk}\nlog_dir: a\noutput_fmt: csv"), &[]).unwrap_err();
        assert!(
            error.contains("metric_logger.output_fmt") && error.contains("`txt`") && error.contains("`csv`"),
            "{error}"
        );
        let error = check(&format!("{disk}\nlog_dirs: a"), &[]).unwrap_err();
        assert!(error.contains("metric_logger.log_dirs") && error.contains("metric_logger.log_dir`"), "{error}");
    }

    #[test]
    fn known_loggers_that_are_not_there_say_so() {
        for name in METRIC_LOGGERS.not_built {
            let error = check(&format!("_component_: {name}\nlog_dir: a"), &[]).unwrap_err();
            assert!(error.contains(name) && error.contains("not available"), "{error}");
            assert!(error.contains("DiskLogger"), "the hint names one that is: {error}");
        }
        let error = check("_component_: torchtune.training.metric_logging.DiskLoger\nlog_dir: a", &[]).unwrap_err();
        assert!(
            error.contains("unknown metric logger")
                && error.contains("did you mean `torchtune.training.metric_logging.DiskLogger`"),
            "{error}"
        );
    }

    #[test]
    fn a_built_logger_logs() {
        let dir = tempfile::tempdir().unwrap();
        let log_dir = dir.path().join("logs");
        let config = DiskLoggerConfig {
            log_dir: log_dir.clone(),
            output_fmt: OutputFormat::Jsonl,
            filename: Some("run".to_owned()),
        };
        let mut logger = MetricLoggerConfig::Disk(config).build().unwrap();
        logger.log(1, &[("loss", 2.5)]).unwrap();
        logger.close().unwrap();
        assert_eq!(std::fs::read_to_string(log_dir.join("run")).unwrap(), "{\"step\": 1, \"loss\": 2.5}\n");
        let mut logger = MetricLoggerConfig::Stdout(StdoutLoggerConfig {}).build().unwrap();
        logger.log(1, &[("loss", 2.5)]).unwrap();
        logger.close().unwrap();
    }
}
