//! The CPU backend: SIMD kernels, the thread pool and the KV cache they work on.

pub mod attention;
pub mod cores;
pub mod glu;
pub mod isa;
pub mod kv;
pub mod norm;
pub mod pool;
pub mod rope;
pub mod simd;
pub mod vecmath;
