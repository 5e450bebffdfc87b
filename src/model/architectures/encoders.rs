//! Encoders with norms before each part: eurobert, modern-bert.

use crate::Result;
use crate::graph::{Activation, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::{FeedForward, Layer};
use crate::model::pooling::Pooling;

/// The first of so many layers of modern-bert sees everything.
const PERIOD: usize = 3;
/// Frequency base of its other layers where the file names none.
const NEAR_BASE: f64 = 10_000.0;
/// Indices of its two rotary embeddings.
const FULL: usize = 0;
const NEAR: usize = 1;

/// `eurobert`: layers as in Llama.
pub(super) fn eurobert(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.bidirectional())?, b.gated(Activation::Silu)?);
        b.pre_norm(attention, FeedForward::Dense(ffn))
    })
}

/// `modern-bert`: two of three layers have a window and rotate with a frequency base of their own; the first layer has
/// no norm before its attention, since the embeddings are normalised.
pub(super) fn modern_bert(m: &mut Binder<'_>) -> Result<Decoder> {
    let (full, window) = (m.rope(RopeKind::Neox)?, m.window()?);
    let near = m.sliding_rope(&full, NEAR_BASE, m.h.head_dim_k)?;
    let period = m.keys.optional_size("attention.sliding_window_pattern", PERIOD, m.h.n_layer.max(PERIOD))?;
    let layers = m.layers(|b| {
        let mut spec = b.bidirectional();
        spec.rope = Some(FULL);
        if !b.il.is_multiple_of(period) {
            (spec.window, spec.rope) = (window, Some(NEAR));
        }
        let (attention, ffn) = (b.attention(spec)?, FeedForward::Dense(b.gated(Activation::Gelu)?));
        let attn_norm = if b.has("attn_norm.weight") { Some(b.norm("attn_norm")?) } else { None };
        Ok(Layer { attn_norm, ffn_norm: Some(b.norm("ffn_norm")?), ..Layer::new(attention, ffn) })
    })?;
    let mut decoder = m.decoder(vec![full, near], layers)?;
    if let Some(classifier) = decoder.classifier() {
        classifier.row = Pooling::Mean;
    }
    Ok(Decoder { embd_norm: Some(m.norm("token_embd_norm", m.h.n_embd)?), ..decoder })
}
