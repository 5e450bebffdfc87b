//! `gemma3n`: as the small models of gemma4, with a residual stream of several parts (AltUp), a low-rank part beside
//! the attention (Laurel), and in the first layers gates of which only the largest count. Files have these parts'
//! numbers but for the factor of the gates, which early ones lack; then it is the released models', as in llama.cpp.

use super::gemma4::{Attentions, embeddings, per_layer};
use crate::graph::{Activation, WeightId};
use crate::model::altup::{AltUp, Laurel, Widening};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::Decoder;
use crate::model::keys::MAX_WIDTH;
use crate::model::layer::{FeedForward, Layer};
use crate::{Error, Result};

/// The last of so many layers sees everything, where the file does not name the layers.
const PERIOD: usize = 5;
/// The most streams: far more than released models have, which have four.
const MAX_STREAMS: usize = 8;
/// Layers whose gates are sparse, and the standard deviations above their mean that leave 5 % of them.
const SPARSE_LAYERS: usize = 10;
const DEVIATIONS: f32 = 1.644_853_4;

pub(super) fn gemma3n(m: &mut Binder<'_>) -> Result<Decoder> {
    let (h, keys) = (m.h, m.keys);
    if !keys.has("attention.shared_kv_layers") {
        // Files have keys for all layers, so that nothing else would tell.
        return Err(keys.missing("attention.shared_kv_layers"));
    }
    let (attentions, ropes) = Attentions::read(m, PERIOD)?;
    let width = keys.size("embedding_length_per_layer_input", MAX_WIDTH)?;
    let streams = keys.optional_size("altup.num_inputs", 4, MAX_STREAMS)?;
    if keys.count("altup.active_idx", streams)? != 0 {
        return Err(Error::Unsupported(format!("Key `{}`: only 0 is known", keys.name("altup.active_idx"))));
    }
    let sparse = match keys.floats("activation_sparsity_scale", h.n_block)? {
        Some(deviations) => deviations,
        None => (0..h.n_layer).map(|il| if il < SPARSE_LAYERS { DEVIATIONS } else { f32::NEG_INFINITY }).collect(),
    };
    let layers = m.layers(|b| {
        let attention = attentions.of(b)?;
        let mut dense = b.gated(Activation::Gelu)?;
        // Without a limit all gates count.
        dense.sparse = Some(sparse[b.il]).filter(|&deviations| deviations != f32::NEG_INFINITY);
        if dense.sparse.is_some_and(|deviations| !deviations.is_finite()) {
            let key = b.m.keys.name("activation_sparsity_scale");
            return Err(Error::Model(format!("Key `{key}` is {} in layer {}", sparse[b.il], b.il)));
        }
        let layer = b.sandwich(attention, FeedForward::Dense(dense))?;
        let (laurel, altup) = (Some(laurel(b)?), Some(altup(b, streams)?));
        Ok(Layer { laurel, altup, per_layer: Some(per_layer(b, width)?), ..layer })
    })?;
    let decoder = m.decoder(ropes, layers)?;
    let per_layer = Some(embeddings(m, width)?);
    let mut stack = |name: &str| -> Result<WeightId> { m.table.stack(name, h.n_embd, h.n_embd, streams - 1) };
    let altup = Widening { streams, project: stack("altup_proj.weight")?, restore: stack("altup_unembd_proj.weight")? };
    Ok(Decoder { embed_scale: (h.n_embd as f32).sqrt(), per_layer, altup: Some(altup), ..decoder })
}

fn laurel(b: &mut Block<'_, '_>) -> Result<Laurel> {
    let n_embd = b.m.h.n_embd;
    let rank = b.m.table.shape(&b.name("laurel_l.weight"))?[1];
    Ok(Laurel {
        down: b.linear("laurel_l", n_embd, rank)?,
        up: b.linear("laurel_r", rank, n_embd)?,
        norm: b.norm("laurel_post_norm")?,
    })
}

fn altup(b: &mut Block<'_, '_>, streams: usize) -> Result<AltUp> {
    let n_embd = b.m.h.n_embd;
    Ok(AltUp {
        streams,
        norm: b.norm("altup_router_norm")?,
        router: b.linear("altup_router", n_embd, streams)?,
        router_scale: 1.0 / n_embd as f32,
        predict: b.linear("altup_predict_coef", streams, streams * streams)?,
        correct: b.linear("altup_correct_coef", streams, streams)?,
        output: b.m.table.vector(&b.name("altup_correct_scale.weight"), n_embd)?,
    })
}
