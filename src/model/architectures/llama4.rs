//! `llama4`: three of four layers see only their chunk of the text, the fourth sees everything, is not rotated, and its
//! queries grow with their position. One expert for each row, whose weight is on its input, beside a shared one.
//!
//! Which layers these are, and the growth, are constants here, as in llama.cpp.

use crate::Result;
use crate::graph::{Activation, Gating, HeadNorm, NormSpan, RopeKind, Temperature};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// The last of so many layers sees everything.
const PERIOD: usize = 4;
/// Chunk in tokens where the file names none.
const CHUNK: u32 = 8192;
/// Growth of queries in layers that see everything.
const TEMPERATURE: Temperature = Temperature { scale: 0.1, length: 8192, offset: 1 };
/// Experts of the one published size whose heads are not normalised.
const EXPERTS_MAVERICK: usize = 128;

pub(super) fn llama4(m: &mut Binder<'_>) -> Result<Decoder> {
    let chunk = m.keys.get::<u32>("attention.sliding_window")?.unwrap_or(CHUNK);
    let span = NormSpan::Head(m.h.head_dim_k);
    let norm = HeadNorm { norm: m.bare_norm(), span };
    let norm = Some(norm).filter(|_| m.h.n_expert != EXPERTS_MAVERICK);
    m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        if chunk > 0 && (b.il + 1).is_multiple_of(PERIOD) {
            (spec.rope, spec.temperature) = (None, Some(TEMPERATURE));
        } else {
            (spec.chunk, spec.norm_after_rope) = (chunk, true);
            (spec.q_norm, spec.k_norm) = (norm, norm);
        }
        let attention = b.attention(spec)?;
        let ffn = match b.has("ffn_gate_inp.weight") {
            true => {
                let mut experts = b.experts(Activation::Silu, Gating::Sigmoid, false)?;
                experts.weighted_input = true;
                FeedForward::Experts(Box::new(experts))
            }
            false => FeedForward::Dense(b.gated(Activation::Silu)?),
        };
        b.pre_norm(attention, ffn)
    })
}
