//! The text of a generation.

/// Memory in which the text of one generation stays readable.
#[derive(Debug, Default)]
pub struct Arena {}
