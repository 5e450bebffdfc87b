//! Vectors of sixteen lanes, on every instruction set, and the choice of one at run time.
//!
//! An algorithm is written once, as a [`Kernel`] over [`Vector`], and compiled for every instruction set:
//!
//! | file | what it is |
//! |---|---|
//! | `vector.rs` | the traits [`Vector`] and [`Kernel`] |
//! | `portable.rs` | plain Rust, for any processor |
//! | `avx2.rs`, `avxvnni.rs`, `avx512.rs`, `neon/` | one instruction set each; NEON has three levels |
//! | `isa.rs` | the list of them, [`Isa`], and [`dispatch`] |
//!
//! A new instruction set is a file, a `mod` line here and a row in `isa.rs`; the tests hold it against plain Rust.
//! Sixteen lanes are one register of AVX-512, two of AVX2 (and AVX-VNNI), four of NEON, an array elsewhere.
//!
//! Results are reproducible on one instruction set, not across them: some have a fused multiply-add.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(test)]
mod tests;
mod vector;

pub use isa::Isa;
pub(crate) use isa::{compiled_for, dispatch, is_amd};
pub(crate) use vector::{BYTE_ZERO, Kernel, LANES, Unpacked, Vector};
