//! Files of the conformance pack.

use std::path::PathBuf;

/// A file or folder of the pack; `None` where the pack is absent.
pub fn path(name: &str) -> Option<PathBuf> {
    testing::conformance_dir().map(|pack| pack.join(name))
}

/// The lines of a `.jsonl` file of the pack.
pub fn lines(name: &str) -> Option<Vec<serde_json::Value>> {
    let text = std::fs::read_to_string(path(name)?).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}
