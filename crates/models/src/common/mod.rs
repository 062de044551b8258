//! What model families share.

mod block;
mod cache;
mod decoder;
mod decoder_config;
mod lora;
mod rope;

pub use cache::KvCache;
pub use decoder::{Decoder, ModelBatch};
pub use decoder_config::{DecoderConfig, RopeScaling, SlidingWindow};
pub use lora::{LoraConfig, LoraModule};
