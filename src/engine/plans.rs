//! The plans of an engine: one body per row bucket, the head, and body and head as one for a decode step.

use crate::Result;
use crate::backend::{CacheSpec, State};
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
    pub fn new(model: &Model, cache: &CacheSpec) -> Result<Plans> {
        let kept = Kept {
            hidden_rows: MAX_ROWS,
            hidden_width: model.hparams().n_embd,
            logit_rows: HEAD_ROWS,
            logit_width: model.n_vocab(),
        };
        let place = |part| model.place(part);
        let shared = Shared { devices: model.devices(), place: &place, specs: model.specs(), kept, cache };
        let (body, head, decode) = (model.body_graph()?, model.head_graph()?, model.decode_graph()?);
        Ok(Plans {
            bodies: ROW_BUCKETS.iter().map(|&n| Plan::new(&body, n, n, &shared)).collect::<Result<_>>()?,
            head: Plan::new(&head, 0, 1, &shared)?,
            head_many: Plan::new(&head, 0, HEAD_ROWS, &shared)?,
            decode: Plan::new(&decode, 1, 1, &shared)?,
            kept,
        })
    }

    /// Room for the worst case of every plan, then once more in the same order, since a plan may have to know where the
    /// memory of all is in the end. Nothing is allocated between two steps.
    pub fn reserve(&self, states: &mut [Box<dyn State>]) -> Result<()> {
        let few = [&self.decode, &self.head, &self.head_many];
        for _ in 0..2 {
            for plan in self.bodies.iter().rev().chain(few) {
                plan.reserve(states)?;
            }
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
