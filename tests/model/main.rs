//! Whole models: the logits they give, the slow forward pass that judges them, and the fixture models themselves.
#![allow(clippy::unwrap_used)]

mod fixtures;
mod listed_logits;
mod logits;
mod nextn;
mod placement;
mod reference;
mod refusals;
#[path = "../testing/mod.rs"]
mod testing;
