//! The program as its users meet it.

mod common;
mod curves;
mod runs;
#[path = "../../recipes/tests/tiny_folder.rs"]
#[expect(dead_code, reason = "has what other tests need too")]
mod tiny_folder;
