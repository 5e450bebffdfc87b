//! Builds a graph node by node and checks every width against the weights.

use super::{Activation, AttentionSpec, Graph, Node, NodeId, Op, Output, Part, RopeSpec, Rows, WeightId, WeightSpec};
use crate::{Error, Result};

/// Appends nodes to a graph over a model's weight table.
pub struct Builder<'a> {
    weights: &'a [WeightSpec],
    graph: Graph,
    part: Part,
}

impl<'a> Builder<'a> {
    /// An empty graph over these weights.
    pub fn new(weights: &'a [WeightSpec], ropes: &[RopeSpec]) -> Self {
        Builder { weights, graph: Graph { nodes: Vec::new(), ropes: ropes.to_vec() }, part: Part::Embedding }
    }

    /// Sets the part of the model that later nodes belong to.
    pub fn part(&mut self, part: Part) {
        self.part = part;
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    fn push(&mut self, op: Op, src: Vec<NodeId>, width: usize, rows: Rows) -> NodeId {
        self.graph.nodes.push(Node { op, src, width, rows, part: self.part, output: None });
        NodeId(self.graph.nodes.len() as u32 - 1)
    }

    fn weight(&self, id: WeightId) -> &'a WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// An error unless the weight's input width is `width`.
    fn check_input(&self, id: WeightId, width: usize) -> Result<()> {
        let w = self.weight(id);
        if w.n_in != width {
            return Err(Error::Model(format!("Tensor `{}` has rows of {}, its input has {width}", w.name, w.n_in)));
        }
        Ok(())
    }

    fn check_vector(&self, id: WeightId, width: usize) -> Result<()> {
        self.check_input(id, width)?;
        let w = self.weight(id);
        if w.n_out != 1 {
            return Err(Error::Model(format!("Tensor `{}` has {} rows, a vector was expected", w.name, w.n_out)));
        }
        Ok(())
    }

    /// Mark a node as an output of the graph.
    pub fn output(&mut self, id: NodeId, output: Output) {
        self.graph.nodes[id.0 as usize].output = Some(output);
    }

    /// See [`Op::Embed`].
    pub fn embed(&mut self, table: WeightId, scale: f32) -> NodeId {
        let width = self.weight(table).n_in;
        self.push(Op::Embed { table, scale }, vec![], width, Rows::Batch)
    }

    /// See [`Op::Hidden`].
    pub fn hidden(&mut self, width: usize) -> NodeId {
        self.push(Op::Hidden, vec![], width, Rows::Output)
    }

    /// See [`Op::SelectRows`].
    pub fn select_rows(&mut self, x: NodeId) -> NodeId {
        let width = self.graph.node(x).width;
        self.push(Op::SelectRows, vec![x], width, Rows::Output)
    }

    /// See [`Op::RmsNorm`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn rms_norm(&mut self, x: NodeId, weight: WeightId, eps: f32, residual: Option<NodeId>) -> Result<NodeId> {
        let (width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        self.check_vector(weight, width)?;
        let mut src = vec![x];
        src.extend(residual);
        Ok(self.push(Op::RmsNorm { weight, eps }, src, width, rows))
    }

    /// See [`Op::MatMul`]. `parts` pairs each matrix with its bias.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn matmul(
        &mut self,
        x: NodeId,
        parts: &[(WeightId, Option<WeightId>)],
        residual: Option<NodeId>,
    ) -> Result<NodeId> {
        let (n_in, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let mut width = 0;
        for &(weight, bias) in parts {
            self.check_input(weight, n_in)?;
            let n_out = self.weight(weight).n_out;
            if let Some(bias) = bias {
                self.check_vector(bias, n_out)?;
            }
            width += n_out;
        }
        if let Some(r) = residual
            && (self.graph.node(r).width != width || self.graph.node(r).rows != rows)
        {
            let names: Vec<_> = parts.iter().map(|(w, _)| self.weight(*w).name.as_str()).collect();
            let have = self.graph.node(r).width;
            return Err(Error::Model(format!("Tensors {names:?} give rows of {width}, the residual has {have}")));
        }
        let mut src = vec![x];
        src.extend(residual);
        let (weights, biases) = parts.iter().copied().unzip();
        Ok(self.push(Op::MatMul { weights, biases }, src, width, rows))
    }

    /// See [`Op::GatedMatMul`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn gated_matmul(&mut self, x: NodeId, gate: WeightId, up: WeightId, act: Activation) -> Result<NodeId> {
        let (n_in, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        self.check_input(gate, n_in)?;
        self.check_input(up, n_in)?;
        let (g, u) = (self.weight(gate), self.weight(up));
        if g.n_out != u.n_out {
            let (gn, un) = (g.n_out, u.n_out);
            return Err(Error::Model(format!("Tensors `{}` and `{}` have {gn} and {un} rows", g.name, u.name)));
        }
        let width = g.n_out;
        Ok(self.push(Op::GatedMatMul { gate, up, act }, vec![x], width, rows))
    }

    /// See [`Op::Attention`]. `qkv` holds q, k and v side by side.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn attention(&mut self, qkv: NodeId, spec: AttentionSpec) -> Result<NodeId> {
        let node = self.graph.node(qkv);
        let want = spec.q_width() + spec.k_width() + spec.v_width();
        if node.width != want {
            let problem = format!("Layer {}: q, k and v have {} columns, {want} are needed", spec.layer, node.width);
            return Err(Error::Model(problem));
        }
        let rows = node.rows;
        for norm in [spec.q_norm, spec.k_norm].into_iter().flatten() {
            self.check_vector(norm, spec.head_dim_k)?;
        }
        let width = spec.n_head * spec.head_dim_v;
        Ok(self.push(Op::Attention(Box::new(spec)), vec![qkv], width, rows))
    }

    /// A node that changes only the cache: [`Op::ShiftKeys`] or [`Op::CopyCells`].
    pub fn cache(&mut self, op: Op) -> NodeId {
        self.push(op, vec![], 0, Rows::Batch)
    }

    /// See [`Op::SoftCap`].
    pub fn softcap(&mut self, x: NodeId, cap: f32) -> NodeId {
        let (width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        self.push(Op::SoftCap { cap }, vec![x], width, rows)
    }
}
