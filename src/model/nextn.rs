//! A block that predicts further tokens (multi-token prediction, NextN): one more layer after the model's, which reads
//! a token's embedding beside the hidden row that the model has after the token before, and has the model's output
//! head. So it predicts the token after the next ("Better & Faster Large Language Models via Multi-token Prediction",
//! Gloeckle et al., <https://arxiv.org/abs/2404.19737>; in the form of DeepSeek-V3,
//! <https://arxiv.org/abs/2412.19437>).
//!
//! It is a decoder of one layer with a cache of its own. Its hidden row stands for the model's in the row after.
//!
//! A draft model in a file of its own may be the same in small (`gemma4-assistant`): it reads the model's embedding and
//! hidden row side by side, attends to the model's keys and values, and has a narrow head of its own.

use crate::Result;
use crate::graph::{Builder, Coefficients, Linear, NodeId, NormSpec, Rows};

/// Architectures whose blocks that predict further tokens are known.
pub(super) const KNOWN: [&str; 4] = ["glm4moe", "qwen35", "qwen35moe", "qwen3next"];

/// What a decoder reads that predicts further tokens for a model.
pub(super) enum Reads {
    Joined(Joined),
    Assistant(Assistant),
}

/// What joins the embeddings of tokens and the hidden rows after the tokens before them: `project · [norm(embedding);
/// norm(hidden)]`.
pub(super) struct Joined {
    pub embedding: NormSpec,
    pub hidden: NormSpec,
    pub project: Linear,
    pub n_embd: usize,
}

impl Joined {
    /// The joined rows of these embeddings.
    pub fn emit(&self, b: &mut Builder<'_>, embeddings: NodeId) -> Result<NodeId> {
        let before = b.hidden(self.n_embd, Rows::Batch);
        let [first, second] =
            [(embeddings, self.embedding), (before, self.hidden)].map(|(x, norm)| b.norm(x, norm, None));
        let half = |of: [f32; 2]| Coefficients::Fixed(of.to_vec());
        let first = b.mix(first?, 1, half([1.0, 0.0]), None, None)?;
        let both = b.mix(second?, 1, half([0.0, 1.0]), None, Some(first))?;
        b.matmul(both, &[self.project], None)
    }
}

/// What a draft model reads and writes in the model's width: a row is the token's embedding and the hidden row after
/// the token before.
#[derive(Clone, Copy)]
pub(super) struct Assistant {
    /// Values of the model's hidden rows.
    pub width: usize,
    /// From both to the draft model's width.
    pub before: Linear,
    /// From the draft model's hidden row to one that stands for the model's.
    pub after: Linear,
}

impl Assistant {
    /// The rows of the first layer.
    pub fn emit(&self, b: &mut Builder<'_>) -> Result<NodeId> {
        let both = b.hidden(2 * self.width, Rows::Batch);
        b.matmul(both, &[self.before], None)
    }
}
