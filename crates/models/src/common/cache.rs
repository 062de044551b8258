//! Keys and values of the tokens already seen, for generation.
//!
//! Shapes: per layer, keys and values: (S, K*H), of which the first `len` rows are filled. One sequence.

use tensor::{Backend, DType, Result, Shape, Tensor};

use super::DecoderConfig;

/// The key/value cache of one sequence.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    capacity: usize,
    len: usize,
}

impl KvCache {
    /// An empty cache for at most `capacity` tokens.
    pub fn new(backend: &dyn Backend, config: &DecoderConfig, dtype: DType, capacity: usize) -> Result<Self> {
        let shape = Shape::from([capacity, config.num_key_value_heads * config.head_dim]);
        let layers = (0..config.num_hidden_layers)
            .map(|_| Ok((backend.zeros(shape, dtype)?, backend.zeros(shape, dtype)?)))
            .collect::<Result<_>>()?;
        Ok(Self { layers, capacity, len: 0 })
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is in the cache.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Counts tokens whose keys and values every layer has appended.
    pub(super) fn advance(&mut self, num_tokens: usize) {
        self.len += num_tokens;
    }

    /// Writes keys and values of further tokens of a layer; gives all keys and values up to them.
    pub(super) fn append(
        &self,
        backend: &dyn Backend,
        layer: usize,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let end = self.len + k.dims()[0];
        let (keys, values) = &self.layers[layer];
        backend.copy(&mut keys.rows(self.len..end)?, k)?;
        backend.copy(&mut values.rows(self.len..end)?, v)?;
        Ok((keys.rows(0..end)?, values.rows(0..end)?))
    }
}
