//! The synchronisation types of `slots.rs`; its model test puts loom's in their place.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock};
