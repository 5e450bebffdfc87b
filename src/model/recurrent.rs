//! Mixers that keep a state of a sequence instead of keys and values.

use crate::Result;
use crate::graph::{Activation, Builder, ConvSpec, Linear, NodeId, NormSpec, RecurSpec};

/// A mixer with a state.
pub(super) struct Recurrent {
    pub kind: Kind,
    /// The last matrix.
    pub output: Linear,
}

/// The kinds of mixers with a state.
pub(super) enum Kind {
    ShortConv(ShortConv),
    DeltaNet(Box<DeltaNet>),
    Mamba2(Box<Mamba2>),
    Mamba(Box<Mamba>),
}

/// `c ⊙ conv(b ⊙ x)` of three products of the input.
pub(super) struct ShortConv {
    pub b: Linear,
    pub c: Linear,
    pub x: Linear,
    pub conv: ConvSpec,
}

/// A gated delta net: `norm(recurrence(conv(qkv), steps)) ⊙ SiLU(gate)`.
pub(super) struct DeltaNet {
    pub qkv: Linear,
    pub conv: ConvSpec,
    /// One product for each of steps and write strengths, or one for both, by key heads: strengths, then steps.
    pub scalars: Vec<Linear>,
    pub spec: RecurSpec,
    /// Norm of each head.
    pub norm: NormSpec,
    pub gate: Linear,
}

/// A layer of Mamba-2.
pub(super) struct Mamba2 {
    pub z: Linear,
    /// Values, keys and queries before the convolution, then steps.
    pub input: Linear,
    pub conv: ConvSpec,
    pub spec: RecurSpec,
    /// Norm of the gated result, in so many groups.
    pub norm: Option<(NormSpec, usize)>,
}

/// A layer of Mamba.
pub(super) struct Mamba {
    pub z: Linear,
    pub x: Linear,
    pub conv: ConvSpec,
    /// From the convolution's result to a narrow step, keys and queries.
    pub narrow: Linear,
    /// Norms of these three.
    pub norms: Option<[NormSpec; 3]>,
    /// From the narrow step to steps.
    pub step: Linear,
    pub spec: RecurSpec,
}

impl Recurrent {
    /// Up to the last matrix.
    pub fn mix(&self, b: &mut Builder<'_>, n: NodeId) -> Result<NodeId> {
        match &self.kind {
            Kind::ShortConv(layer) => layer.mix(b, n),
            Kind::DeltaNet(layer) => layer.mix(b, n),
            Kind::Mamba2(layer) => layer.mix(b, n),
            Kind::Mamba(layer) => layer.mix(b, n),
        }
    }
}

impl ShortConv {
    fn mix(&self, b: &mut Builder<'_>, n: NodeId) -> Result<NodeId> {
        let [left, gate, right] = [self.b, self.c, self.x].map(|part| b.matmul(n, &[part], None));
        let (gate, product) = (gate?, b.gate(left?, right?, 0, Activation::Identity, None)?);
        let mixed = b.conv(product, self.conv)?;
        b.gate(gate, mixed, 0, Activation::Identity, None)
    }
}

impl DeltaNet {
    fn mix(&self, b: &mut Builder<'_>, n: NodeId) -> Result<NodeId> {
        let qkv = b.matmul(n, &[self.qkv], None)?;
        let scalars = b.matmul(n, &self.scalars, None)?;
        let gate = b.matmul(n, &[self.gate], None)?;
        let mut sources = vec![b.conv(qkv, self.conv)?];
        match self.scalars.len() {
            1 => {
                let (parts, each) = (self.spec.key_heads, self.spec.heads / self.spec.key_heads);
                sources.extend([b.columns(scalars, parts, each, each)?, b.columns(scalars, parts, 0, each)?]);
            }
            _ => sources.push(scalars),
        }
        let mixed = b.recur(&sources, self.spec)?;
        let mixed = b.norm_groups(mixed, self.norm, self.spec.heads, None)?;
        b.gate(gate, mixed, 0, Activation::Silu, None)
    }
}

impl Mamba2 {
    fn mix(&self, b: &mut Builder<'_>, n: NodeId) -> Result<NodeId> {
        let (z, input) = (b.matmul(n, &[self.z], None)?, b.matmul(n, &[self.input], None)?);
        let mixed = b.conv(input, self.conv)?;
        let mixed = b.recur(&[mixed, input], self.spec)?;
        let gated = b.gate(z, mixed, 0, Activation::Silu, None)?;
        match self.norm {
            Some((norm, groups)) => b.norm_groups(gated, norm, groups, None),
            None => Ok(gated),
        }
    }
}

impl Mamba {
    fn mix(&self, b: &mut Builder<'_>, n: NodeId) -> Result<NodeId> {
        let (z, x) = (b.matmul(n, &[self.z], None)?, b.matmul(n, &[self.x], None)?);
        let x = b.conv(x, self.conv)?;
        let narrow = b.matmul(x, &[self.narrow], None)?;
        let (rank, keys) = (b.input_width(&self.step), self.spec.keys);
        let mut parts = [(0, rank), (rank, keys), (rank + keys, keys)].map(|(first, n)| b.columns(narrow, 1, first, n));
        if let Some(norms) = &self.norms {
            for (part, norm) in parts.iter_mut().zip(norms) {
                if let Ok(node) = part {
                    *part = b.norm(*node, *norm, None);
                }
            }
        }
        let [step, keys, queries] = parts;
        let step = b.matmul(step?, &[self.step], None)?;
        let mixed = b.recur(&[x, keys?, queries?, step], self.spec)?;
        b.gate(z, mixed, 0, Activation::Silu, None)
    }
}
