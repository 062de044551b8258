//! The Llama family: Llama 2, 3, 3.1, 3.2, 3.3 and SmolLM2.
//!
//! One decoder serves them all; they differ in sizes, in the rotary base and its stretching, and in whether the head is
//! the embedding. Weight names are Hugging Face's, so there is nothing to rename here.

mod config_json;
mod sizes;

pub use config_json::{from_config_json, to_config_json};
pub use sizes::{BUILDERS, Builder, LlamaConfig};
