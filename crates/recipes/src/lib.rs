//! One file a recipe, readable from top to bottom.
