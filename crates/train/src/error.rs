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
}
