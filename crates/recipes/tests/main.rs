//! Whole models and whole runs.

mod model_folders;
