//! Tensors, the contract of every op with its naive reference, and the tape.
