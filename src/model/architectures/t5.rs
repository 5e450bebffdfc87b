//! T5 (Raffel et al., "Exploring the Limits of Transfer Learning", <https://arxiv.org/abs/1910.10683>): biases of the
//! scores by distance in place of positions, scores that are not scaled, norms before each part.

use crate::Result;
use crate::graph::{Activation, AttentionSpec, DistanceBias, RopeKind};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// More buckets than distances that differ have no use.
const MAX_BUCKETS: usize = 2 * DistanceBias::FAR;

/// `t5encoder`: the encoder alone.
pub(super) fn encoder(m: &mut Binder<'_>) -> Result<Decoder> {
    m.side = "enc.";
    m.uniform(RopeKind::Neox, |b| {
        let spec = distances(b, AttentionSpec { scale: 1.0, rope: None, ..b.bidirectional() })?;
        let (attention, ffn) = (b.attention(spec)?, feed_forward(b)?);
        b.pre_norm(attention, ffn)
    })
}

/// Adds the biases of the layer, which without ones of its own are those of the first.
fn distances(b: &mut Block<'_, '_>, spec: AttentionSpec) -> Result<AttentionSpec> {
    let buckets = b.m.keys.size("attention.relative_buckets_count", MAX_BUCKETS)?;
    let own = b.has("attn_rel_b.weight");
    let name = format!("{}blk.{}.attn_rel_b.weight", b.m.side, if own { b.il } else { 0 });
    let weight = b.m.table.flat(&name, spec.n_head, buckets)?;
    Ok(AttentionSpec { distance: Some(DistanceBias { weight, buckets }), ..spec })
}

/// A unit gated by GELU where the file has gates, else ReLU.
fn feed_forward(b: &mut Block<'_, '_>) -> Result<FeedForward> {
    match b.has("ffn_gate.weight") {
        true => Ok(FeedForward::Dense(b.gated(Activation::Gelu)?)),
        false => b.plain(Activation::Relu),
    }
}
