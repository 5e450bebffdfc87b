//! The command line program.
#![allow(clippy::unwrap_used)]

mod commands;
mod demo_model;
#[path = "../testing/mod.rs"]
mod testing;
