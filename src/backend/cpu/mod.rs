//! The CPU backend: kernels for every instruction set, panels of repacked weights, the thread pool.

pub mod acts;
pub mod isa;
mod lanes;
pub mod matmul;
mod matmul_float;
mod matmul_quant;
pub mod panels;
mod panels_format;
mod panels_pack;
