//! What a status that is no success means.

use std::time::Duration;

use ureq::http::HeaderMap;

use crate::patience::Trouble;
use crate::settings::Settings;
use crate::{Error, Repo};

/// Longest message of a server that is passed on, in characters.
const MESSAGE_CHARS: usize = 300;

/// What a request was for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub repo: &'a Repo,
    /// The file; `None` for the listing.
    pub path: Option<&'a str>,
}

/// A refusal.
pub(crate) struct Refusal<'a> {
    pub url: &'a str,
    /// Whether the hub itself refuses, not a host it redirected to.
    pub by_hub: bool,
    pub status: u16,
    pub headers: &'a HeaderMap,
}

impl Refusal<'_> {
    /// What it means for what was wanted.
    pub fn trouble(&self, wanted: Wanted<'_>, settings: &Settings) -> Trouble {
        let (url, status) = (self.url.to_owned(), self.status);
        let message = self.header("x-error-message").chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS).collect();
        match status {
            429 => {
                let secs = self.header("retry-after").trim().parse().ok();
                let error = Error::RateLimited { url, retry_after_secs: secs };
                Trouble { error, again: true, wait: secs.map(Duration::from_secs) }
            }
            408 | 500.. => Trouble::passing(Error::Server { url, status, message }),
            // A signed address that has run out: the hub gives a fresh one.
            401 | 403 if !self.by_hub => Trouble::passing(Error::Refused { url, status, message }),
            _ => Trouble::last(self.by_code(wanted, settings, &message).unwrap_or(Error::Refused {
                url,
                status,
                message,
            })),
        }
    }

    /// The error by the hub's own code, or by what it leaves only one reading for.
    fn by_code(&self, wanted: Wanted<'_>, settings: &Settings, message: &str) -> Option<Error> {
        let repo = wanted.repo;
        let (kind, id) = (repo.kind(), repo.id().to_owned());
        let endpoint = settings.endpoint.clone();
        let token = settings.token.as_ref().map(|token| token.source().clone());
        let gated = || Error::Gated {
            kind,
            id: id.clone(),
            page: repo.page_url(&endpoint),
            tokens_page: format!("{endpoint}/settings/tokens"),
            source_of_token: token.clone(),
        };
        let missing_repo =
            || Error::RepoNotFound { kind, id: id.clone(), endpoint: endpoint.clone(), has_token: token.is_some() };
        let missing_file = |path: &str| Error::FileNotFound { kind, id: id.clone(), path: path.to_owned() };
        Some(match (self.header("x-error-code"), self.status, wanted.path) {
            ("GatedRepo", ..) => gated(),
            ("RepoNotFound", ..) => missing_repo(),
            ("RevisionNotFound", ..) => {
                Error::RevisionNotFound { kind, id: id.clone(), revision: repo.revision().to_owned() }
            }
            ("EntryNotFound", _, Some(path)) | (_, 404, Some(path)) => missing_file(path),
            (_, 401, _) => match token {
                Some(source_of_token) if message.contains("Invalid credentials") => {
                    Error::TokenRefused { endpoint: endpoint.clone(), source_of_token }
                }
                _ => missing_repo(),
            },
            (_, 404, None) => missing_repo(),
            _ => return None,
        })
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}
