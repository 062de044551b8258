//! `tune`: the command line.

fn main() {}
