//! Config text to checked values: YAML with positions, overrides, interpolation, typed components.
