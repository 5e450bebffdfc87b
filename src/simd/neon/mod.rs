//! NEON: a vector of 16 lanes is four registers. Bytes are multiplied as signed numbers, in one of three ways: by
//! widening products, by dot products of four bytes (`dotprod`), or by products of 2 x 8 with 8 x 2 bytes (`i8mm`).
//!
//! The intrinsics of the last two are not stable, so the instructions are written out.
//!
//! | file | what it is |
//! |---|---|
//! | `macros.rs` | how blocks around instructions are written |
//! | `products.rs` | the three ways to multiply bytes, and the proofs that the processor has them |
//! | `lanes.rs` | the vector of four registers |

#[macro_use]
mod macros;
mod lanes;
mod products;

use products::{BySdot, BySmmla, ByWidening, Neon};

/// The levels.
pub(super) type Widening = Neon<ByWidening>;
pub(super) type DotProd = Neon<BySdot>;
pub(super) type I8mm = Neon<BySmmla>;
