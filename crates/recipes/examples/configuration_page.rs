//! Prints `docs/configuration.md`; `cargo xtask docs` writes it.

#![expect(clippy::print_stdout, reason = "its output is the page")]

fn main() {
    print!("{}", recipes::configuration_page());
}
