//! `glm4` and `glm4moe`: half of each head is rotated.

use crate::Result;
use crate::graph::{Activation, Gating, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// `glm4`: norms before and after each part. Files that also take images rotate over halves.
pub(super) fn glm4(m: &mut Binder<'_>) -> Result<Decoder> {
    let kind = if m.keys.is_array("rope.dimension_sections") { RopeKind::Neox } else { RopeKind::Norm };
    m.uniform(kind, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.gated(Activation::Silu)?);
        b.sandwich(attention, FeedForward::Dense(ffn))
    })
}

/// `glm4moe`: experts chosen by sigmoids, dense layers first; query and key heads may be normalised.
pub(super) fn glm4moe(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let mut spec = b.spec();
        if b.has("attn_q_norm.weight") {
            spec = b.norms_by_head(spec)?;
        }
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Sigmoid, false)?);
        b.pre_norm_named(attention, ffn, "post_attention_norm")
    })
}
