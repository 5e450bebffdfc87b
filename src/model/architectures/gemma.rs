//! `gemma`, `gemma2`, `gemma3`, `gemma-embedding`: GELU gates, embeddings scaled by sqrt(n_embd), RoPE over halves.
//!
//! Files have the window, but early ones do not say which layers use it, nor that one size of a family has another
//! scale of the scores: both are constants here, as in llama.cpp. Sources: "Gemma 2: Improving Open Language Models at
//! a Practical Size", <https://arxiv.org/abs/2408.00118>; "Gemma 3 Technical Report",
//! <https://arxiv.org/abs/2503.19786>, and the models' own configuration files.

use crate::Result;
use crate::graph::{Activation, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// The last of so many layers sees everything.
const PERIOD_2: usize = 2;
const PERIOD_3: usize = 6;
/// Window of gemma2 in tokens where the file names none.
const WINDOW_2: u32 = 4096;
/// Layers of the 27B models, whose scores are scaled by the width of the embeddings over the number of heads in place
/// of the width of the heads. No other published size has as many layers.
const LAYERS_2_27B: usize = 46;
const LAYERS_3_27B: usize = 62;
/// Indices of the two rotary embeddings of gemma3.
const GLOBAL: usize = 0;
const SLIDING: usize = 1;
/// Frequency base of sliding layers of gemma3 where the file names none.
const SLIDING_BASE: f64 = 10_000.0;

/// `gemma`: norms before each part.
pub(super) fn gemma(m: &mut Binder<'_>) -> Result<Decoder> {
    let decoder = m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.gated(Activation::Gelu)?);
        b.pre_norm(attention, FeedForward::Dense(ffn))
    })?;
    Ok(Decoder { embed_scale: embed_scale(m), ..decoder })
}

/// `gemma2`: norms before and after each part; every other layer has a window; soft caps.
pub(super) fn gemma2(m: &mut Binder<'_>) -> Result<Decoder> {
    let (sliding, window) = (m.sliding(PERIOD_2)?, m.h.sliding_window.unwrap_or(WINDOW_2));
    let scale = scale(m, LAYERS_2_27B);
    let decoder = m.uniform(RopeKind::Neox, |b| {
        let mut spec = b.spec();
        (spec.scale, spec.window) = (scale, if sliding[b.il] { window } else { 0 });
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Gelu)?);
        b.sandwich(attention, FeedForward::Dense(ffn))
    })?;
    Ok(Decoder { embed_scale: embed_scale(m), ..decoder })
}

/// `gemma3`: as gemma2, five layers with a window, then one without; heads of q and k normalised. Sliding layers rotate
/// with their own frequency base and without the position scaling of the long context.
pub(super) fn gemma3(m: &mut Binder<'_>) -> Result<Decoder> {
    third(m, false)
}

/// `gemma-embedding`: as gemma3, but every row sees all of its text, in sliding layers half a window to each side.
pub(super) fn gemma_embedding(m: &mut Binder<'_>) -> Result<Decoder> {
    third(m, true)
}

fn third(m: &mut Binder<'_>, bidirectional: bool) -> Result<Decoder> {
    let (sliding, scale) = (m.sliding(PERIOD_3)?, scale(m, LAYERS_3_27B));
    let full = m.rope(RopeKind::Neox)?;
    let near = m.sliding_rope(&full, SLIDING_BASE, m.h.head_dim_k)?;
    let layers = m.layers(|b| {
        let mut spec = b.norms_by_head(b.spec())?;
        (spec.scale, spec.rope) = (scale, Some(GLOBAL));
        spec.bidirectional |= bidirectional;
        if let Some(window) = b.m.h.sliding_window.filter(|_| sliding[b.il]) {
            (spec.window, spec.rope) = (window, Some(SLIDING));
        }
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Gelu)?);
        b.sandwich(attention, FeedForward::Dense(ffn))
    })?;
    let decoder = m.decoder(vec![full, near], layers)?;
    Ok(Decoder { embed_scale: embed_scale(m), ..decoder })
}

fn embed_scale(m: &Binder<'_>) -> f32 {
    (m.h.n_embd as f32).sqrt()
}

fn scale(m: &Binder<'_>, layers_27b: usize) -> f32 {
    let width = if m.h.n_layer == layers_27b { m.h.n_embd / m.h.n_head[0] } else { m.h.head_dim_k };
    m.h.attention_scale.unwrap_or(1.0 / (width.max(1) as f32).sqrt())
}
