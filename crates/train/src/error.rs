//! What can go wrong around the parameter store.

/// Result of the store's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op or the device failed.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// Files could not be read or written, or do not hold what the model needs.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// Ranks could not exchange what they had to.
    #[error(transparent)]
    Ranks(#[from] dist::Error),
    /// Whole parameters were asked of a rank that holds shards.
    #[error("parameters are cut into {num_shards} shards, of which this rank holds one")]
    Sharded {
        /// Ranks that share them.
        num_shards: usize,
    },
}
