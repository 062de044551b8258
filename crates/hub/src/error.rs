//! Everything that can go wrong between a hub and this disk.

use std::io;
use std::path::{Path, PathBuf};

use crate::repo::{Kind, MAIN};
use crate::settings::TokenSource;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A problem with a hub, with what was asked of it, or with the disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no repository id.
    #[error("`{id}` is not the id of a {kind} repository: {reason}\n  expected `name` or `owner/name`")]
    BadId {
        /// What kind was meant.
        kind: Kind,
        /// The text.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A text that is no revision.
    #[error("`{revision}` is not a revision\n  expected a branch, a tag, a commit or `refs/...`")]
    BadRevision {
        /// The text.
        revision: String,
    },
    /// A pattern of file names that is not complete.
    #[error("`{pattern}` is not a pattern of file names\n  expected `]` behind its last `[`")]
    BadPattern {
        /// The pattern.
        pattern: String,
    },
    /// An address that requests cannot begin with.
    #[error(
        "wrong value for the environment variable `{variable}`\n  expected an address like `https://host` or `http://host:port`, found `{found}`"
    )]
    BadEndpoint {
        /// The variable.
        variable: &'static str,
        /// Its value.
        found: String,
    },
    /// A variable that holds no duration.
    #[error("wrong value for the environment variable `{variable}`\n  expected a positive number of {}, at most a day, found `{found}`", if variable.ends_with("_MS") { "milliseconds" } else { "seconds" })]
    BadDuration {
        /// The variable.
        variable: &'static str,
        /// Its value.
        found: String,
    },
    /// A token that no header can carry.
    #[error(
        "the token from {source_of_token} holds characters that no token has\n  expected printable ASCII without spaces"
    )]
    BadToken {
        /// Where it comes from.
        source_of_token: TokenSource,
    },
    /// Certificates that cannot be used.
    #[error("no certificate in `{}`\n  expected PEM blocks `BEGIN CERTIFICATE`", path.display())]
    BadCertificates {
        /// The file.
        path: PathBuf,
    },
    /// A file that an environment variable names, or the saved token, cannot be read.
    #[error("cannot read `{}`, {what}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The hub does not know the token.
    #[error("{endpoint} does not accept the token from {source_of_token}")]
    TokenRefused {
        /// The hub.
        endpoint: String,
        /// Where the token comes from.
        source_of_token: TokenSource,
    },
    /// A repository that is not there, or not for everyone.
    #[error("{kind} repository `{id}` not found on {endpoint}\n  {}", if *has_token { "it does not exist, or the token has no access to it or is not valid any more" } else { "it does not exist, or it is private and no token was given" })]
    RepoNotFound {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// A repository without the revision asked for.
    #[error("no revision `{revision}` in {kind} repository `{id}`")]
    RevisionNotFound {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// The revision.
        revision: String,
    },
    /// A listed file that is not there.
    #[error("no file `{path}` in {kind} repository `{id}`")]
    FileNotFound {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// The file.
        path: String,
    },
    /// A repository whose terms have to be accepted first.
    #[error("{kind} repository `{id}` is gated: its terms have to be accepted first\n  {}", gate(source_of_token.as_ref()))]
    Gated {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// Its page.
        page: String,
        /// The page that makes tokens.
        tokens_page: String,
        /// Where the token that was sent comes from.
        source_of_token: Option<TokenSource>,
    },
    /// Another refusal.
    #[error("{url} refuses with status {status}{}", said(message))]
    Refused {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
        /// What the hub says, if anything.
        message: String,
    },
    /// Too many requests, also after waiting.
    #[error("{url} limits how often it answers (status 429){}", wait(*retry_after_secs))]
    RateLimited {
        /// What was asked for.
        url: String,
        /// Seconds that the hub asks to wait.
        retry_after_secs: Option<u64>,
    },
    /// The hub fails, also after waiting.
    #[error("{url} fails with status {status}{}", said(message))]
    Server {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
        /// What the hub says, if anything.
        message: String,
    },
    /// No connection.
    #[error("cannot reach {host}: {reason}")]
    Unreachable {
        /// Scheme, host and port.
        host: String,
        /// Why.
        reason: String,
    },
    /// An answer that did not come.
    #[error("{url} stopped answering: nothing came for {secs} s")]
    TimedOut {
        /// What was asked for.
        url: String,
        /// How long nothing came.
        secs: f64,
    },
    /// A connection that ended early.
    #[error("the connection to {url} broke off: {reason}")]
    Dropped {
        /// What was asked for.
        url: String,
        /// Why.
        reason: String,
    },
    /// Redirects without an end.
    #[error("{url} redirects more than {limit} times")]
    Redirects {
        /// What was asked for.
        url: String,
        /// Redirects followed.
        limit: usize,
    },
    /// An answer that makes no sense.
    #[error("{url} answers with something that is no {expected}\n  {reason}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What it should be.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A name that leads out of its folder.
    #[error("the hub lists a file `{}`, whose name leads out of its folder", path.escape_debug())]
    UnsafePath {
        /// The name.
        path: String,
    },
    /// A file of another length than its listing says.
    #[error("wrong length of `{path}`: expected {expected} bytes, found {found}")]
    WrongLength {
        /// The file.
        path: String,
        /// Bytes by the listing.
        expected: u64,
        /// Bytes that came or were announced.
        found: u64,
    },
    /// A file with other bytes than its listing says.
    #[error("wrong contents of `{path}`\n  expected {hash} {expected}, found {found}")]
    WrongHash {
        /// The file.
        path: String,
        /// Which hash.
        hash: &'static str,
        /// By the listing.
        expected: String,
        /// Of the bytes that came.
        found: String,
    },
    /// Nothing is left of a repository.
    #[error("nothing to download from {kind} repository `{id}`: {}", match num_files { 0 => "it has no files".to_owned(), n => format!("all {n} files match the patterns to ignore") })]
    NothingLeft {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// Files it has.
        num_files: usize,
    },
    /// The cache only, and it does not have that.
    #[error("{} of {kind} repository `{id}` is not in the cache, and `{variable}` forbids to ask the hub\n  looked in `{}`", path.as_ref().map_or_else(|| format!("revision `{revision}`"), |path| format!("`{path}`")), folder.display())]
    NotCached {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// The revision asked for.
        revision: String,
        /// The file; `None` if not even the revision is known.
        path: Option<String>,
        /// The variable that says so.
        variable: &'static str,
        /// Its folder in the cache.
        folder: PathBuf,
    },
    /// A download in `HF_HUB_OFFLINE`.
    #[error("cannot download {kind} repository `{id}`: `{variable}` forbids to ask the hub")]
    Offline {
        /// What kind was asked for.
        kind: Kind,
        /// Its id.
        id: String,
        /// The variable that says so.
        variable: &'static str,
    },
    /// The operating system refused to read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// File or folder.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The operating system refused to write.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// File or folder.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// No room.
    #[error("no space left for `{}`{}", path.display(), room(*missing, *free))]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes of it that are not written yet, where its size is known.
        missing: Option<u64>,
        /// Bytes that are free, where that was found before anything was written.
        free: Option<u64>,
    },
}

fn gate(source_of_token: Option<&TokenSource>) -> String {
    match source_of_token {
        Some(source) => format!(
            "the account of the token from {source} has not accepted them, or the token may not read gated repositories"
        ),
        None => "no token was given".to_owned(),
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!("\n  it says: {message}") }
}

fn wait(secs: Option<u64>) -> String {
    secs.map_or(String::new(), |secs| format!("\n  it asks to wait {secs} s"))
}

fn room(missing: Option<u64>, free: Option<u64>) -> String {
    match (missing, free) {
        (None, _) => String::new(),
        (Some(missing), None) => format!(": {} more are needed", size(missing)),
        (Some(missing), Some(free)) => format!("\n  expected {} more, found {} free", size(missing), size(free)),
    }
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

impl Error {
    /// A refusal to write, apart from a full disk, which has its own words.
    pub(crate) fn write(path: &Path, missing: Option<u64>, cause: io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, missing, free: None },
            _ => Self::Write { path, cause },
        }
    }

    /// True if the hub may be well and only the way to it, or this moment, is not.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::TimedOut { .. }
                | Self::Dropped { .. }
                | Self::RateLimited { .. }
                | Self::Server { .. }
        )
    }

    /// 2 for what was asked wrongly, 1 for what failed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BadId { .. }
            | Self::BadRevision { .. }
            | Self::BadPattern { .. }
            | Self::BadEndpoint { .. }
            | Self::BadDuration { .. }
            | Self::BadToken { .. }
            | Self::BadCertificates { .. }
            | Self::Setting { .. }
            | Self::TokenRefused { .. }
            | Self::RepoNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::Gated { .. }
            | Self::NothingLeft { .. }
            | Self::NotCached { .. }
            | Self::Offline { .. } => 2,
            _ => 1,
        }
    }

    /// One action that may help.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::BadPattern { .. } => "write `[[]` for a `[` that stands for itself".to_owned(),
            Self::BadToken { source_of_token } | Self::TokenRefused { source_of_token, .. } => {
                format!("replace the token in {source_of_token}, or remove it for public repositories")
            }
            Self::BadCertificates { .. } => {
                "set `SSL_CERT_FILE` or `REQUESTS_CA_BUNDLE` to a file of certificates, or unset both".to_owned()
            }
            Self::FileNotFound { .. } => {
                "run the same command again: the repository may just have been changed".to_owned()
            }
            Self::RepoNotFound { has_token: true, .. } => {
                "check the spelling, that the token is valid, and that its account can see the repository".to_owned()
            }
            Self::RepoNotFound { .. } => {
                "check the spelling; for a private repository set `HF_TOKEN`, or pass `--hf-token` to `tune download`"
                    .to_owned()
            }
            Self::RevisionNotFound { revision, .. } if revision == MAIN => {
                "name a branch, a tag or a commit of it as revision".to_owned()
            }
            Self::RevisionNotFound { .. } => format!("leave the revision out to get `{MAIN}`"),
            Self::Gated { page, source_of_token: Some(_), .. } => {
                format!("open {page} with that account and accept the terms")
            }
            Self::Gated { page, tokens_page, .. } => format!(
                "accept the terms at {page}, make a token at {tokens_page}, and set `HF_TOKEN` or pass `--hf-token` to `tune download`"
            ),
            Self::RateLimited { .. } => "wait, or send a token: the limits are higher with one".to_owned(),
            Self::Unreachable { .. } => {
                "check the network, and `HF_ENDPOINT`, `HTTPS_PROXY` and `SSL_CERT_FILE` if this machine needs them"
                    .to_owned()
            }
            Self::TimedOut { .. } | Self::Dropped { .. } | Self::Server { .. } => {
                "run the same command again: what has arrived is kept".to_owned()
            }
            Self::BadAnswer { .. } => "check that `HF_ENDPOINT` is the address of a hub".to_owned(),
            Self::WrongLength { .. } | Self::WrongHash { .. } => {
                "run the same command again; if it stays, something between here and the hub changes files".to_owned()
            }
            Self::NothingLeft { num_files: 1.., .. } => "ignore less with `--ignore-patterns`".to_owned(),
            Self::NotCached { variable, .. } | Self::Offline { variable, .. } => format!("unset `{variable}`"),
            Self::DiskFull { .. } => {
                "free some space and run the same command again: what has arrived is kept".to_owned()
            }
            _ => return None,
        };
        Some(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_its_own_words() {
        let error = Error::write(Path::new("m.safetensors"), Some(3 << 30), io::ErrorKind::StorageFull.into());
        assert_eq!(error.to_string(), "no space left for `m.safetensors`: 3.0 GiB more are needed");
        assert_eq!(error.exit_code(), 1);
        let error = Error::write(Path::new("m"), None, io::ErrorKind::PermissionDenied.into());
        assert_eq!(error.to_string(), "cannot write `m`");
    }

    #[test]
    fn sizes() {
        assert_eq!([12, 1536, 2 << 20, 5 << 30].map(size), ["12 bytes", "1.5 KiB", "2.0 MiB", "5.0 GiB"]);
    }
}
