//! Gradient checks, op tables, tolerances and tiny models for the test suites; not part of the product.
