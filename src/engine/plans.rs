//! The plans of an engine: one body per row bucket, the head, and body and head as one for decode steps and walks.

use super::memory::Look;
use crate::Result;
use crate::backend::{Backend, CacheSpec, State, WALK_ROWS};
use crate::graph::Node;
use crate::model::{Model, Outline};
use crate::schedule::{Draft, Kept, Plan, ROW_BUCKETS, Shared};

/// The most rows of logits computed at once: a decode step of so many sequences, or positions of one.
pub(super) const HEAD_ROWS: usize = 8;

/// One of each, made of a draft: a plan, or what it will take.
pub(super) struct Plans<T = Plan> {
    bodies: Vec<T>,
    /// One row of logits from the kept hidden row.
    pub head: T,
    /// Up to [`HEAD_ROWS`] rows of logits.
    pub head_many: T,
    /// Tokens in, the logits of every one out, one per row bucket up to [`HEAD_ROWS`].
    decodes: Vec<T>,
    /// Up to [`WALK_ROWS`] tokens in, the logits of one out.
    pub walk: T,
    /// Keys of moved positions turned.
    pub shift: T,
    /// Cells copied to others.
    pub copy: T,
    pub kept: Kept,
}

impl<T> Plans<T> {
    /// Make one of every draft of a model on these backends, for passes of at most `batch` rows.
    pub fn make(
        model: &Outline,
        backends: &[&dyn Backend],
        cache: &CacheSpec,
        batch: usize,
        mut make: impl FnMut(Draft<'_>) -> Result<T>,
    ) -> Result<Plans<T>> {
        let kept = Kept {
            hidden_rows: batch.max(HEAD_ROWS),
            hidden_width: model.hparams().n_embd,
            logit_rows: HEAD_ROWS,
            logit_width: model.hparams().n_vocab,
        };
        let place = |node: &Node| model.place(node);
        let shared = Shared { backends, place: &place, specs: model.specs(), kept, cache };
        let few = ROW_BUCKETS.into_iter().filter(|&n| n <= HEAD_ROWS);
        let bodies = ROW_BUCKETS.into_iter().filter(|&n| n < batch).chain([batch]);
        let (body, head) = (model.body_graph()?, model.head_graph()?);
        let (decode, walk) = (model.decode_graph()?, model.walk_graph()?);
        let mut plan = |graph, rows, out_rows| make(Draft::new(graph, rows, out_rows, &shared));
        Ok(Plans {
            bodies: bodies.map(|n| plan(&body, n, n)).collect::<Result<_>>()?,
            head: plan(&head, 0, 1)?,
            head_many: plan(&head, 0, HEAD_ROWS)?,
            decodes: few.map(|n| plan(&decode, n, n)).collect::<Result<_>>()?,
            walk: plan(&walk, WALK_ROWS, 1)?,
            shift: plan(&model.shift_graph(), batch, 0)?,
            copy: plan(&model.copy_graph(), batch, 0)?,
            kept,
        })
    }
}

impl<T> Plans<T> {
    /// What there is for each graph, smaller batches first.
    pub fn by_graph(self) -> [(&'static str, Vec<T>); 6] {
        let Plans { bodies, head, head_many, decodes, walk, shift, copy, kept: _ } = self;
        [
            ("body", bodies),
            ("head", vec![head, head_many]),
            ("decode", decodes),
            ("walk", vec![walk]),
            ("shift", vec![shift]),
            ("copy", vec![copy]),
        ]
    }
}

/// Bytes of the largest read of logits.
pub(super) fn largest_read(model: &Outline) -> usize {
    HEAD_ROWS * model.hparams().n_vocab * 4
}

impl Plans {
    pub fn new(model: &Model, cache: &CacheSpec, batch: usize, look: Look<'_>) -> Result<Plans> {
        let backends: Vec<_> = model.devices().iter().map(|device| &*device.backend).collect();
        Plans::make(model.outline(), &backends, cache, batch, |draft| {
            look()?;
            draft.compile(model.devices())
        })
    }

    /// Room for the worst case of every plan, then once more in the same order, since a plan may have to know where the
    /// memory of all is in the end. Nothing is allocated between two steps.
    pub fn reserve(&self, model: &Outline, states: &mut [Box<dyn State>]) -> Result<()> {
        states[model.places().logits].reserve_reads(largest_read(model))?;
        let few = [&self.head, &self.head_many, &self.walk, &self.shift, &self.copy];
        for _ in 0..2 {
            for plan in self.bodies.iter().rev().chain(self.decodes.iter().rev()).chain(few) {
                plan.reserve(states)?;
            }
        }
        Ok(())
    }

    /// The body for a batch of this many rows. The last one is as large as a pass can be, which may be between two
    /// buckets.
    pub fn body(&self, rows: usize) -> &Plan {
        &self.bodies[bucket_index(rows).min(self.bodies.len() - 1)]
    }

    /// Body and head for a batch of this many rows, at most [`HEAD_ROWS`].
    pub fn decode(&self, rows: usize) -> &Plan {
        &self.decodes[bucket_index(rows).min(self.decodes.len() - 1)]
    }
}

/// Which bucket holds this many rows.
fn bucket_index(rows: usize) -> usize {
    ROW_BUCKETS.partition_point(|&bucket| bucket < rows)
}
