//! From the products of the q, k and v matrices to attention's inputs: normalises heads, rotates queries and keys
//! (RoPE), and writes keys and values to their cells.
//!
//! One dispatch does all of it, two where the norms have more vectors than a kernel can bind. Norms over all heads of a
//! row come before, each in a dispatch of its own.

use super::kv_cache::KvLayout;
use super::rows::{self, RowSpan};
use crate::Result;
use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CONSTANTS, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::graph::{AttentionSpec, HeadNorm, NormKind, NormSpan, Rows, Values};

const HEAD_NORM: &str = include_str!("../shaders/ops/head_norm.wgsl");

/// Where the queries, keys and values of a batch's rows are.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Queries, from the first column on.
    pub q: RowSpan,
    /// Keys, and after them values, where they have columns.
    pub kv: RowSpan,
    /// The first column of the keys.
    pub kv_first: usize,
    /// Which rows.
    pub rows: Rows,
}

impl Source {
    /// Rows of queries, keys and values side by side.
    pub fn side_by_side(spec: &AttentionSpec, qkv: RowSpan) -> Source {
        Source { q: qkv, kv: qkv, kv_first: spec.q_width(), rows: Rows::Batch }
    }
}

/// The vectors of a norm of heads, `f32` each.
#[derive(Clone, Default)]
pub struct Vectors {
    /// Factors.
    pub weight: Option<BufferRef>,
    /// What is added.
    pub bias: Option<BufferRef>,
}

/// The vectors of the norms of query and of key heads, where there are such norms.
#[derive(Clone, Default)]
pub struct Norms {
    /// For query heads.
    pub q: Vectors,
    /// For key heads.
    pub k: Vectors,
}

/// The number of [`steps`].
pub fn count(spec: &AttentionSpec) -> usize {
    let whole_rows = [spec.q_norm, spec.k_norm.filter(|_| spec.writes)];
    let whole_rows = whole_rows.iter().filter(|norm| norm.is_some_and(|norm| norm.span == NormSpan::Row)).count();
    whole_rows + parts(spec).len()
}

/// Whose heads each dispatch takes: those of queries, those of keys and values.
fn parts(spec: &AttentionSpec) -> &'static [(bool, bool)] {
    let biased = |norm: &Option<HeadNorm>| norm.is_some_and(|norm| norm.norm.bias.is_some());
    match spec.writes {
        false if spec.rope.is_none() && of_heads(&spec.q_norm).is_none() => &[],
        false => &[(true, false)],
        true if biased(&spec.q_norm) || biased(&spec.k_norm) => &[(true, false), (false, true)],
        true => &[(true, true)],
    }
}

/// A norm that goes over heads, not over whole rows.
fn of_heads(norm: &Option<HeadNorm>) -> Option<HeadNorm> {
    norm.filter(|norm| norm.span != NormSpan::Row)
}

/// Normalises and rotates heads. Queries are written back in place, keys and values to the cells that the frame's row
/// records name. `rope` is there where `spec` has one.
pub fn steps(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    rope: Option<&RopeTable>,
    norms: &Norms,
    source: &Source,
) -> Result<Vec<Step>> {
    steps_of(gpu, spec, layout, rope, norms, source, parts(spec))
}

/// Those of [`steps`] that write keys and values.
pub fn key_steps(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    rope: Option<&RopeTable>,
    norms: &Norms,
    source: &Source,
) -> Result<Vec<Step>> {
    steps_of(gpu, &AttentionSpec { q_norm: None, ..spec.clone() }, layout, rope, norms, source, &[(false, true)])
}

fn steps_of(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    rope: Option<&RopeTable>,
    norms: &Norms,
    source: &Source,
    parts: &[(bool, bool)],
) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let keys = spec.k_norm.filter(|_| spec.writes);
    let whole_rows = [
        (spec.q_norm, &norms.q, source.q, 0, spec.q_width()),
        (keys, &norms.k, source.kv, source.kv_first, spec.k_width()),
    ];
    for (norm, vectors, span, first, width) in whole_rows {
        let Some(HeadNorm { norm, span: NormSpan::Row }) = norm else { continue };
        let Vectors { weight, bias } = vectors.clone();
        let norm = rows::Norm { kind: norm.kind, weight, bias, eps: norm.eps, width, parts: 1, own: false };
        let columns = RowSpan { offset: span.offset + 4 * first, ..span };
        steps.push(rows::norm(gpu, columns, &norm, None, columns, source.rows)?);
    }
    for &heads in parts {
        steps.push(heads_step(gpu, spec, layout, rope, norms, source, heads)?);
    }
    Ok(steps)
}

fn heads_step(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    rope: Option<&RopeTable>,
    norms: &Norms,
    source: &Source,
    (queries, keys): (bool, bool),
) -> Result<Step> {
    let mut constants = layout.constants();
    constants.extend(FRAME_CONSTANTS);
    constants.extend([
        ("THREADS", layout.head_threads()),
        ("N_HEAD", spec.n_head as u32),
        ("N_HEAD_KV", spec.n_head_kv as u32),
    ]);
    let mut flags = layout.flags();
    let mut bindings = vec![Binding::Write, Binding::Uniform, Binding::Read];
    let mut buffers = vec![BufferRef::Workspace, BufferRef::Params, layout.frame()];
    let mut bind = |constants: &mut Vec<_>, name, kind, buffer| {
        constants.push((name, bindings.len() as u32));
        bindings.push(kind);
        buffers.push(buffer);
    };
    if let Some(rope) = rope {
        layout.check_rotated(rope, spec.rope_first)?;
        bind(&mut constants, "BIND_TURNS", Binding::Read, rope.bound());
        constants.extend([("ROT", rope.n_rot), ("FIRST", spec.rope_first as u32)]);
        flags.extend(["ROPE", rope.flag()]);
    }
    if keys {
        bind(&mut constants, "BIND_KEYS", Binding::Write, BufferRef::Keys(spec.layer));
        bind(&mut constants, "BIND_VALUES", Binding::Write, BufferRef::Values(spec.layer));
        flags.extend(["KEYS", "VALUES"]);
        flags.push(match spec.values {
            Values::Own => "OWN_VALUES",
            Values::Keys => "KEY_VALUES",
            Values::KeyPrefix => "PREFIX",
        });
        flags.extend(spec.v_norm.map(|_| "V_NORM"));
    }
    flags.extend(queries.then_some("QUERIES"));
    flags.extend((source.rows == Rows::Output).then_some("OUTPUTS"));
    flags.extend(spec.norm_after_rope.then_some("NORM_LAST"));
    let sides = [
        (of_heads(&spec.q_norm).filter(|_| queries), &norms.q, QUERY),
        (of_heads(&spec.k_norm).filter(|_| keys), &norms.k, KEY),
    ];
    for (HeadNorm { norm, span }, vectors, names) in sides.into_iter().filter_map(|(norm, v, n)| Some((norm?, v, n))) {
        flags.push(names.norm);
        flags.extend((norm.kind == NormKind::Layer).then_some(names.layer));
        flags.extend((span == NormSpan::EachHead).then_some(names.each));
        if let Some(weight) = &vectors.weight {
            flags.push(names.weight);
            bind(&mut constants, names.bind_weight, Binding::Read, weight.clone());
        }
        if let Some(bias) = &vectors.bias {
            flags.push(names.bias);
            bind(&mut constants, names.bind_bias, Binding::Read, bias.clone());
        }
        constants.push((names.quads, normed_quads(span, layout.head_dim_k) as u32));
    }
    let sums = ["QUERY_NORM", "KEY_NORM", "V_NORM"].iter().any(|flag| flags.contains(flag));
    flags.extend(sums.then_some("SUMS"));
    let mut text = include_str!("../shaders/ops/qkv.wgsl").to_string();
    if queries {
        text += HEAD_NORM;
    }
    if keys {
        text += &HEAD_NORM.replace("query", "key").replace("QUERY", "KEY");
    }
    let text = compose(&text, &flags, &constants)?;
    let [q, q_stride] = source.q.quads()?;
    let [_, kv_stride] = source.kv.quads()?;
    let [kv, _] = RowSpan { offset: source.kv.offset + 4 * source.kv_first, ..source.kv }.quads()?;
    let eps = |norm: Option<HeadNorm>| norm.map_or(0.0, |norm| norm.norm.eps).to_bits();
    let value_eps = spec.v_norm.map_or(0.0, |norm| norm.eps).to_bits();
    let magnitude = rope.map_or(1.0, |rope| rope.magnitude).to_bits();
    let kv_heads = if spec.values == Values::KeyPrefix { spec.n_head_kv } else { 2 * spec.n_head_kv };
    let heads = if queries { spec.n_head } else { 0 } + if keys { kv_heads } else { 0 };
    Ok(Step {
        kernel: gpu.kernel("qkv", &text, &bindings)?,
        buffers,
        params: vec![
            q,
            q_stride,
            kv,
            kv_stride,
            layout.blocks(),
            eps(spec.q_norm),
            eps(spec.k_norm),
            value_eps,
            magnitude,
            0,
            0,
            0,
        ],
        groups: [GroupCount::Fixed(heads as u32), GroupCount::per_row(source.rows, 1, 1), GroupCount::Fixed(1)],
    })
}

/// Quads at the beginning of a head that are normalised together.
pub fn normed_quads(span: NormSpan, head_dim: usize) -> usize {
    match span {
        NormSpan::Head(width) => width.min(head_dim) / 4,
        NormSpan::EachHead | NormSpan::Row => head_dim / 4,
    }
}

/// The names of a side's flags and constants in `head_norm.wgsl`.
struct Names {
    norm: &'static str,
    layer: &'static str,
    each: &'static str,
    weight: &'static str,
    bias: &'static str,
    bind_weight: &'static str,
    bind_bias: &'static str,
    quads: &'static str,
}

const QUERY: Names = Names {
    norm: "QUERY_NORM",
    layer: "QUERY_LAYER",
    each: "QUERY_EACH",
    weight: "QUERY_WEIGHT",
    bias: "QUERY_BIAS",
    bind_weight: "BIND_QUERY_WEIGHT",
    bind_bias: "BIND_QUERY_BIAS",
    quads: "QUERY_QUADS",
};

const KEY: Names = Names {
    norm: "KEY_NORM",
    layer: "KEY_LAYER",
    each: "KEY_EACH",
    weight: "KEY_WEIGHT",
    bias: "KEY_BIAS",
    bind_weight: "BIND_KEY_WEIGHT",
    bind_bias: "BIND_KEY_BIAS",
    quads: "KEY_QUADS",
};

#[cfg(test)]
mod tests;
