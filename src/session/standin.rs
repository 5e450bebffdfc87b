//! Temporary stand-ins for types of rooms that are not merged yet; same names and shapes as their real ones.
#![allow(missing_docs)]

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
    Q8_0,
}

#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    pub context: i32,
    pub threads: i32,
    pub gpu_layers: i32,
    pub device: Option<String>,
    pub kv_type: KvType,
    pub slots: u32,
}
