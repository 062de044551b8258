//! The fast CPU backend: one file an op, SIMD chosen at run time, a team of threads of its own.
