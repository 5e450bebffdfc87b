//! T5 (Raffel et al., "Exploring the Limits of Transfer Learning", <https://arxiv.org/abs/1910.10683>): biases of the
//! scores by distance in place of positions, scores that are not scaled, norms before each part.

use crate::graph::{Activation, AttentionSpec, DistanceBias, RopeKind};
use crate::model::binder::{Binder, Block, share_cache};
use crate::model::decoder::{Decoder, Encoder};
use crate::model::layer::{Attention, FeedForward, Heads, Layer, Mixer};
use crate::{Error, Result};

/// More buckets than distances that differ have no use.
const MAX_BUCKETS: usize = 2 * DistanceBias::FAR;

/// `t5encoder`: the encoder alone.
pub(super) fn encoder(m: &mut Binder<'_>) -> Result<Decoder> {
    m.side = "enc.";
    m.uniform(RopeKind::Neox, encoder_layer)
}

/// `t5`: an encoder, and a decoder. A block of the decoder is two layers: one attends to what was generated, and one to
/// the encoder's text, whose keys and values the encoder's graph makes.
pub(super) fn t5(m: &mut Binder<'_>) -> Result<Decoder> {
    let (first, n_layer) = (m.h.n_encoder, m.h.n_layer);
    if first == 0 {
        return Err(Error::Model("Tensor `dec.output_norm.weight` is missing".into()));
    }
    m.side = "enc.";
    let layer = |il| encoder_layer(&mut Block { m, il, number: il });
    let mut encoder = (0..first).map(layer).collect::<Result<Vec<_>>>()?;
    share_cache(&mut encoder);
    let output_norm = m.norm("enc.output_norm", m.h.n_embd)?;
    m.side = "dec.";
    let (mut layers, mut keys) = (Vec::new(), Vec::new());
    for (number, il) in (first..n_layer).step_by(2).enumerate() {
        let mut b = Block { m, il, number };
        let spec = AttentionSpec { scale: 1.0, rope: None, ..b.spec() };
        let own = distances(&mut b, spec.clone())?;
        let attention = Mixer::Attention(Box::new(b.attention(own)?));
        layers.push(Layer { attn_norm: Some(b.norm("attn_norm")?), ..Layer::of(vec![attention], None) });
        let cross = AttentionSpec { layer: il + 1, bidirectional: true, ..spec };
        let (n_embd, q, k, v) = (b.m.h.n_embd, cross.q_width(), cross.k_width(), cross.v_width());
        let matrices = [b.linear("cross_attn_k", n_embd, k)?, b.linear("cross_attn_v", n_embd, v)?];
        keys.push((matrices, cross.clone()));
        let cross = Attention {
            heads: Heads::Projected { parts: vec![b.linear("cross_attn_q", n_embd, q)?], clamp: None },
            output: b.linear("cross_attn_o", cross.n_head * cross.head_dim_v, n_embd)?,
            spec: AttentionSpec { writes: false, ..cross },
            sub_norm: None,
        };
        let (attn_norm, ffn_norm) = (b.norm("cross_attn_norm")?, b.norm("ffn_norm")?);
        let ffn = feed_forward(&mut b)?;
        layers.push(Layer { attn_norm: Some(attn_norm), ffn_norm: Some(ffn_norm), ..Layer::new(cross, ffn) });
        // Files repeat the table of biases there, which no attention to another text uses.
        b.ignore("cross_attn_rel_b.weight");
    }
    let decoder = m.decoder(Vec::new(), layers)?;
    Ok(Decoder { encoder: Some(Encoder { layers: encoder, output_norm, keys }), ..decoder })
}

fn encoder_layer(b: &mut Block<'_, '_>) -> Result<Layer> {
    let spec = distances(b, AttentionSpec { scale: 1.0, rope: None, ..b.bidirectional() })?;
    let (attention, ffn) = (b.attention(spec)?, feed_forward(b)?);
    b.pre_norm(attention, ffn)
}

/// Adds the biases of the layer, which without ones of its own are those of the first.
fn distances(b: &mut Block<'_, '_>, spec: AttentionSpec) -> Result<AttentionSpec> {
    let buckets = b.m.keys.size("attention.relative_buckets_count", MAX_BUCKETS)?;
    let number = if b.has("attn_rel_b.weight") { b.number } else { 0 };
    let weight = b.m.table.flat(&format!("{}blk.{number}.attn_rel_b.weight", b.m.side), spec.n_head, buckets)?;
    Ok(AttentionSpec { distance: Some(DistanceBias { weight, buckets }), ..spec })
}

/// A unit gated by GELU where the file has gates, else ReLU.
fn feed_forward(b: &mut Block<'_, '_>) -> Result<FeedForward> {
    match b.has("ffn_gate.weight") {
        true => Ok(FeedForward::Dense(b.gated(Activation::Gelu)?)),
        false => b.plain(Activation::Relu),
    }
}
