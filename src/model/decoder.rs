//! A decoder or an encoder with its weights bound: the ends around its layers, and the graphs that an engine runs.

use super::altup::Widening;
use super::layer::{Layer, Streams};
use super::nextn::Reads;
use super::pooled::{Classifier, Pooled, Then};
use crate::Result;
use crate::graph::{
    AttentionSpec, Builder, Function, Graph, Index, Linear, NodeId, NormSpec, Op, Output, Part, RopeSpec, Rows,
    WeightId, WeightSpec,
};

/// A decoder with its weights bound: what an architecture's function makes, and what emits the graphs.
pub(super) struct Decoder {
    pub ropes: Vec<RopeSpec>,
    pub token_embd: WeightId,
    /// Factor on the tokens' embeddings.
    pub embed_scale: f32,
    /// A table of the kinds of tokens, all of which are of the first.
    pub token_types: Option<WeightId>,
    /// A table of rows that are added by position.
    pub position_embd: Option<WeightId>,
    /// Norm of the embeddings.
    pub embd_norm: Option<NormSpec>,
    pub per_layer: Option<PerLayerEmbedding>,
    /// What makes a residual stream of several parts, and one row of them at the end.
    pub altup: Option<Widening>,
    /// What reads the text that is answered, before the layers.
    pub encoder: Option<Encoder>,
    pub layers: Vec<Layer>,
    /// Numbers of each state that the layers keep.
    pub states: Vec<usize>,
    pub output_norm: Option<NormSpec>,
    pub head: Head,
    /// Factor on the logits.
    pub logit_scale: f32,
    pub logit_softcap: Option<f32>,
    /// What it reads beside the tokens, or in their place, where it predicts further tokens for a model.
    pub reads: Option<Reads>,
}

/// The encoder of an encoder-decoder: it reads a text as a whole, of which the decoder's layers have keys and values.
pub(super) struct Encoder {
    pub layers: Vec<Layer>,
    pub output_norm: NormSpec,
    /// Of each layer that attends to the text: what makes keys and values, and how they are kept.
    pub keys: Vec<([Linear; 2], AttentionSpec)>,
}

/// What hidden rows are for.
#[derive(Clone)]
pub(super) enum Head {
    /// The logits of the next token.
    Logits(Linear),
    /// Rows of whole texts.
    Pooled(Pooled),
}

/// What makes the embeddings of a token for all layers: `(norm(project · x · projected) + table[token] · looked_up) ·
/// sum`.
pub(super) struct PerLayerEmbedding {
    pub project: Linear,
    pub projected: f32,
    /// Norm of each layer's part.
    pub norm: NormSpec,
    pub table: WeightId,
    pub looked_up: f32,
    pub sum: f32,
}

impl Decoder {
    /// Graph from tokens to kept hidden rows.
    pub fn body_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        let hidden = self.body(&mut b, true)?;
        b.output(hidden, Output::Hidden);
        Ok(b.finish())
    }

    /// Graph from kept hidden rows to logits, or from kept rows of texts to what the model makes of them.
    pub fn head_graph(&self, specs: &[WeightSpec], n_embd: usize) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        b.part(Part::Head);
        let hidden = b.hidden(n_embd, Rows::Output);
        let logits = self.head(&mut b, hidden)?;
        b.output(logits, Output::Logits);
        Ok(b.finish())
    }

    /// Graph from tokens to the logits of every token, or to what a model for texts makes of every row. The hidden rows
    /// are kept as well.
    pub fn decode_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        self.decode(&mut b)?;
        Ok(b.finish())
    }

    /// Graph from a text's tokens to the keys and values that layers have of it, where there is an encoder.
    pub fn encode_graph(&self, specs: &[WeightSpec]) -> Result<Option<Graph>> {
        let Some(encoder) = &self.encoder else { return Ok(None) };
        let mut b = Builder::new(specs, &self.ropes);
        self.encode(&mut b, encoder)?;
        Ok(Some(b.finish()))
    }

    /// Every node that any graph computes: what encodes, and then what decodes.
    pub fn whole_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        if let Some(encoder) = &self.encoder {
            self.encode(&mut b, encoder)?;
        }
        self.decode(&mut b)?;
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

    /// Graph from tokens to the embeddings that the first layer reads, as kept hidden rows.
    pub fn embedding_graph(&self, specs: &[WeightSpec]) -> Result<Graph> {
        let mut b = Builder::new(specs, &self.ropes);
        let x = b.embed(self.token_embd, self.embed_scale, Index::Token, None)?;
        b.output(x, Output::Hidden);
        Ok(b.finish())
    }

    /// As [`Decoder::decode_graph`], where layer i attends to what the model's layer `of[i]` keeps.
    pub fn assistant_graph(&self, specs: &[WeightSpec], of: &[usize]) -> Result<Graph> {
        let mut graph = self.decode_graph(specs)?;
        for node in &mut graph.nodes {
            if let Op::Attention(spec) = &mut node.op {
                spec.layer = of[spec.layer];
            }
        }
        Ok(graph)
    }

    /// Graph of the K-shift: rotates the keys of moved positions in every layer that has keys, and rotates them.
    pub fn shift_graph(&self, specs: &[WeightSpec]) -> Graph {
        self.cache_graph(specs, Op::ShiftKeys, |spec| spec.rope.is_some())
    }

    /// Graph that copies cells in every layer that has keys.
    pub fn copy_graph(&self, specs: &[WeightSpec]) -> Graph {
        self.cache_graph(specs, Op::CopyCells, |_| true)
    }

    fn cache_graph(
        &self,
        specs: &[WeightSpec],
        op: fn(Box<AttentionSpec>) -> Op,
        concerns: fn(&AttentionSpec) -> bool,
    ) -> Graph {
        let mut b = Builder::new(specs, &self.ropes);
        for (il, layer) in self.layers.iter().enumerate() {
            if let Some(spec) = layer.attention().filter(|spec| spec.writes && concerns(spec)) {
                b.part(Part::Layer(self.first_layer() + il));
                b.cache(op(Box::new(spec.clone())));
            }
        }
        b.finish()
    }

    /// What a model for rows of texts has in place of an output matrix.
    pub fn pooled(&self) -> Option<&Pooled> {
        match &self.head {
            Head::Logits(_) => None,
            Head::Pooled(pooled) => Some(pooled),
        }
    }

    /// The classifier of such a model, where it has one.
    pub fn classifier(&mut self) -> Option<&mut Classifier> {
        match &mut self.head {
            Head::Pooled(Pooled { then: Then::Classifier(classifier), .. }) => Some(classifier),
            _ => None,
        }
    }

    /// The attention of each layer, of those that have one.
    pub fn attentions(&self) -> impl Iterator<Item = Option<&AttentionSpec>> {
        let encoder = self.encoder.iter().flat_map(|encoder| &encoder.layers);
        encoder.chain(&self.layers).map(Layer::attention)
    }

    /// The number of the first layer after those of an encoder.
    fn first_layer(&self) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| encoder.layers.len())
    }

    fn encode(&self, b: &mut Builder<'_>, encoder: &Encoder) -> Result<()> {
        let mut streams = self.embeddings(b)?;
        for (il, layer) in encoder.layers.iter().enumerate() {
            b.part(Part::Layer(il));
            streams = layer.emit(b, streams, false)?;
        }
        let x = b.norm(streams.x, encoder.output_norm, None)?;
        for (matrices, spec) in &encoder.keys {
            b.part(Part::Layer(spec.layer));
            let keys = b.matmul(x, matrices, None)?;
            b.write_keys(keys, spec.clone())?;
        }
        Ok(())
    }

    /// From tokens to the logits of all rows, or to what becomes of rows of texts.
    fn decode(&self, b: &mut Builder<'_>) -> Result<()> {
        let hidden = self.body(b, false)?;
        let kept = match &self.reads {
            Some(Reads::Assistant(assistant)) => b.matmul(hidden, &[assistant.after], None)?,
            _ => hidden,
        };
        b.output(kept, Output::Hidden);
        if self.pooled().is_none_or(|pooled| pooled.then != Then::Nothing) {
            let logits = self.head(b, hidden)?;
            b.output(logits, Output::Logits);
        }
        Ok(())
    }

    /// From the batch's tokens to the hidden rows after the output norm, of the output rows only or of all.
    fn body(&self, b: &mut Builder<'_>, select: bool) -> Result<NodeId> {
        let mut streams = self.embeddings(b)?;
        // After the last layer that a later token needs only output rows are computed.
        let last = self.layers.iter().rposition(Layer::is_remembered);
        for (il, layer) in self.layers.iter().enumerate() {
            b.part(Part::Layer(self.first_layer() + il));
            streams = layer.emit(b, streams, select && last == Some(il))?;
        }
        let x = match &self.altup {
            Some(altup) => altup.narrow(b, streams.x)?,
            None => streams.x,
        };
        b.part(Part::Head);
        match self.output_norm {
            Some(norm) => b.norm(x, norm, None),
            None => Ok(x),
        }
    }

    fn embeddings(&self, b: &mut Builder<'_>) -> Result<Streams> {
        if let Some(Reads::Assistant(assistant)) = &self.reads {
            b.part(Part::Layer(0));
            return Ok(Streams { x: assistant.emit(b)?, per_layer: None, first_values: None });
        }
        b.part(Part::Embedding);
        let mut x = b.embed(self.token_embd, self.embed_scale, Index::Token, None)?;
        if let Some(table) = self.token_types {
            x = b.embed(table, 1.0, Index::First, Some(x))?;
        }
        if let Some(table) = self.position_embd {
            x = b.embed(table, 1.0, Index::Position, Some(x))?;
        }
        if let Some(norm) = self.embd_norm {
            x = b.norm(x, norm, None)?;
        }
        if let Some(Reads::Joined(joined)) = &self.reads {
            b.part(Part::Layer(0));
            x = joined.emit(b, x)?;
        }
        let per_layer = self.per_layer_embeddings(b, x)?;
        if let Some(altup) = &self.altup {
            x = altup.widen(b, x)?;
        }
        Ok(Streams { x, per_layer, first_values: None })
    }

    /// The embeddings of all layers, where there are any.
    fn per_layer_embeddings(&self, b: &mut Builder<'_>, x: NodeId) -> Result<Option<NodeId>> {
        let Some(all) = &self.per_layer else { return Ok(None) };
        let projected = b.matmul(x, &[all.project], None)?;
        let projected = b.map(projected, Function::Scale(all.projected))?;
        let normed = b.norm_groups(projected, all.norm, self.layers.len(), None)?;
        let sum = b.embed(all.table, all.looked_up, Index::Token, Some(normed))?;
        Ok(Some(b.map(sum, Function::Scale(all.sum))?))
    }

    /// From hidden rows to logits, or from rows of texts to what follows.
    fn head(&self, b: &mut Builder<'_>, hidden: NodeId) -> Result<NodeId> {
        b.part(Part::Head);
        let output = match &self.head {
            Head::Logits(output) => *output,
            Head::Pooled(pooled) => return pooled.emit(b, hidden),
        };
        let mut logits = b.matmul(hidden, &[output], None)?;
        if self.logit_scale != 1.0 {
            logits = b.map(logits, Function::Scale(self.logit_scale))?;
        }
        match self.logit_softcap {
            Some(cap) => b.map(logits, Function::SoftCap(cap)),
            None => Ok(logits),
        }
    }
}
