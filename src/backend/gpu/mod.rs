//! The GPU backend: WGSL kernels through wgpu, on Vulkan, Metal or DX12.
//!
//! `device.rs` finds adapters and holds the device; `kernel.rs` makes kernels of shader texts, `compile.rs` and
//! `disk.rs` see to their pipelines, and `probe.rs` tries them at load; `step.rs` says what a dispatch is.
//! `product.rs`, `heads.rs`, `attend.rs` and `rows.rs` build the steps of operations; `fusion.rs` says which need none,
//! `lower.rs` strings them together for a graph, and `program.rs` runs them over an engine's buffers in `state.rs`.
//!
//! Weights are used exactly as their format says, sums are f32: no activation is rounded to fewer bits here.

mod affine;
pub mod attend;
mod bandwidth;
#[cfg(test)]
mod bed;
mod compile;
pub mod device;
mod disk;
mod format;
mod fusion;
pub mod heads;
pub mod kernel;
pub mod kv;
mod lower;
pub mod matrix;
pub mod memory;
mod pack;
mod probe;
pub mod product;
mod program;
pub mod quirks;
mod readback;
pub mod restrict;
pub mod rows;
pub mod sample;
mod sampler;
pub mod shaders;
mod sizing;
mod state;
pub mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod translation;
mod walk;
mod weights;

use super::memory::Memory;
use super::{
    Backend, CacheSpec, DeviceInfo, DeviceKind, LoadProgress, Program, Sizing, State, Wanted, WeightBytes, Weights,
    Work,
};
use crate::Result;
use crate::gguf::File;
use crate::graph::{Node, WeightSpec};
use device::Gpu;
use std::sync::Arc;

/// One GPU with its kernels.
pub struct GpuBackend {
    gpu: Arc<Gpu>,
}

/// The adapters of this machine as devices, with their memory.
pub fn devices() -> Vec<(DeviceInfo, Memory)> {
    let info = |c: device::Candidate| {
        let memory = c.memory();
        let info = DeviceInfo {
            name: device::name_of(&c.info),
            kind: DeviceKind::Gpu,
            score: c.score,
            reason: c.reason,
            shader_compiler: c.shader_compiler,
        };
        (info, memory)
    };
    device::candidates().into_iter().map(info).collect()
}

impl GpuBackend {
    /// The best adapter whose name contains `named`.
    pub fn open(named: Option<&str>) -> Result<GpuBackend> {
        Gpu::open(named).map(GpuBackend::on)
    }

    /// On a device of the caller's.
    pub fn on(gpu: Arc<Gpu>) -> GpuBackend {
        GpuBackend { gpu }
    }
}

impl Backend for GpuBackend {
    fn device(&self) -> DeviceInfo {
        let gpu = &self.gpu;
        DeviceInfo {
            name: device::name_of(&gpu.info),
            kind: DeviceKind::Gpu,
            score: gpu.score,
            reason: gpu.reason.clone(),
            shader_compiler: gpu.shader_compiler,
        }
    }

    fn supports(&self, node: &Node, specs: &[WeightSpec]) -> std::result::Result<(), String> {
        lower::supports(node, specs)
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
        Ok(Box::new(self.gpu.guard(|| state::GpuState::new(self.gpu.clone(), cache))?))
    }

    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>> {
        Ok(Box::new(self.gpu.guard(|| program::GpuProgram::new(self.gpu.clone(), work, weights))?))
    }

    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
        weights::bytes(&self.gpu, specs, wanted)
    }

    fn sizing(&self, cache: &CacheSpec, wanted: &Wanted, _: usize) -> Result<Box<dyn Sizing>> {
        Ok(Box::new(sizing::GpuSizing::new(self.gpu.clone(), cache, wanted)?))
    }

    fn bandwidth(&self, _: usize) -> Result<f64> {
        self.gpu.guard(|| bandwidth::measure(&self.gpu))
    }

    fn memory(&self) -> Result<Memory> {
        Ok(self.gpu.memory())
    }
}
