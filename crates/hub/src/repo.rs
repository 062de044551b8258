//! What is asked of a hub: a kind, an id and a revision, checked before anything is sent.

use std::fmt;

use crate::{Error, Result};

/// The revision used when none is named.
pub const MAIN: &str = "main";

/// Kinds of repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Weights, tokenizers, configs.
    Model,
    /// Rows.
    Dataset,
}

impl Kind {
    /// The folder of the API and of the cache.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// What stands before an id in addresses that people open.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        })
    }
}

/// A repository at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo {
    kind: Kind,
    id: String,
    revision: String,
}

impl Repo {
    /// A repository by its id, `name` or `owner/name`; the revision is a branch, a tag, a commit or `refs/...`.
    pub fn new(kind: Kind, id: &str, revision: Option<&str>) -> Result<Self> {
        if let Some(reason) = fault_of_id(id) {
            return Err(Error::BadId { kind, id: id.to_owned(), reason });
        }
        let revision = revision.unwrap_or(MAIN);
        // The revision becomes a path below `refs` in the cache.
        let is_sound = !revision.contains(|c: char| c.is_control() || c == '\\')
            && revision.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !is_sound {
            return Err(Error::BadRevision { revision: revision.to_owned() });
        }
        Ok(Self { kind, id: id.to_owned(), revision: revision.to_owned() })
    }

    /// True if a text could be the id of a repository.
    pub fn is_id(text: &str) -> bool {
        fault_of_id(text).is_none()
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The revision asked for.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// True if the revision is the full name of a commit, which never changes.
    pub(crate) fn is_commit(&self) -> bool {
        self.revision.len() == 40 && self.revision.bytes().all(|b| b.is_ascii_hexdigit())
    }

    /// Its folder in the cache: `datasets--owner--name`.
    pub(crate) fn cache_folder(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }

    /// Address of its list of files.
    pub(crate) fn api_url(&self, endpoint: &str) -> String {
        format!("{endpoint}/api/{}/{}/revision/{}?blobs=true", self.kind.plural(), self.id, quoted(&self.revision))
    }

    /// Address of a file at a commit.
    pub(crate) fn file_url(&self, endpoint: &str, commit: &str, path: &str) -> String {
        let path = path.split('/').map(quoted).collect::<Vec<_>>().join("/");
        format!("{endpoint}/{}{}/resolve/{}/{path}", self.kind.prefix(), self.id, quoted(commit))
    }

    /// Address of its page.
    pub(crate) fn page_url(&self, endpoint: &str) -> String {
        format!("{endpoint}/{}{}", self.kind.prefix(), self.id)
    }
}

/// What is wrong with an id, if anything.
fn fault_of_id(id: &str) -> Option<&'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if id.is_empty() {
        return Some("it is empty");
    }
    if id.len() > 200 {
        return Some("it is longer than 200 characters");
    }
    let parts: Vec<&str> = id.split('/').collect();
    if parts.len() > 2 {
        return Some("it has more than one `/`");
    }
    if parts.iter().any(|part| part.is_empty()) {
        return Some("a part of it is empty");
    }
    if !parts.iter().all(|part| part.chars().all(allowed)) {
        return Some("only letters, digits, `-`, `_` and `.` may stand around the `/`");
    }
    if parts.iter().any(|part| part.starts_with(['-', '.']) || part.ends_with(['-', '.'])) || id.contains("..") {
        return Some("no part may begin or end with `-` or `.`, nor hold `..`");
    }
    // `--` would be ambiguous in the cache, and no hub allows it.
    id.contains("--").then_some("it holds `--`")
}

/// A path that a server sent, if it is one below the folder it belongs in.
pub(crate) fn checked_path(path: &str) -> Result<&str> {
    let is_sound = |part: &str| !matches!(part, "" | "." | "..");
    let is_hostile = path.contains(|c: char| c.is_control()) || (cfg!(windows) && path.contains(['\\', ':']));
    if is_hostile || !path.split('/').all(is_sound) {
        return Err(Error::UnsafePath { path: path.to_owned() });
    }
    Ok(path)
}

/// Percent-encodes everything but letters, digits and `-_.~`.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_that_are_taken() {
        for id in ["gpt2", "tatsu-lab/alpaca", "meta-llama/Llama-3.2-1B", "a/b_c.d", "0/1"] {
            assert!(Repo::is_id(id), "{id}");
        }
    }

    #[test]
    fn ids_that_are_refused() {
        for (id, reason) in [
            ("", "empty"),
            ("a//b", "more than one"),
            ("/etc/passwd", "more than one"),
            ("/etc", "part of it is empty"),
            ("a/", "part of it is empty"),
            ("../x", "begin or end"),
            ("a/..", "begin or end"),
            ("a/b..c", "`..`"),
            ("a b/c", "letters"),
            ("a\\b", "letters"),
            ("a/b?x=1", "letters"),
            ("https:/x", "letters"),
            ("a--b/c", "`--`"),
            (&"a".repeat(201), "longer"),
        ] {
            let error = Repo::new(Kind::Model, id, None).unwrap_err().to_string();
            assert!(error.contains(reason), "{id}: {error}");
        }
    }

    #[test]
    fn revisions_stay_below_refs() {
        for revision in ["main", "v1.0", "refs/pr/1", "refs/convert/parquet", "feature/x y"] {
            assert!(Repo::new(Kind::Model, "a/b", Some(revision)).is_ok(), "{revision}");
        }
        for revision in ["", "..", "a/../b", "/a", "a/", "a\nb", "a\\b"] {
            assert!(Repo::new(Kind::Model, "a/b", Some(revision)).is_err(), "{revision}");
        }
    }

    #[test]
    fn addresses() {
        let repo = Repo::new(Kind::Dataset, "o/d", Some("refs/pr/1")).unwrap();
        assert_eq!(repo.api_url("http://h"), "http://h/api/datasets/o/d/revision/refs%2Fpr%2F1?blobs=true");
        assert_eq!(repo.file_url("http://h", "c0", "a b/#1.json"), "http://h/datasets/o/d/resolve/c0/a%20b/%231.json");
        assert_eq!(repo.page_url("http://h"), "http://h/datasets/o/d");
        assert_eq!(repo.cache_folder(), "datasets--o--d");
        let model = Repo::new(Kind::Model, "gpt2", None).unwrap();
        assert_eq!(model.file_url("http://h", "c0", "x"), "http://h/gpt2/resolve/c0/x");
    }

    proptest! {
        #[test]
        fn a_path_that_is_taken_stays_in_its_folder(path in "[a./\\\\\n]{0,12}") {
            if let Ok(path) = checked_path(&path) {
                let joined = std::path::Path::new("/folder").join(path);
                prop_assert!(joined.starts_with("/folder") && joined != std::path::Path::new("/folder"));
                prop_assert!(joined.components().all(|c| !matches!(c, std::path::Component::ParentDir)));
            }
        }
    }

    #[test]
    fn paths_that_are_refused() {
        for path in ["../x", "a/../../x", "/etc/passwd", "", "a//b", "a/.", "a\0b"] {
            assert!(checked_path(path).is_err(), "{path:?}");
        }
        for path in ["a", "a/b.json", "..a", "a..b/c...", ".hidden"] {
            assert!(checked_path(path).is_ok(), "{path:?}");
        }
    }
}
