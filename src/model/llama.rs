//! `llama`: Llama 1 to 3, Mistral, TinyLlama, SmolLM and others of their shape. RoPE over neighbours; frequency
//! factors from `rope_freqs.weight` where the file has them (Llama 3.1 and later).

use super::decoder::{Decoder, LayerStyle};
use super::{Hparams, WeightTable};
use crate::Result;
use crate::graph::{Activation, RopeKind};

pub(super) fn bind(h: &Hparams, t: &mut WeightTable<'_>) -> Result<Decoder> {
    let factors = t.optional_vector("rope_freqs.weight", h.rope.n_rot / 2)?;
    let scale = h.attention_scale.unwrap_or(1.0 / (h.head_dim_k as f32).sqrt());
    let style = |_| LayerStyle { head_norms: false, post_norms: false, biases: true, scale, window: 0, rope: 0 };
    Decoder::bind(h, t, 1.0, Activation::Silu, vec![h.rope(RopeKind::Norm, factors)], style)
}
