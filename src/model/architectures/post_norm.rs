//! Families whose norms follow their parts: olmo2 and exaone4.

use crate::Result;
use crate::graph::{Activation, NormSpan, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// The last of so many layers sees everything.
const PERIOD: usize = 4;
/// Layers of the size of exaone4 that has windows; no other published size has as many.
const LAYERS_32B: usize = 64;
/// Its window in tokens where the file names none.
const WINDOW: u32 = 4096;
/// Indices of the two rotary embeddings of olmo2.
const GLOBAL: usize = 0;
const SLIDING: usize = 1;

/// `olmo2`: queries and keys are normalised over all heads. With windows (OLMo 3) sliding layers rotate without the
/// scaling for long contexts.
pub(super) fn olmo2(m: &mut Binder<'_>) -> Result<Decoder> {
    let full = m.rope(RopeKind::Neox)?;
    let near = m.sliding_rope(&full, full.freq_base, m.h.head_dim_k)?;
    let sliding = m.sliding(PERIOD)?;
    let layers = m.layers(|b| {
        let mut spec = b.head_norms(b.spec(), NormSpan::Row)?;
        spec.rope = Some(GLOBAL);
        if let Some(window) = b.m.h.sliding_window.filter(|_| sliding[b.il]) {
            (spec.window, spec.rope) = (window, Some(SLIDING));
        }
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Silu)?);
        b.post_norm(attention, FeedForward::Dense(ffn))
    })?;
    m.decoder(vec![full, near], layers)
}

/// `exaone4`: each query and key head is normalised. One size has windows, and rotates only in layers that have one.
pub(super) fn exaone4(m: &mut Binder<'_>) -> Result<Decoder> {
    let window = m.h.sliding_window.unwrap_or(WINDOW);
    let windows = m.h.n_layer == LAYERS_32B;
    let sliding = m.sliding(PERIOD)?;
    m.uniform(RopeKind::Neox, |b| {
        let mut spec = b.norms_by_head(b.spec())?;
        match (windows, sliding[b.il]) {
            (true, true) => spec.window = window,
            (true, false) => spec.rope = None,
            (false, _) => {}
        }
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Silu)?);
        b.post_norm(attention, FeedForward::Dense(ffn))
    })
}
