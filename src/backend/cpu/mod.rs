//! The CPU backend: SIMD kernels, the thread pool and the KV cache they work on.

pub mod glu;
pub mod isa;
pub mod norm;
pub mod simd;
pub mod vecmath;
