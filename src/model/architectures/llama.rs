//! The Llama family: RMS norms before each part, gated units with SiLU. What its members have besides is at each.

use crate::Error;
use crate::Result;
use crate::graph::{Activation, Gating, RopeKind, Temperature};
use crate::model::binder::Binder;
use crate::model::decoder::Decoder;
use crate::model::layer::{FeedForward, Layer};

/// Layers of smollm3 that are not rotated: every fourth.
const UNROTATED: usize = 4;
/// Layers of the two sizes of baichuan that were published; the larger has ALiBi in place of rotation.
const BAICHUAN: (usize, usize) = (32, 40);
/// The largest ALiBi slope's bias where the file names none.
const ALIBI: f32 = 8.0;

/// `llama`, `internlm2`, `ernie4_5` and others of their shape; experts as in Mixtral where the file has them. RoPE over
/// neighbours; frequency factors from `rope_freqs.weight` where the file has them (Llama 3.1 and later).
pub(super) fn llama(m: &mut Binder<'_>) -> Result<Decoder> {
    plain(m, RopeKind::Norm, true)
}

/// Layers of plain attention and gated units or experts.
pub(super) fn plain(m: &mut Binder<'_>, kind: RopeKind, normalize: bool) -> Result<Decoder> {
    m.uniform(kind, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.ffn(Gating::Softmax, normalize)?);
        b.pre_norm(attention, ffn)
    })
}

/// `mistral3`: queries grow with the logarithm of their position.
pub(super) fn mistral3(m: &mut Binder<'_>) -> Result<Decoder> {
    let length = m.h.original_context;
    let scale = m.keys.positive("attention.temperature_scale")?;
    let temperature = scale.map(|scale| Temperature { scale, length, offset: 0 });
    m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        spec.temperature = temperature;
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Softmax, true)?);
        b.pre_norm(attention, ffn)
    })
}

/// `smollm3`: every fourth layer is not rotated.
pub(super) fn smollm3(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        spec.rope = spec.rope.filter(|_| !(b.il + 1).is_multiple_of(UNROTATED));
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Silu)?);
        b.pre_norm(attention, FeedForward::Dense(ffn))
    })
}

/// `arcee`: the square of ReLU in place of a gate.
pub(super) fn arcee(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Norm, |b| {
        let (attention, ffn) = (b.attention(b.spec())?, b.plain(Activation::Relu2)?);
        b.pre_norm(attention, ffn)
    })
}

/// `granite` and `granitemoe`: factors on embeddings, residuals and logits; the rotation may be switched off.
pub(super) fn granite(m: &mut Binder<'_>) -> Result<Decoder> {
    let rotates = m.keys.get::<bool>("rope.scaling.finetuned")?.unwrap_or(true);
    scaled(m, 1.0, 1.0, rotates)
}

/// `minicpm`: as granite, with other factors where the file has none.
pub(super) fn minicpm(m: &mut Binder<'_>) -> Result<Decoder> {
    let residual = 1.4 / (m.h.n_layer as f32).sqrt();
    scaled(m, 12.0, residual, true)
}

fn scaled(m: &mut Binder<'_>, embedding: f32, residual: f32, rotates: bool) -> Result<Decoder> {
    let residual_scale = m.keys.positive("residual_scale")?.unwrap_or(residual);
    let decoder = m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        spec.rope = spec.rope.filter(|_| rotates);
        let (attention, ffn) = (b.attention(spec)?, b.ffn(Gating::Softmax, true)?);
        Ok(Layer { residual_scale, ..b.pre_norm(attention, ffn)? })
    })?;
    Ok(Decoder {
        embed_scale: m.keys.positive("embedding_scale")?.unwrap_or(embedding),
        logit_scale: 1.0 / m.keys.require_positive("logit_scale")?,
        ..decoder
    })
}

/// `baichuan`: the smaller size rotates, the larger has ALiBi.
pub(super) fn baichuan(m: &mut Binder<'_>) -> Result<Decoder> {
    let n = m.h.n_layer;
    if n != BAICHUAN.0 && n != BAICHUAN.1 {
        let (small, large) = BAICHUAN;
        return Err(Error::Unsupported(format!("baichuan of {n} layers (known: {small} and {large})")));
    }
    m.uniform(RopeKind::Norm, |b| {
        let mut spec = b.spec();
        if n == BAICHUAN.1 {
            (spec.rope, spec.alibi) = (None, ALIBI);
        }
        let (attention, ffn) = (b.attention(spec)?, b.gated(Activation::Silu)?);
        b.pre_norm(attention, FeedForward::Dense(ffn))
    })
}

/// `bitnet`: norms before each part's last matrix too.
pub(super) fn bitnet(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let (mut attention, mut ffn) = (b.attention(b.spec())?, b.gated(Activation::Silu)?);
        let (heads, n_ff) = (attention.spec.n_head * attention.spec.head_dim_v, b.n_ff()?);
        attention.sub_norm = Some(b.norm_of("attn_sub_norm", heads)?);
        ffn.sub_norm = Some(b.norm_of("ffn_sub_norm", n_ff)?);
        b.pre_norm(attention, FeedForward::Dense(ffn))
    })
}

/// `apertus`: norms of query and key heads, and xIELU in place of a gate, with numbers for each layer.
pub(super) fn apertus(m: &mut Binder<'_>) -> Result<Decoder> {
    let floats = |part: &str| m.keys.global_floats(&format!("xielu.{part}"), m.h.n_block);
    let (negative, positive) = (floats("alpha_n")?, floats("alpha_p")?);
    let (linear, eps) = (floats("beta")?, floats("eps")?);
    let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
    m.uniform(RopeKind::Neox, |b| {
        let il = b.il;
        let act = Activation::Xielu {
            positive: softplus(positive[il]),
            negative: linear[il] + softplus(negative[il]),
            linear: linear[il],
            eps: eps[il],
        };
        let spec = b.norms_by_head(b.spec())?;
        let (attention, ffn) = (b.attention(spec)?, b.plain(act)?);
        b.pre_norm(attention, ffn)
    })
}
