//! `gemma3`: five layers with sliding window attention, then one with full attention; norms before and after each
//! block; heads of q and k normalised; GELU gate; embeddings scaled by sqrt(n_embd); optional soft caps.
//!
//! Sliding layers rotate with their own frequency base and without the position scaling of the long context.
//!
//! Files have the window, but not which layers use it, nor that one size of the family has another scale of the scores:
//! both are constants here, as in llama.cpp. Source: "Gemma 3 Technical Report", <https://arxiv.org/abs/2503.19786>,
//! and the models' own configuration files.

use super::decoder::{Decoder, LayerStyle};
use super::{Hparams, WeightTable};
use crate::Result;
use crate::graph::{Activation, RopeKind, RopeScaling, RopeSpec};

/// Every sixth layer has full attention; the key `gemma3.attention.sliding_window_pattern` is not read.
const PATTERN: usize = 6;
/// Indices of the two rotary embeddings.
const GLOBAL: usize = 0;
const SLIDING: usize = 1;
/// Frequency base of sliding layers when the file names none.
const SLIDING_BASE: f32 = 10_000.0;
/// Layers of the 27B model, the one whose scores are scaled by `n_embd / n_head`, 168, in place of the width of its
/// heads, 128. No other published size has as many layers.
const LAYERS_27B: usize = 62;

pub(super) fn bind(h: &Hparams, t: &mut WeightTable<'_>) -> Result<Decoder> {
    let head_width = if h.n_layer == LAYERS_27B { h.n_embd / h.n_head[0] } else { h.head_dim_k };
    let scale = h.attention_scale.unwrap_or(1.0 / (head_width as f32).sqrt());
    let window = h.sliding_window.unwrap_or(0);
    let style = |il: usize| {
        let sliding = window > 0 && !(il + 1).is_multiple_of(PATTERN);
        LayerStyle {
            head_norms: true,
            post_norms: true,
            biases: false,
            scale,
            window: if sliding { window } else { 0 },
            rope: if sliding { SLIDING } else { GLOBAL },
        }
    };
    let global = h.rope(RopeKind::Neox, None);
    let sliding = RopeSpec {
        freq_base: f64::from(h.rope_base_sliding.unwrap_or(SLIDING_BASE)),
        scaling: RopeScaling::None,
        ..global.clone()
    };
    Decoder::bind(h, t, (h.n_embd as f32).sqrt(), Activation::Gelu, vec![global, sliding], style)
}
