//! A layer as a composition: mixers, a feed-forward part, the norms around them, and how they are added to the
//! residual stream. Architectures put layers together; this file turns one into nodes.

use super::altup::{AltUp, Laurel};
use super::recurrent::{ChannelMix, Recurrent};
use crate::Result;
use crate::graph::{
    Activation, AttentionSpec, Builder, Function, Linear, NodeId, NormSpec, RouteSpec, Stack, WeightId,
};

/// One layer.
pub(super) struct Layer {
    /// Norm of the mixers' input.
    pub attn_norm: Option<NormSpec>,
    /// The mixers, whose outputs are added; none in a layer that is its feed-forward part alone.
    pub mixers: Vec<Mixer>,
    /// Norm of the mixers' output.
    pub post_attn_norm: Option<NormSpec>,
    /// Norm of the sum of the mixer's output and the stream, which is the stream from there on.
    pub attn_sum_norm: Option<NormSpec>,
    /// Norm of the feed-forward part's input.
    pub ffn_norm: Option<NormSpec>,
    /// The feed-forward part, where the layer has one.
    pub ffn: Option<FeedForward>,
    /// Norm of the feed-forward part's output.
    pub post_ffn_norm: Option<NormSpec>,
    /// Norm of the sum of the feed-forward part's output and the stream.
    pub ffn_sum_norm: Option<NormSpec>,
    /// Whether both parts read the layer's input, instead of the second the sum after the first. Without a norm of its
    /// own the feed-forward part then reads what the mixer reads.
    pub parallel: bool,
    /// Factor on what each part adds.
    pub residual_scale: f32,
    /// A low-rank part beside the mixer.
    pub laurel: Option<Laurel>,
    /// A third part, which reads the token's own embedding for this layer.
    pub per_layer: Option<PerLayer>,
    /// How the layer goes with a residual stream of several parts, of which only the first goes through it.
    pub altup: Option<AltUp>,
    /// What becomes of the layer's result.
    pub output: Option<Function>,
}

/// What mixes the rows of a sequence.
pub(super) enum Mixer {
    Attention(Box<Attention>),
    Recurrent(Recurrent),
}

/// Attention with its projections.
pub(super) struct Attention {
    /// From the input to the heads.
    pub heads: Heads,
    /// Heads, norms, rotation, scores and cache.
    pub spec: AttentionSpec,
    /// Norm of all heads' results.
    pub sub_norm: Option<NormSpec>,
    /// From the heads' results to the output.
    pub output: Linear,
}

/// How queries, keys and values are made.
pub(super) enum Heads {
    /// By products of the input.
    Projected {
        /// q, k and v, or those of them that have a matrix, or one matrix for all.
        parts: Vec<Linear>,
        /// Limit of the values' magnitude.
        clamp: Option<f32>,
    },
    /// By products of the input: of `query` each head's values and then as many of a gate, whose sigmoid is a factor on
    /// the head's result.
    Gated { query: Linear, key_value: Vec<Linear> },
    /// Multi-head latent attention.
    Latent(Latent),
}

/// Multi-head latent attention (DeepSeek-V2, <https://arxiv.org/abs/2405.04434>) in its absorbed form: the cache holds
/// for each token one row that is the key, and its first part the value, of all heads.
pub(super) struct Latent {
    /// A narrow matrix before `query`, and its norm.
    pub query_down: Option<(Linear, NormSpec)>,
    /// The queries' matrix.
    pub query: Linear,
    /// The matrix of the latent row with the rotated part behind it.
    pub latent: Linear,
    /// For each head from the unrotated part of a query to the latent row.
    pub key_up: WeightId,
    /// For each head from the latent row to its values.
    pub value_up: WeightId,
    /// Rotated values of a head.
    pub n_rot: usize,
}

/// The feed-forward part.
pub(super) enum FeedForward {
    Dense(Dense),
    Experts(Box<Experts>),
    Both(Box<Both>),
    Channels(Box<ChannelMix>),
}

/// A gated unit, or without `up` a plain one.
pub(super) struct Dense {
    pub gate: Linear,
    pub up: Option<Linear>,
    pub act: Activation,
    /// Of a gated unit: standard deviations above their mean that gates count from, see
    /// [`Op::Sparsify`](crate::graph::Op::Sparsify).
    pub sparse: Option<f32>,
    /// Norm before `down`.
    pub sub_norm: Option<NormSpec>,
    pub down: Linear,
}

/// A mixture of experts.
pub(super) struct Experts {
    /// From the input to a logit for each expert.
    pub router: Linear,
    pub route: RouteSpec,
    pub gate: Stack,
    /// Without it the experts are plain ones.
    pub up: Option<Stack>,
    pub act: Activation,
    pub down: Stack,
    /// Whether the route's weights are on the experts' input instead of their output.
    pub weighted_input: bool,
    /// An expert of all rows, and the matrix of one row that gates it.
    pub shared: Option<(Dense, Option<Linear>)>,
}

/// A dense part beside experts, each with norms of its own.
pub(super) struct Both {
    pub dense: Dense,
    pub dense_norm: NormSpec,
    pub experts: Experts,
    /// Norm of the experts' input, which is the residual stream.
    pub experts_input: NormSpec,
    pub experts_norm: NormSpec,
    /// Norm of the router's input, which is the residual stream, and a factor on it.
    pub router_input: (NormSpec, f32),
}

/// The part of a layer that reads the token's embedding for it.
pub(super) struct PerLayer {
    /// From the residual stream to a gate.
    pub gate: Linear,
    pub act: Activation,
    /// First column of the layer's embedding.
    pub first: usize,
    /// From the gated embedding to the stream.
    pub project: Linear,
    pub norm: NormSpec,
}

/// What layers hand on: the residual stream, and what else there is.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    pub x: NodeId,
    pub per_layer: Option<NodeId>,
    /// The values of the first layer, where later ones mix them into their own.
    pub first_values: Option<NodeId>,
}

impl Layer {
    /// A layer without norms, whose parts are added one after the other.
    pub fn new(attention: Attention, ffn: FeedForward) -> Layer {
        Layer::of(vec![Mixer::Attention(Box::new(attention))], Some(ffn))
    }

    /// As [`Layer::new`], of any mixers.
    pub fn of(mixers: Vec<Mixer>, ffn: Option<FeedForward>) -> Layer {
        Layer {
            attn_norm: None,
            mixers,
            post_attn_norm: None,
            attn_sum_norm: None,
            ffn_norm: None,
            ffn,
            post_ffn_norm: None,
            ffn_sum_norm: None,
            parallel: false,
            residual_scale: 1.0,
            laurel: None,
            per_layer: None,
            altup: None,
            output: None,
        }
    }

    /// The attention whose cache the layer reads.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        self.mixers.iter().find_map(|mixer| match mixer {
            Mixer::Attention(attention) => Some(&attention.spec),
            Mixer::Recurrent(_) => None,
        })
    }

    /// The same, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        self.mixers.iter_mut().find_map(|mixer| match mixer {
            Mixer::Attention(attention) => Some(&mut attention.spec),
            Mixer::Recurrent(_) => None,
        })
    }

    /// Whether a later token needs what the layer computes for a row: keys, or a state.
    pub fn is_remembered(&self) -> bool {
        let remembers = |mixer: &Mixer| match mixer {
            Mixer::Attention(attention) => attention.spec.writes,
            Mixer::Recurrent(_) => true,
        };
        self.mixers.iter().any(remembers)
    }

    /// Append the layer's nodes. With `select` all that follows the mixers is of output rows.
    pub fn emit(&self, b: &mut Builder<'_>, streams: Streams, select: bool) -> Result<Streams> {
        let Streams { mut x, mut per_layer, mut first_values } = streams;
        let late = select && self.ffn.as_ref().is_some_and(FeedForward::has_state);
        let select = select && !late;
        let mut predicted = None;
        if let Some(altup) = &self.altup {
            let all = altup.predict(b, x)?;
            (predicted, x) = (Some(all), altup.active(b, all)?);
        }
        let mut normed = normed_by(b, x, self.attn_norm)?;
        let mut outputs =
            self.mixers.iter().map(|mixer| mixer.mix(b, normed, &mut first_values)).collect::<Result<Vec<_>>>()?;
        if select {
            outputs.iter_mut().for_each(|node| *node = b.select_rows(*node));
            // What nobody reads any more is not selected.
            if self.laurel.is_some() || self.parallel && self.ffn_norm.is_none() {
                normed = b.select_rows(normed);
            }
            x = b.select_rows(x);
            predicted = predicted.map(|all| b.select_rows(all));
            per_layer = per_layer.map(|all| b.select_rows(all));
        }
        let output = |b: &mut Builder<'_>, residual: Option<NodeId>| {
            let mut parts = self.mixers.iter().zip(&outputs);
            parts.try_fold(residual, |sum, (mixer, &node)| mixer.output(b, node, sum).map(Some))
        };
        let mut mixed = self.added(b, x, self.post_attn_norm, output)?;
        mixed = normed_by(b, mixed, self.attn_sum_norm)?;
        if let Some(laurel) = &self.laurel {
            mixed = laurel.emit(b, normed, mixed)?;
        }
        let stream = if self.parallel { x } else { mixed };
        let input = match self.ffn_norm {
            Some(norm) => b.norm(stream, norm, None)?,
            None if self.parallel => normed,
            None => stream,
        };
        let ffn = |b: &mut Builder<'_>, residual| match &self.ffn {
            Some(ffn) => ffn.emit(b, input, stream, residual).map(Some),
            None => Ok(residual),
        };
        let made = self.added(b, mixed, self.post_ffn_norm, ffn)?;
        let made = normed_by(b, made, self.ffn_sum_norm)?;
        let altup = self.altup.as_ref().zip(predicted);
        let mut x = match altup {
            Some((altup, predicted)) => altup.correct(b, predicted, x, made)?,
            None => made,
        };
        if let (Some(part), Some(all)) = (&self.per_layer, per_layer) {
            x = match altup {
                Some((altup, _)) => {
                    let made = altup.output(b, x)?;
                    let made = part.emit(b, made, all, None)?;
                    altup.add_to_others(b, made, x)?
                }
                None => part.emit(b, x, all, Some(x))?,
            };
        }
        if let Some(function) = self.output {
            x = b.map(x, function)?;
        }
        if late {
            (x, per_layer) = (b.select_rows(x), per_layer.map(|all| b.select_rows(all)));
        }
        Ok(Streams { x, per_layer, first_values })
    }

    /// The stream plus what `part` makes, normalised and scaled before it is added where the layer does so. A part that
    /// is not there makes nothing.
    fn added(
        &self,
        b: &mut Builder<'_>,
        x: NodeId,
        norm: Option<NormSpec>,
        part: impl FnOnce(&mut Builder<'_>, Option<NodeId>) -> Result<Option<NodeId>>,
    ) -> Result<NodeId> {
        let plain = self.residual_scale == 1.0;
        if norm.is_none() && plain {
            return Ok(part(b, Some(x))?.unwrap_or(x));
        }
        let Some(mut made) = part(b, None)? else { return Ok(x) };
        if let Some(norm) = norm {
            made = b.norm(made, norm, plain.then_some(x))?;
        }
        if plain { Ok(made) } else { b.add(made, self.residual_scale, x) }
    }
}

impl PerLayer {
    /// `all` holds the embeddings of all layers.
    fn emit(&self, b: &mut Builder<'_>, x: NodeId, all: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        let gate = b.matmul(x, &[self.gate], None)?;
        let gated = b.gate(gate, all, self.first, self.act, None)?;
        let projected = b.matmul(gated, &[self.project], None)?;
        b.norm(projected, self.norm, residual)
    }
}

fn normed_by(b: &mut Builder<'_>, x: NodeId, norm: Option<NormSpec>) -> Result<NodeId> {
    match norm {
        Some(norm) => b.norm(x, norm, None),
        None => Ok(x),
    }
}

impl Mixer {
    /// Up to the last matrix.
    fn mix(&self, b: &mut Builder<'_>, x: NodeId, first_values: &mut Option<NodeId>) -> Result<NodeId> {
        match self {
            Mixer::Attention(attention) => attention.attend(b, x),
            Mixer::Recurrent(recurrent) => recurrent.mix(b, x, first_values),
        }
    }

    /// The last matrix.
    fn output(&self, b: &mut Builder<'_>, mixed: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        match self {
            Mixer::Attention(attention) => attention.output(b, mixed, residual),
            Mixer::Recurrent(recurrent) => b.matmul(mixed, &[recurrent.output], residual),
        }
    }
}

impl Attention {
    fn attend(&self, b: &mut Builder<'_>, x: NodeId) -> Result<NodeId> {
        match &self.heads {
            Heads::Projected { parts, clamp } => {
                let mut qkv = b.matmul(x, parts, None)?;
                if let Some(limit) = clamp {
                    qkv = b.map(qkv, Function::Clamp(*limit))?;
                }
                b.attention(qkv, None, self.spec.clone())
            }
            Heads::Gated { query, key_value } => {
                let (heads, width) = (self.spec.n_head, self.spec.head_dim_k);
                let both = b.matmul(x, &[*query], None)?;
                let key_value = b.matmul(x, key_value, None)?;
                let queries = b.columns(both, heads, 0, width)?;
                let gate = b.columns(both, heads, width, self.spec.head_dim_v)?;
                let attended = b.attention(queries, Some(key_value), self.spec.clone())?;
                b.gate(gate, attended, 0, Activation::Sigmoid, None)
            }
            Heads::Latent(latent) => {
                // First, so that all that reads `x` comes before what is made of it.
                let row = b.matmul(x, &[latent.latent], None)?;
                let input = match &latent.query_down {
                    Some((down, norm)) => {
                        let narrow = b.matmul(x, &[*down], None)?;
                        b.norm(narrow, *norm, None)?
                    }
                    None => x,
                };
                let queries = b.matmul(input, &[latent.query], None)?;
                let queries = b.head_matmul(queries, latent.key_up, self.spec.n_head, latent.n_rot)?;
                b.attention(queries, Some(row), self.spec.clone())
            }
        }
    }

    fn output(&self, b: &mut Builder<'_>, mut attended: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        if let Heads::Latent(latent) = &self.heads {
            attended = b.head_matmul(attended, latent.value_up, self.spec.n_head, 0)?;
        }
        let attended = normed_by(b, attended, self.sub_norm)?;
        b.matmul(attended, &[self.output], residual)
    }
}

impl FeedForward {
    /// `x` is the part's input, `stream` the residual stream that it was made of.
    fn emit(&self, b: &mut Builder<'_>, x: NodeId, stream: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        match self {
            FeedForward::Dense(dense) => dense.emit(b, x, residual),
            FeedForward::Experts(experts) => experts.emit(b, x, x, residual),
            FeedForward::Both(both) => both.emit(b, x, stream, residual),
            FeedForward::Channels(mix) => mix.emit(b, x, residual),
        }
    }

    /// Whether it keeps a state of a sequence.
    fn has_state(&self) -> bool {
        matches!(self, FeedForward::Channels(_))
    }
}

impl Dense {
    fn emit(&self, b: &mut Builder<'_>, x: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        let gated = match (self.sparse, self.up) {
            (Some(deviations), Some(up)) => {
                let gate = b.matmul(x, &[self.gate], None)?;
                let up = b.matmul(x, &[up], None)?;
                let gate = b.sparsify(gate, deviations);
                b.gate(gate, up, 0, self.act, None)?
            }
            _ => b.gated_matmul(x, self.gate, self.up, self.act)?,
        };
        let gated = normed_by(b, gated, self.sub_norm)?;
        b.matmul(gated, &[self.down], residual)
    }
}

impl Experts {
    fn emit(&self, b: &mut Builder<'_>, x: NodeId, router: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        let logits = b.matmul(router, &[self.router], None)?;
        let route = b.route(logits, self.route)?;
        let gated = b.expert_gate(x, route, (self.gate, self.up), self.act, self.weighted_input)?;
        let sum = b.expert_down(gated, route, self.down, self.weighted_input, residual)?;
        match &self.shared {
            None => Ok(sum),
            Some((shared, None)) => shared.emit(b, x, Some(sum)),
            Some((shared, Some(gate))) => {
                let gate = b.matmul(x, &[*gate], None)?;
                let made = shared.emit(b, x, None)?;
                b.gate(gate, made, 0, Activation::Sigmoid, Some(sum))
            }
        }
    }
}

impl Both {
    fn emit(&self, b: &mut Builder<'_>, x: NodeId, stream: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        let (norm, factor) = self.router_input;
        let router = b.norm(stream, norm, None)?;
        let router = b.map(router, Function::Scale(factor))?;
        let input = b.norm(stream, self.experts_input, None)?;
        let experts = self.experts.emit(b, input, router, None)?;
        let experts = b.norm(experts, self.experts_norm, None)?;
        let dense = self.dense.emit(b, x, None)?;
        let both = b.norm(dense, self.dense_norm, Some(experts))?;
        match residual {
            Some(residual) => b.add(both, 1.0, residual),
            None => Ok(both),
        }
    }
}
