//! Graphs as data: an arena of nodes, each an operation over earlier nodes and named weights.
//!
//! A graph says *what* is computed for a batch of rows (one row per token); it holds no buffer, no closure and no
//! device. Every activation is a matrix of `f32` with a fixed width and one row per batch row or per output row.
//! How many rows are active, their positions, cells and sequences are inputs of a run, never part of the shape, so
//! a scheduled graph serves every batch up to its row bucket.
//!
//! Operations are as coarse as the fused steps of a decoder layer (normalise; project to q, k, v; attend; project and
//! add; gate), because a backend lowers a node to one parallel step or one dispatch.
//!
//! Invariants: sources precede their users; widths agree with the weights' shapes (checked by the builder).

mod builder;

pub use builder::Builder;

use crate::quant::TensorType;
use std::fmt;

/// A node of a graph, by position in [`Graph::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A weight, by position in the model's weight table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// What a weight is used for; decides in which layout a backend keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightUse {
    /// An embedding table, whose rows are looked up by token id.
    Rows,
    /// Multiplied with activations.
    MatMul,
    /// Both: a tied embedding.
    RowsAndMatMul,
    /// A vector of `f32` (norm weights, biases, frequency factors).
    Vector,
}

impl WeightUse {
    /// The combined use of a weight that has both uses.
    pub fn and(self, other: WeightUse) -> WeightUse {
        if self == other { self } else { WeightUse::RowsAndMatMul }
    }
}

/// One weight of a model, as the graph and the backends see it.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSpec {
    /// The tensor's name in the file.
    pub name: String,
    /// Weights of a row: the input width, the contiguous dimension.
    pub n_in: usize,
    /// Number of rows: the output width; 1 for vectors.
    pub n_out: usize,
    /// The first of these rows in the tensor, of which the weight may be a part.
    pub first_row: usize,
    /// Element type in the file.
    pub ty: TensorType,
    /// What it is used for.
    pub usage: WeightUse,
}

impl WeightSpec {
    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.ty.row_bytes(self.n_in as u64).unwrap_or(0) * self.n_out as u64
    }
}

/// The part of a model that a node belongs to; placement on devices is decided by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The embedding look-up.
    Embedding,
    /// A repeating layer.
    Layer(usize),
    /// The output norm and what follows it.
    Head,
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Embedding => out.write_str("embedding"),
            Part::Layer(layer) => write!(out, "layer {layer}"),
            Part::Head => out.write_str("head"),
        }
    }
}

/// Which rows a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// One per batch row.
    Batch,
    /// One per output row, the rows whose hidden state or logits are wanted.
    Output,
}

/// An activation function, of one value or of a gate and what it gates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// x itself.
    Identity,
    /// SiLU: x · sigmoid(x) (Elfwing et al., <https://arxiv.org/abs/1702.03118>); as a gate SwiGLU (Shazeer, "GLU
    /// Variants Improve Transformer", <https://arxiv.org/abs/2002.05202>).
    Silu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel, <https://arxiv.org/abs/1606.08415>); as a gate GEGLU
    /// (Shazeer, as above).
    Gelu,
    /// max(0, x).
    Relu,
    /// max(0, x)² (So et al., "Primer", <https://arxiv.org/abs/2109.08668>).
    Relu2,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// xIELU (Huang and Schlag, <https://arxiv.org/abs/2411.13010>): p x² + b x above zero, else
    /// n (e^min(x, eps) - 1 - x) + b x.
    Xielu {
        /// p, after softplus.
        positive: f32,
        /// n, after softplus, `b` included.
        negative: f32,
        /// b.
        linear: f32,
        /// Largest argument of the exponential, just below zero.
        eps: f32,
    },
    /// The gate of gpt-oss: a sigmoid(1.702 a) (b + 1) with a = min(gate, 7) and b = up clamped to ±7.
    ClampedSwiglu,
}

/// How the dimensions of a head are paired for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbours (0, 1), (2, 3), …, as in the RoFormer paper.
    Norm,
    /// Halves (0, n/2), (1, n/2 + 1), …, as in GPT-NeoX.
    Neox,
}

/// How rotary frequencies are scaled beyond the context that a model was trained for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every angle is divided by the factor.
    Linear {
        /// Context extension, at least 1.
        factor: f64,
    },
    /// YaRN (<https://arxiv.org/abs/2309.00071>): high frequencies stay, low ones are divided by the factor, those
    /// between are blended; cosines and sines grow with the logarithm of the factor.
    Yarn {
        /// Context extension, at least 1.
        factor: f64,
        /// Weight of the blend: 1 in the paper, 0 scales like `Linear`.
        ext_factor: f64,
        /// Multiplies cosines and sines besides YaRN's own growth.
        attn_factor: f64,
        /// Turns over the original context above which a frequency stays (32 in the paper).
        beta_fast: f64,
        /// Turns over the original context below which a frequency is divided (1 in the paper).
        beta_slow: f64,
        /// Context in tokens before the extension.
        original_context: u32,
    },
}

/// Rotary position embedding (RoPE; Su et al., "RoFormer", <https://arxiv.org/abs/2104.09864>).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Pairing.
    pub kind: RopeKind,
    /// Number of rotated values of a head, even; the other values are unchanged.
    pub n_rot: usize,
    /// Base of the frequencies: pair i rotates by base^(-2i/n_rot) radians per position.
    pub freq_base: f64,
    /// How frequencies are scaled beyond the trained context.
    pub scaling: RopeScaling,
    /// Divisors of the frequencies, one per pair (`rope_freqs.weight`, `rope_factors_short.weight`).
    pub factors: Option<WeightId>,
    /// Other divisors for long contexts.
    pub long_factors: Option<LongFactors>,
}

/// Divisors of rotary frequencies that hold for a whole engine whose context is long (LongRoPE,
/// <https://arxiv.org/abs/2402.13753>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongFactors {
    /// One per pair (`rope_factors_long.weight`).
    pub weight: WeightId,
    /// The longest context in tokens, of one sequence, for which the short factors hold.
    pub above: u32,
}

impl RopeSpec {
    /// The divisors for a context of so many tokens.
    pub fn factors_for(&self, context: usize) -> Option<WeightId> {
        match self.long_factors {
            Some(long) if context > long.above as usize => Some(long.weight),
            _ => self.factors,
        }
    }

    /// Both sets of divisors.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> {
        self.factors.into_iter().chain(self.long_factors.map(|long| long.weight))
    }
}

/// A matrix that is multiplied, with what belongs to it: `weight · x · scale + bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// The matrix.
    pub weight: WeightId,
    /// A factor on the product: one number, of a stack of experts one for each.
    pub scale: Option<WeightId>,
    /// Added to the product, a value per row.
    pub bias: Option<WeightId>,
}

impl Linear {
    /// A matrix by itself.
    pub fn plain(weight: WeightId) -> Linear {
        Linear { weight, scale: None, bias: None }
    }

    fn weights(&self) -> impl Iterator<Item = (WeightId, WeightUse)> + use<> {
        let vectors = self.scale.into_iter().chain(self.bias).map(|w| (w, WeightUse::Vector));
        std::iter::once((self.weight, WeightUse::MatMul)).chain(vectors)
    }
}

/// What a norm divides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// The root of the mean square (Zhang and Sennrich, <https://arxiv.org/abs/1910.07467>).
    Rms,
    /// The standard deviation, after the mean was subtracted (Ba et al., <https://arxiv.org/abs/1607.06450>).
    Layer,
}

/// A norm: `x / sqrt(mean(x²) + eps) · weight + bias`, of [`NormKind::Layer`] with x less its mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// What it divides by.
    pub kind: NormKind,
    /// Factor per column.
    pub weight: Option<WeightId>,
    /// Added per column.
    pub bias: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
}

impl NormSpec {
    /// An RMS norm with these factors.
    pub fn rms(weight: WeightId, eps: f32) -> NormSpec {
        NormSpec { kind: NormKind::Rms, weight: Some(weight), bias: None, eps }
    }

    /// The factors of an RMS norm that has nothing else.
    pub fn plain(&self) -> Option<WeightId> {
        self.weight.filter(|_| self.kind == NormKind::Rms && self.bias.is_none())
    }

    fn weights(&self) -> impl Iterator<Item = (WeightId, WeightUse)> + use<> {
        self.weight.into_iter().chain(self.bias).map(|w| (w, WeightUse::Vector))
    }
}

/// Which values of queries or keys are normalised together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormSpan {
    /// The first so many of each head, with one weight for all heads.
    Head(usize),
    /// Each head, with weights of its own.
    EachHead,
    /// All heads of a row together.
    Row,
}

/// A norm of query or key heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm {
    /// The norm.
    pub norm: NormSpec,
    /// What it goes over.
    pub span: NormSpan,
}

/// Where an attention's values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Columns of their own, after the keys.
    Own,
    /// The keys before norm and rotation.
    Keys,
    /// The first values of each key head, as it goes to the cache.
    KeyPrefix,
}

/// A factor on queries that grows with the position p: `1 + scale · ln(1 + floor((p + offset) / length))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// Growth per logarithm.
    pub scale: f32,
    /// Tokens after which it begins to grow.
    pub length: u32,
    /// Added to the position.
    pub offset: u32,
}

/// Everything an attention node needs besides its input.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// The layer whose KV cache is used: its own, or an earlier one that it shares.
    pub layer: usize,
    /// Whether keys and values are written; else the input holds queries alone.
    pub writes: bool,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Values of a query or key head.
    pub head_dim_k: usize,
    /// Values of a value head.
    pub head_dim_v: usize,
    /// Where values come from.
    pub values: Values,
    /// Factor on the scores, usually 1/sqrt(head_dim_k).
    pub scale: f32,
    /// Factor on queries that grows with their position.
    pub temperature: Option<Temperature>,
    /// Soft cap: scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Whether a row sees the cells after it, too, as in an encoder. All of its sequence is then in one batch.
    pub bidirectional: bool,
    /// Sliding window in tokens: a row sees only cells whose position is less than this before its own, or in
    /// bidirectional attention at most half of it before or after; 0 = no limit.
    pub window: u32,
    /// Chunk in tokens: a row sees only cells of its own chunk, which begins at a multiple of this; 0 = no chunks.
    pub chunk: u32,
    /// ALiBi (Press et al., <https://arxiv.org/abs/2108.12409>): the largest slope's bias, usually 8; 0 = none. See
    /// [`alibi_slope`].
    pub alibi: f32,
    /// Biases of the scores by the distance of keys.
    pub distance: Option<DistanceBias>,
    /// Per query head one more score that takes probability and has no value (attention sinks).
    pub sinks: Option<WeightId>,
    /// Norm of the queries.
    pub q_norm: Option<HeadNorm>,
    /// Norm of the keys.
    pub k_norm: Option<HeadNorm>,
    /// Norm of each value head, without weights.
    pub v_norm: Option<NormSpec>,
    /// Whether heads are normalised after they were rotated instead of before.
    pub norm_after_rope: bool,
    /// Index into [`Graph::ropes`]; `None` where nothing is rotated.
    pub rope: Option<usize>,
    /// The first value of a head that is rotated.
    pub rope_first: usize,
}

/// Biases of scores by the distance of key and query (Raffel et al., <https://arxiv.org/abs/1910.10683>). Distances are
/// in buckets: each small one in a bucket of its own, larger ones together, in bidirectional attention the second half
/// of the buckets for keys after the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistanceBias {
    /// For each bucket a number per query head.
    pub weight: WeightId,
    /// Number of buckets.
    pub buckets: usize,
}

impl DistanceBias {
    /// Distances from here on are in one bucket.
    pub const FAR: usize = 128;

    /// Of `n` buckets for one direction that of each distance from 0 to [`DistanceBias::FAR`]: the first half have one
    /// distance each, the others grow by a factor.
    pub fn of_distances(n: usize) -> Vec<u32> {
        let alone = n / 2;
        let bucket = |distance: usize| {
            if distance < alone || n < 2 {
                return distance.min(n.saturating_sub(1));
            }
            // Rounded as where models are trained and converted, for distances that are a bucket's first.
            let (ratio, factor) = (distance as f64 / alone as f64, Self::FAR as f64 / alone as f64);
            let steps = f64::from((ratio as f32).ln() * (n - alone) as f32) / factor.ln();
            (alone + steps.max(0.0) as usize).min(n - 1)
        };
        (0..=Self::FAR).map(|distance| bucket(distance) as u32).collect()
    }
}

/// The slope of a query head: a score is lowered by it for every token of distance.
pub fn alibi_slope(max_bias: f32, head: usize, n_head: usize) -> f32 {
    let whole = 1usize << n_head.ilog2();
    let power = match head < whole {
        true => (head + 1) as f64 / whole as f64,
        false => (2 * (head - whole) + 1) as f64 / (2 * whole) as f64,
    };
    (-f64::from(max_bias) * power).exp2() as f32
}

impl AttentionSpec {
    /// Plain attention of a layer with heads of one width.
    pub fn new(layer: usize, n_head: usize, n_head_kv: usize, head_dim: usize) -> AttentionSpec {
        AttentionSpec {
            layer,
            writes: true,
            n_head,
            n_head_kv,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            values: Values::Own,
            scale: 1.0 / (head_dim as f32).sqrt(),
            temperature: None,
            softcap: None,
            bidirectional: false,
            window: 0,
            chunk: 0,
            alibi: 0.0,
            distance: None,
            sinks: None,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            norm_after_rope: false,
            rope: Some(0),
            rope_first: 0,
        }
    }

    /// Values of all query heads.
    pub fn q_width(&self) -> usize {
        self.n_head * self.head_dim_k
    }

    /// Values of all key heads.
    pub fn k_width(&self) -> usize {
        self.n_head_kv * self.head_dim_k
    }

    /// Values of all value heads.
    pub fn v_width(&self) -> usize {
        self.n_head_kv * self.head_dim_v
    }

    /// Columns of the input besides the queries.
    pub fn kv_width(&self) -> usize {
        match (self.writes, self.values) {
            (false, _) => 0,
            (true, Values::Own) => self.k_width() + self.v_width(),
            (true, Values::Keys | Values::KeyPrefix) => self.k_width(),
        }
    }

    fn weights(&self) -> impl Iterator<Item = (WeightId, WeightUse)> + use<> {
        let norms = [self.q_norm, self.k_norm].into_iter().flatten().flat_map(|head| head.norm.weights());
        let distances = self.distance.map(|distance| distance.weight);
        norms.chain(distances.into_iter().chain(self.sinks).map(|id| (id, WeightUse::Vector)))
    }
}

/// How a router's logits become probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// Chosen by the logits; softmax over the chosen.
    SoftmaxOfChosen,
    /// sqrt(ln(1 + e^x)) of each.
    SqrtSoftplus,
}

/// The most groups that experts may be in.
pub const MAX_EXPERT_GROUPS: usize = 64;

/// Which experts a row goes to, and with which weights (Shazeer et al., <https://arxiv.org/abs/1701.06538>; groups and
/// the bias: DeepSeek-V3, <https://arxiv.org/abs/2412.19437>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteSpec {
    /// Experts of a row.
    pub used: usize,
    /// From logits to probabilities.
    pub gating: Gating,
    /// Added to the probabilities for the choice alone.
    pub bias: Option<WeightId>,
    /// Groups of neighbouring experts; 1 = no groups.
    pub groups: usize,
    /// Groups that a row may choose from: those whose two best experts have the largest sum.
    pub groups_used: usize,
    /// Whether the weights of a row are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Matrices of all experts in one weight, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack {
    /// The weight; biases are laid out as its rows are, scales are one per expert.
    pub linear: Linear,
    /// Number of experts.
    pub experts: usize,
    /// Row of the first expert's matrix.
    pub first: usize,
    /// Rows from one expert's matrix to the next one's.
    pub stride: usize,
    /// Rows of a matrix.
    pub rows: usize,
}

/// A causal convolution of each column with the rows before it: `act(bias + Σ_j weight[j] x[t - taps + 1 + j])`, or
/// without weights the difference of the row before, `x[t - 1] - x[t]`. The rows before a sequence's first are zero;
/// what it needs of them between runs is a state, of `taps - 1` rows of `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvSpec {
    /// The state: an index into [`CacheSpec::states`](crate::backend::CacheSpec::states).
    pub state: usize,
    /// For each column `taps` factors, the newest row's last; `None` for the difference, which has 2.
    pub weight: Option<WeightId>,
    /// Added per column.
    pub bias: Option<WeightId>,
    /// Rows that a result is made of, 2 to [`MAX_TAPS`].
    pub taps: usize,
    /// First column of `x`.
    pub first: usize,
    /// Columns.
    pub channels: usize,
    /// What follows.
    pub act: Activation,
}

/// The most taps of a convolution.
pub const MAX_TAPS: usize = 8;

impl ConvSpec {
    /// Numbers of its state.
    pub fn state_values(&self) -> usize {
        (self.taps - 1) * self.channels
    }
}

/// Columns of one of a node's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Which source.
    pub src: usize,
    /// The first column.
    pub first: usize,
}

impl Columns {
    /// Columns of a source from `first` on.
    pub fn of(src: usize, first: usize) -> Columns {
        Columns { src, first }
    }
}

/// How a recurrence changes the state S of a head, a row of numbers for each key index and a column for each value
/// index, and what it reads. k and q are a row's key and query, v its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The gated delta rule (Yang et al., <https://arxiv.org/abs/2412.06464>): with k and q of unit length and
    /// w = e^(softplus(step + bias) · decay), S becomes w S + k (β (v - w Sᵀ k))ᵀ; the result is Sᵀ q / sqrt(keys).
    Delta {
        /// β before its sigmoid, one for each head.
        write: Columns,
        /// The least length that k and q are divided by.
        eps: f32,
    },
    /// State space duality (Mamba-2; Dao and Gu, <https://arxiv.org/abs/2405.21060>): with Δ = softplus(step + bias)
    /// and w = e^(Δ · decay), S becomes w S + k (Δ v)ᵀ; the result is Sᵀ q + skip v.
    Ssd {
        /// A factor for each head.
        skip: WeightId,
    },
    /// The selective scan (Mamba; Gu and Dao, <https://arxiv.org/abs/2312.00752>): as [`Rule::Ssd`], with a step and a
    /// skip for each value index, and a decay for each entry of S, that of a value index's keys side by side.
    Scan {
        /// A factor for each value index.
        skip: WeightId,
    },
    /// RWKV-6 (Peng et al., <https://arxiv.org/abs/2404.05892>): the result is Sᵀ q + (q · (bonus ⊙ k)) v; then, with
    /// w = e^-(e^step) for each key index, S becomes diag(w) S + k vᵀ. A head has key indices of its own.
    Wkv6 {
        /// A factor for each head and key index.
        bonus: WeightId,
    },
    /// RWKV-7 (Peng et al., <https://arxiv.org/abs/2503.14456>): with w = e^(-0.606531 σ(step)) for each key index, S
    /// becomes diag(w) S - (removed ⊙ rate) (Sᵀ removed)ᵀ + k vᵀ; the result is Sᵀ q of all heads, then of all heads
    /// (q · (bonus ⊙ k)) v. A head has key indices of its own.
    Wkv7 {
        /// A factor for each head and key index.
        bonus: WeightId,
        /// A direction of unit length for each head.
        removed: Columns,
        /// A rate for each key index.
        rate: Columns,
    },
}

impl Rule {
    /// The vector that belongs to the rule alone.
    pub fn own(&self) -> Option<WeightId> {
        match *self {
            Rule::Ssd { skip } | Rule::Scan { skip } => Some(skip),
            Rule::Wkv6 { bonus } | Rule::Wkv7 { bonus, .. } => Some(bonus),
            Rule::Delta { .. } => None,
        }
    }
}

/// A recurrence over the rows of a sequence, head by head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecurSpec {
    /// The state: an index into [`CacheSpec::states`](crate::backend::CacheSpec::states).
    pub state: usize,
    /// Heads of values and of the state.
    pub heads: usize,
    /// Key indices of a head, at most [`MAX_KEYS`].
    pub keys: usize,
    /// Value indices of a head.
    pub values: usize,
    /// Heads of keys and queries; divides `heads`.
    pub key_heads: usize,
    /// Whether head h reads key head `h mod key_heads`, instead of the key head of its group of neighbours.
    pub tiled: bool,
    /// Queries.
    pub query: Columns,
    /// Keys.
    pub key: Columns,
    /// Values.
    pub value: Columns,
    /// What decays and steps are made of.
    pub step: Columns,
    /// Factors of decays: below 0, one for each head, or as the rule says.
    pub decay: Option<WeightId>,
    /// Added to steps.
    pub bias: Option<WeightId>,
    /// What a row does.
    pub rule: Rule,
}

/// The most key indices of a recurrence's head.
pub const MAX_KEYS: usize = 256;

/// The most sources of a recurrence.
pub const MAX_SOURCES: usize = 8;

impl RecurSpec {
    /// Numbers of its state.
    pub fn state_values(&self) -> usize {
        self.heads * self.keys * self.values
    }

    /// Columns of the result.
    pub fn width(&self) -> usize {
        let parts = if matches!(self.rule, Rule::Wkv7 { .. }) { 2 } else { 1 };
        parts * self.heads * self.values
    }

    /// The key head that a head reads.
    pub fn key_head(&self, head: usize) -> usize {
        if self.tiled { head % self.key_heads } else { head / (self.heads / self.key_heads) }
    }

    /// Columns that it reads, and how many.
    pub fn inputs(&self) -> Vec<(Columns, usize)> {
        let (keys, values) = (self.key_heads * self.keys, self.heads * self.values);
        let mut all = vec![(self.query, keys), (self.key, keys), (self.value, values)];
        match self.rule {
            Rule::Delta { write, .. } => all.extend([(self.step, self.heads), (write, self.heads)]),
            Rule::Ssd { .. } => all.push((self.step, self.heads)),
            Rule::Scan { .. } => all.push((self.step, values)),
            Rule::Wkv6 { .. } => all.push((self.step, keys)),
            Rule::Wkv7 { removed, rate, .. } => all.extend([(self.step, keys), (removed, keys), (rate, keys)]),
        }
        all
    }

    /// The vectors that it reads, and their lengths.
    pub fn vectors(&self) -> impl Iterator<Item = (WeightId, usize)> + use<> {
        let (keys, values) = (self.heads * self.keys, self.heads * self.values);
        let (decay, own) = match self.rule {
            Rule::Delta { .. } | Rule::Ssd { .. } => (self.heads, self.heads),
            Rule::Scan { .. } => (self.state_values(), values),
            Rule::Wkv6 { .. } | Rule::Wkv7 { .. } => (0, keys),
        };
        let all = [(self.decay, decay), (self.bias, self.heads), (self.rule.own(), own)];
        all.into_iter().filter_map(|(weight, n)| Some((weight?, n)))
    }
}

/// What is looked up in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// The row of the token.
    Token,
    /// The row of the position.
    Position,
    /// The first row, for every token.
    First,
}

/// A function of each value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// `x · factor`.
    Scale(f32),
    /// `x · weight`, a weight of one number or of one for each column.
    ScaleBy(WeightId),
    /// `cap · tanh(x / cap)`.
    SoftCap(f32),
    /// `x` limited to ± this.
    Clamp(f32),
}

/// What parts of a row are multiplied with before they are summed, see [`Op::Mix`].
#[derive(Debug, Clone, PartialEq)]
pub enum Coefficients {
    /// The same in every row. A part whose coefficient is zero is not read.
    Fixed(Vec<f32>),
    /// The values of the second source, each plus this.
    OfRow {
        /// Added to each.
        plus: f32,
    },
}

/// One operation. `x` is the first source.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows of a table, times `scale`; plus the first source where there is one.
    Embed {
        /// The table.
        table: WeightId,
        /// Factor on every value.
        scale: f32,
        /// Which row.
        index: Index,
    },
    /// The hidden rows that an earlier graph kept (see [`Output::Hidden`]), or that were put in their place.
    Hidden,
    /// The rows of `x` that the run names as output rows.
    SelectRows,
    /// The norm of each of `groups` equal parts of a row, plus the second source where there is one.
    Norm {
        /// The norm.
        norm: NormSpec,
        /// Parts of a row, each normalised by itself, with the same weights or its own part of them.
        groups: usize,
    },
    /// `weight · x` for each matrix, side by side; plus the second source where there is one.
    MatMul(Vec<Linear>),
    /// `act(gate · x) ⊙ (up · x)`: a gated unit (SwiGLU, GEGLU); without `up` `act(gate · x)`.
    GatedMatMul {
        /// The gate matrix.
        gate: Linear,
        /// The up matrix, of the same shape.
        up: Option<Linear>,
        /// Activation of the gate.
        act: Activation,
    },
    /// A function of each value.
    Map(Function),
    /// `x · scale` plus the second source.
    Add {
        /// Factor on `x`.
        scale: f32,
    },
    /// `act(x) ⊙ y`, y being as many columns of the second source; or `act(x) · y` where x is one value a row and y the
    /// whole second source. Plus the third source where there is one.
    Gate {
        /// Activation of `x`.
        act: Activation,
        /// First column of y.
        first: usize,
    },
    /// Sums over `parts` equal parts x_s of `x`, side by side: sum t is `Σ_s c[t · parts + s] · x_s`. Plus the last
    /// source where there is one more than coefficients need.
    Mix {
        /// Parts of a row.
        parts: usize,
        /// Sums of a row.
        sums: usize,
        /// c.
        coefficients: Coefficients,
    },
    /// The second source, then each part of `x` of its width, scaled so that the part has the length (the root of the
    /// sum of squares) of the second source; a part of zeros stays so.
    Equalize,
    /// `max(0, x - mean - deviations · σ)` with the mean and the standard deviation σ (of a sample, over n - 1) of the
    /// row: of values that are spread normally a fixed share remains ("Spark Transformer",
    /// <https://arxiv.org/abs/2506.06644>).
    Sparsify {
        /// Standard deviations.
        deviations: f32,
    },
    /// `x` holds q, or q, k and v side by side; then the second source holds k and v where there is one: normalises and
    /// rotates the heads, writes k and v to the batch's cells, then attends over the cells that each row sees.
    Attention(Box<AttentionSpec>),
    /// A matrix for each head: of a head of `n_in + keep` values the first `n_in` are multiplied, the others follow.
    HeadMatMul {
        /// One matrix per head, one after the other.
        weight: WeightId,
        /// Heads of a row.
        heads: usize,
        /// Values at the end of a head that stay as they are.
        keep: usize,
    },
    /// `x` holds a router's logits: the indices of the chosen experts (integers as `f32`), largest first, then their
    /// weights.
    Route(RouteSpec),
    /// `act(gate_e · x) ⊙ (up_e · x)`, without `up` `act(gate_e · x)`, of every chosen expert e, side by side; the
    /// second source is the route.
    ExpertGate {
        /// The gate matrices.
        gate: Stack,
        /// The up matrices.
        up: Option<Stack>,
        /// Activation of the gate.
        act: Activation,
        /// Whether the route's weights are on `x` here, and not on the result of [`Op::ExpertDown`].
        weighted: bool,
    },
    /// `Σ w_e (down_e · x_e)` over the chosen experts; `x` as [`Op::ExpertGate`] leaves it, the second source is the
    /// route; plus the third source where there is one.
    ExpertDown {
        /// The down matrices.
        down: Stack,
        /// Whether the route's weights were on the input already.
        weighted: bool,
    },
    /// The same columns of each of `parts` equal parts of `x`, side by side.
    Columns {
        /// Parts of a row.
        parts: usize,
        /// The first column of a part.
        first: usize,
    },
    /// A convolution with the rows before.
    Conv(Box<ConvSpec>),
    /// A recurrence over the rows of a sequence.
    Recur(Box<RecurSpec>),
    /// Writes the keys and values of `x` to the cache, as attention does, which here only later runs do.
    WriteKeys(Box<AttentionSpec>),
    /// K-shift: rotates the keys of the batch's cells. A row's position is the change of its cell's position.
    ShiftKeys(Box<AttentionSpec>),
    /// Copies keys and values to the batch's cells: a row's position is the number of the source cell. No cell is both
    /// source and target.
    CopyCells(Box<AttentionSpec>),
}

impl Op {
    /// The operation's name.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Hidden => "hidden",
            Op::SelectRows => "select_rows",
            Op::Norm { .. } => "norm",
            Op::MatMul(_) => "mat_mul",
            Op::GatedMatMul { .. } => "gated_mat_mul",
            Op::Map(_) => "map",
            Op::Add { .. } => "add",
            Op::Gate { .. } => "gate",
            Op::Mix { .. } => "mix",
            Op::Equalize => "equalize",
            Op::Sparsify { .. } => "sparsify",
            Op::Attention(_) => "attention",
            Op::HeadMatMul { .. } => "head_mat_mul",
            Op::Route(_) => "route",
            Op::ExpertGate { .. } => "expert_gate",
            Op::ExpertDown { .. } => "expert_down",
            Op::Columns { .. } => "columns",
            Op::Conv(_) => "conv",
            Op::Recur(_) => "recur",
            Op::WriteKeys(_) => "write_keys",
            Op::ShiftKeys(_) => "shift_keys",
            Op::CopyCells(_) => "copy_cells",
        }
    }
}

/// What a node's rows are used for after the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Kept on its device for a later graph's [`Op::Hidden`].
    Hidden,
    /// Readable by the sampler.
    Logits,
}

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Earlier nodes it reads, in the order that the operation says.
    pub src: Vec<NodeId>,
    /// Width: values per row.
    pub width: usize,
    /// Which rows.
    pub rows: Rows,
    /// The part of the model.
    pub part: Part,
    /// What its rows are used for after the run; `None` where their memory is reused.
    pub output: Option<Output>,
}

impl Node {
    /// Every weight that the node reads, with its use. Frequency factors of rotary embeddings belong to the graph.
    pub fn weights(&self) -> Vec<(WeightId, WeightUse)> {
        match &self.op {
            Op::Embed { table, .. } => vec![(*table, WeightUse::Rows)],
            Op::Norm { norm, .. } => norm.weights().collect(),
            Op::MatMul(parts) => parts.iter().flat_map(Linear::weights).collect(),
            Op::GatedMatMul { gate, up, .. } => gate.weights().chain(up.iter().flat_map(Linear::weights)).collect(),
            Op::Map(Function::ScaleBy(weight)) => vec![(*weight, WeightUse::Vector)],
            Op::Attention(spec) | Op::WriteKeys(spec) => spec.weights().collect(),
            Op::HeadMatMul { weight, .. } => vec![(*weight, WeightUse::MatMul)],
            Op::Route(spec) => spec.bias.map(|bias| (bias, WeightUse::Vector)).into_iter().collect(),
            Op::ExpertGate { gate, up, .. } => {
                gate.linear.weights().chain(up.iter().flat_map(|up| up.linear.weights())).collect()
            }
            Op::ExpertDown { down, .. } => down.linear.weights().collect(),
            Op::Conv(spec) => spec.bias.into_iter().chain(spec.weight).map(|w| (w, WeightUse::Vector)).collect(),
            Op::Recur(spec) => spec.vectors().map(|(weight, _)| (weight, WeightUse::Vector)).collect(),
            Op::Hidden
            | Op::SelectRows
            | Op::Columns { .. }
            | Op::Map(_)
            | Op::Add { .. }
            | Op::Gate { .. }
            | Op::Mix { .. }
            | Op::Equalize
            | Op::Sparsify { .. }
            | Op::ShiftKeys(_)
            | Op::CopyCells(_) => Vec::new(),
        }
    }

    /// The attention whose cache the node works on.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.op {
            Op::Attention(spec) | Op::WriteKeys(spec) | Op::ShiftKeys(spec) | Op::CopyCells(spec) => Some(spec),
            _ => None,
        }
    }

    /// The state that the node works on, and how many numbers it has.
    pub fn state(&self) -> Option<(usize, usize)> {
        match &self.op {
            Op::Conv(spec) => Some((spec.state, spec.state_values())),
            Op::Recur(spec) => Some((spec.state, spec.state_values())),
            _ => None,
        }
    }

    /// The source that is added to the result, where there is one.
    pub fn residual(&self) -> Option<NodeId> {
        let at = match self.op {
            Op::Embed { .. } => 0,
            Op::Norm { .. } | Op::MatMul(_) | Op::Add { .. } | Op::Mix { coefficients: Coefficients::Fixed(_), .. } => {
                1
            }
            Op::Gate { .. } | Op::ExpertDown { .. } | Op::Mix { coefficients: Coefficients::OfRow { .. }, .. } => 2,
            _ => return None,
        };
        self.src.get(at).copied()
    }

    /// The source whose buffer this node may write to, where no later node reads it: the residual, since all operations
    /// that have one add to it value by value. One that is mixed as well is read after it was added to.
    pub fn in_place_source(&self) -> Option<NodeId> {
        let mixes = |source| matches!(self.op, Op::Mix { .. }) && self.src.first() == Some(&source);
        self.residual().filter(|&residual| !mixes(residual))
    }
}

/// A graph: nodes in an order in which they can be computed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Rotary embeddings that the attention nodes name.
    pub ropes: Vec<RopeSpec>,
}

/// Who reads each node of a graph, found in one pass over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readers {
    /// Index of the first reader of each node, and one past the last.
    first: Vec<usize>,
    readers: Vec<NodeId>,
}

impl Readers {
    /// The readers of all nodes.
    pub fn of(graph: &Graph) -> Readers {
        let sources = |node: &Node| {
            let mut src = node.src.clone();
            src.sort_unstable();
            src.dedup();
            src
        };
        let mut first = vec![0; graph.nodes.len() + 1];
        for source in graph.nodes.iter().flat_map(sources) {
            first[source.0 as usize + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut next = first.clone();
        let mut readers = vec![NodeId(0); first[graph.nodes.len()]];
        for (i, node) in graph.nodes.iter().enumerate() {
            for source in sources(node) {
                let at = &mut next[source.0 as usize];
                readers[*at] = NodeId(i as u32);
                *at += 1;
            }
        }
        Readers { first, readers }
    }

    /// The nodes that read this one, ascending.
    pub fn of_node(&self, id: NodeId) -> &[NodeId] {
        let i = id.0 as usize;
        &self.readers[self.first[i]..self.first[i + 1]]
    }
}

impl Graph {
    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }
}
