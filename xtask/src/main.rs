//! Project chores: `cargo xtask check | test | bench | bless`.

fn main() {}
