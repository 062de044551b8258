//! Writes GGUF files for tests, well-formed or not.

use checkpoint::gguf::permute::hugging_face_row;

/// A GGUF file under construction.
pub struct Builder {
    pub version: u32,
    pub alignment: u64,
    keys: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

pub fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

impl Builder {
    pub fn new() -> Self {
        Self { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new() }
    }

    pub fn raw_key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut bytes = text(key);
        bytes.extend(kind.to_le_bytes());
        bytes.extend_from_slice(value);
        self.keys.push(bytes);
        self
    }

    pub fn string(self, key: &str, value: &str) -> Self {
        self.raw_key(key, 8, &text(value))
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw_key(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw_key(key, 6, &value.to_le_bytes())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.raw_key(key, 7, &[u8::from(value)])
    }

    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| text(value)));
        self.raw_key(key, 9, &bytes)
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw_key(key, 9, &bytes)
    }

    /// A tensor; `shape` has the outermost axis first.
    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, data: &[u8]) -> Self {
        self.tensors.push((name.into(), shape.iter().rev().copied().collect(), kind, data.to_vec()));
        self
    }

    pub fn f32_tensor(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, 0, &data)
    }

    pub fn build(&self) -> Vec<u8> {
        self.build_with_counts(self.tensors.len() as u64, self.keys.len() as u64)
    }

    pub fn build_with_counts(&self, tensors: u64, keys: u64) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(tensors.to_le_bytes());
        file.extend(keys.to_le_bytes());
        file.extend(self.keys.iter().flatten());
        let mut offset = 0u64;
        for (name, dims, kind, data) in &self.tensors {
            file.extend(text(name));
            file.extend((dims.len() as u32).to_le_bytes());
            file.extend(dims.iter().flat_map(|size| size.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset = (offset + data.len() as u64).next_multiple_of(self.alignment);
        }
        for (_, _, _, data) in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment as usize), 0);
            file.extend_from_slice(data);
        }
        file
    }
}

pub const HEADS: usize = 2;
pub const KV_HEADS: usize = 1;
pub const HEAD_DIM: usize = 4;
pub const HIDDEN: usize = HEADS * HEAD_DIM;
pub const VOCAB: usize = 5;

/// Metadata of a tiny model of one block.
pub fn tiny_metadata() -> Builder {
    Builder::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.feed_forward_length", 6)
        .u32("llama.attention.head_count", HEADS as u32)
        .u32("llama.attention.head_count_kv", KV_HEADS as u32)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 100_000.0)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &["<s>", "</s>", "a", "b", "ab"])
        .i32s("tokenizer.ggml.token_type", &[3, 3, 1, 1, 1])
        .strings("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1)
        .flag("tokenizer.ggml.add_space_prefix", false)
        .string("tokenizer.chat_template", "{{ messages }}")
}

/// Values of the tiny model's tensor number `index` in Hugging Face's row order.
pub fn values(index: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (1000 * index + i) as f32).collect()
}

/// The rows of a Hugging Face tensor in GGUF's order.
pub fn permuted(rows: &[f32], row_elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len()];
    for row in 0..rows.len() / row_elements {
        // The GGUF row `row` is this Hugging Face row.
        let from = hugging_face_row(row, HEAD_DIM) * row_elements;
        out[row * row_elements..][..row_elements].copy_from_slice(&rows[from..from + row_elements]);
    }
    out
}

/// The tiny model, its head tied, its tensors in f32.
pub fn tiny_model() -> Builder {
    let (h, kv, f, v) = (HIDDEN as u64, (KV_HEADS * HEAD_DIM) as u64, 6, VOCAB as u64);
    let mut builder = tiny_metadata();
    let list: [(&str, &[u64]); 11] = [
        ("token_embd.weight", &[v, h]),
        ("blk.0.attn_q.weight", &[h, h]),
        ("blk.0.attn_k.weight", &[kv, h]),
        ("blk.0.attn_v.weight", &[kv, h]),
        ("blk.0.attn_output.weight", &[h, h]),
        ("blk.0.ffn_gate.weight", &[f, h]),
        ("blk.0.ffn_up.weight", &[f, h]),
        ("blk.0.ffn_down.weight", &[h, f]),
        ("blk.0.attn_norm.weight", &[h]),
        ("blk.0.ffn_norm.weight", &[h]),
        ("output_norm.weight", &[h]),
    ];
    for (index, (name, shape)) in list.into_iter().enumerate() {
        let mut values = values(index, shape.iter().product::<u64>() as usize);
        if name.contains("attn_q") || name.contains("attn_k") {
            values = permuted(&values, HIDDEN);
        }
        builder = builder.f32_tensor(name, shape, &values);
    }
    builder
}
