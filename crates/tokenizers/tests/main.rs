//! Tokenizers against the conformance pack, by laws, and on files that are wrong.

#![expect(clippy::unwrap_used, reason = "the shared helpers of tests may fail as tests do")]

mod auto;
mod chats;
mod errors;
mod formats;
mod laws;
mod phi4;
mod tokenize;
