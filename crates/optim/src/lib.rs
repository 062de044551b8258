//! Optimizers, schedules and clipping as pure functions over a backend, tensors and state.
