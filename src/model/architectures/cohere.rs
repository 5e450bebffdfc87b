//! `command-r` and `cohere2`: LayerNorm without bias, both parts read the layer's input through one norm, a factor on
//! the logits.

use crate::Result;
use crate::graph::{Activation, NormSpan, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// The last of so many layers of cohere2 sees everything, and is not rotated.
const PERIOD: usize = 4;

/// `command-r`: query and key heads have norms with weights of their own in large models.
pub(super) fn command_r(m: &mut Binder<'_>) -> Result<Decoder> {
    let decoder = m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        if b.has("attn_q_norm.weight") {
            spec = b.head_norms(spec, NormSpan::EachHead)?;
        }
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Silu)?);
        b.parallel(attention, FeedForward::Dense(ffn))
    })?;
    Ok(Decoder { logit_scale: m.keys.require_positive("logit_scale")?, ..decoder })
}

/// `cohere2`: layers with a window are rotated, the others not.
pub(super) fn cohere2(m: &mut Binder<'_>) -> Result<Decoder> {
    let (sliding, window) = (m.sliding(PERIOD)?, m.window()?);
    let decoder = m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        match sliding[b.il] {
            true => spec.window = window,
            false => spec.rope = None,
        }
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Silu)?);
        b.parallel(attention, FeedForward::Dense(ffn))
    })?;
    Ok(Decoder { logit_scale: m.keys.require_positive("logit_scale")?, ..decoder })
}
