//! How a schema is converted.

/// What becomes of keywords that a grammar cannot keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keywords {
    /// They are errors: what the grammar allows is valid.
    #[default]
    Exact,
    /// They are ignored; all others are kept.
    Lenient,
    /// As llama.cpp's converter reads schemas: it ignores much more, and the siblings of `$ref`, `oneOf` and `anyOf`.
    LlamaCpp,
}

/// How a schema is converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// No white space between the tokens of the JSON text.
    pub compact: bool,
    /// What becomes of keywords that a grammar cannot keep.
    pub keywords: Keywords,
}
