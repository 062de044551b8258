//! Decoder blocks as forward code, and the model families that configure it.
//!
//! - [`common`]: the decoder that the families configure: its shape, its blocks, its key/value cache.
//! - [`facts`]: what the user, the folder and a builder say about a shape, brought together.
//! - [`families`]: Llama, Mistral, Phi 3, Qwen2, Qwen2.5, Qwen3, Gemma and Gemma 2: sizes, `config.json`.
//!
//! Shape letters: B batch, T tokens, S keys, D hidden size, N query heads, K key/value heads, H head dim, F feed-forward
//! dim, V vocabulary.

pub mod common;
mod error;
pub mod facts;
pub mod families;
mod section;

pub use common::{Decoder, DecoderConfig, KvCache, LoraConfig, LoraModule, ModelBatch, RopeScaling, SlidingWindow};
pub use error::{Error, Result};
pub use section::{MODELS, ModelSection};
