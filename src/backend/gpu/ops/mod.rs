//! The operations of a graph as steps: each file builds the dispatches of its operations, whose shaders are in
//! `shaders/ops/`. No file here depends on graphs or programs.

pub mod activation;
pub mod attention;
pub mod experts;
pub mod kv_cache;
pub mod kv_transfer;
pub mod matmul;
pub mod narrow;
pub mod qkv;
pub mod rows;
pub mod states;
pub mod streams;
