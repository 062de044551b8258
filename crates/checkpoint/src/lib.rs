//! Weights on disk: safetensors, GGUF, atomic checkpoint directories, recipe state.
