//! Integration tests of the config crate: conformance pack, components, exact texts of errors, laws.

mod components;
mod conformance;
mod errors;
mod laws;
