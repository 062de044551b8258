//! A log file: one line a record, appended and handed to the operating system at once.
//!
//! Format:  `txt`: `Step 3 | loss:7.47 lr:0.001 ` with a blank before the line feed; `jsonl`: one object a line, `step`
//!          first. The file is `<log_dir>/<filename>`, or `log_<unix seconds>.<txt|jsonl>` without a name.
//! Errors:  every failure names the file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::logger::{MetricLogger, json_line, text_line};

config::choice! {
    /// How a record is written.
    pub enum OutputFormat {
        /// `Step 3 | loss:7.47 lr:0.001 `.
        Txt = "txt",
        /// `{"step": 3, "loss": 7.47, "lr": 0.001}`.
        Jsonl = "jsonl",
    }
}

/// Writes records to a file.
#[derive(Debug)]
pub struct DiskLogger {
    path: PathBuf,
    file: Option<File>,
    format: OutputFormat,
}

impl DiskLogger {
    /// Opens `<log_dir>/<filename>` for appending and makes the folder if needed; without a name the file is called
    /// after the time.
    pub fn open(log_dir: &Path, format: OutputFormat, filename: Option<&str>) -> Result<Self, Error> {
        let filename = filename.map_or_else(|| timed_name(SystemTime::now(), format), str::to_owned);
        std::fs::create_dir_all(log_dir).map_err(|source| Error::CreateDir { path: log_dir.to_owned(), source })?;
        let path = log_dir.join(filename);
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|source| Error::OpenLog { path: path.clone(), source })?;
        Ok(Self { path, file: Some(file), format })
    }

    /// The file that records go to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl MetricLogger for DiskLogger {
    fn log(&mut self, step: u64, metrics: &[(&str, f64)]) -> Result<(), Error> {
        let file = self.file.as_mut().ok_or_else(|| Error::Closed { path: self.path.clone(), step })?;
        let line = match self.format {
            OutputFormat::Txt => text_line(step, metrics),
            OutputFormat::Jsonl => json_line(step, metrics),
        };
        // One write a record: a reader that follows the file sees whole lines.
        file.write_all(line.as_bytes()).map_err(|source| Error::WriteLog { path: self.path.clone(), step, source })
    }

    fn flush(&mut self) -> Result<(), Error> {
        match &self.file {
            // Devices and pipes cannot be synced; what was written to them is where it belongs.
            Some(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => {
                file.sync_data().map_err(|source| Error::SyncLog { path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.file = None;
        Ok(())
    }
}

/// `log_<unix seconds>.<extension>`; a clock before 1970 counts as 1970.
fn timed_name(now: SystemTime, format: OutputFormat) -> String {
    let secs = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("log_{secs}.{}", format.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const METRICS: &[(&str, f64)] = &[("loss", 7.5), ("lr", 1e-5)];

    #[test]
    fn records_are_readable_at_once_and_appended() {
        let dir = tempfile::tempdir().unwrap();
        let log_dir = dir.path().join("a/b");
        let mut logger = DiskLogger::open(&log_dir, OutputFormat::Txt, Some("run.txt")).unwrap();
        assert_eq!(logger.path(), log_dir.join("run.txt"));
        logger.log(1, METRICS).unwrap();
        let read = || std::fs::read_to_string(log_dir.join("run.txt")).unwrap();
        assert_eq!(read(), "Step 1 | loss:7.5 lr:1e-05 \n");
        logger.close().unwrap();
        logger.close().unwrap();
        let mut logger = DiskLogger::open(&log_dir, OutputFormat::Jsonl, Some("run.txt")).unwrap();
        logger.log(2, METRICS).unwrap();
        logger.flush().unwrap();
        assert_eq!(read(), "Step 1 | loss:7.5 lr:1e-05 \n{\"step\": 2, \"loss\": 7.5, \"lr\": 1e-05}\n");
    }

    #[test]
    fn names_come_from_the_clock() {
        let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_999);
        assert_eq!(timed_name(at, OutputFormat::Txt), "log_1700000000.txt");
        assert_eq!(timed_name(UNIX_EPOCH - Duration::from_secs(1), OutputFormat::Jsonl), "log_0.jsonl");
        let dir = tempfile::tempdir().unwrap();
        let logger = DiskLogger::open(dir.path(), OutputFormat::Jsonl, None).unwrap();
        let name = logger.path().file_name().unwrap().to_str().unwrap();
        let secs = name.strip_prefix("log_").and_then(|name| name.strip_suffix(".jsonl"));
        assert!(secs.is_some_and(|secs| secs.parse::<u64>().is_ok()), "{name}");
    }

    #[test]
    fn failures_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = DiskLogger::open(&file, OutputFormat::Txt, None).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot create the log folder `{}`", file.display()));
        assert!(error.hint().unwrap().contains("metric_logger.log_dir"));

        std::fs::create_dir(dir.path().join("taken")).unwrap();
        let error = DiskLogger::open(dir.path(), OutputFormat::Txt, Some("taken")).unwrap_err();
        assert!(error.to_string().starts_with("cannot open the log file `"), "{error}");

        let mut logger = DiskLogger::open(dir.path(), OutputFormat::Txt, Some("log")).unwrap();
        logger.close().unwrap();
        let error = logger.log(3, METRICS).unwrap_err();
        assert!(error.to_string().starts_with("cannot write step 3 to the log file `"), "{error}");
        assert!(error.to_string().ends_with("log`: it is closed"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_with_the_step() {
        let mut logger = DiskLogger::open(Path::new("/dev"), OutputFormat::Txt, Some("full")).unwrap();
        let error = logger.log(7, METRICS).unwrap_err();
        assert_eq!(error.to_string(), "cannot write step 7 to the log file `/dev/full`");
        assert!(std::error::Error::source(&error).is_some());
    }
}
