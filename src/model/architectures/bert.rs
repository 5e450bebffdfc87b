//! BERT and its like: a norm after each sum, LayerNorm with biases, and none at the end.

use crate::Result;
use crate::graph::{Activation, AttentionSpec, Gating, NormSpan, RopeKind};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::Decoder;
use crate::model::layer::FeedForward;

/// The largest ALiBi slope's bias of jina-bert-v2.
const ALIBI: f32 = 8.0;

/// Layers whose feed-forward part is made by `ffn`, between the ends that all have.
fn encoder(
    m: &mut Binder<'_>,
    attention: impl Fn(&mut Block<'_, '_>, AttentionSpec) -> Result<AttentionSpec>,
    ffn: impl Fn(&mut Block<'_, '_>) -> Result<FeedForward>,
) -> Result<Decoder> {
    let decoder = m.uniform(RopeKind::Neox, |b| {
        let spec = attention(b, b.bidirectional())?;
        let (attention, ffn) = (b.attention(spec)?, ffn(b)?);
        b.sum_norm(attention, ffn)
    })?;
    let types = m.table.has("token_types.weight");
    let embd_norm = Some(m.norm("token_embd_norm", m.h.n_embd)?);
    Ok(Decoder { token_types: if types { Some(m.token_types()?) } else { None }, embd_norm, ..decoder })
}

/// `bert`: learned positions.
pub(super) fn bert(m: &mut Binder<'_>) -> Result<Decoder> {
    let unrotated = |_: &mut Block<'_, '_>, spec| Ok(AttentionSpec { rope: None, ..spec });
    let decoder = encoder(m, unrotated, |b| b.plain(Activation::Gelu))?;
    Ok(Decoder { position_embd: Some(m.positions()?), ..decoder })
}

/// `nomic-bert`: rotation, and gated units with SiLU.
pub(super) fn nomic_bert(m: &mut Binder<'_>) -> Result<Decoder> {
    encoder(m, |_, spec| Ok(spec), |b| Ok(FeedForward::Dense(b.gated(Activation::Silu)?)))
}

/// `nomic-bert-moe`: rotation; experts, or units without a gate, both with GELU.
pub(super) fn nomic_bert_moe(m: &mut Binder<'_>) -> Result<Decoder> {
    let ffn = |b: &mut Block<'_, '_>| match b.has("ffn_gate_inp.weight") {
        true => Ok(FeedForward::Experts(Box::new(b.experts(Activation::Gelu, Gating::Softmax, false)?))),
        false => b.plain(Activation::Gelu),
    };
    encoder(m, |_, spec| Ok(spec), ffn)
}

/// `jina-bert-v2`: ALiBi, gated units with GELU, and in some files norms over all heads.
pub(super) fn jina_bert_v2(m: &mut Binder<'_>) -> Result<Decoder> {
    let attention = |b: &mut Block<'_, '_>, spec| {
        let spec = AttentionSpec { rope: None, alibi: ALIBI, ..spec };
        if b.has("attn_q_norm.weight") { b.head_norms(spec, NormSpan::Row) } else { Ok(spec) }
    };
    encoder(m, attention, |b| Ok(FeedForward::Dense(b.gated(Activation::Gelu)?)))
}
