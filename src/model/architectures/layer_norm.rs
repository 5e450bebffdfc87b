//! Older families with LayerNorm: gpt2, starcoder2, bloom, mpt, gptneox, falcon, stablelm, nemotron. Biases are taken
//! where the file has them.

use crate::Result;
use crate::graph::{Activation, AttentionSpec, NormSpan, RopeKind};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::Decoder;
use crate::model::layer::{FeedForward, Heads, Layer, Mixer};

/// The largest ALiBi slope's bias of bloom.
const ALIBI: f32 = 8.0;

/// Layers without rotation, GELU without a gate.
fn unrotated(
    m: &mut Binder<'_>,
    attention: impl Fn(&mut Block<'_, '_>, AttentionSpec) -> Result<AttentionSpec>,
) -> Result<Decoder> {
    let layers = m.layers(|b| {
        let spec = AttentionSpec { rope: None, ..b.spec() };
        let spec = attention(b, spec)?;
        let (attention, ffn) = (b.attention(spec)?, b.plain(Activation::Gelu)?);
        b.pre_norm(attention, ffn)
    })?;
    m.decoder(Vec::new(), layers)
}

/// `gpt2`: learned positions.
pub(super) fn gpt2(m: &mut Binder<'_>) -> Result<Decoder> {
    let decoder = unrotated(m, |_, spec| Ok(spec))?;
    Ok(Decoder { position_embd: Some(m.positions()?), ..decoder })
}

/// `bloom`: ALiBi, and a norm of the embeddings.
pub(super) fn bloom(m: &mut Binder<'_>) -> Result<Decoder> {
    let decoder = unrotated(m, |_, spec| Ok(AttentionSpec { alibi: ALIBI, ..spec }))?;
    Ok(Decoder { embd_norm: Some(m.norm("token_embd_norm", m.h.n_embd)?), ..decoder })
}

/// `mpt`: ALiBi or learned positions; queries, keys and values may be limited, queries and keys normalised over all
/// heads.
pub(super) fn mpt(m: &mut Binder<'_>) -> Result<Decoder> {
    let alibi = m.keys.positive("attention.max_alibi_bias")?.unwrap_or(0.0);
    let limit = m.keys.positive("attention.clamp_kqv")?;
    let mut decoder = unrotated(m, |b, spec| {
        let spec = AttentionSpec { alibi, ..spec };
        if b.has("attn_q_norm.weight") { b.head_norms(spec, NormSpan::Row) } else { Ok(spec) }
    })?;
    for mixer in decoder.layers.iter_mut().flat_map(|layer| &mut layer.mixers) {
        if let Mixer::Attention(attention) = mixer
            && let Heads::Projected { clamp, .. } = &mut attention.heads
        {
            *clamp = limit;
        }
    }
    let learned = m.table.has("position_embd.weight");
    Ok(Decoder { position_embd: if learned { Some(m.positions()?) } else { None }, ..decoder })
}

/// `starcoder2`: RoPE over halves, GELU without a gate.
pub(super) fn starcoder2(m: &mut Binder<'_>) -> Result<Decoder> {
    ungated(m, Activation::Gelu)
}

/// `nemotron`: as starcoder2, with the square of ReLU.
pub(super) fn nemotron(m: &mut Binder<'_>) -> Result<Decoder> {
    ungated(m, Activation::Relu2)
}

fn ungated(m: &mut Binder<'_>, act: Activation) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.plain(act)?);
        b.pre_norm(attention, ffn)
    })
}

/// `gptneox`: both parts may read the layer's input, each through a norm of its own.
pub(super) fn gptneox(m: &mut Binder<'_>) -> Result<Decoder> {
    const KEY: &str = "use_parallel_residual";
    let parallel = m.keys.get::<bool>(KEY)?.ok_or_else(|| m.keys.missing(KEY))?;
    m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.plain(Activation::Gelu)?);
        Ok(Layer { parallel, ..b.pre_norm(attention, ffn)? })
    })
}

/// `falcon`: both parts read the layer's input, in large models each through a norm of its own.
pub(super) fn falcon(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.plain(Activation::Gelu)?);
        let layer = b.parallel(attention, ffn)?;
        Ok(match b.has("attn_norm_2.weight") {
            true => Layer { ffn_norm: layer.attn_norm, attn_norm: Some(b.norm("attn_norm_2")?), ..layer },
            false => layer,
        })
    })
}

/// `stablelm`: gated units; without a second norm both parts read the layer's input. Query and key heads of large
/// models have norms with weights of their own.
pub(super) fn stablelm(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let mut spec = b.spec();
        if b.has("attn_q_norm.weight") {
            spec = b.head_norms(spec, NormSpan::EachHead)?;
        }
        let (attention, ffn) = (b.attention(spec)?, FeedForward::Dense(b.gated(Activation::Silu)?));
        match b.has("ffn_norm.weight") {
            true => b.pre_norm(attention, ffn),
            false => b.parallel(attention, ffn),
        }
    })
}
