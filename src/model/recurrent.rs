//! Mixers that keep a state of a sequence instead of keys and values.

use crate::Result;
use crate::graph::{Activation, Builder, ConvSpec, Function, Linear, NodeId, NormKind, NormSpec, RecurSpec, WeightId};

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
    Rwkv6(Box<Rwkv6>),
    Rwkv7(Box<Rwkv7>),
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

/// A layer of Mamba, or one that makes keys, queries and steps as Mamba does.
pub(super) struct Mamba {
    /// The gate and the values, or one matrix of both for each head.
    pub input: Vec<Linear>,
    pub conv: ConvSpec,
    /// From the convolution's result to a narrow step, keys and queries.
    pub narrow: Linear,
    /// The first columns of these three.
    pub firsts: [usize; 3],
    /// Norms of these three.
    pub norms: Option<[NormSpec; 3]>,
    /// From the narrow step to steps.
    pub step: Linear,
    pub spec: RecurSpec,
}

/// The time mix of RWKV-6. A token's row is mixed with the one before it, by factors that the two make.
pub(super) struct Rwkv6 {
    pub shift: ConvSpec,
    /// Factors of what the factors are made of.
    pub mix: WeightId,
    pub narrow: Linear,
    /// The factors for decays, keys, values, queries and gates, each from its part of the narrow row.
    pub factors: [Linear; 5],
    pub key: Linear,
    pub value: Linear,
    pub query: Linear,
    pub gate: Linear,
    pub decay: [Linear; 2],
    pub spec: RecurSpec,
    /// Norm of each head.
    pub norm: NormSpec,
}

/// The time mix of RWKV-7.
pub(super) struct Rwkv7 {
    pub shift: ConvSpec,
    /// Factors of the row before for queries, decays, keys, values, rates and gates.
    pub mixes: [WeightId; 6],
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    /// Each by way of a narrow row.
    pub decay: [Linear; 2],
    pub rate: [Linear; 2],
    pub gate: [Linear; 2],
    /// How much of the first layer's values is mixed in; `None` in the first layer.
    pub first_values: Option<[Linear; 2]>,
    /// Factors that make the removed direction of a key, and weigh the rate's part in it.
    pub removed: WeightId,
    pub rated: WeightId,
    pub spec: RecurSpec,
    /// Norm of each head.
    pub norm: NormSpec,
}

/// The channel mix of RWKV: a plain unit over a row mixed with the one before it, with a gate in RWKV-6.
pub(super) struct ChannelMix {
    pub shift: ConvSpec,
    pub mix: WeightId,
    pub key: Linear,
    pub value: Linear,
    /// The gate's factors and its matrix.
    pub gate: Option<(WeightId, Linear)>,
}

/// Added to the square of a direction's length before it is divided by that.
const UNIT_EPS: f32 = 1e-24;

impl Recurrent {
    /// Up to the last matrix. The first layer leaves its values for the later ones, where these mix them in.
    pub fn mix(&self, b: &mut Builder<'_>, n: NodeId, first_values: &mut Option<NodeId>) -> Result<NodeId> {
        match &self.kind {
            Kind::ShortConv(layer) => layer.mix(b, n),
            Kind::DeltaNet(layer) => layer.mix(b, n),
            Kind::Mamba2(layer) => layer.mix(b, n),
            Kind::Mamba(layer) => layer.mix(b, n),
            Kind::Rwkv6(layer) => layer.mix(b, n),
            Kind::Rwkv7(layer) => layer.mix(b, n, first_values),
        }
    }
}

/// `x + dx ⊙ mix`.
fn mixed(b: &mut Builder<'_>, x: NodeId, dx: NodeId, mix: WeightId) -> Result<NodeId> {
    let part = b.map(dx, Function::ScaleBy(mix))?;
    b.add(part, 1.0, x)
}

/// Two products, the hyperbolic tangent of the first between them.
fn by_tanh(b: &mut Builder<'_>, x: NodeId, [down, up]: [Linear; 2]) -> Result<NodeId> {
    let narrow = b.matmul(x, &[down], None)?;
    let narrow = b.map(narrow, Function::SoftCap(1.0))?;
    b.matmul(narrow, &[up], None)
}

impl Rwkv6 {
    fn mix(&self, b: &mut Builder<'_>, n: NodeId) -> Result<NodeId> {
        let dx = b.conv(n, self.shift)?;
        let x = mixed(b, n, dx, self.mix)?;
        let narrow = b.matmul(x, &[self.narrow], None)?;
        let narrow = b.map(narrow, Function::SoftCap(1.0))?;
        let mut rows = [n; 5];
        for (i, (row, factors)) in rows.iter_mut().zip(&self.factors).enumerate() {
            let width = b.input_width(factors);
            let part = b.columns(narrow, 1, i * width, width)?;
            let factors = b.matmul(part, &[*factors], None)?;
            *row = b.gate(dx, factors, 0, Activation::Identity, Some(n))?;
        }
        let [decay, key, value, query, gate] = rows;
        let query = b.matmul(query, &[self.query], None)?;
        let key = b.matmul(key, &[self.key], None)?;
        let value = b.matmul(value, &[self.value], None)?;
        let gate = b.matmul(gate, &[self.gate], None)?;
        let decay = by_tanh(b, decay, self.decay)?;
        let read = b.recur(&[query, key, value, decay], self.spec)?;
        let read = b.norm_groups(read, self.norm, self.spec.heads, None)?;
        b.gate(gate, read, 0, Activation::Silu, None)
    }
}

impl Rwkv7 {
    fn mix(&self, b: &mut Builder<'_>, n: NodeId, first_values: &mut Option<NodeId>) -> Result<NodeId> {
        let RecurSpec { heads, keys, values, .. } = self.spec;
        let dx = b.conv(n, self.shift)?;
        let mut rows = [n; 6];
        for (row, mix) in rows.iter_mut().zip(self.mixes) {
            *row = mixed(b, n, dx, mix)?;
        }
        let [query, decay, key, value, rate, gate] = rows;
        let query = b.matmul(query, &[self.query], None)?;
        let key = b.matmul(key, &[self.key], None)?;
        let mut own = b.matmul(value, &[self.value], None)?;
        match (*first_values, &self.first_values) {
            (Some(first), Some([down, up])) => {
                let share = b.matmul(value, &[*down], None)?;
                let share = b.matmul(share, &[*up], None)?;
                let other = b.add(own, -1.0, first)?;
                own = b.gate(share, other, 0, Activation::Sigmoid, Some(own))?;
            }
            _ => *first_values = Some(own),
        }
        let decay = by_tanh(b, decay, self.decay)?;
        let rate = b.matmul(rate, &[self.rate[0]], None)?;
        let rate = b.gated_matmul(rate, self.rate[1], None, Activation::Sigmoid)?;
        let gate = b.gated_matmul(gate, self.gate[0], None, Activation::Sigmoid)?;
        let gate = b.matmul(gate, &[self.gate[1]], None)?;
        let removed = b.map(key, Function::ScaleBy(self.removed))?;
        let unit = NormSpec { weight: None, bias: None, kind: NormKind::Rms, eps: UNIT_EPS / keys as f32 };
        let removed = b.norm_groups(removed, unit, heads, None)?;
        let removed = b.map(removed, Function::Scale(1.0 / (keys as f32).sqrt()))?;
        let rated = b.map(key, Function::ScaleBy(self.rated))?;
        let key = b.add(rated, -1.0, key)?;
        let key = b.gate(rate, rated, 0, Activation::Identity, Some(key))?;
        let both = b.recur(&[query, key, own, decay, removed, rate], self.spec)?;
        let read = b.columns(both, 1, 0, heads * values)?;
        let bonus = b.columns(both, 1, heads * values, heads * values)?;
        let read = b.norm_groups(read, self.norm, heads, None)?;
        let read = b.add(read, 1.0, bonus)?;
        b.gate(gate, read, 0, Activation::Identity, None)
    }
}

impl ChannelMix {
    pub fn emit(&self, b: &mut Builder<'_>, n: NodeId, residual: Option<NodeId>) -> Result<NodeId> {
        let dx = b.conv(n, self.shift)?;
        let x = mixed(b, n, dx, self.mix)?;
        let key = b.gated_matmul(x, self.key, None, Activation::Relu2)?;
        let Some((mix, gate)) = self.gate else { return b.matmul(key, &[self.value], residual) };
        let value = b.matmul(key, &[self.value], None)?;
        let x = mixed(b, n, dx, mix)?;
        let gate = b.matmul(x, &[gate], None)?;
        b.gate(gate, value, 0, Activation::Sigmoid, residual)
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
        let inputs = self.input.iter().map(|part| b.matmul(n, &[*part], None)).collect::<Result<Vec<_>>>()?;
        let (z, x) = match inputs[..] {
            [z, x] => (z, x),
            _ => {
                let RecurSpec { heads, values, .. } = self.spec;
                (b.columns(inputs[0], heads, 0, values)?, b.columns(inputs[0], heads, values, values)?)
            }
        };
        let x = b.conv(x, self.conv)?;
        let narrow = b.matmul(x, &[self.narrow], None)?;
        let [step, keys, queries] = self.firsts;
        let widths = [(step, b.input_width(&self.step)), (keys, self.spec.keys), (queries, self.spec.keys)];
        let mut parts = widths.map(|(first, n)| b.columns(narrow, 1, first, n));
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
