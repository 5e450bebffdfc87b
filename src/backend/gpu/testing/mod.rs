//! What the tests of these rooms share: devices and single kernels in `harness.rs`, the buffers of whole steps in
//! `fixture.rs`, operations over rows in `workspace.rs`.

pub mod fixture;
pub mod harness;
pub mod workspace;
