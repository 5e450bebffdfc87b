//! The operations of a graph as steps: each file builds the dispatches of its operations, whose shaders are those of
//! `shaders/ops/`. No file here knows a graph or a program.

pub mod attention;
pub mod kv_cache;
pub mod kv_transfer;
pub mod matmul;
pub mod qkv;
pub mod rows;
