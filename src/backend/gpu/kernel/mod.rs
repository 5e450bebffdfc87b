//! Kernels: a shader's text compiled for a device, with the kinds of its buffers.
//!
//! `context.rs` is the interface for the rooms above: a [`Gpu`] is a device with its kernels. `text.rs` makes the
//! texts, `compile.rs` and `pipeline_cache.rs` make and keep the pipelines, `dispatch.rs` defines a dispatch as data,
//! `strands.rs` how it finds rows that come after each other, `matrices.rs` tries matrix instructions; in tests
//! `translation.rs` translates every text for the platforms that the tests do not run on.

mod compile;
mod context;
pub mod dispatch;
mod matrices;
mod pipeline_cache;
pub mod strands;
mod text;
#[cfg(test)]
mod translation;

pub use context::{Gpu, Trial};
pub use text::compose;

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a kernel declares a buffer, in the order of `@binding` numbers in group 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binding {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
    /// `var<uniform>`
    Uniform,
}

/// A pipeline with the layout of its bindings.
pub struct Kernel {
    /// Name in messages.
    pub name: &'static str,
    /// Name and flags, in profiles.
    pub what: String,
    /// The pipeline; its entry point is `main`.
    pub pipeline: Pipeline,
    layout: wgpu::BindGroupLayout,
    /// Whether it gave a known answer on this device, see [`Trial`].
    tried: AtomicBool,
}

impl Kernel {
    /// Whether it gave a known answer on this device.
    pub fn is_tried(&self) -> bool {
        self.tried.load(Ordering::Acquire)
    }
}

/// A pipeline that may still be being compiled. A use of it waits; the user has called [`Gpu::compiled`] before, which
/// returns the compiler's error.
#[derive(Default)]
pub struct Pipeline {
    made: OnceLock<wgpu::ComputePipeline>,
    problem: OnceLock<String>,
}

impl Deref for Pipeline {
    type Target = wgpu::ComputePipeline;

    fn deref(&self) -> &wgpu::ComputePipeline {
        self.made.wait()
    }
}

impl Binding {
    fn entry(self, binding: u32) -> wgpu::BindGroupLayoutEntry {
        let ty = match self {
            Binding::Read => wgpu::BufferBindingType::Storage { read_only: true },
            Binding::Write => wgpu::BufferBindingType::Storage { read_only: false },
            Binding::Uniform => wgpu::BufferBindingType::Uniform,
        };
        wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        }
    }
}
