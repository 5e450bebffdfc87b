//! `gemma4`: as gemma3, with heads of other sizes in sliding layers, values normalised and in some layers made of the
//! keys' product, and scores that are not scaled. Three kinds: small models with an embedding for each layer, whose
//! last layers use the keys and values of earlier ones; dense models; models with experts beside a dense part.

use crate::graph::{Activation, AttentionSpec, Function, Gating, NormSpec, RopeKind, RopeSpec, Values};
use crate::model::binder::{Binder, Block};
use crate::model::decoder::{Decoder, PerLayerEmbedding};
use crate::model::keys::MAX_WIDTH;
use crate::model::layer::{Attention, Both, FeedForward, Layer, PerLayer};
use crate::model::nextn::{Assistant, Reads};
use crate::{Error, Result};

/// The last of so many layers sees everything, where the file does not name the layers.
const PERIOD: usize = 6;
/// Indices of the two rotary embeddings.
const GLOBAL: usize = 0;
const SLIDING: usize = 1;
/// Frequency base of sliding layers where the file names none.
const SLIDING_BASE: f64 = 10_000.0;

/// What the layers of one kind share.
#[derive(Clone, Copy)]
struct Kind {
    window: u32,
    rope: usize,
    head_dim_k: usize,
    head_dim_v: usize,
    /// How far before the first layer without keys of its own the layer is whose keys are used.
    back: usize,
}

/// The attention of all layers.
pub(super) struct Attentions {
    kinds: [Kind; 2],
    /// Whether a layer has a window.
    sliding: Vec<bool>,
    /// The first layer that uses the keys and values of an earlier one.
    first_shared: usize,
}

pub(super) fn gemma4(m: &mut Binder<'_>) -> Result<Decoder> {
    let (attentions, ropes) = Attentions::read(m, PERIOD)?;
    let width = m.keys.count("embedding_length_per_layer_input", MAX_WIDTH)?;
    let layers = m.layers(|b| {
        let (attention, ffn) = (attentions.of(b)?, ffn(b)?);
        let layer = b.sandwich(attention, ffn)?;
        let scale = b.m.table.optional_vector(&b.name("layer_output_scale.weight"), 1)?;
        let per_layer = if width > 0 { Some(per_layer(b, width)?) } else { None };
        Ok(Layer { per_layer, output: scale.map(Function::ScaleBy), ..layer })
    })?;
    let decoder = m.decoder(ropes, layers)?;
    let embed_scale = (m.h.n_embd as f32).sqrt();
    let per_layer = if width > 0 { Some(embeddings(m, width)?) } else { None };
    Ok(Decoder { embed_scale, per_layer, ..decoder })
}

/// `gemma4-assistant`: a draft model of few narrow layers without keys of their own, for a model of this family.
pub(super) fn assistant(m: &mut Binder<'_>) -> Result<Decoder> {
    let (attentions, ropes) = Attentions::read(m, PERIOD)?;
    let layers = m.layers(|b| {
        let kind = attentions.kinds[usize::from(attentions.sliding[b.il])];
        let mut spec = kind.spec(AttentionSpec::new(b.il, b.m.h.n_head[b.il], b.m.h.n_head_kv[b.il], kind.head_dim_k));
        spec.writes = false;
        let spec = b.norms_by_head(spec)?;
        let (attention, ffn) = (b.attention(spec)?, FeedForward::Dense(b.gated(Activation::Gelu)?));
        let layer = b.sandwich(attention, ffn)?;
        let scale = b.m.table.optional_vector(&b.name("layer_output_scale.weight"), 1)?;
        Ok(Layer { output: scale.map(Function::ScaleBy), ..layer })
    })?;
    // Clusters of tokens, by which some compute fewer logits.
    m.table.ignore("masked_embd_");
    let decoder = m.decoder(ropes, layers)?;
    if decoder.pooled().is_some() {
        return Err(Error::Model("A draft model of another model whose rows are those of texts".into()));
    }
    let (width, n) = (m.keys.size("embedding_length_out", MAX_WIDTH)?, m.h.n_embd);
    let before = m.linear("nextn.pre_projection", 2 * width, n)?;
    let after = m.linear("nextn.post_projection", n, width)?;
    let reads = Some(Reads::Assistant(Assistant { width, before, after }));
    Ok(Decoder { logit_softcap: None, reads, ..decoder })
}

impl Kind {
    /// Attention of this kind, which adds up scores as they are.
    fn spec(&self, plain: AttentionSpec) -> AttentionSpec {
        let (head_dim_v, window, rope) = (self.head_dim_v, self.window, Some(self.rope));
        AttentionSpec { head_dim_v, scale: 1.0, window, rope, ..plain }
    }
}

impl Attentions {
    /// Those of the file's keys, and the rotary embeddings that they name. All but the last of every `period` layers
    /// have a window where the file does not name the layers.
    pub fn read(m: &mut Binder<'_>, period: usize) -> Result<(Attentions, Vec<RopeSpec>)> {
        let (h, keys) = (m.h, m.keys);
        let (head_dim_k, head_dim_v) = (h.head_dim_k, h.head_dim_v);
        let kinds = [
            Kind { window: 0, rope: GLOBAL, head_dim_k, head_dim_v, back: 1 },
            Kind {
                window: m.window()?,
                rope: SLIDING,
                head_dim_k: keys.optional_size("attention.key_length_swa", head_dim_k, MAX_WIDTH)?,
                head_dim_v: keys.optional_size("attention.value_length_swa", head_dim_v, MAX_WIDTH)?,
                back: 2,
            },
        ];
        let full = m.rope(RopeKind::Neox)?;
        let near = m.sliding_rope(&full, SLIDING_BASE, kinds[1].head_dim_k)?;
        let sliding = m.sliding(period)?;
        let first_shared = h.n_layer - keys.count("attention.shared_kv_layers", h.n_layer)?;
        Ok((Attentions { kinds, sliding, first_shared }, vec![full, near]))
    }

    /// That of a layer.
    pub fn of(&self, b: &mut Block<'_, '_>) -> Result<Attention> {
        let (il, sliding) = (b.il, &self.sliding);
        let kind = self.kinds[usize::from(sliding[il])];
        let source = match il < self.first_shared {
            true => il,
            false => source(il, self.first_shared.checked_sub(kind.back), sliding)?,
        };
        let spec = spec(b, kind, source)?;
        b.attention(spec)
    }
}

/// The layer whose keys and values a layer without its own uses: one of its kind.
fn source(il: usize, source: Option<usize>, sliding: &[bool]) -> Result<usize> {
    source.filter(|&source| sliding[source] == sliding[il]).ok_or_else(|| {
        Error::Model(format!("Layer {il} has no keys of its own, and no layer before it has some that it can use"))
    })
}

fn spec(b: &mut Block<'_, '_>, kind: Kind, source: usize) -> Result<AttentionSpec> {
    let (h, il) = (b.m.h, b.il);
    let (n_head, n_head_kv) = (h.n_head[il], h.n_head_kv[source]);
    if !n_head.is_multiple_of(n_head_kv) {
        return Err(Error::Model(format!("Layer {il} has {n_head} query heads, its source {n_head_kv} KV heads")));
    }
    let mut spec = kind.spec(AttentionSpec::new(source, n_head, n_head_kv, kind.head_dim_k));
    spec.writes = source == il;
    if spec.writes {
        spec.v_norm = Some(b.m.bare_norm());
        if !b.has("attn_v.weight") && !b.has("attn_qkv.weight") {
            spec.values = Values::Keys;
        }
    } else {
        ["attn_k.", "attn_v.", "attn_k_norm."].into_iter().for_each(|part| b.ignore(part));
    }
    if spec.values == Values::Keys && spec.head_dim_v != spec.head_dim_k {
        let (k, v) = (spec.head_dim_k, spec.head_dim_v);
        return Err(Error::Model(format!("Layer {il}: values of {v} cannot be made of keys of {k}")));
    }
    b.norms_by_head(spec)
}

fn ffn(b: &mut Block<'_, '_>) -> Result<FeedForward> {
    let dense = b.gated(Activation::Gelu)?;
    if !b.has("ffn_gate_inp.weight") {
        return Ok(FeedForward::Dense(dense));
    }
    let n_embd = b.m.h.n_embd;
    let weight = b.m.table.optional_vector(&b.name("ffn_gate_inp.scale"), n_embd)?;
    let router_input = (NormSpec { weight, ..b.m.bare_norm() }, 1.0 / (n_embd as f32).sqrt());
    Ok(FeedForward::Both(Box::new(Both {
        dense,
        dense_norm: b.norm("post_ffw_norm_1")?,
        experts: b.experts(Activation::Gelu, Gating::Softmax, true)?,
        experts_input: b.norm("pre_ffw_norm_2")?,
        experts_norm: b.norm("post_ffw_norm_2")?,
        router_input,
    })))
}

/// The part of a layer that reads its embedding, of so many values.
pub(super) fn per_layer(b: &mut Block<'_, '_>, width: usize) -> Result<PerLayer> {
    let n_embd = b.m.h.n_embd;
    Ok(PerLayer {
        gate: b.linear("inp_gate", n_embd, width)?,
        act: Activation::Gelu,
        first: b.il * width,
        project: b.linear("proj", width, n_embd)?,
        norm: b.norm("post_norm")?,
    })
}

/// The embeddings of all layers: a row of a table that is larger than the rest of the model, and so stays in the file.
pub(super) fn embeddings(m: &mut Binder<'_>, width: usize) -> Result<PerLayerEmbedding> {
    let (n_embd, n_vocab, all) = (m.h.n_embd, m.h.n_vocab, width * m.h.n_layer);
    Ok(PerLayerEmbedding {
        project: m.linear("per_layer_model_proj", n_embd, all)?,
        projected: 1.0 / (n_embd as f32).sqrt(),
        norm: m.norm("per_layer_proj_norm", width)?,
        table: m.table.table("per_layer_token_embd.weight", all, n_vocab)?,
        looked_up: (width as f32).sqrt(),
        sum: std::f32::consts::FRAC_1_SQRT_2,
    })
}
