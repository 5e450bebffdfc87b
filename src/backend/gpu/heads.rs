//! From the product of the q, k and v matrices to attention's inputs, in one dispatch: heads are normed and turned,
//! keys and values go to their cells.
//!
//! Angles are exact modulo whole turns: a frequency travels as a fixed-point fraction of a turn with 64 bits, and its
//! product with a position wraps around by itself. See `shaders/turn.wgsl` for the error of cosine and sine.

use super::device::Gpu;
use super::kernel::{Slot, compose};
use super::kv::KvLayout;
use super::memory::{Buffer, buffer_bytes};
use super::rows::Place;
use super::step::{Bound, Count, FRAME_CONSTANTS, Step};
use crate::backend::rope::Rope;
use crate::graph::{AttentionSpec, RopeKind};
use crate::{Error, Result};
use std::f64::consts::TAU;

/// The frequencies of a rotary embedding on the device.
pub struct Turns {
    /// Per pair the turns per position: a fraction of 64 bits, high word first.
    buffer: Buffer,
    kind: RopeKind,
    /// Values of a head that are rotated.
    pub(super) n_rot: u32,
    magnitude: f32,
}

impl Turns {
    /// The frequencies of `rope`, which pairs the values of a head as `kind` says.
    pub fn new(gpu: &Gpu, kind: RopeKind, rope: &Rope) -> Result<Turns> {
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
        Ok(Turns { buffer, kind, n_rot: rope.n_rot() as u32, magnitude: rope.magnitude() as f32 })
    }

    /// Bytes of the frequencies of so many rotated values.
    pub fn bytes(n_rot: usize) -> u64 {
        buffer_bytes(n_rot as u64 / 2 * 8)
    }

    /// The buffer, as a step binds it.
    pub(super) fn bound(&self) -> Bound {
        Bound::Weight(self.buffer.clone(), 0, u64::from(self.n_rot) * 4)
    }

    /// The flag that chooses the pairing in a shader.
    pub(super) fn flag(&self) -> &'static str {
        match self.kind {
            RopeKind::Norm => "NORM",
            RopeKind::Neox => "NEOX",
        }
    }
}

/// Weights of the norms of query and key heads, `f32` each.
#[derive(Clone, Default)]
pub struct Norms {
    /// For query heads.
    pub q: Option<Bound>,
    /// For key heads.
    pub k: Option<Bound>,
}

/// Norm and turn the heads of `qkv`, where queries, keys and values of a row stand side by side: queries stay there,
/// keys and values go to the cells that the frame's row records name.
pub fn step(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    turns: &Turns,
    norms: &Norms,
    qkv: Place,
) -> Result<Step> {
    if turns.n_rot as usize > layout.head_dim_k {
        let (n, width) = (turns.n_rot, layout.head_dim_k);
        return Err(Error::Internal(format!("{n} rotated values in a head of {width}")));
    }
    let mut constants = layout.constants();
    constants.extend(FRAME_CONSTANTS);
    constants.extend([
        ("THREADS", layout.head_threads()),
        ("ROT", turns.n_rot),
        ("N_HEAD", spec.n_head as u32),
        ("N_HEAD_KV", spec.n_head_kv as u32),
    ]);
    let mut flags = layout.flags();
    flags.extend([turns.flag(), "VALUES"]);
    let mut slots = vec![Slot::Write, Slot::Uniform, Slot::Read, Slot::Read, Slot::Write, Slot::Write];
    let (keys, values) = (Bound::Keys(spec.layer), Bound::Values(spec.layer));
    let mut buffers = vec![Bound::Workspace, Bound::Params, Bound::Frame, turns.bound(), keys, values];
    if let Some(any) = norms.q.as_ref().or(norms.k.as_ref()) {
        flags.push("NORMS");
        for (norm, flag) in [(&norms.q, "Q_NORM"), (&norms.k, "K_NORM")] {
            flags.extend(norm.is_some().then_some(flag));
            slots.push(Slot::Read);
            // A norm that is absent is not read; its slot must hold something.
            buffers.push(norm.as_ref().unwrap_or(any).clone());
        }
    }
    let text = compose(include_str!("shaders/heads.wgsl"), &flags, &constants)?;
    let [at, width] = qkv.quads()?;
    Ok(Step {
        kernel: gpu.kernel("heads", &text, &slots)?,
        buffers,
        params: vec![at, width, layout.blocks(), spec.norm_eps.to_bits(), turns.magnitude.to_bits(), 0, 0, 0],
        groups: [Count::Fixed((spec.n_head + 2 * spec.n_head_kv) as u32), Count::Rows(1, 1), Count::Fixed(1)],
    })
}

#[cfg(test)]
mod tests;
