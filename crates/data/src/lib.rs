//! Rows to batches: sources, messages, templates, masking, packing, collation, order.
