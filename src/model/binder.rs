//! What every architecture claims tensors with. A bias or a factor that the file has for a matrix or a norm is always
//! taken, whatever the architecture: leaving it out would give wrong results without an error.

use super::decoder::{Decoder, Head};
use super::hparams::{Hparams, read_n_rot};
use super::keys::Keys;
use super::layer::{Attention, Dense, Experts, FeedForward, Heads, Layer, Mixer};
use super::nextn::{Joined, Reads};
use super::pooled::{Classifier, Pooled, Then};
use super::pooling::Pooling;
use super::weights::WeightTable;
use crate::graph::{
    Activation, AttentionSpec, Gating, HeadNorm, Linear, LongFactors, NormKind, NormSpan, NormSpec, RopeKind,
    RopeScaling, RopeSpec, RouteSpec, Stack, Values, WeightId,
};
use crate::{Error, Result};

/// The keys and tensors of one file.
pub(super) struct Binder<'a> {
    pub h: &'a Hparams,
    pub keys: Keys<'a>,
    pub table: WeightTable<'a>,
    /// What the names of layers and of the last norm begin with: empty, but where a file has an encoder and a decoder.
    pub side: &'static str,
    /// The kind of all norms with weights.
    pub norm: NormKind,
    /// Numbers of each state that was claimed.
    pub states: Vec<usize>,
    /// What a block that predicts further tokens has from the model.
    pub ends: Option<Ends>,
}

/// What is before and after the layers.
#[derive(Clone)]
pub(super) struct Ends {
    pub token_embd: WeightId,
    pub output_norm: Option<NormSpec>,
    pub head: Head,
}

/// The keys and tensors of one layer, whose names begin with `blk.` and a number.
pub(super) struct Block<'b, 'a> {
    pub m: &'b mut Binder<'a>,
    /// The layer.
    pub il: usize,
    /// The number in names: the layer, but where a file has an encoder and a decoder, and of a block that predicts
    /// further tokens.
    pub number: usize,
}

impl<'a> Binder<'a> {
    /// The rotary embedding of the file's keys, with this pairing and the file's factors.
    pub fn rope(&mut self, kind: RopeKind) -> Result<RopeSpec> {
        let mut rope = RopeSpec { kind, ..self.h.rope.clone() };
        let pairs = rope.n_rot / 2;
        rope.factors = match self.table.optional_vector("rope_freqs.weight", pairs)? {
            None => self.table.optional_vector("rope_factors_short.weight", pairs)?,
            all => all,
        };
        rope.long_factors = self
            .table
            .optional_vector("rope_factors_long.weight", pairs)?
            .map(|weight| LongFactors { weight, above: self.h.original_context });
        if let (RopeScaling::Yarn { factor, attn_factor, ext_factor, .. }, Some(m)) =
            (&mut rope.scaling, self.h.yarn_log_multiplier)
            && *ext_factor != 0.0
        {
            *attn_factor /= 1.0 + 0.1 * m * factor.ln();
        }
        Ok(rope)
    }

    /// The rotary embedding of sliding layers with heads of `head_dim` that has neither the scaling nor the factors of
    /// the others.
    pub fn sliding_rope(&self, full: &RopeSpec, default_base: f64, head_dim: usize) -> Result<RopeSpec> {
        let n_rot = read_n_rot(&self.keys, "rope.dimension_count_swa", full.n_rot.min(head_dim), head_dim)?;
        let freq_base = self.h.rope_base_sliding.map_or(default_base, f64::from);
        let (scaling, factors, long_factors) = (RopeScaling::None, None, None);
        Ok(RopeSpec { kind: full.kind, n_rot, freq_base, scaling, factors, long_factors })
    }

    /// Which layers have a sliding window: the file's pattern, or all but the last of every `period` layers.
    pub fn sliding(&self, period: usize) -> Result<Vec<bool>> {
        const KEY: &str = "attention.sliding_window_pattern";
        let (h, keys) = (self.h, &self.keys);
        let mut layers = match keys.is_array(KEY) {
            true => keys.per_block(KEY, h.n_block)?.unwrap_or_default().into_iter().map(|v| v != 0).collect(),
            false => {
                let period = keys.get::<usize>(KEY)?.unwrap_or(period);
                (0..h.n_layer).map(|il| period == 0 || il % period < period - 1).collect::<Vec<_>>()
            }
        };
        layers.truncate(h.n_layer);
        Ok(layers)
    }

    /// The window of sliding layers, which the file must name.
    pub fn window(&self) -> Result<u32> {
        self.h.sliding_window.ok_or_else(|| self.keys.missing("attention.sliding_window"))
    }

    /// All layers. Blocks after them, which predict further tokens, are left out.
    pub fn layers(&mut self, layer: impl Fn(&mut Block<'_, 'a>) -> Result<Layer>) -> Result<Vec<Layer>> {
        let (first, n_layer) = (self.h.first_block, self.h.n_layer);
        (first + n_layer..self.h.n_block).for_each(|il| self.table.ignore(&format!("blk.{il}.")));
        (0..n_layer).map(|il| layer(&mut Block { m: self, il, number: first + il })).collect()
    }

    /// A decoder whose layers share one rotary embedding.
    pub fn uniform(&mut self, kind: RopeKind, layer: impl Fn(&mut Block<'_, 'a>) -> Result<Layer>) -> Result<Decoder> {
        let rope = self.rope(kind)?;
        let layers = self.layers(layer)?;
        self.decoder(vec![rope], layers)
    }

    /// The decoder of these layers, with the ends that all have.
    pub fn decoder(&mut self, ropes: Vec<RopeSpec>, mut layers: Vec<Layer>) -> Result<Decoder> {
        let encodes = only_looks_ahead(&layers);
        if encodes {
            share_cache(&mut layers);
        }
        for spec in layers.iter().filter_map(Layer::attention) {
            let rotated = spec.rope.map_or(0, |rope| spec.rope_first + ropes[rope].n_rot);
            if rotated > spec.head_dim_k {
                let (layer, width) = (spec.layer, spec.head_dim_k);
                return Err(Error::Model(format!("Layer {layer}: {rotated} rotated values of heads of {width}")));
            }
        }
        let Ends { token_embd, output_norm, head } = match self.ends.clone() {
            Some(ends) => self.nextn_ends(ends)?,
            None => self.own_ends(encodes)?,
        };
        Ok(Decoder {
            ropes,
            token_embd,
            embed_scale: 1.0,
            token_types: None,
            position_embd: None,
            embd_norm: None,
            per_layer: None,
            altup: None,
            encoder: None,
            layers,
            states: std::mem::take(&mut self.states),
            output_norm,
            head,
            logit_scale: 1.0,
            logit_softcap: self.h.logit_softcap,
            reads: self.joined()?.map(Reads::Joined),
        })
    }

    /// The ends that the file names.
    fn own_ends(&mut self, encodes: bool) -> Result<Ends> {
        let h = self.h;
        let (token_embd, head) = match encodes || h.pooling != Pooling::None {
            false => self.logits()?,
            true => {
                // Never computed, also where the file has it.
                self.table.ignore("output.");
                let token_embd = self.table.table("token_embd.weight", h.n_embd, h.n_vocab)?;
                (token_embd, Head::Pooled(self.pooled(encodes)?))
            }
        };
        // Some families call the last norm as others call that of the embeddings, some encoders have none.
        let own = format!("{}output_norm", self.side);
        let there = self.table.has(&format!("{own}.weight"));
        let last = if there || encodes { own.as_str() } else { "token_embd_norm" };
        let output_norm = match encodes && !there {
            true => None,
            false => Some(self.norm(last, h.n_embd)?),
        };
        Ok(Ends { token_embd, output_norm, head })
    }

    /// The name of a part of the block beside its layer.
    fn nextn_name(&self, part: &str) -> String {
        format!("blk.{}.nextn.{part}", self.h.first_block)
    }

    /// The block's own ends where it has some, and else the model's.
    fn nextn_ends(&mut self, mut ends: Ends) -> Result<Ends> {
        let (n_embd, n_vocab) = (self.h.n_embd, self.h.n_vocab);
        let name = |binder: &Self, part: &str| {
            let stem = binder.nextn_name(part);
            binder.table.has(&format!("{stem}.weight")).then_some(stem)
        };
        if let Some(stem) = name(self, "embed_tokens") {
            ends.token_embd = self.table.table(&format!("{stem}.weight"), n_embd, n_vocab)?;
        }
        if let Some(stem) = name(self, "shared_head_norm") {
            ends.output_norm = Some(self.norm(&stem, n_embd)?);
        }
        if let Some(stem) = name(self, "shared_head_head") {
            ends.head = Head::Logits(self.linear(&stem, n_embd, n_vocab)?);
        }
        Ok(ends)
    }

    /// What joins embeddings and hidden rows, where this is such a block.
    fn joined(&mut self) -> Result<Option<Joined>> {
        if self.ends.is_none() {
            return Ok(None);
        }
        let n_embd = self.h.n_embd;
        let [embedding, hidden, project] = ["enorm", "hnorm", "eh_proj"].map(|part| self.nextn_name(part));
        Ok(Some(Joined {
            embedding: self.norm(&embedding, n_embd)?,
            hidden: self.norm(&hidden, n_embd)?,
            project: self.linear(&project, 2 * n_embd, n_embd)?,
            n_embd,
        }))
    }

    /// The embeddings, and the matrix of the logits, which may be the same.
    fn logits(&mut self) -> Result<(WeightId, Head)> {
        let (h, t) = (self.h, &mut self.table);
        let tied = !t.has("output.weight");
        let token_embd = t.embedding("token_embd.weight", h.n_embd, h.n_vocab, tied)?;
        let output = match tied {
            true => Linear { bias: t.optional_vector("output.bias", h.n_vocab)?, ..Linear::plain(token_embd) },
            false => self.linear("output", h.n_embd, h.n_vocab)?,
        };
        Ok((token_embd, Head::Logits(output)))
    }

    /// What follows the pooling in a model for rows of texts.
    fn pooled(&mut self, encodes: bool) -> Result<Pooled> {
        let (pooling, n_embd) = (self.h.pooling, self.h.n_embd);
        let (then, width) = if self.table.has("cls.weight") || self.table.has("cls.output.weight") {
            let (classifier, width) = self.classifier(encodes)?;
            (Then::Classifier(Box::new(classifier)), width)
        } else if self.table.has("dense_2.weight") {
            let (wide, width) = (self.rows_of("dense_2")?, self.rows_of("dense_3")?);
            let products = vec![self.linear("dense_2", n_embd, wide)?, self.linear("dense_3", wide, width)?];
            (Then::Products(products), width)
        } else {
            (Then::Nothing, 0)
        };
        Ok(Pooled { pooling, then, width })
    }

    /// A classifier, and its number of labels.
    fn classifier(&mut self, encodes: bool) -> Result<(Classifier, usize)> {
        let h = self.h;
        let (mut width, mut hidden, mut output) = (h.n_embd, None, None);
        if self.table.has("cls.weight") {
            let n_in = std::mem::replace(&mut width, self.rows_of("cls")?);
            let norm = if self.table.has("cls.norm.weight") { Some(self.norm("cls.norm", width)?) } else { None };
            hidden = Some((self.linear("cls", n_in, width)?, norm));
        }
        if self.table.has("cls.output.weight") {
            let n_in = std::mem::replace(&mut width, self.rows_of("cls.output")?);
            output = Some(self.linear("cls.output", n_in, width)?);
        }
        let labels = self.keys.strings("classifier.output_labels")?;
        if !labels.is_empty() && labels.len() != width {
            let (key, n) = (self.keys.name("classifier.output_labels"), labels.len());
            return Err(Error::Model(format!("Key `{key}` names {n} labels, the classifier has {width}")));
        }
        let row = if encodes { Pooling::Cls } else { Pooling::Last };
        Ok((Classifier { row, hidden, output, softmax: false }, width))
    }

    /// Rows of a matrix in the file.
    fn rows_of(&self, stem: &str) -> Result<usize> {
        Ok(self.table.shape(&format!("{stem}.weight"))?[1])
    }

    /// A table with a row for each kind of token.
    pub fn token_types(&mut self) -> Result<WeightId> {
        let (name, n_embd) = ("token_types.weight", self.h.n_embd);
        let kinds = self.table.shape(name)?[1];
        self.table.table(name, n_embd, kinds)
    }

    /// A table with a row for each position of the context.
    pub fn positions(&mut self) -> Result<WeightId> {
        self.table.table("position_embd.weight", self.h.n_embd, self.h.n_ctx_train)
    }

    /// A matrix with what belongs to it.
    pub fn linear(&mut self, stem: &str, n_in: usize, n_out: usize) -> Result<Linear> {
        let weight = self.table.matrix(&format!("{stem}.weight"), n_in, n_out)?;
        Ok(Linear { weight, scale: self.scale(stem, 1)?, bias: self.bias(stem, n_out)? })
    }

    fn scale(&mut self, stem: &str, n: usize) -> Result<Option<WeightId>> {
        self.table.optional_vector(&format!("{stem}.scale"), n)
    }

    fn bias(&mut self, stem: &str, n: usize) -> Result<Option<WeightId>> {
        self.table.optional_vector(&format!("{stem}.bias"), n)
    }

    /// A norm over `n` values.
    pub fn norm(&mut self, stem: &str, n: usize) -> Result<NormSpec> {
        // Some families' files name it without the end.
        let bare = self.table.has(stem);
        let weight =
            if bare { self.table.vector(stem, n)? } else { self.table.vector(&format!("{stem}.weight"), n)? };
        Ok(NormSpec { weight: Some(weight), bias: self.bias(stem, n)?, ..self.bare_norm() })
    }

    /// A norm without weights.
    pub fn bare_norm(&self) -> NormSpec {
        NormSpec { kind: self.norm, weight: None, bias: None, eps: self.h.norm_eps }
    }
}

/// Whether all attention is an encoder's.
fn only_looks_ahead(layers: &[Layer]) -> bool {
    let mut specs = layers.iter().filter_map(Layer::attention).peekable();
    specs.peek().is_some() && specs.all(|spec| spec.bidirectional)
}

/// One cache for all layers: keys and values of an encoder are of no use once their layer is done.
pub(super) fn share_cache(layers: &mut [Layer]) {
    let shape = |layer: &Layer| layer.attention().map(|spec| (spec.n_head_kv, spec.head_dim_k, spec.head_dim_v));
    if layers.iter().all(|layer| shape(layer) == shape(&layers[0])) {
        layers.iter_mut().filter_map(Layer::attention_mut).for_each(|spec| spec.layer = 0);
    }
}

impl Block<'_, '_> {
    /// The name of a part of this layer.
    pub fn name(&self, part: &str) -> String {
        format!("{}blk.{}.{part}", self.m.side, self.number)
    }

    /// Whether the file has this tensor of the layer.
    pub fn has(&self, part: &str) -> bool {
        self.m.table.has(&self.name(part))
    }

    /// Leaves out a tensor of the layer where the file has it.
    pub fn ignore(&mut self, part: &str) {
        let name = self.name(part);
        self.m.table.ignore(&name);
    }

    /// A norm of hidden rows.
    pub fn norm(&mut self, part: &str) -> Result<NormSpec> {
        self.m.norm(&self.name(part), self.m.h.n_embd)
    }

    /// A norm of rows of `n`.
    pub fn norm_of(&mut self, part: &str, n: usize) -> Result<NormSpec> {
        self.m.norm(&self.name(part), n)
    }

    /// A matrix with what belongs to it.
    pub fn linear(&mut self, part: &str, n_in: usize, n_out: usize) -> Result<Linear> {
        self.m.linear(&self.name(part), n_in, n_out)
    }

    /// Plain attention with the sizes that the keys name for this layer.
    pub fn spec(&self) -> AttentionSpec {
        let (h, il) = (self.m.h, self.il);
        let mut spec = AttentionSpec::new(il, h.n_head[il], h.n_head_kv[il], h.head_dim_k);
        spec.head_dim_v = h.head_dim_v;
        spec.scale = h.attention_scale.unwrap_or(spec.scale);
        spec.softcap = h.attention_softcap;
        spec.bidirectional = !h.causal;
        spec
    }

    /// Plain attention in which every row sees all of its text.
    pub fn bidirectional(&self) -> AttentionSpec {
        AttentionSpec { bidirectional: true, ..self.spec() }
    }

    /// A norm of query or key heads.
    pub fn head_norm(&mut self, part: &str, n_head: usize, width: usize, span: NormSpan) -> Result<HeadNorm> {
        let name = self.name(part);
        let norm = match span {
            NormSpan::Head(width) => self.m.norm(&name, width)?,
            NormSpan::Row => self.m.norm(&name, n_head * width)?,
            NormSpan::EachHead => {
                let weight = Some(self.m.table.flat(&format!("{name}.weight"), width, n_head)?);
                NormSpec { weight, ..self.m.bare_norm() }
            }
        };
        Ok(HeadNorm { norm, span })
    }

    /// Adds the norms of queries and keys.
    pub fn head_norms(&mut self, mut spec: AttentionSpec, span: NormSpan) -> Result<AttentionSpec> {
        spec.q_norm = Some(self.head_norm("attn_q_norm", spec.n_head, spec.head_dim_k, span)?);
        if spec.writes {
            spec.k_norm = Some(self.head_norm("attn_k_norm", spec.n_head_kv, spec.head_dim_k, span)?);
        }
        Ok(spec)
    }

    /// Adds norms of each head with one weight for all.
    pub fn norms_by_head(&mut self, spec: AttentionSpec) -> Result<AttentionSpec> {
        let span = NormSpan::Head(spec.head_dim_k);
        self.head_norms(spec, span)
    }

    /// Attention with its projections, from one fused matrix or from one for each of q, k and v.
    pub fn attention(&mut self, spec: AttentionSpec) -> Result<Attention> {
        let n_embd = self.m.h.n_embd;
        let (q, k, v) = (spec.q_width(), spec.k_width(), spec.v_width());
        let parts = match self.has("attn_qkv.weight") {
            true => vec![self.linear("attn_qkv", n_embd, q + k + v)?],
            false => {
                let with_v = spec.writes && spec.values == Values::Own;
                let parts = [("attn_q", q, true), ("attn_k", k, spec.writes), ("attn_v", v, with_v)];
                let parts = parts.into_iter().filter(|(.., there)| *there);
                parts.map(|(part, n_out, _)| self.linear(part, n_embd, n_out)).collect::<Result<_>>()?
            }
        };
        let output = if self.has("attn_o.weight") { "attn_o" } else { "attn_output" };
        let output = self.linear(output, spec.n_head * spec.head_dim_v, n_embd)?;
        Ok(Attention { heads: Heads::Projected { parts, clamp: None }, spec, sub_norm: None, output })
    }

    /// The width of the dense feed-forward part, which the file must name.
    pub fn n_ff(&self) -> Result<usize> {
        match self.m.h.n_ff[self.il] {
            0 => Err(self.m.keys.missing("feed_forward_length")),
            n => Ok(n),
        }
    }

    /// A gated unit; where the file has no gate its rows are the first half of `ffn_up`.
    pub fn gated(&mut self, act: Activation) -> Result<Dense> {
        let (n_embd, n_ff) = (self.m.h.n_embd, self.n_ff()?);
        let up = self.name("ffn_up");
        let fused = !self.has("ffn_gate.weight") && self.m.table.shape(&format!("{up}.weight"))?[1] == 2 * n_ff;
        let (gate, up) = match fused {
            true => {
                let name = format!("{up}.weight");
                let mut half = |first| self.m.table.rows(&name, n_embd, 2 * n_ff, first, n_ff).map(Linear::plain);
                (half(0)?, half(n_ff)?)
            }
            false => (self.linear("ffn_gate", n_embd, n_ff)?, self.linear("ffn_up", n_embd, n_ff)?),
        };
        let down = self.linear("ffn_down", n_ff, n_embd)?;
        Ok(Dense { gate, up: Some(up), act, sparse: None, sub_norm: None, down })
    }

    /// A feed-forward part without a gate.
    pub fn plain(&mut self, act: Activation) -> Result<FeedForward> {
        let (n_embd, n_ff) = (self.m.h.n_embd, self.n_ff()?);
        let (gate, down) = (self.linear("ffn_up", n_embd, n_ff)?, self.linear("ffn_down", n_ff, n_embd)?);
        Ok(FeedForward::Dense(Dense { gate, up: None, act, sparse: None, sub_norm: None, down }))
    }

    /// Experts where the layer has a router, else a gated unit; both with SiLU.
    pub fn ffn(&mut self, gating: Gating, normalize: bool) -> Result<FeedForward> {
        Ok(match self.has("ffn_gate_inp.weight") {
            true => FeedForward::Experts(Box::new(self.experts(Activation::Silu, gating, normalize)?)),
            false => FeedForward::Dense(self.gated(Activation::Silu)?),
        })
    }

    /// A mixture of experts, with the shared one where the file has it, gated where the file has gates. `gating` and
    /// `normalize` hold where the file does not name another choice. Matrices are as wide as they are in the file: the
    /// keys for that differ.
    pub fn experts(&mut self, act: Activation, gating: Gating, normalize: bool) -> Result<Experts> {
        let n_embd = self.m.h.n_embd;
        if self.has("ffn_gate.0.weight") {
            let old = self.name("ffn_gate.0.weight");
            let problem = format!("Tensor `{old}`: experts in tensors of their own. Convert the model again");
            return Err(Error::Unsupported(problem));
        }
        let route = self.route(gating, normalize)?;
        let (n, stem) = (self.m.h.n_expert, self.name("ffn_gate_inp"));
        let weight = self.m.table.matrix(&format!("{stem}.weight"), n_embd, n)?;
        let router = Linear { bias: self.m.bias(&stem, n)?, ..Linear::plain(weight) };
        let width = self.m.table.shape(&self.name("ffn_down_exps.weight"))?[0];
        let (gate, up) = match self.has("ffn_gate_up_exps.weight") {
            true => {
                let both = self.stack("ffn_gate_up_exps", n_embd, width.saturating_mul(2))?;
                (Stack { rows: width, ..both }, Some(Stack { rows: width, first: width, ..both }))
            }
            false => {
                let up = self.stack("ffn_up_exps", n_embd, width)?;
                match self.has("ffn_gate_exps.weight") {
                    true => (self.stack("ffn_gate_exps", n_embd, width)?, Some(up)),
                    false => (up, None),
                }
            }
        };
        let down = self.stack("ffn_down_exps", width, n_embd)?;
        let shared = match self.has("ffn_up_shexp.weight") {
            true => Some(self.shared_expert(act)?),
            false => None,
        };
        Ok(Experts { router, route, gate, up, act, down, weighted_input: false, shared })
    }

    fn shared_expert(&mut self, act: Activation) -> Result<(Dense, Option<Linear>)> {
        let n_embd = self.m.h.n_embd;
        let width = self.m.table.shape(&self.name("ffn_up_shexp.weight"))?[1];
        let up = self.linear("ffn_up_shexp", n_embd, width)?;
        let (gate, up) = match self.has("ffn_gate_shexp.weight") {
            true => (self.linear("ffn_gate_shexp", n_embd, width)?, Some(up)),
            false => (up, None),
        };
        let down = self.linear("ffn_down_shexp", width, n_embd)?;
        let dense = Dense { gate, up, act, sparse: None, sub_norm: None, down };
        let gate = match self.has("ffn_gate_inp_shexp.weight") {
            true => Some(self.linear("ffn_gate_inp_shexp", n_embd, 1)?),
            false => None,
        };
        Ok((dense, gate))
    }

    fn route(&mut self, gating: Gating, normalize: bool) -> Result<RouteSpec> {
        let (h, keys) = (self.m.h, self.m.keys);
        for (n, key) in [(h.n_expert, "expert_count"), (h.n_expert_used, "expert_used_count")] {
            if n == 0 {
                return Err(keys.missing(key));
            }
        }
        let gating = match keys.get::<u32>("expert_gating_func")? {
            None | Some(0) => gating,
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(3) => Gating::SoftmaxOfChosen,
            Some(4) => Gating::SqrtSoftplus,
            Some(n) => {
                let key = keys.name("expert_gating_func");
                return Err(Error::Unsupported(format!("Key `{key}` is {n} (known: 1 to 4)")));
            }
        };
        let bias = self.name("exp_probs_b.bias");
        Ok(RouteSpec {
            used: h.n_expert_used,
            gating,
            bias: self.m.table.optional_vector(&bias, h.n_expert)?,
            groups: keys.count("expert_group_count", h.n_expert)?.max(1),
            groups_used: keys.count("expert_group_used_count", h.n_expert)?.max(1),
            normalize: keys.get("expert_weights_norm")?.unwrap_or(normalize),
            scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0),
        })
    }

    /// One tensor with a matrix for each expert.
    fn stack(&mut self, part: &str, n_in: usize, n_out: usize) -> Result<Stack> {
        let (stem, experts) = (self.name(part), self.m.h.n_expert);
        let weight = self.m.table.stack(&format!("{stem}.weight"), n_in, n_out, experts)?;
        let bias = format!("{stem}.bias");
        let bias = if self.m.table.has(&bias) { Some(self.m.table.flat(&bias, n_out, experts)?) } else { None };
        let linear = Linear { weight, scale: self.m.scale(&stem, experts)?, bias };
        Ok(Stack { linear, experts, first: 0, stride: n_out, rows: n_out })
    }

    /// A layer with a norm before each part.
    pub fn pre_norm(&mut self, attention: Attention, ffn: FeedForward) -> Result<Layer> {
        self.pre_norm_named(attention, ffn, "ffn_norm")
    }

    /// A layer with a norm before each part, the second of this name.
    pub fn pre_norm_named(&mut self, attention: Attention, ffn: FeedForward, ffn_norm: &str) -> Result<Layer> {
        self.mixed(vec![Mixer::Attention(Box::new(attention))], Some(ffn), ffn_norm)
    }

    /// A layer of any mixers with a norm before each part, the second of this name.
    pub fn mixed(&mut self, mixers: Vec<Mixer>, ffn: Option<FeedForward>, ffn_norm: &str) -> Result<Layer> {
        let (attn_norm, ffn_norm) = (Some(self.norm("attn_norm")?), Some(self.norm(ffn_norm)?));
        Ok(Layer { attn_norm, ffn_norm, ..Layer::of(mixers, ffn) })
    }

    /// A layer of mixers alone, with a norm before them.
    pub fn alone(&mut self, mixers: Vec<Mixer>) -> Result<Layer> {
        Ok(Layer { attn_norm: Some(self.norm("attn_norm")?), ..Layer::of(mixers, None) })
    }

    /// A layer both of whose parts read its input, through one norm.
    pub fn parallel(&mut self, attention: Attention, ffn: FeedForward) -> Result<Layer> {
        let attn_norm = Some(self.norm("attn_norm")?);
        Ok(Layer { attn_norm, parallel: true, ..Layer::new(attention, ffn) })
    }

    /// A layer with a norm after each part and none before.
    pub fn post_norm(&mut self, attention: Attention, ffn: FeedForward) -> Result<Layer> {
        let post_attn_norm = Some(self.norm("post_attention_norm")?);
        let post_ffn_norm = Some(self.norm("post_ffw_norm")?);
        Ok(Layer { post_attn_norm, post_ffn_norm, ..Layer::new(attention, ffn) })
    }

    /// A layer with a norm after each sum.
    pub fn sum_norm(&mut self, attention: Attention, ffn: FeedForward) -> Result<Layer> {
        let attn_sum_norm = Some(self.norm("attn_output_norm")?);
        let ffn_sum_norm = Some(self.norm("layer_output_norm")?);
        Ok(Layer { attn_sum_norm, ffn_sum_norm, ..Layer::new(attention, ffn) })
    }

    /// A layer with a norm before and one after each part.
    pub fn sandwich(&mut self, attention: Attention, ffn: FeedForward) -> Result<Layer> {
        let (attn_norm, ffn_norm) = (Some(self.norm("attn_norm")?), Some(self.norm("ffn_norm")?));
        Ok(Layer { attn_norm, ffn_norm, ..self.post_norm(attention, ffn)? })
    }
}
