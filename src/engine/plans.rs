//! The plans of an engine: one body per row bucket, the head, and body and head as one for a decode step.

use crate::Result;
use crate::backend::State;
use crate::model::Model;
use crate::schedule::{Kept, MAX_ROWS, Plan, ROW_BUCKETS, Shared, bucket};

/// Rows of logits computed at once where every position's are wanted.
pub(super) const HEAD_ROWS: usize = 8;

pub(super) struct Plans {
    bodies: Vec<Plan>,
    /// One row of logits from the kept hidden row.
    pub head: Plan,
    /// Up to [`HEAD_ROWS`] rows of logits.
    pub head_many: Plan,
    /// One token in, its logits out.
    pub decode: Plan,
    pub kept: Kept,
}

impl Plans {
    pub fn new(model: &Model) -> Result<Plans> {
        let kept = Kept {
            hidden_rows: MAX_ROWS,
            hidden_width: model.hparams().n_embd,
            logit_rows: HEAD_ROWS,
            logit_width: model.n_vocab(),
        };
        let (backend, weights, specs) = (&**model.backend(), model.weights(), model.specs());
        let shared = Shared { backend, weights, specs, kept };
        let (body, head, decode) = (model.body_graph()?, model.head_graph()?, model.decode_graph()?);
        Ok(Plans {
            bodies: ROW_BUCKETS.iter().map(|&n| Plan::new(&body, n, n, &shared)).collect::<Result<_>>()?,
            head: Plan::new(&head, 0, 1, &shared)?,
            head_many: Plan::new(&head, 0, HEAD_ROWS, &shared)?,
            decode: Plan::new(&decode, 1, 1, &shared)?,
            kept,
        })
    }

    /// The worst cases first and last, so that nothing is ever allocated between two steps.
    pub fn reserve(&self, state: &mut dyn State) -> Result<()> {
        let largest = self.bodies.iter().rev().take(1);
        let small = [&self.decode, &self.head, &self.head_many];
        for plan in largest.chain(small).chain(&self.bodies) {
            plan.reserve(state)?;
        }
        Ok(())
    }

    /// The body for a batch of this many rows.
    pub fn body(&self, rows: usize) -> &Plan {
        let wanted = bucket(rows);
        let i = ROW_BUCKETS.iter().position(|&b| b == wanted).unwrap_or(ROW_BUCKETS.len() - 1);
        &self.bodies[i]
    }
}
