//! `gpt-oss`: experts with biases and a clamped gate; every other layer has a window; each head has a score that takes
//! probability and gives nothing (attention sinks). Source: "gpt-oss-120b & gpt-oss-20b Model Card",
//! <https://arxiv.org/abs/2508.10925>.

use crate::Result;
use crate::graph::{Activation, Gating, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// The last of so many layers sees everything.
const PERIOD: usize = 2;

pub(super) fn gpt_oss(m: &mut Binder<'_>) -> Result<Decoder> {
    let (sliding, window) = (m.sliding(PERIOD)?, m.window()?);
    m.uniform(RopeKind::Neox, |b| {
        let mut spec = b.spec();
        spec.sinks = Some(b.m.table.vector(&b.name("attn_sinks.weight"), spec.n_head)?);
        spec.window = if sliding[b.il] { window } else { 0 };
        let attention = b.attention(spec)?;
        let experts = b.experts(Activation::ClampedSwiglu, Gating::SoftmaxOfChosen, false)?;
        b.pre_norm_named(attention, FeedForward::Experts(Box::new(experts)), "post_attention_norm")
    })
}
