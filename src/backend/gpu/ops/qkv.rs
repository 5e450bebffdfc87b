//! From the product of the q, k and v matrices to attention's inputs, in one dispatch: normalises heads, rotates
//! queries and keys (RoPE), and writes keys and values to their cells.

use super::kv_cache::KvLayout;
use super::rows::RowSpan;
use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CONSTANTS, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::graph::{AttentionSpec, HeadNorm};
use crate::{Error, Result};

/// Weights of the norms of query and key heads, `f32` each.
#[derive(Clone, Default)]
pub struct Norms {
    /// For query heads.
    pub q: Option<BufferRef>,
    /// For key heads.
    pub k: Option<BufferRef>,
}

/// Normalises and rotates the heads of `qkv`, whose rows are queries, keys and values side by side. Queries are written
/// back in place, keys and values to the cells that the frame's row records name.
pub fn step(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    rope: &RopeTable,
    norms: &Norms,
    qkv: RowSpan,
) -> Result<Step> {
    if rope.n_rot as usize > layout.head_dim_k {
        let (n, width) = (rope.n_rot, layout.head_dim_k);
        return Err(Error::Internal(format!("{n} rotated values in a head of {width}")));
    }
    let mut constants = layout.constants();
    constants.extend(FRAME_CONSTANTS);
    constants.extend([
        ("THREADS", layout.head_threads()),
        ("ROT", rope.n_rot),
        ("N_HEAD", spec.n_head as u32),
        ("N_HEAD_KV", spec.n_head_kv as u32),
    ]);
    let mut flags = layout.flags();
    flags.extend([rope.flag(), "VALUES"]);
    let mut bindings =
        vec![Binding::Write, Binding::Uniform, Binding::Read, Binding::Read, Binding::Write, Binding::Write];
    let (keys, values) = (BufferRef::Keys(spec.layer), BufferRef::Values(spec.layer));
    let mut buffers = vec![BufferRef::Workspace, BufferRef::Params, BufferRef::Frame, rope.bound(), keys, values];
    if let Some(any) = norms.q.as_ref().or(norms.k.as_ref()) {
        flags.push("NORMS");
        for (norm, flag) in [(&norms.q, "Q_NORM"), (&norms.k, "K_NORM")] {
            flags.extend(norm.is_some().then_some(flag));
            bindings.push(Binding::Read);
            // A norm that is absent is not read; its binding must hold something.
            buffers.push(norm.as_ref().unwrap_or(any).clone());
        }
    }
    let text = compose(include_str!("../shaders/ops/qkv.wgsl"), &flags, &constants)?;
    let [at, width] = qkv.quads()?;
    let eps = |norm: Option<HeadNorm>| norm.map_or(0.0, |norm| norm.norm.eps).to_bits();
    Ok(Step {
        kernel: gpu.kernel("qkv", &text, &bindings)?,
        buffers,
        params: vec![at, width, layout.blocks(), eps(spec.q_norm), eps(spec.k_norm), rope.magnitude.to_bits(), 0, 0],
        groups: [
            GroupCount::Fixed((spec.n_head + 2 * spec.n_head_kv) as u32),
            GroupCount::Rows(1, 1),
            GroupCount::Fixed(1),
        ],
    })
}

#[cfg(test)]
mod tests;
