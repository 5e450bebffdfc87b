//! The order of the list of candidates in llama.cpp, along which its draw walks.
//!
//! Samplers there sort the list or leave it as it is, and the token of a draw depends on it. Here candidates are by id;
//! this is the record of how they would be there, kept where [`Generator::Mt19937`](crate::backend::Generator) draws.

/// The order of the list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// By id, as at first.
    Id,
    /// Best first.
    Logit,
    /// As in the pool's list for it: the logits changed after it was sorted, or it is sorted by something else.
    Arranged,
}
