//! The frequencies of a rotary embedding (RoPE) on the device.
//!
//! Angles are exact modulo whole turns: a frequency is a fixed-point fraction of a turn with 64 bits, whose product
//! with a position wraps around at whole turns. See `shaders/ops/rope_angle.wgsl` for the error of cosine and sine;
//! `ops/qkv.rs` rotates queries and keys, `ops/kv_cache.rs` keys that are in the cache.

use crate::backend::gpu::device::Device;
use crate::backend::gpu::device::memory::{Buffer, buffer_bytes};
use crate::backend::gpu::kernel::dispatch::BufferRef;
use crate::backend::rope::Rope;
use crate::graph::RopeKind;
use crate::{Error, Result};
use std::f64::consts::TAU;

/// The frequencies of a rotary embedding on the device.
pub struct RopeTable {
    /// Per pair the turns per position: a fraction of 64 bits, high word first.
    buffer: Buffer,
    kind: RopeKind,
    /// Values of a head that are rotated.
    pub n_rot: u32,
    /// Factor on cosine and sine.
    pub magnitude: f32,
}

impl RopeTable {
    /// The frequencies of `rope`, which pairs the values of a head as `kind` says.
    pub fn new(gpu: &Device, kind: RopeKind, rope: &Rope) -> Result<RopeTable> {
        if rope.n_rot() == 0 {
            return Err(Error::Unsupported("Rotary embedding of no values on a GPU".into()));
        }
        let fraction = |f: &f64| ((f / TAU).rem_euclid(1.0) * 2f64.powi(64)) as u64;
        let words: Vec<[u32; 2]> =
            rope.frequencies().iter().map(fraction).map(|turns| [(turns >> 32) as u32, turns as u32]).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = gpu.buffer("rotary frequencies", bytes.len() as u64, usage)?;
        gpu.queue.write_buffer(&buffer, 0, bytes);
        Ok(RopeTable { buffer, kind, n_rot: rope.n_rot() as u32, magnitude: rope.magnitude() as f32 })
    }

    /// Bytes of the frequencies of so many rotated values.
    pub fn bytes(n_rot: usize) -> u64 {
        buffer_bytes(n_rot as u64 / 2 * 8)
    }

    /// The buffer, as a step binds it.
    pub fn bound(&self) -> BufferRef {
        BufferRef::Weight(self.buffer.clone(), 0, u64::from(self.n_rot) * 4)
    }

    /// The flag that chooses the pairing in a shader.
    pub fn flag(&self) -> &'static str {
        match self.kind {
            RopeKind::Norm => "NORM",
            RopeKind::Neox => "NEOX",
        }
    }
}
