//! The reference's own loss curves, read and logged again: every line must come out as it was.

use std::path::{Path, PathBuf};

use metrics::{DiskLogger, MetricLogger, OutputFormat};

/// `CONFORMANCE_DIR`, by default beside the workspace; `None` where there is no such folder.
fn conformance_dir() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    let dir = std::env::var_os("CONFORMANCE_DIR").map_or_else(default, PathBuf::from);
    dir.is_dir().then_some(dir)
}

#[test]
fn logged_lines_equal_the_reference_curves() {
    let Some(conformance) = conformance_dir() else {
        eprintln!("skipped: no conformance pack (set CONFORMANCE_DIR)");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut num_lines = 0;
    for entry in std::fs::read_dir(conformance.join("training/curves")).unwrap() {
        let curve = entry.unwrap().path();
        let text = std::fs::read_to_string(&curve).unwrap();
        let name = curve.file_name().unwrap().to_str().unwrap();
        let mut logger = DiskLogger::open(scratch.path(), OutputFormat::Txt, Some(name)).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Step ")).collect();
        for line in &lines {
            let (step, metrics) = line.strip_prefix("Step ").unwrap().split_once(" | ").unwrap();
            let metrics: Vec<(&str, f64)> = metrics
                .split_whitespace()
                .map(|metric| metric.split_once(':').unwrap())
                .map(|(name, value)| (name, value.parse().unwrap()))
                .collect();
            logger.log(step.parse().unwrap(), &metrics).unwrap();
        }
        let logged = std::fs::read_to_string(logger.path()).unwrap();
        // The stored curves have no blanks at the ends of their lines.
        let logged: Vec<&str> = logged.lines().map(str::trim_end).collect();
        assert_eq!(logged, lines, "{}", curve.display());
        num_lines += lines.len();
    }
    assert!(num_lines > 0, "no logged step in `{}`", conformance.display());
}
