//! `qwen3`: each query and key head is normalised before rotation; RoPE over halves; usually a tied embedding.

use super::decoder::{Decoder, LayerStyle};
use super::{Hparams, WeightTable};
use crate::Result;
use crate::graph::{Activation, RopeKind};

pub(super) fn bind(h: &Hparams, t: &mut WeightTable<'_>) -> Result<Decoder> {
    let scale = 1.0 / (h.head_dim_k as f32).sqrt();
    let style = |_| LayerStyle { head_norms: true, post_norms: false, biases: false, scale, window: 0, rope: 0 };
    Decoder::bind(h, t, 1.0, Activation::Silu, vec![h.rope(RopeKind::Neox, None)], style)
}
