//! What the decoder architectures share: the weights of a layer and of the ends, and the two blocks of a layer.
//!
//! A layer is written as at most nine nodes; the names in the file follow the format's conventions
//! (`blk.<layer>.<part>.weight`).

use super::{Hparams, WeightTable};
use crate::Result;
use crate::graph::{
    Activation, AttentionSpec, Builder, Graph, NodeId, Op, Output, Part, RopeSpec, WeightId, WeightSpec,
};

/// Weights of one layer.
pub(super) struct Layer {
    attn_norm: WeightId,
    qkv: [(WeightId, Option<WeightId>); 3],
    attention: AttentionSpec,
    attn_output: (WeightId, Option<WeightId>),
    post_attn_norm: Option<WeightId>,
    ffn_norm: WeightId,
    ffn_gate: WeightId,
    ffn_up: WeightId,
    ffn_down: WeightId,
    post_ffn_norm: Option<WeightId>,
}

/// What an architecture decides about a layer.
pub(super) struct LayerStyle {
    /// Heads of q and k are normalised.
    pub head_norms: bool,
    /// Each block's output is normalised before it is added.
    pub post_norms: bool,
    /// q, k, v and output may have biases.
    pub biases: bool,
    /// Factor on the attention scores.
    pub scale: f32,
    /// Sliding window of this layer in tokens; 0 = no limit.
    pub window: u32,
    /// Index of this layer's rotary embedding.
    pub rope: usize,
}

impl Layer {
    pub fn bind(h: &Hparams, t: &mut WeightTable<'_>, il: usize, style: &LayerStyle) -> Result<Layer> {
        let (n_head, n_head_kv) = (h.n_head[il], h.n_head_kv[il]);
        let name = |part: &str| format!("blk.{il}.{part}");
        let part = |t: &mut WeightTable<'_>, stem: &str, n_in: usize, n_out: usize| -> Result<_> {
            let weight = t.matrix(&name(&format!("{stem}.weight")), n_in, n_out)?;
            let bias = if style.biases { t.optional_vector(&name(&format!("{stem}.bias")), n_out)? } else { None };
            Ok((weight, bias))
        };
        let qkv = [
            part(t, "attn_q", h.n_embd, n_head * h.head_dim_k)?,
            part(t, "attn_k", h.n_embd, n_head_kv * h.head_dim_k)?,
            part(t, "attn_v", h.n_embd, n_head_kv * h.head_dim_v)?,
        ];
        let attn_output = part(t, "attn_output", n_head * h.head_dim_v, h.n_embd)?;
        let norm = |t: &mut WeightTable<'_>, wanted: bool, stem: &str, n: usize| -> Result<Option<WeightId>> {
            if wanted { t.vector(&name(&format!("{stem}.weight")), n).map(Some) } else { Ok(None) }
        };
        let attention = AttentionSpec {
            layer: il,
            n_head,
            n_head_kv,
            head_dim_k: h.head_dim_k,
            head_dim_v: h.head_dim_v,
            scale: style.scale,
            softcap: h.attention_softcap,
            window: style.window,
            q_norm: norm(t, style.head_norms, "attn_q_norm", h.head_dim_k)?,
            k_norm: norm(t, style.head_norms, "attn_k_norm", h.head_dim_k)?,
            norm_eps: h.norm_eps,
            rope: style.rope,
        };
        Ok(Layer {
            attn_norm: t.vector(&name("attn_norm.weight"), h.n_embd)?,
            qkv,
            attention,
            attn_output,
            post_attn_norm: norm(t, style.post_norms, "post_attention_norm", h.n_embd)?,
            ffn_norm: t.vector(&name("ffn_norm.weight"), h.n_embd)?,
            ffn_gate: t.matrix(&name("ffn_gate.weight"), h.n_embd, h.n_ff[il])?,
            ffn_up: t.matrix(&name("ffn_up.weight"), h.n_embd, h.n_ff[il])?,
            ffn_down: t.matrix(&name("ffn_down.weight"), h.n_ff[il], h.n_embd)?,
            post_ffn_norm: norm(t, style.post_norms, "post_ffw_norm", h.n_embd)?,
        })
    }
}

/// A decoder with its weights bound: what an architecture's file makes, and what emits the graph.
pub(super) struct Decoder {
    ropes: Vec<RopeSpec>,
    token_embd: WeightId,
    embed_scale: f32,
    layers: Vec<Layer>,
    output_norm: WeightId,
    output: WeightId,
    norm_eps: f32,
    activation: Activation,
    logit_softcap: Option<f32>,
}

impl Decoder {
    pub fn bind(
        h: &Hparams,
        t: &mut WeightTable<'_>,
        embed_scale: f32,
        activation: Activation,
        ropes: Vec<RopeSpec>,
        style: impl Fn(usize) -> LayerStyle,
    ) -> Result<Decoder> {
        h.refuse_experts()?;
        let tied = !t.has("output.weight");
        let token_embd = t.embedding("token_embd.weight", h.n_embd, h.n_vocab, tied)?;
        let output = if tied { token_embd } else { t.matrix("output.weight", h.n_embd, h.n_vocab)? };
        let output_norm = t.vector("output_norm.weight", h.n_embd)?;
        let layers = (0..h.n_layer).map(|il| Layer::bind(h, t, il, &style(il))).collect::<Result<_>>()?;
        let (norm_eps, logit_softcap) = (h.norm_eps, h.logit_softcap);
        Ok(Decoder { ropes, token_embd, embed_scale, layers, output_norm, output, norm_eps, activation, logit_softcap })
    }

    /// Graph from tokens to kept hidden rows.
    pub fn body_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        let hidden = self.body(&mut b, true)?;
        b.output(hidden, Output::Hidden);
        Ok(b.finish())
    }

    /// Graph from kept hidden rows to logits.
    pub fn head_graph(&self, specs: &[WeightSpec], n_embd: usize) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        b.part(Part::Head);
        let hidden = b.hidden(n_embd);
        let logits = self.head(&mut b, hidden)?;
        b.output(logits, Output::Logits);
        Ok(b.finish())
    }

    /// Graph from tokens to the logits of every token. The hidden rows are kept as well.
    pub fn decode_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        let hidden = self.body(&mut b, false)?;
        b.output(hidden, Output::Hidden);
        let logits = self.head(&mut b, hidden)?;
        b.output(logits, Output::Logits);
        Ok(b.finish())
    }

    /// Graph from tokens to the logits of the output rows.
    pub fn walk_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        let hidden = self.body(&mut b, true)?;
        let logits = self.head(&mut b, hidden)?;
        b.output(logits, Output::Logits);
        Ok(b.finish())
    }

    /// Graph of the K-shift: rotates the keys of moved positions in every layer.
    pub fn shift_graph(&self, specs: &[WeightSpec]) -> Graph {
        self.cache_graph(specs, Op::ShiftKeys)
    }

    /// Graph that copies cells in every layer.
    pub fn copy_graph(&self, specs: &[WeightSpec]) -> Graph {
        self.cache_graph(specs, Op::CopyCells)
    }

    fn cache_graph(&self, specs: &[WeightSpec], op: fn(Box<AttentionSpec>) -> Op) -> Graph {
        let mut b = Builder::new(specs, &self.ropes);
        for (il, layer) in self.layers.iter().enumerate() {
            b.part(Part::Layer(il));
            b.cache(op(Box::new(layer.attention.clone())));
        }
        b.finish()
    }

    /// From the batch's tokens to the hidden rows after the output norm, of the output rows only or of all.
    fn body(&self, b: &mut Builder<'_>, select: bool) -> Result<NodeId> {
        let mut x = b.embed(self.token_embd, self.embed_scale);
        let eps = self.norm_eps;
        for (il, layer) in self.layers.iter().enumerate() {
            b.part(Part::Layer(il));
            let normed = b.rms_norm(x, layer.attn_norm, eps, None)?;
            let qkv = b.matmul(normed, &layer.qkv, None)?;
            let mut attended = b.attention(qkv, layer.attention.clone())?;
            if select && il + 1 == self.layers.len() {
                // All cells are written now; from here on only the output rows are computed.
                attended = b.select_rows(attended);
                x = b.select_rows(x);
            }
            x = added(b, attended, layer.attn_output, layer.post_attn_norm, eps, x)?;
            let normed = b.rms_norm(x, layer.ffn_norm, eps, None)?;
            let gated = b.gated_matmul(normed, layer.ffn_gate, layer.ffn_up, self.activation)?;
            x = added(b, gated, (layer.ffn_down, None), layer.post_ffn_norm, eps, x)?;
        }
        b.part(Part::Head);
        b.rms_norm(x, self.output_norm, eps, None)
    }

    /// From hidden rows to logits.
    fn head(&self, b: &mut Builder<'_>, hidden: NodeId) -> Result<NodeId> {
        b.part(Part::Head);
        let logits = b.matmul(hidden, &[(self.output, None)], None)?;
        Ok(match self.logit_softcap {
            Some(cap) => b.softcap(logits, cap),
            None => logits,
        })
    }
}

/// `residual + weight · x`, with the product normalised first where the architecture does so.
fn added(
    b: &mut Builder<'_>,
    x: NodeId,
    weight: (WeightId, Option<WeightId>),
    post_norm: Option<WeightId>,
    eps: f32,
    residual: NodeId,
) -> Result<NodeId> {
    match post_norm {
        None => b.matmul(x, &[weight], Some(residual)),
        Some(norm) => {
            let product = b.matmul(x, &[weight], None)?;
            b.rms_norm(product, norm, eps, Some(residual))
        }
    }
}
