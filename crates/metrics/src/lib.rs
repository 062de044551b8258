//! Loggers, the progress bar, throughput and memory figures.
