//! Qwen and its like: RMS norms before each part, gated units with SiLU or experts, RoPE over halves.

use super::llama::plain;
use crate::Result;
use crate::graph::{Gating, NormSpan, RopeKind};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;

/// `qwen2`, `qwen2vl`, `exaone`: biases of q, k and v, where the file has them. Positions in several dimensions, as
/// images have them, are for text those of RoPE.
pub(super) fn qwen2(m: &mut Binder<'_>) -> Result<Decoder> {
    plain(m, RopeKind::Neox, true)
}

/// `qwen2moe`: weights of experts are not normalised; a shared expert with a gate.
pub(super) fn qwen2moe(m: &mut Binder<'_>) -> Result<Decoder> {
    plain(m, RopeKind::Neox, false)
}

/// `qwen3`, `qwen3moe` and their relatives for images; `dots1`, whose keys name the rest: each query and key head is
/// normalised before rotation. The scores of a reranker are probabilities.
pub(super) fn qwen3(m: &mut Binder<'_>) -> Result<Decoder> {
    let mut decoder = m.uniform(RopeKind::Neox, |b| {
        let spec = b.norms_by_head(b.spec())?;
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Softmax, true)?);
        b.pre_norm(attention, ffn)
    })?;
    if let Some(classifier) = decoder.classifier() {
        classifier.softmax = true;
    }
    Ok(decoder)
}

/// `dots1`: as qwen3; experts as the keys say.
pub(super) fn dots1(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let spec = b.norms_by_head(b.spec())?;
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Sigmoid, false)?);
        b.pre_norm(attention, ffn)
    })
}

/// `olmoe`: queries and keys are normalised over all heads; weights of experts are not.
pub(super) fn olmoe(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let spec = b.head_norms(b.spec(), NormSpan::Row)?;
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Softmax, false)?);
        b.pre_norm(attention, ffn)
    })
}

/// `hunyuan-dense` and `hunyuan-moe`: heads are normalised after rotation. The base is that of the file, or grows with
/// a factor.
pub(super) fn hunyuan(m: &mut Binder<'_>) -> Result<Decoder> {
    let alpha = m.keys.positive("rope.scaling.alpha")?.map_or(1.0, f64::from);
    let mut decoder = m.uniform(RopeKind::Neox, |b| {
        let mut spec = b.norms_by_head(b.spec())?;
        spec.norm_after_rope = true;
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Softmax, true)?);
        b.pre_norm(attention, ffn)
    })?;
    let dim = m.h.head_dim_k as f64;
    if dim > 2.0 {
        decoder.ropes.iter_mut().for_each(|rope| rope.freq_base *= alpha.powf(dim / (dim - 2.0)));
    }
    Ok(decoder)
}

/// `seed_oss`: the norm before the feed-forward part is called `post_attention_norm`.
pub(super) fn seed_oss(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.ffn(Gating::Softmax, true)?);
        b.pre_norm_named(attention, ffn, "post_attention_norm")
    })
}
