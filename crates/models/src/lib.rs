//! Decoder blocks as forward code, one folder a model family.
//!
//! - [`common`]: the decoder that the families configure: its shape, its blocks, its key/value cache.
//! - [`facts`]: what the user, the folder and a builder say about a shape, brought together.
//! - [`llama`]: Llama 2, 3, 3.1, 3.2, 3.3 and SmolLM2: sizes, `config.json`, weight names.
//!
//! Shape letters: B batch, T tokens, S keys, D hidden size, N query heads, K key/value heads, H head dim, F feed-forward
//! dim, V vocabulary.

pub mod common;
mod error;
pub mod facts;
pub mod llama;
mod section;

pub use common::{Decoder, DecoderConfig, KvCache, ModelBatch, RopeScaling};
pub use error::{Error, Result};
pub use section::{MODELS, ModelSection};
