//! Config text and overrides: parse, apply, resolve, print, parse again.
//!
//! The input's form and what must hold are in `round_trip.rs`, which the config crate's own tests share.
//! Checked: with `FUZZ_WRONG_PRINTER` set the printer is wrong, and the seeds must crash the target.

#![no_main]

use std::sync::LazyLock;

use config::{Node, Order, to_yaml};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/config/tests/round_trip.rs"]
mod round_trip;

static PRINTER: LazyLock<round_trip::Printer> =
    LazyLock::new(|| if std::env::var_os("FUZZ_WRONG_PRINTER").is_some() { without_quotes } else { to_yaml });

fn without_quotes(node: &Node, order: Order) -> String {
    to_yaml(node, order).replace(['\'', '"'], "")
}

fuzz_target!(|input: &[u8]| {
    if let Err(failure) = round_trip::check(input, *PRINTER) {
        panic!("{failure}");
    }
});
