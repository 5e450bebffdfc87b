//! Models some or all of whose layers keep a state instead of keys and values.

use crate::Result;
use crate::graph::{Activation, Function, Gating, NormSpan, RopeKind};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::Decoder;
use crate::model::layer::{Attention, FeedForward, Heads, Layer, Mixer};
use crate::model::recurrent::Recurrent;

/// Layers from one with attention to the next where the file does not name them.
const INTERVAL: usize = 4;

/// `qwen35`, `qwen35moe`: gated delta nets, and every few layers attention with a gate. Positions in several
/// dimensions, as images have them, are for text those of RoPE.
pub(super) fn qwen35(m: &mut Binder<'_>) -> Result<Decoder> {
    delta_nets(m, true)
}

/// `qwen3next`: as qwen35; key heads are shared by neighbours.
pub(super) fn qwen3next(m: &mut Binder<'_>) -> Result<Decoder> {
    delta_nets(m, false)
}

fn delta_nets(m: &mut Binder<'_>, tiled: bool) -> Result<Decoder> {
    const LAYERS: &str = "attention.recurrent_layers";
    let interval = m.keys.optional_size("full_attention_interval", INTERVAL, m.h.n_block)?;
    let recurrent = match m.keys.per_block(LAYERS, m.h.n_block)? {
        Some(layers) => layers.into_iter().map(|layer| layer != 0).collect(),
        None => (0..m.h.n_block).map(|il| (il + 1) % interval != 0).collect::<Vec<_>>(),
    };
    m.uniform(RopeKind::Neox, |b| {
        // Blocks that predict further tokens have attention.
        let mixer = match b.m.h.first_block == 0 && recurrent[b.il] {
            true => Mixer::Recurrent(b.delta_net(tiled)?),
            false => gated_attention(b)?,
        };
        let ffn = b.ffn(Gating::Softmax, true)?;
        b.mixed(vec![mixer], Some(ffn), "post_attention_norm")
    })
}

/// Attention whose queries come with a gate of the result.
fn gated_attention(b: &mut Block<'_, '_>) -> Result<Mixer> {
    let (spec, n) = (b.norms_by_head(b.spec())?, b.m.h.n_embd);
    let query = b.linear("attn_q", n, spec.q_width() + spec.n_head * spec.head_dim_v)?;
    let key_value = vec![b.linear("attn_k", n, spec.k_width())?, b.linear("attn_v", n, spec.v_width())?];
    let output = b.linear("attn_output", spec.n_head * spec.head_dim_v, n)?;
    let heads = Heads::Gated { query, key_value };
    Ok(Mixer::Attention(Box::new(Attention { heads, spec, sub_norm: None, output })))
}

/// `lfm2`, `lfm2moe`: short convolutions, and attention in layers with key heads.
pub(super) fn lfm2(m: &mut Binder<'_>) -> Result<Decoder> {
    let window = m.h.sliding_window.unwrap_or(0);
    m.uniform(RopeKind::Neox, |b| {
        let mixer = match b.m.h.n_head_kv[b.il] {
            0 => Mixer::Recurrent(b.short_conv()?),
            _ => {
                let mut spec = b.norms_by_head(b.spec())?;
                spec.window = window;
                Mixer::Attention(Box::new(b.attention(spec)?))
            }
        };
        let ffn = b.ffn(Gating::Sigmoid, true)?;
        b.mixed(vec![mixer], Some(ffn), "ffn_norm")
    })
}

/// `mamba`: layers of Mamba alone. FalconMamba normalises steps, keys and queries.
pub(super) fn mamba(m: &mut Binder<'_>) -> Result<Decoder> {
    let bare_norms = m.keys.get::<bool>("ssm.dt_b_c_rms")?.unwrap_or(false);
    m.uniform(RopeKind::Norm, |b| {
        let mixer = Mixer::Recurrent(b.mamba(bare_norms)?);
        b.alone(vec![mixer])
    })
}

/// `mamba2`: layers of Mamba-2 alone.
pub(super) fn mamba2(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Norm, |b| {
        let mixer = Mixer::Recurrent(b.mamba2()?);
        b.alone(vec![mixer])
    })
}

/// `falcon-h1`: attention and Mamba-2 side by side in every layer.
pub(super) fn falcon_h1(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let mixers = vec![Mixer::Attention(Box::new(b.attention(b.spec())?)), Mixer::Recurrent(b.mamba2()?)];
        let ffn = b.ffn(Gating::Softmax, true)?;
        b.mixed(mixers, Some(ffn), "ffn_norm")
    })
}

/// `granitehybrid`: Mamba-2, and attention in layers with key heads; factors as granite has them. The rotation may be
/// switched off.
pub(super) fn granite_hybrid(m: &mut Binder<'_>) -> Result<Decoder> {
    let rotates = m.keys.get::<bool>("rope.scaling.finetuned")?.unwrap_or(true);
    let residual_scale = m.keys.positive("residual_scale")?.unwrap_or(1.0);
    let decoder = m.uniform(RopeKind::Norm, |b| {
        let mixer = match b.m.h.n_head_kv[b.il] {
            0 => Mixer::Recurrent(b.mamba2()?),
            _ => {
                let mut spec = b.spec();
                spec.rope = spec.rope.filter(|_| rotates);
                Mixer::Attention(Box::new(b.attention(spec)?))
            }
        };
        let ffn = b.ffn(Gating::Softmax, true)?;
        Ok(Layer { residual_scale, ..b.mixed(vec![mixer], Some(ffn), "ffn_norm")? })
    })?;
    Ok(Decoder {
        embed_scale: m.keys.positive("embedding_scale")?.unwrap_or(1.0),
        logit_scale: 1.0 / m.keys.require_positive("logit_scale")?,
        ..decoder
    })
}

/// `jamba`: Mamba, and attention without positions in layers with key heads.
pub(super) fn jamba(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Norm, |b| {
        let mixer = match b.m.h.n_head_kv[b.il] {
            0 => Mixer::Recurrent(b.mamba(false)?),
            _ => unrotated(b)?,
        };
        let ffn = b.ffn(Gating::Softmax, false)?;
        b.mixed(vec![mixer], Some(ffn), "ffn_norm")
    })
}

/// `plamo2`: a layer with a state, and attention in layers with key heads, with norms before and after each part.
pub(super) fn plamo2(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| {
        let mixer = match b.m.h.n_head_kv[b.il] {
            0 => Mixer::Recurrent(b.plamo2()?),
            _ => {
                let spec = b.head_norms(b.spec(), NormSpan::EachHead)?;
                Mixer::Attention(Box::new(b.attention(spec)?))
            }
        };
        let ffn = FeedForward::Dense(b.gated(Activation::Silu)?);
        let post_attn_norm = Some(b.norm("post_attention_norm")?);
        let post_ffn_norm = Some(b.norm("post_ffw_norm")?);
        Ok(Layer { post_attn_norm, post_ffn_norm, ..b.mixed(vec![mixer], Some(ffn), "ffn_norm")? })
    })
}

fn unrotated(b: &mut Block<'_, '_>) -> Result<Mixer> {
    let mut spec = b.spec();
    spec.rope = None;
    Ok(Mixer::Attention(Box::new(b.attention(spec)?)))
}

/// `nemotron_h`, `nemotron_h_moe`: a layer is one thing: Mamba-2, attention without positions, or a feed-forward part
/// with the square of ReLU.
pub(super) fn nemotron_h(m: &mut Binder<'_>) -> Result<Decoder> {
    m.uniform(RopeKind::Neox, |b| match (b.m.h.n_head_kv[b.il], b.m.h.n_ff[b.il]) {
        (0, 0) => {
            let mixer = Mixer::Recurrent(b.mamba2()?);
            b.alone(vec![mixer])
        }
        (0, _) => {
            let ffn = match b.has("ffn_gate_inp.weight") {
                true => FeedForward::Experts(Box::new(b.experts(Activation::Relu2, Gating::Sigmoid, true)?)),
                false => b.plain(Activation::Relu2)?,
            };
            Ok(Layer { ffn_norm: Some(b.norm("attn_norm")?), ..Layer::of(Vec::new(), Some(ffn)) })
        }
        _ => {
            let mixer = unrotated(b)?;
            b.alone(vec![mixer])
        }
    })
}

/// `rwkv6`: a time mix and a channel mix. The stream is halved after every few layers, which the weights are made for.
pub(super) fn rwkv6(m: &mut Binder<'_>) -> Result<Decoder> {
    let every = m.keys.count("rescale_every_n_layers", usize::MAX)?;
    rwkv(m, |b| {
        let output = (every > 0 && (b.il + 1).is_multiple_of(every)).then_some(Function::Scale(0.5));
        Ok((b.rwkv6()?, output))
    })
}

/// `rwkv7`: as rwkv6; the values of the first layer go through all.
pub(super) fn rwkv7(m: &mut Binder<'_>) -> Result<Decoder> {
    rwkv(m, |b| Ok((b.rwkv7()?, None)))
}

/// Layers of a time mix, which `mix` makes with what becomes of the layer's result, and a channel mix.
fn rwkv(
    m: &mut Binder<'_>,
    mix: impl Fn(&mut Block<'_, '_>) -> Result<(Recurrent, Option<Function>)>,
) -> Result<Decoder> {
    let decoder = m.uniform(RopeKind::Norm, |b| {
        let (mixer, output) = mix(b)?;
        let ffn = b.channel_mix()?;
        Ok(Layer { output, ..b.mixed(vec![Mixer::Recurrent(mixer)], Some(ffn), "attn_norm_2")? })
    })?;
    Ok(Decoder { embd_norm: Some(m.norm("token_embd_norm", m.h.n_embd)?), ..decoder })
}
