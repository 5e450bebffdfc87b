//! From the products of the q, k and v matrices to attention's inputs: normalises heads, rotates queries and keys
//! (RoPE), and writes keys and values to their cells.
//!
//! One dispatch does all of it, two where the norms have more vectors than a kernel can bind. Norms over all heads of a
//! row come before, each in a dispatch of its own. Attention of one row does it by itself where it can, see
//! [`super::attention`].

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

/// How heads are prepared for attention.
pub struct Preparation<'a> {
    /// Their attention.
    pub spec: &'a AttentionSpec,
    /// Where its keys and values go.
    pub layout: &'a KvLayout,
    /// The rotary embedding, where the attention has one.
    pub rope: Option<&'a RopeTable>,
    /// The vectors of its norms.
    pub norms: &'a Norms,
    /// What the heads are made of.
    pub source: &'a Source,
}

/// Whose heads a dispatch takes.
#[derive(Clone, Copy)]
struct Whose {
    queries: bool,
    /// Keys and values.
    keys: bool,
}

const QUERIES: Whose = Whose { queries: true, keys: false };
const KEYS: Whose = Whose { queries: false, keys: true };
const ALL: Whose = Whose { queries: true, keys: true };

/// The number of norms of whole rows, each a dispatch.
pub fn row_norms(spec: &AttentionSpec) -> usize {
    let norms = [spec.q_norm, spec.k_norm.filter(|_| spec.writes)];
    norms.iter().filter(|norm| norm.is_some_and(|norm| norm.span == NormSpan::Row)).count()
}

/// The number of [`Preparation::steps`].
pub fn count(spec: &AttentionSpec) -> usize {
    row_norms(spec) + parts(spec).len()
}

/// Whether anything is done to heads.
pub fn any(spec: &AttentionSpec) -> bool {
    !parts(spec).is_empty()
}

/// The buffers that are only read to prepare all heads.
pub fn reads(spec: &AttentionSpec) -> usize {
    let norms = [of_heads(&spec.q_norm), of_heads(&spec.k_norm).filter(|_| spec.writes)];
    let vectors = norms.iter().flatten().flat_map(|HeadNorm { norm, .. }| [norm.weight, norm.bias]).flatten();
    usize::from(spec.rope.is_some()) + vectors.count()
}

/// Whose heads each dispatch takes.
fn parts(spec: &AttentionSpec) -> &'static [Whose] {
    let biased = |norm: &Option<HeadNorm>| norm.is_some_and(|norm| norm.norm.bias.is_some());
    match spec.writes {
        false if spec.rope.is_none() && of_heads(&spec.q_norm).is_none() => &[],
        false => &[QUERIES],
        true if biased(&spec.q_norm) || biased(&spec.k_norm) => &[QUERIES, KEYS],
        true => &[ALL],
    }
}

/// A norm that goes over heads, not over whole rows.
fn of_heads(norm: &Option<HeadNorm>) -> Option<HeadNorm> {
    norm.filter(|norm| norm.span != NormSpan::Row)
}

/// What a kernel needs that prepares heads, by `shaders/ops/prepare.wgsl`.
pub struct KernelPart {
    /// Flags of its text.
    pub flags: Vec<&'static str>,
    /// Constants of its text.
    pub constants: Vec<(&'static str, u32)>,
    /// What belongs after its text.
    pub text: String,
    /// Buffers that it reads, in the order of their bindings.
    pub reads: Vec<BufferRef>,
    /// Its parameters.
    pub params: [u32; 6],
}

impl Preparation<'_> {
    /// Normalises and rotates heads. Queries are written back in place, keys and values to the cells that the frame's
    /// row records name.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of a kernel that cannot be made.
    pub fn steps(&self, gpu: &Gpu) -> Result<Vec<Step>> {
        let mut steps = self.row_norms(gpu)?;
        for &whose in parts(self.spec) {
            steps.push(self.step(gpu, whose)?);
        }
        Ok(steps)
    }

    /// Those of [`Self::steps`] that write keys and values.
    ///
    /// # Errors
    /// As [`Self::steps`].
    pub fn key_steps(&self, gpu: &Gpu) -> Result<Vec<Step>> {
        let spec = AttentionSpec { q_norm: None, ..self.spec.clone() };
        let keys = Preparation { spec: &spec, ..*self };
        let mut steps = keys.row_norms(gpu)?;
        steps.push(keys.step(gpu, KEYS)?);
        Ok(steps)
    }

    /// The norms of whole rows, which come before all else.
    ///
    /// # Errors
    /// As [`Self::steps`].
    pub fn row_norms(&self, gpu: &Gpu) -> Result<Vec<Step>> {
        let Preparation { spec, norms, source, .. } = *self;
        let keys = spec.k_norm.filter(|_| spec.writes);
        let whole_rows = [
            (spec.q_norm, &norms.q, source.q, 0, spec.q_width()),
            (keys, &norms.k, source.kv, source.kv_first, spec.k_width()),
        ];
        let mut steps = Vec::new();
        for (norm, vectors, span, first, width) in whole_rows {
            let Some(HeadNorm { norm, span: NormSpan::Row }) = norm else { continue };
            let Vectors { weight, bias } = vectors.clone();
            let norm = rows::Norm { kind: norm.kind, weight, bias, eps: norm.eps, width, parts: 1, own: false };
            let columns = RowSpan { offset: span.offset + 4 * first, ..span };
            steps.push(rows::norm(gpu, columns, &norm, None, columns, source.rows)?);
        }
        Ok(steps)
    }

    /// What a kernel needs to prepare all heads that attention has prepared; its reads are bound from `first` on.
    ///
    /// # Errors
    /// [`Error::Internal`](crate::Error::Internal) where a head has no room for the rotated values, or a row's place
    /// is no multiple of four.
    pub fn kernel_part(&self, first: usize) -> Result<KernelPart> {
        self.kernel_part_of(Whose { queries: true, keys: self.spec.writes }, first)
    }

    fn kernel_part_of(&self, Whose { queries, keys }: Whose, first: usize) -> Result<KernelPart> {
        let Preparation { spec, layout, rope, norms, source } = *self;
        let mut flags = Vec::new();
        let mut constants = vec![("N_HEAD_KV", spec.n_head_kv as u32)];
        let mut reads = Vec::new();
        let mut bind = |constants: &mut Vec<_>, name, buffer| {
            constants.push((name, (first + reads.len()) as u32));
            reads.push(buffer);
        };
        if let Some(rope) = rope {
            layout.check_rotated(rope, spec.rope_first)?;
            bind(&mut constants, "BIND_TURNS", rope.bound());
            constants.extend([("ROT", rope.n_rot), ("FIRST", spec.rope_first as u32)]);
            flags.extend(["ROPE", rope.flag()]);
        }
        if keys {
            flags.extend(["KEYS", "VALUES"]);
            flags.push(match spec.values {
                Values::Own => "OWN_VALUES",
                Values::Keys => "KEY_VALUES",
                Values::KeyPrefix => "PREFIX",
            });
            flags.extend(spec.v_norm.map(|_| "V_NORM"));
        }
        flags.extend(spec.norm_after_rope.then_some("NORM_LAST"));
        let sides = [
            (of_heads(&spec.q_norm).filter(|_| queries), &norms.q, QUERY),
            (of_heads(&spec.k_norm).filter(|_| keys), &norms.k, KEY),
        ];
        for (HeadNorm { norm, span }, vectors, names) in
            sides.into_iter().filter_map(|(norm, v, n)| Some((norm?, v, n)))
        {
            flags.push(names.norm);
            flags.extend((norm.kind == NormKind::Layer).then_some(names.layer));
            flags.extend((span == NormSpan::EachHead).then_some(names.each));
            if let Some(weight) = &vectors.weight {
                flags.push(names.weight);
                bind(&mut constants, names.bind_weight, weight.clone());
            }
            if let Some(bias) = &vectors.bias {
                flags.push(names.bias);
                bind(&mut constants, names.bind_bias, bias.clone());
            }
            constants.push((names.quads, normed_quads(span, layout.head_dim_k) as u32));
        }
        let sums = ["QUERY_NORM", "KEY_NORM", "V_NORM"].iter().any(|flag| flags.contains(flag));
        flags.extend(sums.then_some("SUMS"));
        let mut text = String::new();
        if queries {
            text += HEAD_NORM;
        }
        if keys {
            text += &HEAD_NORM.replace("query", "key").replace("QUERY", "KEY");
        }
        let [_, kv_stride] = source.kv.quads()?;
        let [kv, _] = RowSpan { offset: source.kv.offset + 4 * source.kv_first, ..source.kv }.quads()?;
        let eps = |norm: Option<HeadNorm>| norm.map_or(0.0, |norm| norm.norm.eps).to_bits();
        let value_eps = spec.v_norm.map_or(0.0, |norm| norm.eps).to_bits();
        let magnitude = rope.map_or(1.0, |rope| rope.magnitude).to_bits();
        let params = [kv, kv_stride, eps(spec.q_norm), eps(spec.k_norm), value_eps, magnitude];
        Ok(KernelPart { flags, constants, text, reads, params })
    }

    fn step(&self, gpu: &Gpu, whose: Whose) -> Result<Step> {
        let Preparation { spec, layout, source, .. } = *self;
        let mut bindings = vec![Binding::Write, Binding::Uniform, Binding::Read];
        let mut buffers = vec![BufferRef::Workspace, BufferRef::Params, layout.frame()];
        if whose.keys {
            bindings.extend([Binding::Write; 2]);
            buffers.extend([BufferRef::Keys(spec.layer), BufferRef::Values(spec.layer)]);
        }
        let part = self.kernel_part_of(whose, buffers.len())?;
        bindings.extend(part.reads.iter().map(|_| Binding::Read));
        buffers.extend(part.reads);
        let mut flags = layout.flags();
        flags.extend(part.flags);
        flags.extend(whose.queries.then_some("QUERIES"));
        flags.extend((source.rows == Rows::Output).then_some("OUTPUTS"));
        let mut constants = layout.constants();
        constants.extend(FRAME_CONSTANTS);
        constants.extend([("THREADS", layout.head_threads()), ("N_HEAD", spec.n_head as u32)]);
        constants.extend(part.constants);
        let text = include_str!("../shaders/ops/qkv.wgsl").to_string() + &part.text;
        let text = compose(&text, &flags, &constants)?;
        let kv_heads = if spec.values == Values::KeyPrefix { spec.n_head_kv } else { 2 * spec.n_head_kv };
        let heads = if whose.queries { spec.n_head } else { 0 } + if whose.keys { kv_heads } else { 0 };
        let mut params = source.q.quads()?.to_vec();
        params.push(layout.blocks());
        params.extend(part.params);
        params.extend([0; 3]);
        Ok(Step {
            kernel: gpu.kernel("qkv", &text, &bindings)?,
            buffers,
            params,
            groups: [GroupCount::Fixed(heads as u32), GroupCount::per_row(source.rows, 1, 1), GroupCount::Fixed(1)],
        })
    }
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
