//! The command line program.
#![allow(clippy::unwrap_used)]

mod bench;
mod c_interface;
mod chat;
mod demo_model;
mod embed;
mod errors;
mod generate;
mod grammar;
mod grammars;
mod inspect;
mod plan;
mod program;
mod quantize;
mod split;
mod template;
#[path = "../testing/mod.rs"]
mod testing;
