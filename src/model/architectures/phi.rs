//! `phi2` and `phi3`. The second has RMS norms, fused matrices, and divisors of the frequencies for short and for long
//! contexts; the window that its files name is not used, as in llama.cpp.

use super::llama::plain;
use crate::Result;
use crate::graph::{Activation, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;

/// `phi2`: both parts read the layer's input through one LayerNorm; GELU without a gate; biases everywhere.
pub(super) fn phi2(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.plain(Activation::Gelu)?);
        b.parallel(attention, ffn)
    })
}

/// `phi3`: see above.
pub(super) fn phi3(m: &mut Binder<'_>) -> Result<Decoder> {
    plain(m, RopeKind::Neox, true)
}
