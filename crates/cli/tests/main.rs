//! The program as its users meet it.

mod common;
mod curves;
