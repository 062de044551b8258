//! The parameter store and its units: where every parameter lives and when it moves.
