//! Tokenizer files of every kind behind one trait.
