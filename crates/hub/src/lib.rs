//! Files of a Hugging Face-compatible hub: listings, resumable checked downloads, the cache shared with other programs.
//!
//! ```text
//! Settings (environment) -> Hub -> Listing (commit, files with sizes and hashes) -> download into a folder
//!                               -> Snapshot (a listing in the cache, online or not) -> paths of files
//! ```
//!
//! Protocol: `GET /api/{models|datasets}/{id}/revision/{rev}?blobs=true` lists a repository; `GET
//!           [/datasets]/{id}/resolve/{commit}/{path}` gives a file, often after redirects to another host, from any byte
//!           on with `Range`. Refusals carry `X-Error-Code` and `X-Error-Message`.
//! Client:   a thin layer over `ureq`. The hub's own client crate brings an async runtime and some 300 more crates, and
//!           neither checks what arrived against its hash nor goes on with a partial file.
//! Promises: no file has its final name before it is complete and its hash is right; the token goes to the endpoint's
//!           own scheme, host and port, nowhere else; nothing waits forever; names that a server sends stay in their
//!           folder.
//! Errors:   one enum, [`Error`]. Panics: never on what a server sends.

mod cache;
mod client;
mod digest;
mod download;
mod error;
mod listing;
mod patience;
pub mod pattern;
mod progress;
mod refusal;
mod repo;
mod settings;
mod transfer;

pub use cache::Snapshot;
pub use client::Hub;
pub use digest::Digest;
pub use error::{Error, Result};
pub use listing::{Listing, RepoFile};
pub use progress::{Progress, Silent, install_progress};
pub use repo::{Kind, MAIN, Repo};
pub use settings::{Settings, Token, TokenSource};
