//! Gradient checks of every reference that has a backward function; op tables that must be able to fail.

mod defects;
mod gradients;
