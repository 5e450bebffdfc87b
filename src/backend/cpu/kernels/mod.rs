//! The kernels: what a step computes with, each written once over [`crate::simd`].
//!
//! `matmul/` (packed weights times activations) and `activations.rs` (rows in eight bits for it), `attention/`,
//! `norm.rs`, `glu.rs` (gated activations), `recurrence.rs` (recurrences and convolutions over the rows of a sequence),
//! `rope.rs` (rotation of heads), `vecmath.rs` (exp, tanh, sigmoid).

pub mod activations;
pub mod attention;
pub mod glu;
pub mod matmul;
pub mod norm;
pub mod recurrence;
pub mod rope;
mod vecmath;
