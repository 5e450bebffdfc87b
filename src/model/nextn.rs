//! A block that predicts further tokens (multi-token prediction, NextN): one more layer after the model's, which reads a
//! token's embedding beside the hidden row that the model has after the token before, and has the model's output head.
//! So it predicts the token after the next ("Better & Faster Large Language Models via Multi-token Prediction", Gloeckle
//! et al., <https://arxiv.org/abs/2404.19737>; in the form of DeepSeek-V3, <https://arxiv.org/abs/2412.19437>).
//!
//! It is a decoder of one layer with a cache of its own. Its hidden row stands for the model's in the row after.

use crate::Result;
use crate::graph::{Builder, Coefficients, Linear, NodeId, NormSpec, Rows};

/// Architectures whose blocks that predict further tokens are known.
pub(super) const KNOWN: [&str; 4] = ["glm4moe", "qwen35", "qwen35moe", "qwen3next"];

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
