//! Which norms cost no dispatch of their own, in batches of one row, and what products of many rows make of their rows
//! first.
//!
//! A product with one row reads its whole input in every workgroup anyway, so it can also normalise it: a norm that
//! only products read is *taken along* by each of them. A norm after a block, `sum = residual + norm(y)`, can be fused
//! too when such a norm and its product follow: the product computes the sum from `residual` and `y`, and its first
//! workgroup stores it for later readers. It is then *joined* to that product.
//!
//! The plan reuses the memory of a joined norm's sources before the product runs, and places the sum where the residual
//! is, which the other workgroups still read. So `y` and the sums of a program are stored after all places of the plan,
//! in three areas: one for `y`, two for the sums in turn. After these is room for the narrow rows of one product.

use crate::backend::Work;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::ops::matmul::VECTOR_ROWS;
use crate::backend::gpu::ops::narrow::Narrow;
use crate::backend::gpu::weights::layout::Layout;
use crate::graph::{Node, NodeId, Op, WeightId};
use std::collections::{HashMap, HashSet};

/// Areas start at multiples of this many bytes.
const ALIGN: usize = 256;

/// The norms that cost no dispatch of their own, and the products whose rows are made narrow.
#[derive(Default)]
pub struct Fusions {
    taken: HashSet<NodeId>,
    /// The norm that is joined to a product.
    joined: HashMap<NodeId, NodeId>,
    /// The norms that are joined to one.
    sums: HashSet<NodeId>,
    /// Byte offsets of the nodes that are not at the plan's offset.
    moved: HashMap<NodeId, usize>,
    /// The products whose rows are made narrow first, and the byte offset of the room for that.
    narrow: HashMap<NodeId, Narrow>,
    narrow_at: usize,
    /// Bytes of the workspace, with those of the plan.
    pub workspace_bytes: usize,
}

impl Fusions {
    /// Decide for the nodes that `work` computes.
    pub fn new(gpu: &Gpu, work: &Work<'_>) -> Fusions {
        let view = View { work };
        let mut fusions = Fusions { workspace_bytes: work.workspace_bytes, ..Fusions::default() };
        fusions.taken.extend(view.nodes().filter(|&id| view.can_be_taken(id)));
        let joins: Vec<NodeId> = view.nodes().filter(|&id| view.can_be_joined(id, &fusions.taken)).collect();
        if !joins.is_empty() {
            fusions.join(&view, joins);
        }
        let narrow = |id: NodeId| Some((id, view.narrow(gpu, view.work.graph.node(id))?));
        let narrow: Vec<(NodeId, (Narrow, usize))> = view.nodes().filter_map(narrow).collect();
        if let Some(most) = narrow.iter().map(|(_, (_, bytes))| *bytes).max() {
            fusions.narrow_at = fusions.workspace_bytes.next_multiple_of(ALIGN);
            fusions.workspace_bytes = fusions.narrow_at + most;
            fusions.narrow.extend(narrow.into_iter().map(|(id, (narrow, _))| (id, narrow)));
        }
        fusions
    }

    /// Joins norms to the products after them, where the areas are free.
    fn join(&mut self, view: &View<'_>, joins: Vec<NodeId>) {
        let work = view.work;
        let end = work.workspace_bytes.next_multiple_of(ALIGN);
        let widest = joins.iter().map(|&id| work.graph.node(id).width * 4).max().unwrap_or(0);
        let area = |i: usize| end + i * widest.next_multiple_of(ALIGN);
        // The last sum in each of the two areas.
        let mut sums: [Option<NodeId>; 2] = [None; 2];
        for id in joins {
            let (y, product) = (work.graph.node(id).src[0], after(id, 2));
            // A product that writes to its own input would be read while it is written.
            let busy = self.joined.contains_key(&y);
            let free = |holder: &Option<NodeId>| holder.is_none_or(|sum| view.last_reader(sum) < Some(id));
            let Some(turn) = sums.iter().position(free).filter(|_| !busy) else { continue };
            sums[turn] = Some(id);
            self.moved.extend([(y, area(0)), (id, area(1 + turn))]);
            self.joined.insert(product, id);
            self.sums.insert(id);
        }
        self.workspace_bytes = area(3);
    }

    /// What a product makes of its rows first, and the byte offset of the room for that.
    pub fn narrow(&self, product: NodeId) -> Option<(Narrow, usize)> {
        self.narrow.get(&product).map(|&narrow| (narrow, self.narrow_at))
    }

    /// Whether a norm is computed by the products that read it, or by the one it is joined to.
    pub fn is_fused(&self, id: NodeId) -> bool {
        self.taken.contains(&id) || self.sums.contains(&id)
    }

    /// The norm that is joined to this product.
    pub fn joined(&self, product: NodeId) -> Option<NodeId> {
        self.joined.get(&product).copied()
    }

    /// The byte offset of a node, which the plan puts at `offset`.
    pub fn place(&self, id: NodeId, offset: usize) -> usize {
        self.moved.get(&id).copied().unwrap_or(offset)
    }
}

/// The node `n` places after this one.
fn after(id: NodeId, n: u32) -> NodeId {
    NodeId(id.0 + n)
}

/// Queries about a program's graph.
struct View<'a> {
    work: &'a Work<'a>,
}

impl<'a> View<'a> {
    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (self.work.nodes.0..self.work.nodes.1).map(NodeId)
    }

    fn readers(&self, of: NodeId) -> impl Iterator<Item = (NodeId, &'a Node)> {
        self.work.readers.of_node(of).iter().map(|&id| (id, self.work.graph.node(id)))
    }

    fn last_reader(&self, of: NodeId) -> Option<NodeId> {
        self.work.readers.of_node(of).last().copied()
    }

    fn bytes(&self, node: &Node) -> usize {
        self.work.max_rows(node.rows) * node.width * 4
    }

    /// What a product makes of its rows first, and the bytes of that.
    fn narrow(&self, gpu: &Gpu, node: &Node) -> Option<(Narrow, usize)> {
        let rows = Some(self.work.max_rows(node.rows)).filter(|&rows| rows > VECTOR_ROWS)?;
        let of = |id: WeightId| {
            let spec = &self.work.specs[id.0 as usize];
            Layout::new(spec.ty, spec.n_in).ok().and_then(|layout| Narrow::of(gpu, layout.format))
        };
        let narrow = match &node.op {
            // A product of one column has a kernel of its own.
            Op::MatMul(parts) if node.width != 1 => parts.iter().find_map(|part| of(part.weight)),
            Op::GatedMatMul { gate, .. } => of(gate.weight),
            _ => None,
        };
        let width = self.work.graph.node(*node.src.first()?).width;
        narrow.map(|narrow| (narrow, narrow.bytes(width, rows)))
    }

    /// A norm whose rows products can norm themselves.
    fn is_short(&self, node: &Node) -> bool {
        matches!(&node.op, Op::Norm { norm, groups: 1 } if norm.plain().is_some())
            && node.output.is_none()
            && self.work.max_rows(node.rows) <= 1
    }

    fn can_be_taken(&self, id: NodeId) -> bool {
        let node = self.work.graph.node(id);
        let product = |(reader, n): (NodeId, &Node)| {
            let multiplies = match &n.op {
                Op::MatMul(_) => true,
                // With two biases as well a kernel would have more buffers than devices can bind.
                Op::GatedMatMul { gate, up, .. } => gate.bias.is_none() && up.is_none_or(|up| up.bias.is_none()),
                _ => false,
            };
            multiplies && n.src.first() == Some(&id) && !n.src[1..].contains(&id) && self.work.computes(reader)
        };
        let Some(last) = self.last_reader(id) else { return false };
        // A node that is read after the last product keeps the input from being overwritten before that.
        let stands = |x: NodeId| self.readers(x).any(|(reader, _)| reader > last && self.work.computes(reader));
        self.is_short(node) && node.src.len() == 1 && self.readers(id).all(product) && stands(node.src[0])
    }

    /// Whether a norm with a residual can be joined to the product after it. The nodes must be, one directly after the
    /// other: product `y`, this norm, a norm that is taken along, its product.
    fn can_be_joined(&self, id: NodeId, taken: &HashSet<NodeId>) -> bool {
        let graph = self.work.graph;
        let node = graph.node(id);
        let &[y, residual] = &node.src[..] else { return false };
        let (norm, product) = (after(id, 1), after(id, 2));
        let in_order = after(y, 1) == id
            && self.work.computes(y)
            && self.work.computes(product)
            && taken.contains(&norm)
            && graph.node(norm).src == [id]
            && graph.node(product).src.first() == Some(&norm);
        // No other node reads y or the residual from here on, and none reads the sum before the product has written it.
        let mut sum_readers = self.readers(id).map(|(reader, _)| reader).filter(|&reader| reader != norm);
        let ours = in_order
            && matches!(graph.node(y).op, Op::MatMul(_))
            && self.readers(y).count() == 1
            && self.last_reader(residual) == Some(id)
            && sum_readers.all(|reader| reader > product && self.work.computes(reader));
        // The residual is a moved sum, or its place is the one that the plan gave to this node, or no other node took
        // its place.
        let apart = |a: NodeId, b: NodeId| {
            let range = |id: NodeId| (self.work.offsets[id.0 as usize], self.bytes(graph.node(id)));
            let ((a, a_bytes), (b, b_bytes)) = (range(a), range(b));
            a + a_bytes <= b || b + b_bytes <= a
        };
        ours && self.is_short(node) && apart(residual, product)
    }
}
