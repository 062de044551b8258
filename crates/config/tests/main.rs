//! Integration tests of the config crate: conformance pack, components, overrides, exact texts of errors, laws.

mod components;
mod conformance;
mod errors;
mod laws;
mod malformed;
mod overrides;
mod round_trip;
