//! Whole models and whole runs.

mod batches;
mod configs;
mod determinism;
mod families;
mod gguf;
#[path = "../../checkpoint/tests/gguf_builder.rs"]
#[expect(dead_code, reason = "has cases of its own crate's tests")]
mod gguf_builder;
mod gguf_vocabulary;
mod lora;
mod memory;
mod model_folders;
mod offload;
mod overfit;
mod policies;
mod preference;
mod qat;
mod smollm2;
mod tiny;
mod tiny_folder;
mod traffic;
mod transformers;
