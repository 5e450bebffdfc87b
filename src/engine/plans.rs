//! The plans of an engine: one body per row bucket, with an encoder as many that encode prompts, the head, and body and
//! head as one for decode steps and walks.
//!
//! An open makes all of them except those that decode a token of several slots at once, which only [`Engine::step`]
//! runs. Each of those is made when a step first has so many rows ([`Plans::add_decode`]), before that step runs or
//! sends anything to a device. So they are not in the memory of an open; their memory is reserved when they are made.
//! Where there is none, that step is an error and its slots are as before. Later such steps allocate nothing.
//!
//! [`Engine::step`]: super::Engine::step

use crate::backend::{Backend, CacheSpec, MAX_ROWS, MAX_SEQUENCES, State, WALK_ROWS};
use crate::graph::{Graph, Node};
use crate::model::{Model, Outline, Then};
use crate::schedule::{Draft, Kept, Plan, ROW_BUCKETS, Shared};
use crate::{Error, Result, reserve};

/// The rows of logits that an engine computes at once, of several slots in a decode step, or of several positions of
/// one slot, where no more than so many streams share it.
pub(super) const HEAD_ROWS: usize = 8;
/// The most rows of logits that any engine computes at once.
pub(super) const MOST_HEAD_ROWS: usize = MAX_SEQUENCES;
/// Row buckets of decode steps: those up to [`MOST_HEAD_ROWS`].
const DECODE_BUCKETS: usize = 5;
const _: () = assert!(ROW_BUCKETS[DECODE_BUCKETS - 1] == MOST_HEAD_ROWS);

/// The rows of logits that an engine computes at once which so many streams share.
pub(super) fn head_rows(streams: usize) -> usize {
    if streams > HEAD_ROWS { MOST_HEAD_ROWS } else { HEAD_ROWS }
}

/// The most rows of a pass that can be left.
pub(super) const READING_ROWS: usize = 128;

/// Whether passes can be left: where so many streams share an engine on so many devices. A state that is in the middle
/// of being changed would have to be kept.
pub(super) fn can_leave(model: &Outline, streams: usize, devices: usize) -> bool {
    streams > 1 && devices == 1 && model.states().is_empty()
}

/// How many of the bodies, the smallest first, passes have that can be left.
pub(super) fn reading_bodies(batch: usize) -> usize {
    bucket_index(READING_ROWS.min(batch)) + 1
}

/// What memory is reserved for, in errors: the kept hidden rows.
pub(super) const HIDDEN: &str = "hidden values";

/// Called between two plans; its error ends the work.
pub(super) type Look<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A `T` for each draft: a plan, or the memory of one.
pub(super) struct Plans<T = Plan> {
    bodies: Vec<T>,
    /// A prompt's tokens in, the keys and values that a decoder's layers have of it; one per row bucket, where an
    /// encoder reads prompts.
    encodes: Vec<T>,
    /// One row of logits from the kept hidden row. A model for rows of texts has this and what follows not, but for
    /// `head_many`.
    head: Option<T>,
    /// As many rows of logits as [`head_rows`] says, or of what a model makes of rows of texts.
    head_many: Option<T>,
    /// Tokens in, the logits of every one out; one per row bucket up to [`head_rows`], where it was needed.
    decodes: [Option<T>; DECODE_BUCKETS],
    /// Up to [`WALK_ROWS`] tokens in, the logits of one out.
    walk: Option<T>,
    /// K-shift: rotates the keys of moved positions.
    shift: Option<T>,
    /// Copies cells.
    copy: Option<T>,
    kept: Kept,
    /// The shape of the cache, wherever its layers are.
    cache: CacheSpec,
    /// The most rows of a pass over a prompt.
    batch: usize,
}

impl<T> Plans<T> {
    /// Make a `T` for every draft of an open, for a model on these backends and passes of at most `batch` rows, with at
    /// most `head_rows` rows of logits.
    pub fn make(
        model: &Outline,
        backends: &[&dyn Backend],
        cache: CacheSpec,
        (batch, head_rows): (usize, usize),
        mut make: impl FnMut(Draft<'_>) -> Result<T>,
    ) -> Result<Plans<T>> {
        let kept = Kept {
            hidden_rows: batch.max(head_rows),
            hidden_width: model.hparams().n_embd,
            logit_rows: head_rows,
            logit_width: logit_width(model),
        };
        let place = |node: &Node| model.place(node);
        let shared = Shared { backends, place: &place, specs: model.specs(), kept, cache: &cache };
        let bodies = ROW_BUCKETS.into_iter().filter(|&n| n < batch).chain([batch]);
        let body = model.body_graph()?;
        let mut plan = |graph: &Graph, rows, out_rows| make(Draft::new(graph, rows, out_rows, &shared));
        let encode = model.encode_graph()?;
        let encodes = encode.iter().flat_map(|graph| bodies.clone().map(move |n| (graph, n)));
        let encodes = encodes.map(|(graph, n)| plan(graph, n, 0)).collect::<Result<_>>()?;
        let bodies = bodies.map(|n| plan(&body, n, n)).collect::<Result<_>>()?;
        let decodes = [const { None }; DECODE_BUCKETS];
        let (head, head_many, walk, shift, copy) = (None, None, None, None, None);
        let plans =
            Plans { bodies, encodes, head, head_many, decodes, walk, shift, copy, kept, cache: cache.clone(), batch };
        match model.pooled() {
            Some(pooled) if pooled.then == Then::Nothing => Ok(plans),
            Some(_) => Ok(Plans { head_many: Some(plan(&model.head_graph()?, 0, head_rows)?), ..plans }),
            None => {
                let head = model.head_graph()?;
                let (decode, walk) = (model.decode_graph()?, model.walk_graph()?);
                Ok(Plans {
                    head: Some(plan(&head, 0, 1)?),
                    head_many: Some(plan(&head, 0, head_rows)?),
                    decodes: [Some(plan(&decode, 1, 1)?), None, None, None, None],
                    walk: Some(plan(&walk, WALK_ROWS, 1)?),
                    shift: Some(plan(&model.shift_graph(), batch, 0)?),
                    copy: Some(plan(&model.copy_graph(), batch, 0)?),
                    ..plans
                })
            }
        }
    }

    /// Make a `T` for the decode step of `rows` slots, at most [`head_rows`], which is not there yet.
    pub fn make_decode(
        &mut self,
        model: &Outline,
        backends: &[&dyn Backend],
        rows: usize,
        make: impl FnOnce(Draft<'_>) -> Result<T>,
    ) -> Result<()> {
        let (bucket, place) = (bucket_index(rows), |node: &Node| model.place(node));
        let (kept, cache, rows) = (self.kept, &self.cache, ROW_BUCKETS[bucket]);
        let shared = Shared { backends, place: &place, specs: model.specs(), kept, cache };
        self.decodes[bucket] = Some(make(Draft::new(&model.decode_graph()?, rows, rows, &shared))?);
        Ok(())
    }

    /// The places of the rows that outlive a run.
    pub fn kept(&self) -> Kept {
        self.kept
    }

    /// The shape of the cache, wherever its layers are.
    pub fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    /// Whether there is a decode plan for `rows` rows.
    pub fn has_decode(&self, rows: usize) -> bool {
        self.decodes[bucket_index(rows)].is_some()
    }

    /// Every `T`, by graph, smaller batches first.
    pub fn by_graph(self) -> [(&'static str, Vec<T>); 7] {
        let Plans { bodies, encodes, head, head_many, decodes, walk, shift, copy, .. } = self;
        [
            ("encode", encodes),
            ("body", bodies),
            ("head", head.into_iter().chain(head_many).collect()),
            ("decode", decodes.into_iter().flatten().collect()),
            ("walk", walk.into_iter().collect()),
            ("shift", shift.into_iter().collect()),
            ("copy", copy.into_iter().collect()),
        ]
    }
}

/// Size in bytes of the largest read: of logits, or of hidden rows of texts.
pub(super) fn largest_read(model: &Outline, head_rows: usize) -> usize {
    let hidden = if model.pooled().is_some() { MAX_ROWS * model.hparams().n_embd } else { 0 };
    4 * hidden.max(head_rows * logit_width(model))
}

/// Values per row of logits, or of what a model makes of rows of texts.
fn logit_width(model: &Outline) -> usize {
    model.pooled().map_or(model.hparams().n_vocab, |pooled| pooled.width)
}

fn backends_of(model: &Model) -> Vec<&dyn Backend> {
    model.devices().iter().map(|device| &*device.backend).collect()
}

impl Plans {
    /// The plans of an open.
    pub fn new(model: &Model, cache: CacheSpec, rows: (usize, usize), look: Look<'_>) -> Result<Plans> {
        Plans::make(model.outline(), &backends_of(model), cache, rows, |draft| {
            look()?;
            draft.compile(model.devices())
        })
    }

    /// Reserve memory for the worst case of every plan, then once more in the same order, since a plan may need the
    /// final place of the memory of all. After that, steps allocate nothing.
    pub fn reserve(&self, model: &Outline, states: &mut [Box<dyn State>]) -> Result<()> {
        states[model.places().logits].reserve_reads(largest_read(model, self.head_rows()))?;
        let few = [&self.head, &self.head_many, &self.walk, &self.shift, &self.copy].into_iter().flatten();
        for _ in 0..2 {
            let large = self.encodes.iter().rev().chain(self.bodies.iter().rev());
            for plan in large.chain(self.decodes.iter().rev().flatten()).chain(few.clone()) {
                plan.reserve(states)?;
            }
        }
        Ok(())
    }

    /// Reserve memory for the passes that can be left, in the states beside those of the engine.
    pub fn reserve_reading(&self, states: &mut [Box<dyn State>]) -> Result<()> {
        self.bodies.iter().take(reading_bodies(self.batch)).rev().try_for_each(|plan| plan.reserve(states))
    }

    /// Make the plan for the decode step of `rows` slots, which is not there yet; after an error the other plans run as
    /// before. A workspace may be replaced: kept rows in it are lost.
    pub fn add_decode(&mut self, model: &Model, states: &mut [Box<dyn State>], rows: usize) -> Result<()> {
        let compile = |draft: Draft<'_>| draft.compile(model.devices());
        self.make_decode(model.outline(), &backends_of(model), rows, compile)?;
        let reserved = self.reserve(model.outline(), states);
        if reserved.is_err() {
            self.decodes[bucket_index(rows)] = None;
            self.reserve(model.outline(), states)?;
        }
        reserved
    }

    /// The body for a batch of this many rows. The last plan is for the largest pass, whose size may be between two
    /// buckets.
    pub fn body(&self, rows: usize) -> &Plan {
        &self.bodies[bucket_index(rows).min(self.bodies.len() - 1)]
    }

    /// What encodes a prompt of this many tokens.
    pub fn encode(&self, rows: usize) -> Result<&Plan> {
        let last = self.encodes.len().saturating_sub(1);
        let plan = self.encodes.get(bucket_index(rows).min(last));
        plan.ok_or_else(|| Error::Internal("A prompt was to be encoded without an encoder".into()))
    }

    /// Body and head for a batch of this many rows, at most [`head_rows`]: one, or as many as
    /// [`Plans::add_decode`] was asked for.
    pub fn decode(&self, rows: usize) -> Result<&Plan> {
        there(self.decodes.get(bucket_index(rows)).unwrap_or(&None))
    }

    pub fn head(&self) -> Result<&Plan> {
        there(&self.head)
    }

    pub fn head_many(&self) -> Result<&Plan> {
        there(&self.head_many)
    }

    pub fn walk(&self) -> Result<&Plan> {
        there(&self.walk)
    }

    pub fn shift(&self) -> Result<&Plan> {
        there(&self.shift)
    }

    pub fn copy(&self) -> Result<&Plan> {
        there(&self.copy)
    }

    /// The most rows of logits computed at once.
    pub fn head_rows(&self) -> usize {
        self.kept.logit_rows
    }

    /// The most tokens of a prompt that one pass evaluates.
    pub fn batch(&self) -> usize {
        self.batch
    }
}

/// The plan of a draft model that reads a model's hidden rows, and that of the embeddings which it reads.
pub(super) struct Assistant {
    pub embedding: Plan,
    pub plan: Plan,
    /// A token's embedding and the hidden row before it.
    pub row: Vec<f32>,
}

impl Assistant {
    pub fn new(model: &Model, assistant: &Model, kept: (Kept, &CacheSpec)) -> Result<Assistant> {
        let (outlines, backend) = ((model.outline(), assistant.outline()), &*model.devices()[0].backend);
        let compile = |draft: Draft<'_>, own| draft.compile(if own { assistant } else { model }.devices());
        let [embedding, plan] = draft_assistant(outlines, backend, kept, compile)?;
        Ok(Assistant { embedding, plan, row: reserve::filled(0.0, 2 * model.hparams().n_embd, HIDDEN)? })
    }
}

/// Makes a `T` for each draft of a draft model that reads a model's hidden rows, where both are on the CPU: for the
/// embedding of a token, by the model's weights, and for a token's logits, by its own, as `make` is told.
pub(super) fn draft_assistant<T>(
    (model, assistant): (&Outline, &Outline),
    backend: &dyn Backend,
    (kept, cache): (Kept, &CacheSpec),
    mut make: impl FnMut(Draft<'_>, bool) -> Result<T>,
) -> Result<[T; 2]> {
    let (backends, place) = ([backend], |_: &Node| 0);
    let mut one = |graph: &Graph, of: &Outline, own| {
        let shared = Shared { backends: &backends, place: &place, specs: of.specs(), kept, cache };
        make(Draft::new(graph, 1, 1, &shared), own)
    };
    let embedding = one(&model.embedding_graph()?, model, false)?;
    Ok([embedding, one(&assistant.assistant_graph(model)?, assistant, true)?])
}

fn there(plan: &Option<Plan>) -> Result<&Plan> {
    plan.as_ref().ok_or_else(|| Error::Internal("A plan that was not made was to run".into()))
}

/// Which bucket holds this many rows.
fn bucket_index(rows: usize) -> usize {
    ROW_BUCKETS.partition_point(|&bucket| bucket < rows)
}
