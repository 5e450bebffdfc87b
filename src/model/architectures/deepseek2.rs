//! `deepseek2`: DeepSeek V2 and V3, GLM-4.7-Flash. Multi-head latent attention, whose cache holds one row for all
//! heads; dense layers first, then experts with shared ones. Sources: DeepSeek-V2, <https://arxiv.org/abs/2405.04434>;
//! DeepSeek-V3, <https://arxiv.org/abs/2412.19437>.

use crate::graph::{AttentionSpec, Gating, HeadNorm, NormSpan, RopeScaling, RopeSpec, Values};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::Decoder;
use crate::model::keys::MAX_WIDTH;
use crate::model::layer::{Attention, Heads, Latent};
use crate::{Error, Result};

/// Blocks and vocabulary of GLM-4.7-Flash, whose early files do not name its gating, a sigmoid.
const GLM_FLASH: ([usize; 2], usize) = ([47, 48], 154_880);

/// Widths of the parts of an attention.
#[derive(Clone, Copy)]
struct Widths {
    /// Values of the cached row that are not rotated.
    latent: usize,
    /// Values of a head's query that are rotated.
    rotated: usize,
    /// Values of a head's query that are not.
    unrotated: usize,
    /// Values of a head's result.
    value: usize,
    /// Factor on the scores.
    scale: f32,
}

pub(super) fn deepseek2(m: &mut Binder<'_>) -> Result<Decoder> {
    let old = "blk.0.attn_kv_b.weight";
    if m.table.has(old) {
        return Err(Error::Unsupported(format!(
            "Tensor `{old}`: keys and values in one matrix. Convert the model again"
        )));
    }
    let (h, keys) = (m.h, m.keys);
    let (rope, growth) = rope(h.rope.clone(), h.yarn_log_multiplier.unwrap_or(0.0));
    let head_dim = keys.size("attention.key_length_mla", MAX_WIDTH)?;
    let Some(unrotated) = head_dim.checked_sub(rope.n_rot).filter(|&n| n > 0) else {
        let (key, n_rot) = (keys.name("attention.key_length_mla"), rope.n_rot);
        return Err(Error::Model(format!("Key `{key}` is {head_dim}, of which {n_rot} are rotated")));
    };
    let widths = Widths {
        latent: keys.size("attention.kv_lora_rank", MAX_WIDTH)?,
        rotated: rope.n_rot,
        unrotated,
        value: keys.size("attention.value_length_mla", MAX_WIDTH)?,
        scale: (growth * growth / (head_dim as f64).sqrt()) as f32,
    };
    let flash = GLM_FLASH.0.contains(&h.n_block) && h.n_vocab == GLM_FLASH.1;
    let gating = if flash { Gating::Sigmoid } else { Gating::Softmax };
    let layers = m.layers(|b| {
        let (attention, ffn) = (attention(b, widths)?, b.ffn(gating, false)?);
        b.pre_norm(attention, ffn)
    })?;
    m.decoder(vec![rope], layers)
}

/// The rotary embedding, and the factor by which queries and keys grow instead of being rotated by longer cosines and
/// sines. The multiplier in a file is a tenth of that of the models' configurations.
fn rope(mut rope: RopeSpec, multiplier: f64) -> (RopeSpec, f64) {
    match &mut rope.scaling {
        RopeScaling::Yarn { factor, attn_factor, ext_factor, .. } if *ext_factor != 0.0 => {
            *attn_factor /= 1.0 + 0.1 * factor.ln();
            let growth = 1.0 + multiplier * factor.ln();
            (rope, growth)
        }
        _ => (rope, 1.0),
    }
}

fn attention(b: &mut Block<'_, '_>, w: Widths) -> Result<Attention> {
    let (n_embd, n_head) = (b.m.h.n_embd, b.m.h.n_head[b.il]);
    let queries = n_head * (w.unrotated + w.rotated);
    let (query_down, query) = match b.has("attn_q_a.weight") {
        true => {
            let rank = b.m.table.shape(&b.name("attn_q_a.weight"))?[1];
            let down = (b.linear("attn_q_a", n_embd, rank)?, b.norm_of("attn_q_a_norm", rank)?);
            (Some(down), b.linear("attn_q_b", rank, queries)?)
        }
        false => (None, b.linear("attn_q", n_embd, queries)?),
    };
    let latent = Latent {
        query_down,
        query,
        latent: b.linear("attn_kv_a_mqa", n_embd, w.latent + w.rotated)?,
        key_up: b.m.table.stack(&b.name("attn_k_b.weight"), w.unrotated, w.latent, n_head)?,
        value_up: b.m.table.stack(&b.name("attn_v_b.weight"), w.latent, w.value, n_head)?,
        n_rot: w.rotated,
    };
    let norm = b.norm_of("attn_kv_a_norm", w.latent)?;
    let spec = AttentionSpec {
        head_dim_v: w.latent,
        values: Values::KeyPrefix,
        scale: w.scale,
        k_norm: Some(HeadNorm { norm, span: NormSpan::Head(w.latent) }),
        rope_first: w.latent,
        ..AttentionSpec::new(b.il, n_head, 1, w.latent + w.rotated)
    };
    let output = b.linear("attn_output", n_head * w.value, n_embd)?;
    Ok(Attention { heads: Heads::Latent(latent), spec, sub_norm: None, output })
}
