//! The files of a repository.

use std::path::Path;

use serde::Deserialize;

use crate::client::shown;
use crate::digest::Digest;
use crate::patience::{Patience, Trouble};
use crate::refusal::Wanted;
use crate::repo::checked_path;
use crate::{Error, Hub, Repo, Result};

/// Most bytes that a listing may have: some 100 000 files.
const MAX_BYTES: u64 = 64 << 20;

/// A repository's files at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    repo: Repo,
    commit: String,
    files: Vec<RepoFile>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoFile {
    /// Its path in the repository, parts separated by `/`.
    pub path: String,
    /// Its size in bytes, if the hub says so.
    pub size: Option<u64>,
    /// What its bytes hash to, if the hub says so.
    pub digest: Option<Digest>,
}

/// The answer of the hub, as far as it is used here.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    size: Option<u64>,
    sha256: Option<String>,
}

impl Listing {
    /// Reads the hub's answer; the reason if it is none.
    pub(crate) fn parse(repo: &Repo, json: &[u8]) -> std::result::Result<Self, ListingFault> {
        let answer: Answer = serde_json::from_slice(json).map_err(|e| ListingFault::Reason(e.to_string()))?;
        let is_commit = (7..=64).contains(&answer.sha.len()) && answer.sha.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_commit {
            return Err(ListingFault::Reason(format!(
                "expected a commit in `sha`, found `{}`",
                answer.sha.escape_debug()
            )));
        }
        let mut files = answer
            .siblings
            .into_iter()
            .map(RepoFile::checked)
            .collect::<Result<Vec<_>>>()
            .map_err(ListingFault::Unsafe)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        Ok(Self { repo: repo.clone(), commit: answer.sha, files })
    }

    /// A listing of files that are known to be there, without sizes and hashes.
    pub(crate) fn of_paths(repo: &Repo, commit: &str, mut paths: Vec<String>) -> Self {
        paths.sort();
        let files = paths.into_iter().map(|path| RepoFile { path, size: None, digest: None }).collect();
        Self { repo: repo.clone(), commit: commit.to_owned(), files }
    }

    /// The repository.
    pub fn repo(&self) -> &Repo {
        &self.repo
    }

    /// The commit that the revision stood for.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// The files, by path.
    pub fn files(&self) -> &[RepoFile] {
        &self.files
    }

    /// The file at a path.
    pub fn find(&self, path: &str) -> Option<&RepoFile> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|index| &self.files[index])
    }
}

/// Why an answer is no listing.
#[derive(Debug)]
pub(crate) enum ListingFault {
    /// It is not what it should be.
    Reason(String),
    /// A name in it leads out of its folder.
    Unsafe(Error),
}

impl RepoFile {
    fn checked(sibling: Sibling) -> Result<Self> {
        checked_path(&sibling.rfilename)?;
        let digest = match &sibling.lfs {
            Some(lfs) => lfs.sha256.as_deref().and_then(Digest::sha256),
            None => sibling.blob_id.as_deref().and_then(Digest::git_sha1),
        };
        let size = sibling.lfs.and_then(|lfs| lfs.size).or(sibling.size);
        // A git hash begins with the size, and none can be checked early without it.
        let digest = digest.filter(|_| size.is_some());
        Ok(Self { path: sibling.rfilename, size, digest })
    }

    /// The name of the file without its folders.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Its place below a folder.
    pub(crate) fn below(&self, folder: &Path) -> std::path::PathBuf {
        folder.join(&self.path)
    }
}

impl Hub {
    /// Asks for the files of a repository.
    pub fn list(&self, repo: &Repo) -> Result<Listing> {
        Ok(self.list_raw(repo)?.0)
    }

    /// The files of a repository, and the answer that names them.
    pub(crate) fn list_raw(&self, repo: &Repo) -> Result<(Listing, Vec<u8>)> {
        if let Some(variable) = self.settings.offline {
            return Err(Error::Offline { kind: repo.kind(), id: repo.id().to_owned(), variable });
        }
        let url = repo.api_url(&self.settings.endpoint);
        let mut patience = Patience::new(self.settings.first_wait);
        loop {
            match self.try_to_list(&url, repo) {
                Ok(found) => return Ok(found),
                // Nothing has been fetched yet: without a connection it is better to say so at once.
                Err(trouble) if matches!(trouble.error, Error::Unreachable { .. }) => return Err(trouble.error),
                Err(trouble) => patience.wait(trouble, &*self.progress)?,
            }
        }
    }

    fn try_to_list(&self, url: &str, repo: &Repo) -> std::result::Result<(Listing, Vec<u8>), Trouble> {
        let response = self.get(url, 0, Wanted { repo, path: None })?;
        let body = response.into_body().into_with_config().limit(MAX_BYTES);
        let json = body.read_to_vec().map_err(|cause| self.trouble(url, cause))?;
        match Listing::parse(repo, &json) {
            Ok(listing) => Ok((listing, json)),
            Err(ListingFault::Unsafe(error)) => Err(Trouble::last(error)),
            Err(ListingFault::Reason(reason)) => {
                let url = shown(url).to_owned();
                Err(Trouble::last(Error::BadAnswer { url, expected: "list of files", reason }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use proptest::prelude::*;

    fn parse(json: &str) -> std::result::Result<Listing, ListingFault> {
        Listing::parse(&Repo::new(Kind::Model, "a/b", None).unwrap(), json.as_bytes())
    }

    const COMMIT: &str = "0123456789012345678901234567890123456789";

    fn listing(siblings: &str) -> std::result::Result<Listing, ListingFault> {
        parse(&format!(r#"{{"sha": "{COMMIT}", "id": "a/b", "siblings": [{siblings}]}}"#))
    }

    #[test]
    fn sizes_and_hashes() {
        let sha256 = "ab".repeat(32);
        let sha1 = "cd".repeat(20);
        let found = listing(&format!(
            r#"{{"rfilename": "w", "size": 9, "blobId": "{sha1}", "lfs": {{"sha256": "{sha256}", "size": 9, "pointerSize": 1}}}},
               {{"rfilename": "a/c", "size": 3, "blobId": "{sha1}"}}, {{"rfilename": "b"}},
               {{"rfilename": "e", "size": 3, "blobId": "../../x"}}"#
        ))
        .unwrap();
        assert_eq!(found.commit(), COMMIT);
        let files: Vec<_> = found.files().iter().map(|f| (f.path.as_str(), f.size, f.digest.as_ref())).collect();
        let (git, lfs) = (Digest::GitSha1(sha1), Digest::Sha256(sha256));
        assert_eq!(
            files,
            [("a/c", Some(3), Some(&git)), ("b", None, None), ("e", Some(3), None), ("w", Some(9), Some(&lfs))]
        );
        assert_eq!(found.find("w").unwrap().name(), "w");
        assert!(found.find("x").is_none());
    }

    #[test]
    fn answers_that_are_none() {
        for json in ["", "<html>", "[]", "{}", r#"{"sha": "../../x"}"#, r#"{"sha": "0123456", "siblings": [{}]}"#] {
            assert!(matches!(parse(json), Err(ListingFault::Reason(_))), "{json}");
        }
        assert!(matches!(listing(r#"{"rfilename": "../x"}"#), Err(ListingFault::Unsafe(_))));
        assert!(listing("").unwrap().files().is_empty());
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60), cut in 0..200usize) {
            let repo = Repo::new(Kind::Model, "a/b", None).unwrap();
            let _ = Listing::parse(&repo, &bytes);
            let json = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "a", "size": 1, "lfs": null}}]}}"#);
            let _ = Listing::parse(&repo, &json.as_bytes()[..cut.min(json.len())]);
        }
    }
}
