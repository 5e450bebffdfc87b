//! The memory of an engine on a device, computed by the same functions that size its buffers.

use super::operations::Size;
use super::state::{check_binding, frame_bytes, state_bytes};
use super::{GpuProgram, walks};
use crate::backend::gpu::device::memory::buffer_bytes;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::ops::kv_cache::KvLayout;
use crate::backend::gpu::sample::queue::Sampler;
use crate::backend::gpu::trie_walk::Walker;
use crate::backend::gpu::weights;
use crate::backend::gpu::weights::matrix::Matrix;
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::backend::memory::{Bytes, Component};
use crate::backend::{CacheSpec, Sizing, Wanted, Work};
use crate::graph::{NodeId, Output, WeightId};
use crate::{Error, Result};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// The sizes that a state and its programs will have.
pub struct GpuSizing {
    gpu: Arc<Gpu>,
    wanted: Wanted,
    /// The groups of `wanted.together`.
    together: HashSet<Vec<WeightId>>,
    cache: u64,
    sequences: usize,
    frame: u64,
    workspace: u64,
    partials: u64,
    params: u64,
    sampler: u64,
    walker: u64,
    reads: u64,
    /// Rotary embeddings in use, with their bytes.
    ropes: BTreeSet<(usize, u64)>,
}

impl GpuSizing {
    /// The state alone.
    pub fn new(gpu: Arc<Gpu>, cache: &CacheSpec, wanted: &Wanted) -> Result<GpuSizing> {
        let mut bytes = 0;
        for (il, shape) in cache.layers.iter().enumerate() {
            let Some(shape) = shape else { continue };
            let layout = KvLayout::new(
                cache.types,
                shape.heads,
                shape.head_dim_k,
                shape.head_dim_v,
                cache.cells[shape.table as usize],
            )?;
            layout.check(&gpu, il)?;
            bytes += buffer_bytes(layout.k_bytes()) + buffer_bytes(layout.v_bytes());
        }
        for &values in cache.states.iter().flatten() {
            bytes += buffer_bytes(state_bytes(&gpu, cache, values)?);
        }
        let (frame, ropes) = (buffer_bytes(frame_bytes(cache.cells)), BTreeSet::new());
        let (workspace, partials) = (buffer_bytes(0), buffer_bytes(0));
        let (wanted, sequences) = (wanted.clone(), cache.sequences);
        let (cache, params, sampler, walker, reads) = (bytes, 0, 0, 0, 0);
        Ok(GpuSizing {
            gpu,
            together: wanted.together.iter().cloned().collect(),
            wanted,
            cache,
            sequences,
            frame,
            workspace,
            partials,
            params,
            sampler,
            walker,
            reads,
            ropes,
        })
    }

    /// Dispatches of a product of these matrices.
    fn slices(&self, work: &Work<'_>, ids: &[WeightId]) -> Result<usize> {
        let spec = |id: &WeightId| &work.specs[id.0 as usize];
        let slices = |first: &WeightId, rows: usize| {
            let spec = spec(first);
            Matrix::slice_bytes(&self.gpu, &spec.name, spec.ty, spec.n_in, rows).map(|slices| slices.len())
        };
        match self.together.contains(ids) && weights::are_joined(work.specs, &self.wanted, ids) {
            true => slices(&ids[0], ids.iter().map(|id| spec(id).n_out).sum()),
            false => ids.iter().map(|id| slices(id, spec(id).n_out)).sum(),
        }
    }
}

impl Sizing for GpuSizing {
    fn program(&mut self, work: &Work<'_>) -> Result<()> {
        let slices = |ids: &[WeightId]| self.slices(work, ids);
        let size = Size::new(&self.gpu, work, &slices)?;
        let workspace_bytes = size.workspace_bytes() as u64;
        let Size { steps, partial_bytes, ropes, .. } = size;
        self.params += GpuProgram::param_bytes(steps);
        if walks(work) {
            self.walker = Walker::bytes(steps);
        }
        check_binding(&self.gpu, "workspace", workspace_bytes)?;
        self.workspace = self.workspace.max(buffer_bytes(workspace_bytes));
        check_binding(&self.gpu, "partial attention", partial_bytes)?;
        self.partials = self.partials.max(buffer_bytes(partial_bytes));
        for rope in ropes {
            let spec = work.graph.ropes.get(rope);
            let spec = spec.ok_or_else(|| Error::Internal(format!("No rotary embedding {rope}")))?;
            self.ropes.insert((rope, RopeTable::bytes(spec.n_rot)));
        }
        let mut nodes = (work.nodes.0..work.nodes.1).map(|i| work.graph.node(NodeId(i)));
        if let Some(node) = nodes.find(|node| node.output == Some(Output::Logits)) {
            self.sampler = Sampler::bytes(node.width, self.sequences);
        }
        Ok(())
    }

    fn reads(&mut self, bytes: usize) {
        if bytes > 0 {
            self.reads = self.reads.max(buffer_bytes(bytes as u64));
        }
    }

    fn bytes(&self) -> Bytes {
        let ropes: u64 = self.ropes.iter().map(|(_, bytes)| bytes).sum();
        let no_token = buffer_bytes(0);
        let mut bytes = Bytes::default();
        bytes.add(Component::Cache, self.cache);
        bytes.add(Component::Workspace, self.workspace);
        let other = [self.frame, self.partials, self.params, self.sampler, self.walker, self.reads, ropes, no_token];
        bytes.add(Component::Other, other.iter().sum());
        bytes
    }
}
