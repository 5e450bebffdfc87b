//! Hyperparameters: the keys of a decoder model, with the format's defaults, checked for range.

use crate::gguf::{File, FromValue, Value, shown};
use crate::graph::{RopeKind, RopeScaling, RopeSpec, WeightId};
use crate::{Error, Result};

/// Upper bounds far above those of any model; a file beyond them is broken, and refusing it keeps all later products of
/// sizes within 64 bits.
const MAX_LAYERS: usize = 4096;
const MAX_WIDTH: usize = 1 << 20;

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
    /// Repeating layers.
    pub n_layer: usize,
    /// Width of the feed-forward part, per layer.
    pub n_ff: Vec<usize>,
    /// Query heads, per layer.
    pub n_head: Vec<usize>,
    /// Key and value heads, per layer.
    pub n_head_kv: Vec<usize>,
    /// Width of a query or key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Epsilon of the RMS norms.
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
    /// Experts of a mixture model; 0 for a dense one.
    pub n_expert: u32,
}

/// Reads keys under the architecture's prefix.
struct Keys<'a> {
    file: &'a File,
    prefix: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>> {
        self.file.get(&self.name(key))
    }

    /// A float that must be finite.
    fn float(&self, key: &str) -> Result<Option<f32>> {
        match self.get::<f32>(key)? {
            Some(v) if !v.is_finite() => Err(Error::Model(format!("Key `{}` is {v}", self.name(key)))),
            other => Ok(other),
        }
    }

    /// A float where 0 means "absent".
    fn positive(&self, key: &str) -> Result<Option<f32>> {
        match self.float(key)? {
            Some(v) if v < 0.0 => Err(Error::Model(format!("Key `{}` is negative ({v})", self.name(key)))),
            other => Ok(other.filter(|&v| v > 0.0)),
        }
    }

    fn check(&self, key: &str, v: usize, max: usize) -> Result<usize> {
        if v == 0 || v > max {
            return Err(Error::Model(format!("Key `{}` is {v}, 1 to {max} are possible", self.name(key))));
        }
        Ok(v)
    }

    fn size(&self, key: &str, max: usize) -> Result<usize> {
        self.check(key, self.file.require(&self.name(key))?, max)
    }

    fn optional_size(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        match self.get::<usize>(key)? {
            Some(v) => self.check(key, v, max),
            None => Ok(default),
        }
    }

    /// A key that is one number for all layers, or an array with one per layer.
    fn per_layer(&self, key: &str, n_layer: usize) -> Result<Option<Vec<usize>>> {
        let name = self.name(key);
        let values = match self.file.value(&name) {
            None => return Ok(None),
            Some(Value::Array(_)) => {
                let values = self.file.integers(&name)?.unwrap_or_default();
                if values.len() != n_layer {
                    let have = values.len();
                    return Err(Error::Model(format!("Key `{name}` has {have} values for {n_layer} layers")));
                }
                values.into_iter().map(|v| usize::try_from(v).unwrap_or(usize::MAX)).collect()
            }
            Some(_) => vec![self.file.require::<usize>(&name)?; n_layer],
        };
        for &v in &values {
            self.check(key, v, MAX_WIDTH)?;
        }
        Ok(Some(values))
    }
}

impl Hparams {
    /// Read and check the keys.
    ///
    /// # Errors
    /// [`Error::Model`] naming a key that is missing, of another type or out of range.
    pub fn read(file: &File) -> Result<Hparams> {
        let architecture: String = file.require("general.architecture")?;
        let keys = Keys { file, prefix: &architecture };
        let missing = |key: &str| Error::Model(format!("Key `{}` is missing", keys.name(key)));

        let table = file
            .tensor("token_embd.weight")
            .ok_or_else(|| Error::Model("Tensor `token_embd.weight` is missing".into()))?;
        let n_vocab = usize::try_from(table.shape[1]).unwrap_or(usize::MAX);
        if n_vocab == 0 || n_vocab > i32::MAX as usize {
            return Err(Error::Model(format!("Tensor `token_embd.weight` has {n_vocab} rows")));
        }
        if let Some(named) = keys.get::<usize>("vocab_size")?
            && named != n_vocab
        {
            let key = keys.name("vocab_size");
            return Err(Error::Model(format!("Key `{key}` is {named}, `token_embd.weight` has {n_vocab} rows")));
        }

        let n_layer = keys.size("block_count", MAX_LAYERS)?;
        let n_embd = keys.size("embedding_length", MAX_WIDTH)?;
        let n_head = keys.per_layer("attention.head_count", n_layer)?.ok_or_else(|| missing("attention.head_count"))?;
        let n_head_kv = keys.per_layer("attention.head_count_kv", n_layer)?.unwrap_or_else(|| n_head.clone());
        for (il, (&q, &kv)) in n_head.iter().zip(&n_head_kv).enumerate() {
            if q % kv != 0 {
                return Err(Error::Model(format!("Layer {il} has {q} query heads, no multiple of its {kv} KV heads")));
            }
        }
        let head_dim_k = keys.optional_size("attention.key_length", (n_embd / n_head[0]).max(1), MAX_WIDTH)?;
        let head_dim_v = keys.optional_size("attention.value_length", (n_embd / n_head[0]).max(1), MAX_WIDTH)?;
        let n_ctx_train = keys.size("context_length", i32::MAX as usize)?;
        let norm_eps = keys
            .positive("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| missing("attention.layer_norm_rms_epsilon"))?;
        let n_expert = keys.get::<u32>("expert_count")?.unwrap_or(0);
        let n_ff = keys.per_layer("feed_forward_length", n_layer)?.ok_or_else(|| missing("feed_forward_length"))?;
        let rope = read_rope(&keys, head_dim_k, n_ctx_train)?;

        Ok(Hparams {
            n_vocab,
            n_ctx_train,
            n_embd,
            n_layer,
            n_ff,
            n_head,
            n_head_kv,
            head_dim_k,
            head_dim_v,
            norm_eps,
            attention_scale: keys.positive("attention.scale")?,
            attention_softcap: keys.positive("attn_logit_softcapping")?,
            logit_softcap: keys.positive("final_logit_softcapping")?,
            sliding_window: keys.get::<u32>("attention.sliding_window")?.filter(|&w| w > 0),
            rope,
            rope_base_sliding: keys.positive("rope.freq_base_swa")?,
            n_expert,
            architecture: architecture.clone(),
        })
    }

    /// The rotary embedding with an architecture's pairing and factors.
    pub fn rope(&self, kind: RopeKind, factors: Option<WeightId>) -> RopeSpec {
        RopeSpec { kind, factors, ..self.rope.clone() }
    }

    /// An error for a mixture-of-experts file, which the dense architectures cannot run.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a file with experts.
    pub fn refuse_experts(&self) -> Result<()> {
        if self.n_expert > 0 {
            let (arch, n) = (&self.architecture, self.n_expert);
            return Err(Error::Unsupported(format!("Mixture of experts (`{arch}.expert_count` is {n})")));
        }
        Ok(())
    }
}

fn read_rope(keys: &Keys<'_>, head_dim: usize, n_ctx_train: usize) -> Result<RopeSpec> {
    let n_rot = keys.optional_size("rope.dimension_count", head_dim, MAX_WIDTH)?;
    if n_rot > head_dim || n_rot % 2 != 0 {
        let key = keys.name("rope.dimension_count");
        return Err(Error::Model(format!("Key `{key}` is {n_rot}: an even number up to {head_dim} is possible")));
    }
    let kind = keys.get::<String>("rope.scaling.type")?;
    let factor = match keys.positive("rope.scaling.factor")? {
        Some(f) => Some(f),
        None => keys.positive("rope.scale_linear")?,
    };
    let factor = f64::from(factor.unwrap_or(1.0));
    let float = |key: &str, default: f64| keys.float(key).map(|v| v.map_or(default, f64::from));
    let scaling = match kind.as_deref() {
        Some("none") => RopeScaling::None,
        // Old files have only a factor, which means linear scaling.
        None | Some("linear") if factor == 1.0 => RopeScaling::None,
        None | Some("linear") => RopeScaling::Linear { factor },
        Some("yarn") => RopeScaling::Yarn {
            factor,
            ext_factor: float("rope.scaling.yarn_ext_factor", 1.0)?,
            attn_factor: float("rope.scaling.yarn_attn_factor", 1.0)? * float("rope.scaling.attn_factor", 1.0)?,
            beta_fast: float("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: float("rope.scaling.yarn_beta_slow", 1.0)?,
            original_context: keys
                .get::<u32>("rope.scaling.original_context_length")?
                .filter(|&n| n > 0)
                .unwrap_or(n_ctx_train as u32),
        },
        Some(other) => {
            let key = keys.name("rope.scaling.type");
            return Err(Error::Unsupported(format!(
                "Rope scaling `{}` in key `{key}` (known: none, linear, yarn)",
                shown(other)
            )));
        }
    };
    let freq_base = f64::from(keys.positive("rope.freq_base")?.unwrap_or(10_000.0));
    Ok(RopeSpec { kind: RopeKind::Norm, n_rot, freq_base, scaling, factors: None })
}
