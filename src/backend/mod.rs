//! The backend trait, the registry that scores devices, and the backends themselves.

pub mod cpu;
