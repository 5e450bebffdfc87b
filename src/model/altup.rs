//! AltUp: a residual stream of several rows side by side, of which only the first goes through the layers; the others
//! follow by prediction (Baykal et al., "Alternating Updates for Efficient Transformers",
//! <https://arxiv.org/abs/2301.13310>). And Laurel, a low-rank part beside a layer's mixer (Menghani et al.,
//! <https://arxiv.org/abs/2411.07501>), which came with it.

use crate::Result;
use crate::graph::{Builder, Coefficients, Function, Linear, NodeId, NormSpec, WeightId};

/// A layer's part in AltUp.
pub(super) struct AltUp {
    /// Rows side by side.
    pub streams: usize,
    /// Norm of the router's input.
    pub norm: NormSpec,
    /// From the first stream to a number for each, on which coefficients depend.
    pub router: Linear,
    /// Factor on the router's product.
    pub router_scale: f32,
    /// From the router's numbers to a square matrix: how each stream follows from all.
    pub predict: Linear,
    /// From the router's numbers to how much each stream takes of what the layer changed.
    pub correct: Linear,
    /// Factor per column of what goes from the first stream to the others.
    pub output: WeightId,
}

impl AltUp {
    /// All streams as they would be after the layer, from those before it.
    pub fn predict(&self, b: &mut Builder<'_>, all: NodeId) -> Result<NodeId> {
        let active = self.active(b, all)?;
        let by = self.routed(b, active, self.predict)?;
        b.mix(all, self.streams, Coefficients::OfRow { plus: 0.0 }, Some(by), Some(all))
    }

    /// The first stream.
    pub fn active(&self, b: &mut Builder<'_>, all: NodeId) -> Result<NodeId> {
        let first = (0..self.streams).map(|stream| f32::from(stream == 0)).collect();
        b.mix(all, self.streams, Coefficients::Fixed(first), None, None)
    }

    /// The predicted streams, after the layer made `made` of `active`, which is the first of them.
    pub fn correct(&self, b: &mut Builder<'_>, predicted: NodeId, active: NodeId, made: NodeId) -> Result<NodeId> {
        let by = self.routed(b, made, self.correct)?;
        let change = b.add(active, -1.0, made)?;
        b.mix(change, 1, Coefficients::OfRow { plus: 1.0 }, Some(by), Some(predicted))
    }

    /// What the first stream says to the others.
    pub fn output(&self, b: &mut Builder<'_>, all: NodeId) -> Result<NodeId> {
        let active = self.active(b, all)?;
        b.map(active, Function::ScaleBy(self.output))
    }

    /// All streams, with `made` added to all but the first.
    pub fn add_to_others(&self, b: &mut Builder<'_>, made: NodeId, all: NodeId) -> Result<NodeId> {
        let others = (0..self.streams).map(|stream| f32::from(stream > 0)).collect();
        b.mix(made, 1, Coefficients::Fixed(others), None, Some(all))
    }

    /// Coefficients for a row like the first stream's.
    fn routed(&self, b: &mut Builder<'_>, x: NodeId, coefficients: Linear) -> Result<NodeId> {
        let normed = b.norm(x, self.norm, None)?;
        let routed = b.matmul(normed, &[self.router], None)?;
        let routed = b.map(routed, Function::Scale(self.router_scale))?;
        let routed = b.map(routed, Function::SoftCap(1.0))?;
        b.matmul(routed, &[coefficients], None)
    }
}

/// The ends of AltUp: how the streams come from embeddings, and one hidden row from them.
pub(super) struct Widening {
    /// Rows side by side.
    pub streams: usize,
    /// From the embedding to each stream but the first.
    pub project: WeightId,
    /// From each stream but the first to a row like the first.
    pub restore: WeightId,
}

impl Widening {
    /// The streams of an embedding, all as long as it is.
    pub fn widen(&self, b: &mut Builder<'_>, x: NodeId) -> Result<NodeId> {
        let others = b.matmul(x, &[Linear::plain(self.project)], None)?;
        b.equalize(others, x)
    }

    /// The mean of the streams, all as long as the first.
    pub fn narrow(&self, b: &mut Builder<'_>, all: NodeId) -> Result<NodeId> {
        let n = self.streams;
        let take = |from: usize, to: usize| {
            let wanted = (from..to).flat_map(|wanted| (0..n).map(move |stream| f32::from(stream == wanted)));
            Coefficients::Fixed(wanted.collect())
        };
        let first = b.mix(all, n, take(0, 1), None, None)?;
        let others = b.mix(all, n, take(1, n), None, None)?;
        let others = b.head_matmul(others, self.restore, n - 1, 0)?;
        let all = b.equalize(others, first)?;
        b.mix(all, n, Coefficients::Fixed(vec![1.0 / n as f32; n]), None, None)
    }
}

/// A low-rank part beside a layer's mixer.
pub(super) struct Laurel {
    pub down: Linear,
    pub up: Linear,
    /// Norm of what is added to the part's input.
    pub norm: NormSpec,
}

impl Laurel {
    /// `mixed` with what the part makes of the mixer's input `x`; the factor keeps the size of the sum of both.
    pub fn emit(&self, b: &mut Builder<'_>, x: NodeId, mixed: NodeId) -> Result<NodeId> {
        let made = b.matmul(x, &[self.down], None)?;
        let made = b.matmul(made, &[self.up], None)?;
        let made = b.norm(made, self.norm, Some(x))?;
        let sum = b.add(made, 1.0, mixed)?;
        b.map(sum, Function::Scale(std::f32::consts::FRAC_1_SQRT_2))
    }
}
