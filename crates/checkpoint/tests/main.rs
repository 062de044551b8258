//! Integration tests of the checkpoint crate, one module a subject.

#![expect(clippy::unwrap_used, reason = "the shared helpers of tests may fail as tests do")]

mod checkpoints;
mod conformance;
mod folders;
mod gguf;
mod gguf_builder;
mod kill;
mod output_dirs;
mod smollm2;
mod writing;

use std::path::Path;

use tensor::DType;

/// A safetensors file by hand: entries are (name, dtype, shape, bytes).
fn safetensors_bytes(entries: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let mut map = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in entries {
        let offsets = [data.len(), data.len() + bytes.len()];
        map.insert((*name).into(), serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend_from_slice(bytes);
    }
    let header = serde_json::Value::Object(map).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.append(&mut data);
    file
}

/// Writes a safetensors file of f32 tensors, each a vector of `value`.
fn write_f32(path: &Path, tensors: &[(&str, usize, f32)]) {
    let entries: Vec<_> =
        tensors.iter().map(|(name, count, value)| (*name, [*count], f32_bytes(*value, *count))).collect();
    let entries: Vec<(&str, &str, &[usize], Vec<u8>)> =
        entries.iter().map(|(name, shape, bytes)| (*name, "F32", &shape[..], bytes.clone())).collect();
    std::fs::write(path, safetensors_bytes(&entries)).unwrap();
}

fn f32_bytes(value: f32, count: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(count)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn read_floats(source: &checkpoint::WeightSource, name: &str) -> Vec<f32> {
    floats(&source.read(name, DType::F32).unwrap())
}

/// An error's whole chain, as the command line prints it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str("\n  ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
