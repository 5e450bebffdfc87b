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
    /// Element type in the file.
    pub ty: TensorType,
    /// What it is used for.
    pub usage: WeightUse,
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

/// The gate's activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// SiLU: x · sigmoid(x) (Elfwing et al., <https://arxiv.org/abs/1702.03118>); as a gate SwiGLU (Shazeer, "GLU
    /// Variants Improve Transformer", <https://arxiv.org/abs/2002.05202>).
    Silu,
    /// The tanh approximation of GELU (Hendrycks and Gimpel, <https://arxiv.org/abs/1606.08415>); as a gate GEGLU
    /// (Shazeer, as above).
    Gelu,
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
    /// Divisors of the frequencies, one per pair (`rope_freqs.weight`).
    pub factors: Option<WeightId>,
}

/// Everything an attention node needs besides its input.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// The layer, whose KV cache is used.
    pub layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Values of a query or key head.
    pub head_dim_k: usize,
    /// Values of a value head.
    pub head_dim_v: usize,
    /// Factor on the scores, usually 1/sqrt(head_dim_k).
    pub scale: f32,
    /// Soft cap: scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Sliding window in tokens: a row sees only cells whose position is less than this before its own; 0 = no limit.
    pub window: u32,
    /// RMS norm of each query head.
    pub q_norm: Option<WeightId>,
    /// RMS norm of each key head.
    pub k_norm: Option<WeightId>,
    /// Epsilon of the two norms.
    pub norm_eps: f32,
    /// Index into [`Graph::ropes`].
    pub rope: usize,
}

impl AttentionSpec {
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
}

/// One operation. `x` is the first source.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows of the embedding table at the batch's token ids, times `scale`.
    Embed {
        /// The embedding table.
        table: WeightId,
        /// Factor on every value.
        scale: f32,
    },
    /// The hidden rows that an earlier graph kept (see [`Output::Hidden`]).
    Hidden,
    /// The rows of `x` that the run names as output rows.
    SelectRows,
    /// `x / sqrt(mean(x²) + eps) · weight`, plus the second source where there is one.
    RmsNorm {
        /// Factor per column.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
    },
    /// `weight · x + bias` for each weight, side by side; plus the second source where there is one.
    MatMul {
        /// One to three matrices with the same input width.
        weights: Vec<WeightId>,
        /// A bias for each weight, or nothing.
        biases: Vec<Option<WeightId>>,
    },
    /// `act(gate · x) ⊙ (up · x)`: a gated unit (SwiGLU, GEGLU).
    GatedMatMul {
        /// The gate matrix.
        gate: WeightId,
        /// The up matrix, of the same shape.
        up: WeightId,
        /// Activation of the gate.
        act: Activation,
    },
    /// `x` holds q, k and v side by side: norms and rotates the heads, writes k and v to the batch's cells, then
    /// attends over the cells that each row sees.
    Attention(Box<AttentionSpec>),
    /// `cap · tanh(x / cap)`.
    SoftCap {
        /// The cap.
        cap: f32,
    },
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
            Op::RmsNorm { .. } => "rms_norm",
            Op::MatMul { .. } => "mat_mul",
            Op::GatedMatMul { .. } => "gated_mat_mul",
            Op::Attention(_) => "attention",
            Op::SoftCap { .. } => "soft_cap",
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
    /// Earlier nodes it reads: `x`, then the residual where there is one.
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
            Op::RmsNorm { weight, .. } => vec![(*weight, WeightUse::Vector)],
            Op::MatMul { weights, biases } => {
                let biases = biases.iter().flatten().map(|&b| (b, WeightUse::Vector));
                weights.iter().map(|&w| (w, WeightUse::MatMul)).chain(biases).collect()
            }
            Op::GatedMatMul { gate, up, .. } => vec![(*gate, WeightUse::MatMul), (*up, WeightUse::MatMul)],
            Op::Attention(spec) => {
                [spec.q_norm, spec.k_norm].into_iter().flatten().map(|w| (w, WeightUse::Vector)).collect()
            }
            Op::Hidden | Op::SelectRows | Op::SoftCap { .. } | Op::ShiftKeys(_) | Op::CopyCells(_) => Vec::new(),
        }
    }

    /// The attention whose cache the node works on.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.op {
            Op::Attention(spec) | Op::ShiftKeys(spec) | Op::CopyCells(spec) => Some(spec),
            _ => None,
        }
    }

    /// The source whose buffer this node may write to, where no later node reads it: the residual, since both
    /// operations that have one add to it row by row.
    pub fn in_place_source(&self) -> Option<NodeId> {
        match self.op {
            Op::RmsNorm { .. } | Op::MatMul { .. } => self.src.get(1).copied(),
            _ => None,
        }
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
