//! The CPU backend: SIMD kernels over repacked weights, one thread pool per process.
//!
//! `program.rs` lowers graph nodes to steps that all threads of a run walk through together; the other files are
//! the kernels those steps call. Weights that are multiplied live in panels of 16 rows ([`panels`]), one resident
//! copy. Embedding tables that are only looked up stay in the file, from which their rows are read.

pub mod acts;
pub mod attention;
mod bandwidth;
mod cores;
pub mod glu;
pub mod isa;
pub mod kv;
mod kv_rows;
mod lanes;
pub mod matmul;
mod matmul_float;
mod matmul_quant;
pub mod memory;
pub mod norm;
pub mod panels;
mod panels_format;
mod panels_pack;
pub mod pool;
mod program;
mod region;
pub mod rope;
pub mod simd;
mod state;
mod steps;
pub mod vecmath;
mod weights;

use super::memory::Memory;
use super::{
    Backend, CacheSpec, DeviceInfo, DeviceKind, LoadProgress, Program, Sizing, State, Wanted, WeightBytes, Weights,
    Work,
};
use crate::Result;
use crate::gguf::File;
use crate::graph::{Node, WeightSpec};
use isa::Isa;
use std::sync::Arc;

pub use cores::default_thread_count;

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
        DeviceInfo {
            name: format!("CPU ({})", self.isa.name()),
            kind: DeviceKind::Cpu,
            score: self.isa.score(),
            reason: format!("{} is the widest instruction set found", self.isa.name()),
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
        Ok(Box::new(state::CpuState::new(cache, threads)?))
    }

    fn compile(&self, work: &Work<'_>, weights: &Weights) -> Result<Box<dyn Program>> {
        Ok(Box::new(program::CpuProgram::new(self.isa, work, weights)?))
    }

    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> Result<WeightBytes> {
        weights::bytes(specs, wanted)
    }

    fn sizing(&self, cache: &CacheSpec, _: &Wanted, threads: usize) -> Result<Box<dyn Sizing>> {
        Ok(Box::new(state::CpuSizing::new(cache, threads)?))
    }

    fn bandwidth(&self, threads: usize) -> Result<f64> {
        Ok(bandwidth::measure(threads))
    }

    fn memory(&self) -> Result<Memory> {
        memory::memory()
    }
}
