//! `qwen3`: each query and key head is normalised before rotation; RoPE over halves; usually a tied embedding.

use super::decoder::{Decoder, LayerStyle};
use super::{Architecture, Hparams, WeightTable};
use crate::Result;
use crate::graph::{Activation, Builder, NodeId, RopeKind, RopeSpec};

struct Qwen3 {
    decoder: Decoder,
    ropes: [RopeSpec; 1],
}

pub(super) fn bind(h: &Hparams, t: &mut WeightTable<'_>) -> Result<Box<dyn Architecture>> {
    let scale = 1.0 / (h.head_dim_k as f32).sqrt();
    let style = |_| LayerStyle { head_norms: true, post_norms: false, biases: false, scale, window: 0, rope: 0 };
    let decoder = Decoder::bind(h, t, 1.0, Activation::Silu, style)?;
    Ok(Box::new(Qwen3 { decoder, ropes: [h.rope(RopeKind::Neox, None)] }))
}

impl Architecture for Qwen3 {
    fn ropes(&self) -> &[RopeSpec] {
        &self.ropes
    }

    fn body(&self, b: &mut Builder<'_>) -> Result<NodeId> {
        self.decoder.body(b)
    }

    fn head(&self, b: &mut Builder<'_>, hidden: NodeId) -> Result<NodeId> {
        self.decoder.head(b, hidden)
    }
}
