//! GGUF: a model, its vocabulary and its configuration in one file (read only).
//!
//! `reader` takes the file apart, `blocks` dequantises, `llama` gives tensors and configuration Hugging Face's names,
//! `permute` knows the row order of q and k, `vocabulary` hands out the tokenizer as plain data.

mod blocks;
mod llama;
pub mod permute;
mod problem;
mod reader;
mod value;
mod vocabulary;

pub use blocks::BlockType;
pub use llama::{LlamaTensor, llama_config, llama_tensors};
pub use problem::GgufProblem;
pub use reader::{GgufFile, GgufTensor, GgufTensorType, parse};
pub use value::Value;
pub use vocabulary::Vocabulary;
