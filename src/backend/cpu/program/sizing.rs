//! The sizes that an engine's memory on the CPU will have, before anything is loaded.

use super::demand::AREAS;
use super::ops;
use super::state::Caches;
use crate::Result;
use crate::backend::cpu::kernels::attention::SplitSpace;
use crate::backend::memory::{Bytes, Component};
use crate::backend::{CacheSpec, Sizing, Work};

/// The sizes that [`CpuState`](super::state::CpuState) will have in the end.
pub struct CpuSizing {
    caches: Caches,
    threads: usize,
    workspace: usize,
    areas: [usize; AREAS],
    routing: usize,
    rope: usize,
    thread: usize,
    split: usize,
}

impl CpuSizing {
    pub fn new(cache: &CacheSpec, threads: usize) -> Result<CpuSizing> {
        let caches = Caches::new(cache)?;
        Ok(CpuSizing { caches, threads, workspace: 0, areas: [0; AREAS], routing: 0, rope: 0, thread: 0, split: 0 })
    }
}

impl Sizing for CpuSizing {
    fn program(&mut self, work: &Work<'_>) -> Result<()> {
        let (demand, caches) = (ops::lower(work)?.demand, &self.caches);
        caches.check(&demand)?;
        let parts = demand.attentions.iter().map(|spec| SplitSpace::floats(caches.layout(spec.layer), spec.n_head) * 4);
        self.split = parts.max().unwrap_or(0).max(self.split);
        self.thread = self.thread.max(demand.thread_bytes(|layer| caches.layout(layer)));
        self.workspace = self.workspace.max(work.workspace_bytes);
        for (area, &bytes) in self.areas.iter_mut().zip(&demand.area_bytes) {
            *area = bytes.max(*area);
        }
        self.routing = self.routing.max(demand.routing * 4);
        self.rope = self.rope.max(demand.rope_bytes);
        Ok(())
    }

    /// Rows are read where they stand.
    fn reads(&mut self, _: usize) {}

    fn bytes(&self) -> Bytes {
        let areas: usize = self.areas.iter().sum();
        let other = areas + self.routing + self.rope + self.thread * self.threads + self.split;
        let mut bytes = Bytes::default();
        bytes.add(Component::Cache, (self.caches.bytes + self.caches.state_bytes()) as u64);
        bytes.add(Component::Workspace, self.workspace as u64);
        bytes.add(Component::Other, other as u64);
        bytes
    }
}
