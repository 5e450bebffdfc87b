//! Attention over the KV cache, from a batch's queries, keys and values on, for one row as for 512.
//!
//! A workgroup takes one key head, a tile of the query vectors that share it (row by row, so that a group of any size
//! fills tiles), and one *split* of the cells. It goes over blocks of cells with a running maximum and sum (online
//! softmax: Milakov and Gimelshein, <https://arxiv.org/abs/1805.02867>; flash attention: Dao et al.,
//! <https://arxiv.org/abs/2205.14135>), and skips blocks in which its rows see nothing. With several splits each leaves
//! maximum, sum and weighted values, and a second kernel joins them; with one the first kernel writes the result. How
//! many splits there are is a word of the frame: [`splits`] chooses, so that short batches over long contexts still
//! fill the device.
//!
//! Where the device has matrix instructions, attention of many rows over a cache of halves or bytes makes its scores
//! and sums by them. Queries and weights are rounded to f16 for that (11 significant bits); scores and sums are f32.
//!
//! Before it queries and keys are normalised and rotated, and keys and values go to their cells ([`super::qkv`]): in a
//! dispatch before attention, or, for one row, by attention itself. There every workgroup prepares the queries that it
//! takes, and the one whose split has the new cell writes it.
//!
//! A row sees a cell when they share a sequence, the cell's position is not after the row's (unless attention is
//! bidirectional), and it is within the window. Cells that no row of a tile sees do not change the result, whatever
//! they hold. A row that sees nothing yields zeros.

use super::kv_cache::{BLOCK, KvLayout};
use super::matmul::VECTOR_ROWS;
use super::qkv::{self, Preparation};
use super::rows::RowSpan;
use crate::backend::TREE;
use crate::backend::gpu::device::{Matrices, Registers};
use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CONSTANTS, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::graph::{AttentionSpec, Rows, Temperature};
use crate::quant::TensorType;
use crate::{Error, Result};
use std::f32::consts::LOG2_E;

/// The most rows times splits, where there is more than one split.
const MAX_PARTS: usize = 512;
/// The most splits: with more, joining takes longer than the cells do.
const MAX_SPLITS: usize = 64;
/// Workgroup memory that every device has.
const MEMORY: usize = 16 << 10;
/// Dispatches of [`attend`].
const STEPS: usize = 2;
/// The most storage buffers that a kernel binds on every device.
const MAX_BUFFERS: usize = 8;
/// Workgroup memory for each thread that prepares heads.
const HEAD_MEMORY: usize = 6 * 4;
/// Threads of the joining kernel.
const REDUCE_THREADS: u32 = 128;

/// How to split the `n_kv` cells in use for `rows` rows: the number of splits, and the cells of each, whole blocks.
pub fn splits(rows: usize, n_kv: usize) -> (u32, u32) {
    let blocks = n_kv.div_ceil(BLOCK).max(1);
    let most = (MAX_PARTS / rows.max(1)).clamp(1, MAX_SPLITS);
    let each = blocks.div_ceil(most);
    (blocks.div_ceil(each) as u32, (each * BLOCK) as u32)
}

/// Bytes of [`BufferRef::Partials`] for a layer of this shape.
pub fn partial_bytes(n_head: usize, head_dim_v: usize) -> u64 {
    (MAX_PARTS * n_head * (head_dim_v / 4 + 1) * 16) as u64
}

/// A kernel of attention: what it is made of, and the query vectors of a workgroup.
struct Kernel {
    name: &'static str,
    text: &'static str,
    flags: Vec<&'static str>,
    constants: Vec<(&'static str, u32)>,
    vectors: usize,
}

/// How a workgroup's threads share the work on a tile; the names are those of `shaders/ops/attention.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    threads: usize,
    /// Query vectors of a pack: 1 or 4.
    pack: usize,
    packs: usize,
    /// Cells of a thread when scores are made.
    cells: usize,
    /// Threads that share a pack's weights.
    shares: usize,
    /// Packs that are summed side by side, and the parts that the cells of each are dealt into.
    columns: usize,
    parts: usize,
    /// Units of a key, and cells of values, that a thread prefetches before it uses them.
    ahead: (usize, usize),
    query_words: usize,
}

impl Tile {
    /// The largest tile that `vectors` query vectors fill and workgroup memory holds.
    fn new(quads_k: usize, quads_v: usize, vectors: usize, few_registers: bool) -> Option<Tile> {
        if vectors < 4 {
            return Some(Tile::of(quads_k, quads_v, 1, vectors));
        }
        let pack = if few_registers { 1 } else { 4 };
        let tiles = [8, 4, 2, 1].map(|packs| Tile::of(quads_k, quads_v, pack, packs));
        let wanted = vectors.div_ceil(pack).next_power_of_two();
        tiles.into_iter().find(|tile| tile.packs <= wanted && tile.memory() <= MEMORY)
    }

    fn of(quads_k: usize, quads_v: usize, pack: usize, packs: usize) -> Tile {
        // Two cells and four lanes of packs where there are four packs, else a cell for each thread.
        let cells = if packs >= 4 { 2 } else { 1 };
        let threads = BLOCK * cells;
        let room = threads / quads_v;
        let columns = (1..=packs.min(room)).rev().find(|n| packs.is_multiple_of(*n)).unwrap_or(1);
        let parts = 1 << (room / columns).min(BLOCK).ilog2();
        // With many products for each unit, prefetching is neither needed nor are there registers for it.
        let products = packs.div_ceil(threads * cells / BLOCK) * cells;
        let ahead = [4, 2, 1].into_iter().find(|n| quads_k.is_multiple_of(*n) && n * products <= 4).unwrap_or(1);
        let ahead = (ahead, (BLOCK / parts).min(4));
        let vectors = pack * packs;
        let query_words = vectors * quads_k.max(parts * quads_v);
        Tile { threads, pack, packs, cells, shares: 8, columns, parts, ahead, query_words }
    }

    /// Bytes of workgroup memory.
    fn memory(&self) -> usize {
        let vectors = self.pack * self.packs;
        16 * self.query_words + 4 * vectors * (BLOCK + self.shares + 1) + 12
    }

    fn kernel(&self) -> Kernel {
        let lanes = BLOCK / self.cells;
        let pack_lanes = self.threads / lanes;
        let constants = [
            ("THREADS", self.threads),
            ("PACK", self.pack),
            ("PACKS", self.packs),
            ("CELLS", self.cells),
            ("LANES", lanes),
            ("PACK_LANES", pack_lanes),
            ("SCORE_PACKS", self.packs / pack_lanes),
            ("SHARES", self.shares),
            ("COLUMNS", self.columns),
            ("SUM_PACKS", self.packs / self.columns),
            ("PARTS", self.parts),
            ("K_AHEAD", self.ahead.0),
            ("V_AHEAD", self.ahead.1),
            ("QUERY_WORDS", self.query_words),
        ];
        Kernel {
            name: "attention",
            text: include_str!("../shaders/ops/attention.wgsl"),
            flags: Vec::from_iter((self.pack > 1).then_some("PACKED")),
            constants: constants.map(|(name, n)| (name, n as u32)).to_vec(),
            vectors: self.pack * self.packs,
        }
    }
}

/// How a workgroup takes a tile by matrix instructions; the names are those of `shaders/ops/attention_halves.wgsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blocks {
    matrices: Matrices,
    /// Blocks of vectors of a subgroup.
    lines: usize,
    /// Threads that share a vector.
    shares: usize,
}

/// Vectors of the largest tile.
const MOST_VECTORS: usize = 64;

impl Blocks {
    /// The largest tile that `vectors` query vectors fill and workgroup memory holds; `None` where halves or blocks do
    /// not suit the cache.
    fn new(matrices: Matrices, layout: &KvLayout, vectors: usize) -> Option<Blocks> {
        let side = matrices.block as usize;
        let suits = layout.types.k != TensorType::F32
            && layout.types.v != TensorType::F32
            && layout.head_dim_k.is_multiple_of(side)
            && layout.head_dim_v.is_multiple_of(2 * side);
        let of = |lines: usize| {
            let shares = (matrices.threads as usize / (2 * lines * side)).min(2 * side);
            Blocks { matrices, lines, shares }
        };
        let fits = |blocks: &Blocks| {
            blocks.shares > 0
                && blocks.memory(layout) <= matrices.memory as usize
                && (blocks.lines == 1 || blocks.vectors() <= vectors)
        };
        let most = MOST_VECTORS / (2 * side);
        [most, most / 2, 1].map(of).into_iter().find(fits).filter(|_| suits)
    }

    fn vectors(&self) -> usize {
        2 * self.lines * self.matrices.block as usize
    }

    /// Bytes of workgroup memory.
    fn memory(&self, layout: &KvLayout) -> usize {
        let (vectors, cells) = (self.vectors(), 2 * self.matrices.block as usize);
        let (k, v) = (layout.head_dim_k + 8, layout.head_dim_v);
        let halves = vectors * k + (cells * k).max(v * (cells + 8)) + vectors * (cells + 8);
        let numbers = (vectors + vectors / 2) * (cells + 4) + vectors * (self.shares + 1) + 8;
        2 * halves + 4 * numbers
    }

    fn kernel(&self) -> Kernel {
        let Matrices { block, threads, .. } = self.matrices;
        Kernel {
            name: "attention_halves",
            text: include_str!("../shaders/ops/attention_halves.wgsl"),
            flags: [&["WHOLE"], self.matrices.flags()].concat(),
            constants: vec![
                ("THREADS", threads),
                ("SIDE", block),
                ("LINES", self.lines as u32),
                ("SHARES", self.shares as u32),
            ],
            vectors: self.vectors(),
        }
    }
}

/// The rows that an attention is of.
#[derive(Clone)]
pub struct Queries {
    /// The queries, as the first values of rows (see [`super::qkv`]).
    pub q: RowSpan,
    /// The results.
    pub out: RowSpan,
    /// Which rows.
    pub rows: Rows,
    /// The most rows of a run.
    pub max_rows: usize,
    /// For each query head a score that has no value.
    pub sinks: Option<BufferRef>,
}

/// The tile of an attention of up to so many rows.
fn tile(gpu: &Gpu, spec: &AttentionSpec, max_rows: usize) -> Result<Tile> {
    let vectors = spec.n_head / spec.n_head_kv * max_rows;
    Tile::new(spec.head_dim_k / 4, spec.head_dim_v / 4, vectors, gpu.caps.registers == Registers::Few)
        .ok_or_else(|| Error::Internal(format!("No attention tile for heads of {}", spec.head_dim_k)))
}

/// Whether attention prepares the heads itself: of one row, whose queries of a key head are one tile, with buffers and
/// memory that every device has.
fn prepares(gpu: &Gpu, spec: &AttentionSpec, max_rows: usize) -> Result<bool> {
    let tile = tile(gpu, spec, max_rows)?;
    // Workspace, frame, keys, values and partial results come first.
    let buffers = 5 + usize::from(spec.sinks.is_some()) + qkv::reads(spec);
    Ok(max_rows <= 1
        && qkv::any(spec)
        && tile.pack * tile.packs >= spec.n_head / spec.n_head_kv
        && tile.memory() + HEAD_MEMORY * tile.threads <= MEMORY
        && buffers <= MAX_BUFFERS)
}

/// The number of [`steps`].
///
/// # Errors
/// [`Error::Internal`] for heads that fit no tile.
pub fn count(gpu: &Gpu, spec: &AttentionSpec, max_rows: usize) -> Result<usize> {
    let before = if prepares(gpu, spec, max_rows)? { qkv::row_norms(spec) } else { qkv::count(spec) };
    Ok(before + STEPS)
}

/// Attention of these rows, whose heads are prepared first.
///
/// # Errors
/// [`Error`] of a kernel that cannot be made.
pub fn steps(gpu: &Gpu, preparation: &Preparation<'_>, queries: &Queries) -> Result<Vec<Step>> {
    let prepares = prepares(gpu, preparation.spec, queries.max_rows)?;
    let mut steps = if prepares { preparation.row_norms(gpu)? } else { preparation.steps(gpu)? };
    steps.extend(attend(gpu, preparation.spec, preparation.layout, queries, prepares.then_some(preparation))?);
    Ok(steps)
}

/// Attention of these rows, with the heads that it prepares itself.
///
/// # Errors
/// As [`steps`].
pub fn attend(
    gpu: &Gpu,
    spec: &AttentionSpec,
    layout: &KvLayout,
    queries: &Queries,
    prepares: Option<&Preparation<'_>>,
) -> Result<[Step; STEPS]> {
    let Queries { q, out, rows, max_rows, ref sinks } = *queries;
    let group = spec.n_head / spec.n_head_kv;
    let (quads_k, quads_v) = (layout.head_dim_k / 4, layout.head_dim_v / 4);
    let blocks = gpu.caps.matrices.filter(|_| max_rows > VECTOR_ROWS);
    let kernel = match blocks.and_then(|matrices| Blocks::new(matrices, layout, group * max_rows)) {
        Some(blocks) => blocks.kernel(),
        None => tile(gpu, spec, max_rows)?.kernel(),
    };
    let (keys, values) = (BufferRef::Keys(spec.layer), BufferRef::Values(spec.layer));
    let mut buffers = vec![BufferRef::Workspace, BufferRef::Params, layout.frame(), keys, values, BufferRef::Partials];
    buffers.extend(sinks.clone());
    let part = prepares.map(|preparation| preparation.kernel_part(buffers.len())).transpose()?;
    let mut flags = layout.flags();
    flags.extend(part.iter().flat_map(|part| &part.flags));
    flags.extend(part.as_ref().map(|_| "PREPARES"));
    flags.extend(kernel.flags);
    flags.extend(spec.softcap.map(|_| "SOFTCAP"));
    flags.extend(spec.temperature.map(|_| "TEMPERATURE"));
    flags.extend(spec.bidirectional.then_some("BIDIRECTIONAL"));
    flags.extend((spec.chunk > 0).then_some("CHUNKS"));
    flags.extend((spec.alibi != 0.0).then_some("ALIBI"));
    flags.extend((rows == Rows::Output).then_some("OUTPUTS"));
    flags.extend(sinks.as_ref().map(|_| "SINKS"));
    let mut constants = layout.constants();
    constants.extend(FRAME_CONSTANTS);
    constants.extend(kernel.constants);
    constants.extend([("GROUP", group as u32), ("TREE", TREE)]);
    let cells = if flags.contains(&"KEYS") { Binding::Write } else { Binding::Read };
    let mut bindings = vec![Binding::Write, Binding::Uniform, Binding::Read, cells, cells, Binding::Write];
    bindings.extend(sinks.as_ref().map(|_| Binding::Read));
    let mut text = kernel.text.to_string();
    let mut numbers = [0; 6];
    if let Some(part) = part {
        constants.extend(part.constants);
        bindings.extend(part.reads.iter().map(|_| Binding::Read));
        buffers.extend(part.reads);
        text += &part.text;
        numbers = part.params;
    }
    let text = compose(&text, &flags, &constants)?;

    let ([src, width], [dst, dst_width]) = (q.quads()?, out.quads()?);
    // One more than the longest distance.
    let reach = match (spec.window, spec.bidirectional) {
        (0, _) => i32::MAX as u32,
        (window, true) => window / 2 + 1,
        (window, false) => window.min(i32::MAX as u32),
    };
    let (scale, cap) = match spec.softcap {
        Some(cap) => (spec.scale / cap, cap * LOG2_E),
        None => (spec.scale * LOG2_E, 0.0),
    };
    let Temperature { scale: growth, length, offset } =
        spec.temperature.unwrap_or(Temperature { scale: 0.0, length: 1, offset: 0 });
    let alibi_scale = spec.softcap.map_or(LOG2_E, |cap| 1.0 / cap);
    let attention = Step {
        kernel: gpu.kernel(kernel.name, &text, &bindings)?,
        buffers,
        params: vec![
            src,
            width,
            dst,
            dst_width,
            layout.blocks(),
            reach,
            scale.to_bits(),
            cap.to_bits(),
            spec.n_head as u32,
            quads_k as u32,
            BLOCK as u32,
            spec.chunk.min(i32::MAX as u32),
            spec.alibi.to_bits(),
            alibi_scale.to_bits(),
            growth.to_bits(),
            length.max(1),
            offset,
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3],
            numbers[4],
            numbers[5],
            0,
        ],
        groups: [
            GroupCount::Splits(layout.table),
            GroupCount::per_row(rows, group as u32, kernel.vectors as u32),
            GroupCount::Fixed(spec.n_head_kv as u32),
        ],
    };

    let constants = [
        ("THREADS", REDUCE_THREADS),
        ("DV4", quads_v as u32),
        ("PARTS", REDUCE_THREADS / quads_v as u32),
        ("N_HEAD", spec.n_head as u32),
    ];
    let flags: &[&str] = if sinks.is_some() { &["SINKS"] } else { &[] };
    let text = compose(include_str!("../shaders/ops/attention_reduce.wgsl"), flags, &constants)?;
    let mut bindings = vec![Binding::Write, Binding::Uniform, Binding::Read, Binding::Read];
    bindings.extend(sinks.as_ref().map(|_| Binding::Read));
    let mut buffers = vec![BufferRef::Workspace, BufferRef::Params, layout.frame(), BufferRef::Partials];
    buffers.extend(sinks.clone());
    let reduce = Step {
        kernel: gpu.kernel("attention_reduce", &text, &bindings)?,
        buffers,
        params: vec![dst, dst_width, 0, 0],
        groups: [
            GroupCount::Joins(layout.table, spec.n_head as u32),
            GroupCount::per_row(rows, 1, 1),
            GroupCount::Fixed(1),
        ],
    };
    Ok([attention, reduce])
}

#[cfg(test)]
mod tests;
