//! One file a verb.

pub(crate) mod run;
