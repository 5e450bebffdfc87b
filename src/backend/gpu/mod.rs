//! The GPU backend: WGSL kernels through wgpu, on Vulkan, Metal or DX12.
//!
//! The rooms, each of which imports only those before it:
//!
//! * `device/`: adapters and logical devices, buffers, waits, copies of results to the host; `quirks.rs` lists the
//!   drivers that are refused;
//! * `shaders/`: the texts of all kernels;
//! * `kernel/`: a device with its kernels ([`Gpu`]), how they are compiled and kept on disk, a dispatch as data;
//! * `weights/`: a model's weights on the device, repacked ([`weights::layout`]), and RoPE tables;
//! * `ops/`: the operations of a graph as dispatches: products, attention, norms, the KV cache;
//! * `probe/`: known-answer tests, which every kernel has to pass at load;
//! * `sample/`: sampling on the device;
//! * `trie_walk/`: the kernel that goes through a trie between two passes;
//! * `program/`: from a graph to a list of dispatches, what an engine keeps on the device, and how much that takes;
//! * `testing/`: helpers that the tests of these rooms share.
//!
//! Up to 8 rows are multiplied with weights of exactly the values that their format defines, and sums are f32: unlike
//! on the CPU, activations are not quantised. More rows become narrow first where the hardware is faster with those
//! (`ops::matmul`).

pub mod device;
pub mod kernel;
mod ops;
mod probe;
mod program;
pub mod sample;
mod shaders;
#[cfg(test)]
mod testing;
mod trie_walk;
mod weights;

pub use kernel::Gpu;

use super::{
    Backend, CacheSpec, DeviceInfo, DeviceKind, LoadProgress, Program, Sizing, State, Wanted, WeightBytes, Weights,
    Work,
};
use crate::Result;
use crate::backend::memory::Memory;
use crate::gguf::File;
use crate::graph::{Node, WeightSpec};
use device::{Adapter, adapters, bandwidth, name_of};
use program::{GpuProgram, operations, sizing::GpuSizing, state::GpuState};
use std::sync::Arc;

/// One GPU with its kernels.
pub struct GpuBackend {
    gpu: Arc<Gpu>,
}

/// The adapters of this machine as devices, with their memory.
pub fn devices() -> Vec<(DeviceInfo, Memory)> {
    let info = |a: Adapter| {
        let memory = a.memory();
        let info = DeviceInfo {
            name: name_of(&a.info),
            kind: DeviceKind::Gpu,
            score: a.score,
            reason: a.reason,
            shader_compiler: a.shader_compiler,
        };
        (info, memory)
    };
    adapters().into_iter().map(info).collect()
}

impl GpuBackend {
    /// For each of `wanted` the best adapter not yet taken whose name contains it.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open(wanted: &[Option<&str>]) -> Result<Vec<GpuBackend>> {
        Ok(Gpu::open(wanted)?.into_iter().map(GpuBackend::on).collect())
    }

    /// A backend on a device that the caller opened.
    pub fn on(gpu: Arc<Gpu>) -> GpuBackend {
        GpuBackend { gpu }
    }
}

impl Backend for GpuBackend {
    fn device(&self) -> DeviceInfo {
        let gpu = &self.gpu;
        DeviceInfo {
            name: name_of(&gpu.info),
            kind: DeviceKind::Gpu,
            score: gpu.score,
            reason: gpu.reason.clone(),
            shader_compiler: gpu.shader_compiler,
        }
    }

    fn supports(&self, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        operations::supports(&self.gpu, node, specs)
    }

    fn load(
        &self,
        file: &File,
        specs: &[WeightSpec],
        wanted: &Wanted,
        _: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Weights> {
        let weights = self.gpu.guard(|| weights::load(&self.gpu, file, specs, wanted, progress))?;
        Ok(Weights(Arc::new(weights)))
    }

    fn new_state(&self, cache: &CacheSpec, _: usize) -> Result<Box<dyn State>> {
        Ok(Box::new(self.gpu.guard(|| GpuState::new(self.gpu.clone(), cache))?))
    }

    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>> {
        Ok(Box::new(self.gpu.guard(|| GpuProgram::new(self.gpu.clone(), work, weights))?))
    }

    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
        weights::bytes(&self.gpu, specs, wanted)
    }

    fn sizing(&self, cache: &CacheSpec, wanted: &Wanted, _: usize) -> Result<Box<dyn Sizing>> {
        Ok(Box::new(GpuSizing::new(self.gpu.clone(), cache, wanted)?))
    }

    fn bandwidth(&self, _: usize) -> Result<f64> {
        self.gpu.guard(|| bandwidth::measure(&self.gpu))
    }

    fn memory(&self) -> Result<Memory> {
        Ok(self.gpu.memory())
    }
}
