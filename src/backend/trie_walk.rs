//! Walking a trie on a device as plain data.
//!
//! After a token that was sampled under a mask the trie determines what follows: forced tokens, then a choice among the
//! children of a node, or the end of the span. A device that holds the trie goes from choice to choice without the
//! host.

use super::device_sampling::SampleResult;

/// The most rows of a pass of a walk. A longer run of forced tokens takes several passes.
pub const WALK_ROWS: usize = 8;

/// The most passes of a walk.
pub const WALK_PASSES: usize = 8;

/// The most cells that a walk fills.
pub const WALK_CELLS: usize = WALK_ROWS * WALK_PASSES;

/// A node of a trie: the first child, whose siblings follow it in the order of their tokens; the number of
/// children; the token that leads to the node; and how many rows there are from that token to the next choice, itself
/// included, 0 where none follows.
pub type WalkNode = [u32; 4];

/// A walk to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// The sequence that walks.
    pub sequence: usize,
    /// The node whose child is being sampled.
    pub node: u32,
    /// Passes at most, up to [`WALK_PASSES`].
    pub passes: usize,
}

/// A choice that a walk made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WalkedStep {
    /// The result of sampling at this node.
    pub result: SampleResult,
    /// Rows evaluated since the choice before, from the token sampled there on.
    pub rows: u32,
    /// The node.
    pub node: u32,
}

/// The results of a walk.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Walked {
    /// The choices, in order.
    pub steps: Vec<WalkedStep>,
    /// Passes that evaluated something.
    pub passes: u32,
    /// Rows that they evaluated.
    pub rows: u32,
    /// Logits that were computed.
    pub logits: u32,
}
