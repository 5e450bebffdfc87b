//! Hyperparameters: the keys of a decoder model, with the format's defaults, checked for range.

use super::keys::{Keys, MAX_LAYERS, MAX_WIDTH};
use super::pooling::Pooling;
use crate::gguf::{File, shown};
use crate::graph::{NormKind, RopeKind, RopeScaling, RopeSpec};
use crate::{Error, Result, Token};

/// Keys that only models have whose layers keep a state.
const STATE_KEYS: [&str; 3] = ["ssm.conv_kernel", "shortconv.l_cache", "wkv.head_size"];

/// A tensor that only encoder-decoders have.
const DECODER: &str = "dec.output_norm.weight";

/// A tensor that only draft models have which read another model's hidden rows.
const ASSISTANT: &str = "nextn.pre_projection.weight";

/// A decoder's hyperparameters, from the metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Hparams {
    /// `general.architecture`: the prefix of all other keys.
    pub architecture: String,
    /// Tokens in the vocabulary: rows of `token_embd.weight`.
    pub n_vocab: usize,
    /// Context length in training.
    pub n_ctx_train: usize,
    /// Width of a hidden row.
    pub n_embd: usize,
    /// Blocks in the file.
    pub n_block: usize,
    /// The number in the file of the first layer: 0, but of a block that predicts further tokens.
    pub first_block: usize,
    /// Repeating layers: the blocks without those that predict several tokens, which come last; of an
    /// encoder-decoder the encoder's blocks, and then two for each of the decoder's.
    pub n_layer: usize,
    /// Heads, KV heads and width of the feed-forward part of the first block that predicts further tokens, where there
    /// is one.
    pub nextn: Option<[usize; 3]>,
    /// Layers of an encoder that come before a decoder's; 0 = none.
    pub n_encoder: usize,
    /// The token that a decoder's answer begins with, where the file names one.
    pub answer_begins: Option<Token>,
    /// Width of the dense feed-forward part, per layer; 0 where the file names none.
    pub n_ff: Vec<usize>,
    /// Query heads, per layer.
    pub n_head: Vec<usize>,
    /// Key and value heads, per layer; 0 where a layer that keeps a state has no attention.
    pub n_head_kv: Vec<usize>,
    /// Width of a query or key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Factor on attention scores, where the file names one.
    pub attention_scale: Option<f32>,
    /// Cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Cap on logits.
    pub logit_softcap: Option<f32>,
    /// Window of sliding layers in tokens.
    pub sliding_window: Option<u32>,
    /// Rotary embedding as the keys give it, of the neighbour kind and without frequency factors.
    pub rope: RopeSpec,
    /// Base of the rotary frequencies in sliding layers.
    pub rope_base_sliding: Option<f32>,
    /// Context before the extension that the file's rotary scaling is for.
    pub original_context: u32,
    /// `rope.scaling.yarn_log_multiplier`, which architectures read differently.
    pub yarn_log_multiplier: Option<f64>,
    /// Experts of a mixture model; 0 for a dense one.
    pub n_expert: usize,
    /// Experts that a row goes to.
    pub n_expert_used: usize,
    /// Whether a row sees only what is before it.
    pub causal: bool,
    /// How rows of texts are made; [`Pooling::None`] where the file does not say.
    pub pooling: Pooling,
}

impl Hparams {
    /// Read and check the keys of a model with norms of this kind.
    ///
    /// # Errors
    /// [`Error::Model`] naming a key that is missing, of another type or out of range.
    pub fn read(file: &File, norm: NormKind) -> Result<Hparams> {
        let architecture: String = file.require("general.architecture")?;
        let keys = Keys::new(file, &architecture);
        let n_vocab = read_n_vocab(file, &keys)?;
        let n_block = keys.size("block_count", MAX_LAYERS)?;
        // All blocks of such a draft model predict further tokens, whatever the key counts.
        let n_nextn = match file.tensor(ASSISTANT).is_some() {
            true => 0,
            false => keys.count("nextn_predict_layers", n_block - 1)?,
        };
        let n_layer = n_block - n_nextn;
        let n_embd = keys.size("embedding_length", MAX_WIDTH)?;
        // Where layers keep a state, those without attention have no heads.
        let with_states = STATE_KEYS.iter().any(|key| keys.has(key));
        let heads = |key| if with_states { keys.per_block(key, n_block) } else { keys.sizes(key, n_block) };
        let mut n_head = match heads("attention.head_count")? {
            None if with_states => vec![0; n_block],
            heads => heads.ok_or_else(|| keys.missing("attention.head_count"))?,
        };
        let mut n_head_kv = heads("attention.head_count_kv")?.unwrap_or_else(|| n_head.clone());
        let mut n_ff = keys.per_block("feed_forward_length", n_block)?.unwrap_or_else(|| vec![0; n_block]);
        let nextn = (n_layer < n_block).then(|| [n_head[n_layer], n_head_kv[n_layer], n_ff[n_layer]]);
        [&mut n_head, &mut n_head_kv, &mut n_ff].into_iter().for_each(|layers| layers.truncate(n_layer));
        let n_decoder = match file.tensor(DECODER).is_some() {
            true => keys.optional_size("decoder_block_count", n_block, MAX_LAYERS)?,
            false => 0,
        };
        // The keys are those of the encoder's blocks.
        for layers in [&mut n_head, &mut n_head_kv, &mut n_ff] {
            let of = |i: usize| layers[(i / 2).min(n_layer - 1)];
            let more: Vec<usize> = (0..2 * n_decoder).map(of).collect();
            layers.extend(more);
        }
        let (n_encoder, n_layer) = if n_decoder > 0 { (n_layer, n_layer + 2 * n_decoder) } else { (0, n_layer) };
        let of_nextn = nextn.as_ref().map(|[q, kv, _]| (q, kv));
        for (il, (&q, &kv)) in n_head.iter().zip(&n_head_kv).chain(of_nextn).enumerate() {
            if kv > 0 && q % kv != 0 {
                return Err(Error::Model(format!("Layer {il} has {q} query heads, no multiple of its {kv} KV heads")));
            }
        }
        let first = n_head.iter().copied().find(|&heads| heads > 0).unwrap_or(1);
        let head_dim_k = keys.optional_size("attention.key_length", (n_embd / first).max(1), MAX_WIDTH)?;
        let head_dim_v = keys.optional_size("attention.value_length", (n_embd / first).max(1), MAX_WIDTH)?;
        let n_ctx_train = keys.size("context_length", i32::MAX as usize)?;
        let eps = match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let n_expert = keys.count("expert_count", MAX_WIDTH)?;
        let original = keys.get::<u32>("rope.scaling.original_context_length")?.filter(|&n| n > 0);
        let original_context = original.unwrap_or(n_ctx_train as u32);
        Ok(Hparams {
            n_vocab,
            n_ctx_train,
            n_embd,
            n_block,
            first_block: 0,
            nextn,
            n_layer,
            n_encoder,
            answer_begins: read_answer_begins(&keys, n_vocab)?,
            n_ff,
            n_head,
            n_head_kv,
            head_dim_k,
            head_dim_v,
            norm_eps: keys.require_positive(eps)?,
            attention_scale: keys.positive("attention.scale")?,
            attention_softcap: keys.positive("attn_logit_softcapping")?,
            logit_softcap: keys.positive("final_logit_softcapping")?,
            sliding_window: keys.get::<u32>("attention.sliding_window")?.filter(|&w| w > 0),
            rope: read_rope(&keys, head_dim_k, original_context)?,
            rope_base_sliding: keys.positive("rope.freq_base_swa")?,
            original_context,
            yarn_log_multiplier: keys.positive("rope.scaling.yarn_log_multiplier")?.map(f64::from),
            n_expert,
            n_expert_used: keys.count("expert_used_count", n_expert)?,
            causal: keys.get("attention.causal")?.unwrap_or(true),
            pooling: Pooling::ALL[keys.count("pooling_type", Pooling::ALL.len() - 1)?],
            architecture: architecture.clone(),
        })
    }

    /// Those of the first block that predicts further tokens, as a model of one layer.
    pub fn of_nextn(&self) -> Option<Hparams> {
        let [n_head, n_head_kv, n_ff] = self.nextn?;
        Some(Hparams {
            first_block: self.n_layer,
            nextn: None,
            n_layer: 1,
            n_ff: vec![n_ff],
            n_head: vec![n_head],
            n_head_kv: vec![n_head_kv],
            ..self.clone()
        })
    }
}

fn read_answer_begins(keys: &Keys<'_>, n_vocab: usize) -> Result<Option<Token>> {
    const KEY: &str = "decoder_start_token_id";
    match keys.get::<u32>(KEY)? {
        Some(id) if id as usize >= n_vocab => {
            Err(Error::Model(format!("Key `{}` is {id}, of a vocabulary of {n_vocab}", keys.name(KEY))))
        }
        id => Ok(id.map(|id| id as Token)),
    }
}

fn read_n_vocab(file: &File, keys: &Keys<'_>) -> Result<usize> {
    let table =
        file.tensor("token_embd.weight").ok_or_else(|| Error::Model("Tensor `token_embd.weight` is missing".into()))?;
    let n_vocab = usize::try_from(table.shape[1]).unwrap_or(usize::MAX);
    if n_vocab == 0 || n_vocab > i32::MAX as usize {
        return Err(Error::Model(format!("Tensor `token_embd.weight` has {n_vocab} rows")));
    }
    match keys.get::<usize>("vocab_size")? {
        Some(named) if named != n_vocab => {
            let key = keys.name("vocab_size");
            Err(Error::Model(format!("Key `{key}` is {named}, `token_embd.weight` has {n_vocab} rows")))
        }
        _ => Ok(n_vocab),
    }
}

/// The number of rotated values of heads of `head_dim` that a key names.
pub(super) fn read_n_rot(keys: &Keys<'_>, key: &str, default: usize, head_dim: usize) -> Result<usize> {
    let n_rot = keys.optional_size(key, default, MAX_WIDTH)?;
    if n_rot > head_dim || n_rot % 2 != 0 {
        let key = keys.name(key);
        return Err(Error::Model(format!("Key `{key}` is {n_rot}: an even number up to {head_dim} is possible")));
    }
    Ok(n_rot)
}

fn read_rope(keys: &Keys<'_>, head_dim: usize, original_context: u32) -> Result<RopeSpec> {
    let n_rot = read_n_rot(keys, "rope.dimension_count", head_dim, head_dim)?;
    let kind = keys.get::<String>("rope.scaling.type")?;
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(f) => Some(f),
        None => keys.positive("rope.scale_linear")?,
    };
    let factor = f64::from(factor.unwrap_or(1.0));
    let float = |key: &str, default: f64| keys.float(key).map(|v| v.map_or(default, f64::from));
    let attn_factor = float("rope.scaling.attn_factor", 1.0)?;
    let yarn = |ext_factor: f64, attn_factor: f64, (beta_fast, beta_slow): (f64, f64)| RopeScaling::Yarn {
        factor,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
        original_context,
    };
    let scaling = match kind.as_deref() {
        Some("none") => RopeScaling::None,
        // Old files have only a factor, which means linear scaling.
        None | Some("linear" | "longrope") => match (factor == 1.0, attn_factor == 1.0) {
            (true, true) => RopeScaling::None,
            (false, true) => RopeScaling::Linear { factor },
            // Without the blend YaRN is linear scaling, and has a factor on cosines and sines.
            (_, false) => yarn(0.0, attn_factor, (32.0, 1.0)),
        },
        Some("yarn") => {
            let betas = (float("rope.scaling.yarn_beta_fast", 32.0)?, float("rope.scaling.yarn_beta_slow", 1.0)?);
            let own = float("rope.scaling.yarn_attn_factor", 1.0)?;
            yarn(float("rope.scaling.yarn_ext_factor", 1.0)?, own * attn_factor, betas)
        }
        Some(other) => {
            let key = keys.name("rope.scaling.type");
            return Err(Error::Unsupported(format!(
                "Rope scaling `{}` in key `{key}` (known: none, linear, yarn, longrope)",
                shown(other)
            )));
        }
    };
    let freq_base = f64::from(keys.positive("rope.freq_base")?.unwrap_or(10_000.0));
    Ok(RopeSpec { kind: RopeKind::Norm, n_rot, freq_base, scaling, factors: None, long_factors: None })
}
