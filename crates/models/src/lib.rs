//! Decoder blocks as forward code, one folder a model family.
