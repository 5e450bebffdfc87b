//! The CPU backend: SIMD kernels over repacked weights, one thread pool per process.
//!
//! | room | what it is |
//! |---|---|
//! | `program/` | graph nodes to steps, the memory that these need, and their run on all threads |
//! | `kernels/` | what the steps compute: products, attention, norms, activations |
//! | `packed/` | weights that are multiplied, in panels of 16 rows, one resident copy |
//! | `kv/` | the KV cache of a layer, and its cells as rows that depend on no layout |
//! | `host/` | the thread pool, cores, memory |
//!
//! Each imports only those below it. The instruction sets are [`crate::simd`]. Embedding tables that are only looked up
//! stay in the file, from which their rows are read.

pub mod host;
pub mod kernels;
pub mod kv;
pub mod packed;
mod program;

use super::memory::Memory;
use super::{
    Backend, CacheSpec, DeviceInfo, DeviceKind, LoadProgress, Program, Sizing, State, Wanted, WeightBytes, Weights,
    Work,
};
use crate::Result;
use crate::gguf::File;
use crate::graph::{Node, WeightSpec};
use crate::simd::Isa;
use packed::weights;
use program::CpuProgram;
use program::sizing::CpuSizing;
use program::state::CpuState;
use std::sync::Arc;

/// The CPU with its best instruction set.
pub struct CpuBackend {
    isa: Isa,
}

impl CpuBackend {
    /// Detect the instruction set; `ELIZA_CPU_ISA` narrows the choice.
    pub fn new() -> Self {
        CpuBackend { isa: Isa::detect() }
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> DeviceInfo {
        let level = format!("{} is the widest instruction set found", self.isa.name());
        DeviceInfo {
            name: format!("CPU ({})", self.isa.name()),
            kind: DeviceKind::Cpu,
            score: self.isa.score(),
            reason: match host::Cores::of_system() {
                Some(host::Cores { all, fast }) if fast < all => format!("{level}; {fast} of {all} cores are fast"),
                _ => level,
            },
            shader_compiler: None,
        }
    }

    fn supports(&self, _: &Node, _: &[WeightSpec]) -> std::result::Result<(), String> {
        Ok(())
    }

    fn load(
        &self,
        file: &File,
        specs: &[WeightSpec],
        wanted: &Wanted,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> Result<Weights> {
        weights::load(file, specs, wanted, threads, progress).map(|w| Weights(Arc::new(w)))
    }

    fn new_state(&self, cache: &CacheSpec, threads: usize) -> Result<Box<dyn State>> {
        Ok(Box::new(CpuState::new(cache, threads)?))
    }

    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>> {
        Ok(Box::new(CpuProgram::new(self.isa, work, weights)?))
    }

    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
        weights::bytes(specs, wanted)
    }

    fn sizing(&self, cache: &CacheSpec, _: &Wanted, threads: usize) -> Result<Box<dyn Sizing>> {
        Ok(Box::new(CpuSizing::new(cache, threads)?))
    }

    fn bandwidth(&self, threads: usize) -> Result<f64> {
        Ok(host::bandwidth::measure(threads))
    }

    fn memory(&self) -> Result<Memory> {
        host::memory::memory()
    }
}
