//! Builds a graph node by node and checks every width against the weights.

use super::{
    Activation, AttentionSpec, Coefficients, ConvSpec, DistanceBias, Function, Graph, HeadNorm, Index, Linear,
    MAX_EXPERT_GROUPS, MAX_KEYS, MAX_SOURCES, MAX_TAPS, Node, NodeId, NormSpan, NormSpec, Op, Output, Part, RecurSpec,
    RopeSpec, RouteSpec, Rows, Rule, Stack, WeightId, WeightSpec,
};
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

    /// The width of the rows that a matrix multiplies.
    pub fn input_width(&self, linear: &Linear) -> usize {
        self.weight(linear.weight).n_in
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

    /// An error unless `y` has rows like `x`, so wide.
    fn check_rows(&self, x: NodeId, y: NodeId, width: usize, what: impl Fn() -> String) -> Result<()> {
        let (x, y) = (self.graph.node(x), self.graph.node(y));
        if y.rows != x.rows || y.width != width {
            return Err(Error::Model(format!("{} gives rows of {width}, what is added has {}", what(), y.width)));
        }
        Ok(())
    }

    fn check_norm(&self, norm: &NormSpec, width: usize) -> Result<()> {
        norm.weight.into_iter().chain(norm.bias).try_for_each(|weight| self.check_vector(weight, width))
    }

    /// The output width of a product with rows of `n_in`.
    fn check_linear(&self, linear: &Linear, n_in: usize) -> Result<usize> {
        self.check_input(linear.weight, n_in)?;
        let n_out = self.weight(linear.weight).n_out;
        if let Some(bias) = linear.bias {
            self.check_vector(bias, n_out)?;
        }
        if let Some(scale) = linear.scale {
            self.check_vector(scale, 1)?;
        }
        Ok(n_out)
    }

    /// An error unless the stack's rows fit its weight and whole panels of 16, in which backends take matrices apart,
    /// and the route chooses among its experts.
    fn check_stack(&self, stack: &Stack, route: NodeId, n_in: usize) -> Result<()> {
        self.check_input(stack.linear.weight, n_in)?;
        let w = self.weight(stack.linear.weight);
        let fits = stack.experts > 0
            && stack.first + stack.rows <= stack.stride
            && stack.stride.checked_mul(stack.experts) == Some(w.n_out);
        if !fits {
            let problem = format!("Tensor `{}` has {} rows for {} experts", w.name, w.n_out, stack.experts);
            return Err(Error::Model(problem));
        }
        if [stack.first, stack.stride, stack.rows].iter().any(|n| n % 16 != 0) {
            let problem = format!("Tensor `{}`: {} rows for each expert, no multiple of 16", w.name, stack.stride);
            return Err(Error::Unsupported(problem));
        }
        let logits = self.graph.node(route).src.first().map_or(0, |&logits| self.graph.node(logits).width);
        if logits != stack.experts {
            let problem = format!("Tensor `{}` is of {} experts, the router of {logits}", w.name, stack.experts);
            return Err(Error::Model(problem));
        }
        if let Some(bias) = stack.linear.bias {
            self.check_vector(bias, w.n_out)?;
        }
        if let Some(scale) = stack.linear.scale {
            self.check_vector(scale, stack.experts)?;
        }
        Ok(())
    }

    /// See [`Op::Embed`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn embed(&mut self, table: WeightId, scale: f32, index: Index, residual: Option<NodeId>) -> Result<NodeId> {
        let width = self.weight(table).n_in;
        if let Some(residual) = residual {
            self.check_rows(residual, residual, width, || format!("Tensor `{}`", self.weight(table).name))?;
        }
        Ok(self.push(Op::Embed { table, scale, index }, residual.into_iter().collect(), width, Rows::Batch))
    }

    /// See [`Op::Hidden`].
    pub fn hidden(&mut self, width: usize, rows: Rows) -> NodeId {
        self.push(Op::Hidden, vec![], width, rows)
    }

    /// See [`Op::SelectRows`].
    pub fn select_rows(&mut self, x: NodeId) -> NodeId {
        let width = self.graph.node(x).width;
        self.push(Op::SelectRows, vec![x], width, Rows::Output)
    }

    /// See [`Op::Norm`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn norm(&mut self, x: NodeId, norm: NormSpec, residual: Option<NodeId>) -> Result<NodeId> {
        self.norm_groups(x, norm, 1, residual)
    }

    /// See [`Op::Norm`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn norm_groups(
        &mut self,
        x: NodeId,
        norm: NormSpec,
        groups: usize,
        residual: Option<NodeId>,
    ) -> Result<NodeId> {
        let (width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        if groups == 0 || !width.is_multiple_of(groups) {
            return Err(Error::Model(format!("Rows of {width} in {groups} parts")));
        }
        // One weight for all parts, or one for each.
        let whole = norm.weight.is_some_and(|weight| self.weight(weight).n_in == width);
        self.check_norm(&norm, if whole { width } else { width / groups })?;
        let mut src = vec![x];
        if let Some(residual) = residual {
            self.check_rows(x, residual, width, || "A norm".to_string())?;
            src.push(residual);
        }
        Ok(self.push(Op::Norm { norm, groups }, src, width, rows))
    }

    /// See [`Op::MatMul`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn matmul(&mut self, x: NodeId, parts: &[Linear], residual: Option<NodeId>) -> Result<NodeId> {
        let (n_in, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let mut width = 0;
        for part in parts {
            width += self.check_linear(part, n_in)?;
        }
        let mut src = vec![x];
        if let Some(residual) = residual {
            self.check_rows(x, residual, width, || {
                let names: Vec<_> = parts.iter().map(|part| self.weight(part.weight).name.as_str()).collect();
                format!("Tensors {names:?}")
            })?;
            src.push(residual);
        }
        Ok(self.push(Op::MatMul(parts.to_vec()), src, width, rows))
    }

    /// See [`Op::GatedMatMul`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn gated_matmul(&mut self, x: NodeId, gate: Linear, up: Option<Linear>, act: Activation) -> Result<NodeId> {
        let (n_in, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let width = self.check_linear(&gate, n_in)?;
        if let Some(up) = &up {
            let other = self.check_linear(up, n_in)?;
            if other != width {
                let (gate, up) = (&self.weight(gate.weight).name, &self.weight(up.weight).name);
                return Err(Error::Model(format!("Tensors `{gate}` and `{up}` have {width} and {other} rows")));
            }
        }
        Ok(self.push(Op::GatedMatMul { gate, up, act }, vec![x], width, rows))
    }

    /// See [`Op::Map`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn map(&mut self, x: NodeId, function: Function) -> Result<NodeId> {
        let (width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        if let Function::ScaleBy(weight) = function {
            self.check_vector(weight, if self.weight(weight).n_in == 1 { 1 } else { width })?;
        }
        Ok(self.push(Op::Map(function), vec![x], width, rows))
    }

    /// See [`Op::Add`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn add(&mut self, x: NodeId, scale: f32, y: NodeId) -> Result<NodeId> {
        let (width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        self.check_rows(x, y, width, || "A block".to_string())?;
        Ok(self.push(Op::Add { scale }, vec![x, y], width, rows))
    }

    /// See [`Op::Gate`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn gate(
        &mut self,
        x: NodeId,
        y: NodeId,
        first: usize,
        act: Activation,
        residual: Option<NodeId>,
    ) -> Result<NodeId> {
        let (x_width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let y_width = self.graph.node(y).width;
        let width = if x_width == 1 { y_width } else { x_width };
        if first + width > y_width || self.graph.node(y).rows != rows {
            return Err(Error::Model(format!("A gate of {width} columns over {y_width}, from column {first}")));
        }
        let mut src = vec![x, y];
        if let Some(residual) = residual {
            self.check_rows(x, residual, width, || "A gate".to_string())?;
            src.push(residual);
        }
        Ok(self.push(Op::Gate { act, first }, src, width, rows))
    }

    /// See [`Op::Mix`]. Coefficients of rows are `by`'s.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn mix(
        &mut self,
        x: NodeId,
        parts: usize,
        coefficients: Coefficients,
        by: Option<NodeId>,
        residual: Option<NodeId>,
    ) -> Result<NodeId> {
        let (x_width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let n = match (&coefficients, by) {
            (Coefficients::Fixed(values), None) => values.len(),
            (Coefficients::OfRow { .. }, Some(by)) if self.graph.node(by).rows == rows => self.graph.node(by).width,
            _ => return Err(Error::Internal("Parts are mixed by coefficients of other rows".into())),
        };
        if parts == 0 || n == 0 || !x_width.is_multiple_of(parts) || !n.is_multiple_of(parts) {
            return Err(Error::Model(format!("Rows of {x_width} in {parts} parts, mixed by {n} coefficients")));
        }
        let sums = n / parts;
        let width = x_width / parts * sums;
        if let Some(residual) = residual {
            self.check_rows(x, residual, width, || "A mixture of parts".to_string())?;
        }
        let src = [x].into_iter().chain(by).chain(residual).collect();
        Ok(self.push(Op::Mix { parts, sums, coefficients }, src, width, rows))
    }

    /// See [`Op::Equalize`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn equalize(&mut self, x: NodeId, y: NodeId) -> Result<NodeId> {
        let (x_width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let y_width = self.graph.node(y).width;
        if self.graph.node(y).rows != rows || y_width == 0 || !x_width.is_multiple_of(y_width) {
            return Err(Error::Model(format!("Rows of {x_width} are no parts of {y_width}")));
        }
        Ok(self.push(Op::Equalize, vec![x, y], y_width + x_width, rows))
    }

    /// See [`Op::Sparsify`].
    pub fn sparsify(&mut self, x: NodeId, deviations: f32) -> NodeId {
        let (width, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        self.push(Op::Sparsify { deviations }, vec![x], width, rows)
    }

    /// See [`Op::Attention`]. `q` holds q, or without `kv` also k and v.
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn attention(&mut self, q: NodeId, kv: Option<NodeId>, spec: AttentionSpec) -> Result<NodeId> {
        if spec.n_head == 0 || spec.n_head_kv == 0 {
            return Err(Error::Model(format!("Layer {} has attention and no heads", spec.layer)));
        }
        let (have, rows) = (self.graph.node(q).width, self.graph.node(q).rows);
        let with_kv = kv.map_or(0, |kv| self.graph.node(kv).width);
        let want = if kv.is_some() { spec.q_width() } else { spec.q_width() + spec.kv_width() };
        if have != want || kv.is_some() && with_kv != spec.kv_width() {
            let (have, want) = (have + with_kv, spec.q_width() + spec.kv_width());
            let problem = format!("Layer {}: q, k and v have {have} columns, {want} are needed", spec.layer);
            return Err(Error::Model(problem));
        }
        if kv.is_some_and(|kv| self.graph.node(kv).rows != rows) || spec.writes && rows != Rows::Batch {
            return Err(Error::Internal(format!("Layer {}: rows of keys are not those of the batch", spec.layer)));
        }
        let norms = [(spec.q_norm, spec.n_head), (spec.k_norm, spec.n_head_kv)];
        for (HeadNorm { norm, span }, heads) in norms.into_iter().filter_map(|(norm, heads)| Some((norm?, heads))) {
            self.check_norm(
                &norm,
                match span {
                    NormSpan::Head(width) => width.min(spec.head_dim_k),
                    NormSpan::EachHead | NormSpan::Row => heads * spec.head_dim_k,
                },
            )?;
        }
        if let Some(DistanceBias { weight, buckets }) = spec.distance {
            self.check_vector(weight, spec.n_head * buckets)?;
        }
        if let Some(sinks) = spec.sinks {
            self.check_vector(sinks, spec.n_head)?;
        }
        let width = spec.n_head * spec.head_dim_v;
        let src = [q].into_iter().chain(kv).collect();
        Ok(self.push(Op::Attention(Box::new(spec)), src, width, rows))
    }

    /// See [`Op::HeadMatMul`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit, [`Error::Unsupported`] for matrices of no multiple of 16 rows.
    pub fn head_matmul(&mut self, x: NodeId, weight: WeightId, heads: usize, keep: usize) -> Result<NodeId> {
        let (have, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        let w = self.weight(weight);
        if heads == 0 || have != heads * (w.n_in + keep) || !w.n_out.is_multiple_of(heads) {
            let problem = format!("Tensor `{}`: matrices for {heads} heads do not fit rows of {have}", w.name);
            return Err(Error::Model(problem));
        }
        let n_out = w.n_out / heads;
        if !n_out.is_multiple_of(16) {
            let problem = format!("Tensor `{}`: {n_out} rows for each head, no multiple of 16", w.name);
            return Err(Error::Unsupported(problem));
        }
        Ok(self.push(Op::HeadMatMul { weight, heads, keep }, vec![x], heads * (n_out + keep), rows))
    }

    /// See [`Op::Route`].
    ///
    /// # Errors
    /// [`Error::Model`] where the numbers do not fit.
    pub fn route(&mut self, logits: NodeId, spec: RouteSpec) -> Result<NodeId> {
        let (experts, rows) = (self.graph.node(logits).width, self.graph.node(logits).rows);
        let RouteSpec { used, groups, groups_used, .. } = spec;
        let grouped = groups >= 1 && experts.is_multiple_of(groups) && (1..=groups).contains(&groups_used);
        if used == 0 || !grouped || used > experts / groups.max(1) * groups_used {
            return Err(Error::Model(format!(
                "{used} of {experts} experts in {groups_used} of {groups} groups are no possible choice"
            )));
        }
        if groups > MAX_EXPERT_GROUPS {
            return Err(Error::Unsupported(format!(
                "{groups} groups of experts, at most {MAX_EXPERT_GROUPS} are known"
            )));
        }
        if let Some(bias) = spec.bias {
            self.check_vector(bias, experts)?;
        }
        Ok(self.push(Op::Route(spec), vec![logits], 2 * used, rows))
    }

    /// See [`Op::ExpertGate`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit, [`Error::Unsupported`] for matrices of no multiple of 16 rows.
    pub fn expert_gate(
        &mut self,
        x: NodeId,
        route: NodeId,
        (gate, up): (Stack, Option<Stack>),
        act: Activation,
        weighted: bool,
    ) -> Result<NodeId> {
        let (n_in, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        self.check_stack(&gate, route, n_in)?;
        if let Some(up) = &up {
            self.check_stack(up, route, n_in)?;
            if gate.rows != up.rows || gate.experts != up.experts {
                return Err(Error::Model(format!("Experts of {} and {} rows", gate.rows, up.rows)));
            }
        }
        let width = self.graph.node(route).width / 2 * gate.rows;
        Ok(self.push(Op::ExpertGate { gate, up, act, weighted }, vec![x, route], width, rows))
    }

    /// See [`Op::ExpertDown`].
    ///
    /// # Errors
    /// As [`Builder::expert_gate`].
    pub fn expert_down(
        &mut self,
        gated: NodeId,
        route: NodeId,
        down: Stack,
        weighted: bool,
        residual: Option<NodeId>,
    ) -> Result<NodeId> {
        let (have, rows) = (self.graph.node(gated).width, self.graph.node(gated).rows);
        self.check_stack(&down, route, have / (self.graph.node(route).width / 2).max(1))?;
        let mut src = vec![gated, route];
        if let Some(residual) = residual {
            self.check_rows(gated, residual, down.rows, || "Experts".to_string())?;
            src.push(residual);
        }
        Ok(self.push(Op::ExpertDown { down, weighted }, src, down.rows, rows))
    }

    /// See [`Op::Columns`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn columns(&mut self, x: NodeId, parts: usize, first: usize, width: usize) -> Result<NodeId> {
        let (have, rows) = (self.graph.node(x).width, self.graph.node(x).rows);
        if parts == 0 || !have.is_multiple_of(parts) || first + width > have / parts {
            return Err(Error::Model(format!("Columns {first} to {} of {parts} parts of {have}", first + width)));
        }
        Ok(self.push(Op::Columns { parts, first }, vec![x], parts * width, rows))
    }

    /// See [`Op::Conv`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit, [`Error::Unsupported`] for sizes that no kernel has.
    pub fn conv(&mut self, x: NodeId, spec: ConvSpec) -> Result<NodeId> {
        let (have, channels) = (self.graph.node(x).width, spec.channels);
        if !(2..=MAX_TAPS).contains(&spec.taps) || !channels.is_multiple_of(16) {
            let problem = format!("A convolution of {} taps over {channels} columns (2 to {MAX_TAPS}, 16n)", spec.taps);
            return Err(Error::Unsupported(problem));
        }
        if spec.first + channels > have {
            return Err(Error::Model(format!("A convolution of {channels} columns in rows of {have}")));
        }
        match spec.weight {
            Some(weight) => self.check_vector(weight, spec.taps * channels)?,
            None if spec.taps == 2 && spec.bias.is_none() && spec.act == Activation::Identity => {}
            None => return Err(Error::Internal("A difference is of two rows alone".into())),
        }
        if ![Activation::Identity, Activation::Silu].contains(&spec.act) {
            return Err(Error::Internal(format!("A convolution with {:?}", spec.act)));
        }
        if let Some(bias) = spec.bias {
            self.check_vector(bias, channels)?;
        }
        self.of_batch(&[x], "A convolution")?;
        Ok(self.push(Op::Conv(Box::new(spec)), vec![x], channels, Rows::Batch))
    }

    /// See [`Op::Recur`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit, [`Error::Unsupported`] for sizes that no kernel has.
    pub fn recur(&mut self, src: &[NodeId], spec: RecurSpec) -> Result<NodeId> {
        let RecurSpec { heads, keys, values, key_heads, .. } = spec;
        let own_keys = matches!(spec.rule, Rule::Wkv6 { .. } | Rule::Wkv7 { .. });
        if heads == 0 || key_heads == 0 || !heads.is_multiple_of(key_heads) || own_keys && heads != key_heads {
            return Err(Error::Model(format!("A recurrence of {heads} heads, {key_heads} of keys")));
        }
        let by_value = matches!(spec.rule, Rule::Scan { .. });
        let whole = values.is_multiple_of(16) && (!by_value || keys.is_multiple_of(16));
        if !(1..=MAX_KEYS).contains(&keys) || values == 0 || !whole {
            let problem = format!("A state of {keys} keys, {values} values a head (up to {MAX_KEYS}, 16n)");
            return Err(Error::Unsupported(problem));
        }
        if src.len() > MAX_SOURCES {
            return Err(Error::Internal(format!("A recurrence of {} sources", src.len())));
        }
        for (columns, n) in spec.inputs() {
            let have = src.get(columns.src).map_or(0, |&src| self.graph.node(src).width);
            if columns.first + n > have {
                let first = columns.first;
                return Err(Error::Model(format!(
                    "A recurrence's input of {n} columns from {first} in rows of {have}"
                )));
            }
        }
        spec.vectors().try_for_each(|(weight, n)| self.check_vector(weight, n))?;
        self.of_batch(src, "A recurrence")?;
        Ok(self.push(Op::Recur(Box::new(spec)), src.to_vec(), spec.width(), Rows::Batch))
    }

    /// An error unless all these nodes have a row for each of the batch.
    fn of_batch(&self, nodes: &[NodeId], what: &str) -> Result<()> {
        match nodes.iter().all(|&node| self.graph.node(node).rows == Rows::Batch) {
            true => Ok(()),
            false => Err(Error::Internal(format!("{what} of rows that are not those of the batch"))),
        }
    }

    /// See [`Op::WriteKeys`].
    ///
    /// # Errors
    /// [`Error::Model`] where the shapes do not fit.
    pub fn write_keys(&mut self, kv: NodeId, spec: AttentionSpec) -> Result<NodeId> {
        let (have, want) = (self.graph.node(kv).width, spec.kv_width());
        if have != want {
            let problem = format!("Layer {}: k and v have {have} columns, {want} are needed", spec.layer);
            return Err(Error::Model(problem));
        }
        self.of_batch(&[kv], "Keys")?;
        Ok(self.push(Op::WriteKeys(Box::new(spec)), vec![kv], 0, Rows::Batch))
    }

    /// A node that changes only the cache: [`Op::ShiftKeys`] or [`Op::CopyCells`].
    pub fn cache(&mut self, op: Op) -> NodeId {
        self.push(op, vec![], 0, Rows::Batch)
    }
}
