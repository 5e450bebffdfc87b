//! What the CPU backend takes from the machine: threads, cores, memory.

pub mod bandwidth;
mod cores;
pub mod memory;
pub mod pool;
pub(super) mod region;

pub use cores::{Cores, default_thread_count};
