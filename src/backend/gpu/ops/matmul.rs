//! Products of matrices and rows of the workspace, and rows of a table, as steps.
//!
//! Up to [`VECTOR_ROWS`] rows a product is bound by reading the weights: `matvec.wgsl` reads them once for all rows,
//! and can also apply an RMS norm to an input of one row. More rows are computed in tiles: by matrix instructions in
//! `matmul_halves.wgsl` or integer dot products in `matmul_int8.wgsl`, where the device has them and the input has room
//! to be made [`Narrow`], else in `matmul.wgsl`.
//! Each slice of a matrix is a dispatch of its own.
//!
//! Bytes and widths are those of the workspace: offsets are multiples of 16 bytes, row `r` of an operand starts `r`
//! times its width after the first; the one value of a row may stand by itself. A product with a matrix whose number of
//! rows is no multiple of 4 also writes the columns up to the next multiple.

use super::activation::{activation_flags, curve};
use super::narrow::{Narrow, Wide};
use super::rows::{self, PartColumns, RowSpan, fold, quads};
use crate::backend::gpu::device::{Matrices, Registers};
use crate::backend::gpu::kernel::dispatch::{
    BufferRef, FRAME_CONSTANTS, FRAME_LISTED, FRAME_N_LISTED, GroupCount, Step,
};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::layout::{BLOCK_GROUPS, GROUP, Layout, QUADS, TILE, WORDS};
use crate::backend::gpu::weights::matrix::{Matrix, Slice, Vector};
use crate::graph::{Activation, Index, Rows};
use crate::{Error, Result};

const MATVEC: &str = include_str!("../shaders/ops/matvec.wgsl");
const MATMUL: &str = include_str!("../shaders/ops/matmul.wgsl");
const MATMUL_HALVES: &str = include_str!("../shaders/ops/matmul_halves.wgsl");
const MATMUL_INT8: &str = include_str!("../shaders/ops/matmul_int8.wgsl");
const EMBED: &str = include_str!("../shaders/ops/embed.wgsl");
const FETCH: &str = include_str!("../shaders/ops/fetch.wgsl");

/// The most rows of a product that is computed by `matvec.wgsl`.
pub const VECTOR_ROWS: usize = 8;

/// Token ids from here on mean the token that a sequence sampled last: all ones for sequence 0, one less for each
/// further sequence.
pub const SAMPLED_TOKEN: u32 = 1 << 31;

/// A matrix of so many rows keeps a large GPU busy with two rows for each thread.
const SOME_ROWS: usize = 1024;
/// One of so many with half of the threads for each row, too.
const MANY_ROWS: usize = 4096;
/// Vec4s of a normed row that a workgroup keeps in its memory at a time: 8 KiB, whole groups for all lanes.
const CHUNK: usize = 512;
/// Weights of a thread's next group are read ahead where they are at most so many vec4s.
const AHEAD_QUADS: usize = 4;
/// Threads of the kernel that looks up rows of a table; each reads a group of weights.
const EMBED_THREADS: usize = 64;
/// Rows of matrices in a tile of a product with many rows; of the batch as well, where it is by matrix instructions.
const TILE_ROWS: usize = 64;
/// Rows of a head's or an expert's matrix are a multiple of this.
pub const HEAD_ROWS: usize = 16;
/// No residual.
pub(super) const NONE: u32 = u32::MAX;

/// The input rows of a product.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Byte offset of the rows.
    pub x: u64,
    /// Width: values of a row.
    pub width: usize,
    /// A norm of `x`; only for products of one row.
    pub norm: Option<Norm<'a>>,
    /// What products of many rows make of the rows first, and the byte offset of room of [`Narrow::bytes`] for that.
    pub narrow: Option<(Narrow, u64)>,
}

/// `x / sqrt(mean(x²) + eps) · weight`
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// Factor per column.
    pub weight: &'a Vector,
    /// Added to the mean square.
    pub eps: f32,
    /// What is added to the rows before.
    pub added: Option<Added<'a>>,
}

/// `sum = x + y / sqrt(mean(y²) + eps) · weight`, which replaces `x` and is stored.
#[derive(Clone, Copy)]
pub struct Added<'a> {
    /// Byte offset of the rows.
    pub y: u64,
    /// Factor per column.
    pub weight: &'a Vector,
    /// Added to the mean square.
    pub eps: f32,
    /// Byte offset of the rows to store, neither `x` nor `y`.
    pub sum: u64,
}

/// A matrix that is multiplied, with what belongs to it: `matrix · x · scale + bias`.
#[derive(Clone, Copy)]
pub struct Term<'a> {
    /// The matrix.
    pub matrix: &'a Matrix,
    /// Factor on the product.
    pub scale: Option<f32>,
    /// Added to the product.
    pub bias: Option<&'a Vector>,
    /// How threads share the work on one row.
    pub spread: Spread,
}

impl<'a> Term<'a> {
    /// A matrix by itself.
    pub fn plain(matrix: &'a Matrix) -> Term<'a> {
        Term { matrix, scale: None, bias: None, spread: Spread::of(matrix) }
    }
}

/// How the threads of a product of one row share a matrix. A kernel's text depends on it, so a kernel's probe has the
/// spread of the matrix that the kernel is for.
#[derive(Clone, Copy)]
pub struct Spread {
    /// Threads of each row of the matrix.
    lanes: usize,
    /// Tiles of rows of a workgroup.
    tiles: usize,
}

impl Spread {
    /// By the size of a matrix: a small one has too few rows to fill a GPU, so more threads share each.
    pub fn of(matrix: &Matrix) -> Spread {
        let most = if matrix.n_out < MANY_ROWS { 32 } else { 16 };
        let tiles = if matrix.n_out < SOME_ROWS { 1 } else { 2 };
        Spread { lanes: matrix.layout.groups.next_power_of_two().clamp(8, most), tiles }
    }
}

/// `dst = [term for each part, side by side] + residual`
pub struct MatMul<'a> {
    /// The matrices; all but the last have a multiple of 4 rows.
    pub parts: &'a [Term<'a>],
    /// What they are multiplied with.
    pub input: Input<'a>,
    /// Byte offset of rows to add, as wide as the output's; may be `dst`.
    pub residual: Option<u64>,
    /// Byte offset of the output rows.
    pub dst: u64,
    /// Values of an output row.
    pub width: usize,
    /// Which rows.
    pub rows: Rows,
    /// The most rows of a run.
    pub max_rows: usize,
    /// The output is logits, of which a run may compute only a subset. Only for products of at most [`VECTOR_ROWS`]
    /// rows.
    pub logits: bool,
}

/// `dst = act(gate · x) ⊙ (up · x)`; without `up` `act(gate · x)`
pub struct Gated<'a> {
    /// The gate.
    pub gate: Term<'a>,
    /// The up matrix, of the same size and layout.
    pub up: Option<Term<'a>>,
    /// Activation of the gate.
    pub act: Activation,
    /// What they are multiplied with.
    pub input: Input<'a>,
    /// Byte offset of the output rows.
    pub dst: u64,
    /// Values of an output row.
    pub width: usize,
    /// Which rows.
    pub rows: Rows,
    /// The most rows of a run.
    pub max_rows: usize,
}

/// `dst = scale · table[index] + residual` for every batch row. The index is the token or the position of the row
/// record; a token from [`SAMPLED_TOKEN`] on selects a word of [`BufferRef::Sampled`]. A row whose index is outside the
/// table is not written.
pub struct Embed<'a> {
    /// The table.
    pub table: &'a Matrix,
    /// Factor on every value.
    pub scale: f32,
    /// Which row.
    pub index: Index,
    /// Byte offset of rows to add, as wide as the output's; may be `dst`.
    pub residual: Option<u64>,
    /// Byte offset of the output rows.
    pub dst: u64,
    /// Values of an output row.
    pub width: usize,
}

/// `dst = [matrix_h · x_h, then the rest of x_h, for each head h]`
pub struct Heads<'a> {
    /// The heads' matrices, one after the other.
    pub matrix: &'a Matrix,
    /// Heads of a row; the matrix has a multiple of 16 rows for each.
    pub heads: usize,
    /// Values at the end of a head that stay as they are, a multiple of 4.
    pub keep: usize,
    /// The rows.
    pub x: RowSpan,
    /// The results.
    pub dst: RowSpan,
    /// Which rows.
    pub rows: Rows,
    /// The most rows of a run.
    pub max_rows: usize,
}

/// The steps of products with a matrix for each head.
pub fn heads(gpu: &Gpu, h: &Heads<'_>) -> Result<Vec<Step>> {
    let [n_in, n_out] = [h.x, h.dst].map(|span| (span.width / h.heads.max(1)).saturating_sub(h.keep));
    let fits = h.matrix.n_in == n_in && h.matrix.n_out == n_out * h.heads && n_out.is_multiple_of(HEAD_ROWS);
    if !fits {
        let problem = format!("{} rows of {} for {} heads", h.matrix.n_out, h.matrix.n_in, h.heads);
        return Err(Error::Internal(problem));
    }
    let product = Product {
        first: Term { spread: Spread { lanes: 16, tiles: 1 }, ..Term::plain(h.matrix) },
        second: None,
        act: None,
        input: Input { x: h.x.offset as u64, width: h.x.width, norm: None, narrow: None },
        heads: Some(Parts { rows: n_out, x: h.x.width / h.heads, dst: h.dst.width / h.heads }),
        residual: None,
        dst: h.dst.offset as u64,
        width: h.dst.width,
        rows: h.rows,
        max_rows: h.max_rows,
        logits: false,
    };
    let mut steps = Vec::new();
    product.steps(gpu, &mut steps)?;
    if h.keep > 0 {
        let [x, dst] = [(h.x, n_in), (h.dst, n_out)].map(|(of, first)| PartColumns { of, first });
        steps.push(rows::columns(gpu, x, dst, h.heads, h.keep, h.rows)?);
    }
    Ok(steps)
}

/// The parts of a matrix and of rows that belong to one head.
struct Parts {
    /// Rows of the matrix.
    rows: usize,
    /// Values of the input.
    x: usize,
    /// Values of the output.
    dst: usize,
}

/// The steps of a product.
pub fn matmul(gpu: &Gpu, m: &MatMul<'_>) -> Result<Vec<Step>> {
    let mut steps = narrowed(gpu, &m.input, m.rows, m.max_rows)?;
    let mut column = 0usize;
    for part in m.parts {
        let matrix = part.matrix;
        if !column.is_multiple_of(4) || column + matrix.n_out > m.width {
            return Err(Error::Internal(format!("{} columns from {column} of {}", matrix.n_out, m.width)));
        }
        let product = Product {
            first: *part,
            second: None,
            act: None,
            heads: None,
            input: m.input,
            residual: m.residual.map(|at| at + 4 * column as u64),
            dst: m.dst + 4 * column as u64,
            width: m.width,
            rows: m.rows,
            max_rows: m.max_rows,
            logits: m.logits,
        };
        product.steps(gpu, &mut steps)?;
        column += matrix.n_out;
    }
    Ok(steps)
}

/// The steps of a gated product; [`Error::Unsupported`] where gate and up have different layouts.
pub fn gated(gpu: &Gpu, g: &Gated<'_>) -> Result<Vec<Step>> {
    let gate = g.gate.matrix;
    if let Some(Term { matrix: up, .. }) = g.up {
        if gate.layout.format != up.layout.format {
            let problem = format!("A gate of type {} beside a matrix of type {} on a GPU", gate.ty, up.ty);
            return Err(Error::Unsupported(problem));
        }
        if (gate.n_in, gate.n_out) != (up.n_in, up.n_out) {
            return Err(Error::Internal("A gate and its matrix have different sizes".into()));
        }
    }
    if gate.n_out > g.width {
        return Err(Error::Internal(format!("{} columns in {}", gate.n_out, g.width)));
    }
    let product = Product {
        first: g.gate,
        second: g.up,
        act: Some(g.act),
        heads: None,
        input: g.input,
        residual: None,
        dst: g.dst,
        width: g.width,
        rows: g.rows,
        max_rows: g.max_rows,
        logits: false,
    };
    let mut steps = narrowed(gpu, &g.input, g.rows, g.max_rows)?;
    product.steps(gpu, &mut steps)?;
    Ok(steps)
}

/// The step that makes a product's input narrow, where it is to be.
fn narrowed(gpu: &Gpu, input: &Input<'_>, rows: Rows, max_rows: usize) -> Result<Vec<Step>> {
    let Input { x, width, narrow, .. } = *input;
    let step = |(narrow, room): (Narrow, u64)| narrow.step(gpu, &Wide { x, width, room, rows, max_rows });
    Ok(narrow.map(step).transpose()?.into_iter().collect())
}

/// The steps that look up rows of a table.
pub fn embed(gpu: &Gpu, e: &Embed<'_>) -> Result<Vec<Step>> {
    if e.table.n_in > e.width {
        return Err(Error::Internal(format!("Table rows of {} values in {}", e.table.n_in, e.width)));
    }
    let (dst, width) = (quads("dst", e.dst, 16)?, quads("width", e.width as u64, 4)?);
    let columns = e.table.layout.groups.div_ceil(EMBED_THREADS) as u32;
    let mut steps = Vec::new();
    for slice in &e.table.slices {
        let mut text = Text::new(&e.table.layout);
        text.matrix(["WIDE_FIRST", "NARROW_FIRST"], slice);
        match e.index {
            Index::Token => {
                text.flags.push("TOKEN");
                text.bind("BIND_SAMPLED", Binding::Read, BufferRef::Sampled);
            }
            Index::Position => text.flags.push("POSITION"),
            Index::First => {}
        }
        text.flags.extend(e.residual.map(|_| "RESIDUAL"));
        text.constant("THREADS", EMBED_THREADS);
        text.constants.push(("SAMPLED_TOKEN", SAMPLED_TOKEN));
        text.constants.extend(FRAME_CONSTANTS);
        let residual = e.residual.map_or(Ok(NONE), |at| quads("residual", at, 16))?;
        let words = Words { dst, dst_stride: width, residual, real: e.scale, ..Words::of(e.table, slice) };
        let groups = [GroupCount::Fixed(columns), GroupCount::Rows(1, 1), GroupCount::Fixed(1)];
        steps.push(text.step(gpu, "embed", EMBED, &words, groups)?);
    }
    Ok(steps)
}

/// One matrix's product, plain, activated or gated.
struct Product<'a> {
    first: Term<'a>,
    /// What the first one gates.
    second: Option<Term<'a>>,
    act: Option<Activation>,
    /// Where each head has a matrix of its own.
    heads: Option<Parts>,
    input: Input<'a>,
    residual: Option<u64>,
    dst: u64,
    width: usize,
    rows: Rows,
    max_rows: usize,
    logits: bool,
}

impl Product<'_> {
    fn steps(&self, gpu: &Gpu, steps: &mut Vec<Step>) -> Result<()> {
        let (matrix, Input { x, width, norm, narrow }) = (self.first.matrix, self.input);
        let n_in = matrix.n_in;
        let norms = norm.iter().flat_map(|norm| [Some(norm.weight), norm.added.map(|added| added.weight)]);
        if width != n_in && self.heads.is_none() || norms.flatten().any(|weight| weight.len != n_in) {
            return Err(Error::Internal(format!("Rows of {width} values for a matrix of {n_in}")));
        }
        if norm.is_some() && self.max_rows > 1 {
            return Err(Error::Internal(format!("A norm within a product of {} rows", self.max_rows)));
        }
        let biases = [Some(self.first), self.second].into_iter().flatten().filter_map(|term| term.bias);
        if biases.into_iter().any(|bias| bias.len != matrix.n_out) {
            return Err(Error::Internal(format!("A bias for {} columns has another length", matrix.n_out)));
        }
        for (i, slice) in matrix.slices.iter().enumerate() {
            let mut text = Text::new(&matrix.layout);
            text.matrix(["WIDE_FIRST", "NARROW_FIRST"], slice);
            let mut words = Words::of(matrix, slice);
            words.scale_first = text.term(&self.first, ["SCALE_FIRST", "BIAS_FIRST", "BIND_BIAS_FIRST"]);
            if let Some(second) = self.second {
                text.matrix(["WIDE_SECOND", "NARROW_SECOND"], &second.matrix.slices[i]);
                text.flags.push("GATED");
                words.scale_second = text.term(&second, ["SCALE_SECOND", "BIAS_SECOND", "BIND_BIAS_SECOND"]);
            }
            if let Some(act) = self.act {
                text.flags.push("ACTIVATED");
                text.flags.extend(activation_flags(act));
                words.curve = curve(act);
            }
            if !n_in.is_multiple_of(GROUP) {
                text.flags.push("RAGGED");
            }
            text.constants.push(("NONE", NONE));
            words.count_at = u32::from(self.rows == Rows::Output);
            let first = 4 * slice.first_row as u64;
            words.x = quads("x", x, 16)?;
            words.x_stride = quads("x width", width as u64, 4)?;
            words.dst = quads("dst", self.dst + first, 16)?;
            if let Some(parts) = &self.heads {
                text.flags.push("HEADS");
                // The kernel counts from the first row of the first head.
                words.dst = quads("dst", self.dst, 16)?;
                words.stack_rows = parts.rows as u32;
                words.part_x = quads("a head's values", parts.x as u64, 4)?;
                words.part_dst = quads("a head's results", parts.dst as u64, 4)?;
            }
            // Rows of one value are stored four at a time.
            let one = self.width == 1 && self.act.is_none() && self.residual.is_none();
            words.dst_stride = if one { 0 } else { quads("width", self.width as u64, 4)? };
            text.flags.extend(one.then_some("ONE"));
            words.residual = self.residual.map_or(Ok(NONE), |at| quads("residual", at + first, 16))?;
            // The first step of a job stores the sum for all.
            let stores = steps.is_empty();
            steps.push(match narrow.filter(|(narrow, _)| !one && narrow.suits(matrix.layout.format)) {
                _ if self.max_rows <= VECTOR_ROWS => self.vectors(gpu, slice, text, words, stores)?,
                None => self.tiles(gpu, slice, text, words)?,
                Some((Narrow::Bytes, room)) => self.int8_tiles(gpu, slice, text, words, room)?,
                Some((Narrow::Halves, room)) => self.halves_tiles(gpu, slice, text, words, room)?,
            });
        }
        Ok(())
    }

    fn vectors(&self, gpu: &Gpu, slice: &Slice, mut text: Text, mut words: Words, stores: bool) -> Result<Step> {
        if let Some(Norm { weight, eps, added }) = self.input.norm {
            text.bind("BIND_NORM", Binding::Read, weight.bound());
            text.flags.push("NORM");
            words.real = eps;
            if let Some(Added { y, weight, eps, sum }) = added {
                text.bind("BIND_ADDED", Binding::Read, weight.bound());
                text.flags.push("ADDED");
                words.y = quads("y", y, 16)?;
                words.y_eps = eps;
                words.sum = if stores { quads("sum", sum, 16)? } else { NONE };
            }
        }
        // One kernel for one row, another for all other counts: the number of rows is read from the frame.
        let (columns, spread) = match self.max_rows {
            1 => (1, self.first.spread),
            _ => (VECTOR_ROWS, Spread { lanes: 8, tiles: 2 }),
        };
        let few = gpu.caps.registers == Registers::Few;
        let (sides, out_tiles) = match self.second {
            Some(_) => (2, 1),
            None if few => (1, 1),
            None => (spread.tiles, spread.tiles),
        };
        // Powers of two both: the lanes deal a chunk out evenly.
        let k_lanes = spread.lanes.min(1 << (gpu.caps.max_threads as usize / TILE).ilog2());
        let quads = sides * self.first.matrix.layout.format.elements[QUADS];
        text.flags.extend((quads <= AHEAD_QUADS && !few).then_some("AHEAD"));
        text.constant("CHUNK", CHUNK);
        text.constant("K_LANES", k_lanes);
        text.constant("THREADS", k_lanes * TILE);
        text.constant("COLUMNS", columns);
        text.constant("SIDES", sides);
        text.constant("OUT_TILES", out_tiles);
        let [x, y] = fold(gpu, slice.tiles().div_ceil(out_tiles))?;
        (words.fold, words.columns) = (x, self.max_rows as u32);
        if !self.logits {
            return text.step(
                gpu,
                "matvec",
                MATVEC,
                &words,
                [GroupCount::Fixed(x), GroupCount::Fixed(y), GroupCount::Fixed(1)],
            );
        }
        text.flags.push("LISTED");
        text.constant("FRAME_N_LISTED", FRAME_N_LISTED);
        text.constant("FRAME_LISTED", FRAME_LISTED);
        text.step(gpu, "matvec", MATVEC, &words, [GroupCount::Listed(x), GroupCount::Unlisted(y), GroupCount::Fixed(1)])
    }

    fn tiles(&self, gpu: &Gpu, slice: &Slice, mut text: Text, mut words: Words) -> Result<Step> {
        let sides = if self.second.is_some() { 2 } else { 1 };
        // A workgroup has rows of one head.
        let of_head = self.heads.as_ref().map_or(TILE_ROWS, |parts| 1 << parts.rows.trailing_zeros().min(6));
        let rows_out = (TILE_ROWS / sides).min(of_head);
        let rows_in = if self.max_rows <= 16 { 16 } else { 32 };
        let each = if sides > 1 && gpu.caps.registers == Registers::Few { 2 } else { 4 };
        text.constant("SIDES", sides);
        text.constant("ROWS_OUT", rows_out);
        text.constant("ROWS_IN", rows_in);
        text.constant("EACH", each);
        text.constant("THREADS", rows_out / 4 * (rows_in / each));
        let [y, z] = fold(gpu, slice.rows.div_ceil(rows_out))?;
        words.fold = y;
        // Workgroups of one piece of the matrix run next to each other.
        let x = GroupCount::per_row(self.rows, 1, rows_in as u32);
        text.step(gpu, "matmul", MATMUL, &words, [x, GroupCount::Fixed(y), GroupCount::Fixed(z)])
    }

    fn halves_tiles(&self, gpu: &Gpu, slice: &Slice, mut text: Text, mut words: Words, room: u64) -> Result<Step> {
        let none = || Error::Internal("Products by matrix instructions that the device does not have".into());
        let matrices = gpu.caps.matrices.ok_or_else(none)?;
        let Matrices { block, threads, .. } = matrices;
        let rows_out = TILE_ROWS / if self.second.is_some() { 2 } else { 1 };
        text.flags.extend(matrices.flags());
        text.constant("BLOCK", block as usize);
        text.constant("ROWS", TILE_ROWS);
        text.constant("ROWS_OUT", rows_out);
        text.constant("STEP", 2);
        text.constant("THREADS", threads as usize);
        (words.x, words.x_stride) = (quads("room", room, 16)?, self.max_rows as u32);
        let [y, z] = fold(gpu, slice.rows.div_ceil(rows_out))?;
        words.fold = y;
        let x = GroupCount::per_row(self.rows, 1, TILE_ROWS as u32);
        text.step(gpu, "matmul_halves", MATMUL_HALVES, &words, [x, GroupCount::Fixed(y), GroupCount::Fixed(z)])
    }

    fn int8_tiles(&self, gpu: &Gpu, slice: &Slice, mut text: Text, mut words: Words, room: u64) -> Result<Step> {
        let sides = if self.second.is_some() { 2 } else { 1 };
        let rows_out = TILE_ROWS / sides;
        let many = gpu.caps.registers == Registers::Many;
        let most = if sides > 1 && !many { 32 } else { 64 };
        let rows_in = self.max_rows.next_power_of_two().clamp(16, most);
        // As many threads as load a step's weights, a row's group each, and as compute 4 x `each` sums each.
        let step = if rows_in > 16 { 2 } else { 1 };
        let threads = step * TILE_ROWS;
        let each = rows_out / 4 * rows_in / threads;
        text.flags.push("INT8");
        text.flags.extend(many.then_some("AHEAD"));
        text.constant("SIDES", sides);
        text.constant("ROWS_OUT", rows_out);
        text.constant("ROWS_IN", rows_in);
        text.constant("EACH", each);
        text.constant("STEP", step);
        text.constant("SCALES", self.first.matrix.layout.format.scales);
        text.constant("THREADS", threads);
        (words.x, words.x_stride) = (quads("room", room, 16)?, self.max_rows as u32);
        let [y, z] = fold(gpu, slice.rows.div_ceil(rows_out))?;
        words.fold = y;
        let x = GroupCount::per_row(self.rows, 1, rows_in as u32);
        text.step(gpu, "matmul_int8", MATMUL_INT8, &words, [x, GroupCount::Fixed(y), GroupCount::Fixed(z)])
    }
}

/// `Params` of weights.wgsl.
#[derive(Default)]
pub(super) struct Words {
    pub groups: u32,
    pub rows: u32,
    pub first_row: u32,
    pub count_at: u32,
    pub sections: [u32; 3],
    pub x_quads: u32,
    pub x: u32,
    pub x_stride: u32,
    pub dst: u32,
    pub dst_stride: u32,
    pub residual: u32,
    pub fold: u32,
    pub columns: u32,
    pub real: f32,
    pub y: u32,
    pub sum: u32,
    pub y_eps: f32,
    pub scale_first: f32,
    pub scale_second: f32,
    pub curve: [f32; 4],
    pub stack: u32,
    pub stack_rows: u32,
    pub second_stack: u32,
    pub second_rows: u32,
    pub part_x: u32,
    pub part_dst: u32,
    pub used: u32,
    pub route: u32,
}

impl Words {
    pub fn of(matrix: &Matrix, slice: &Slice) -> Words {
        Words {
            groups: matrix.layout.groups as u32,
            rows: slice.rows as u32,
            first_row: slice.first_row as u32,
            sections: slice.section_places(),
            x_quads: matrix.n_in as u32 / 4,
            ..Words::default()
        }
    }

    fn params(&self) -> Vec<u32> {
        let [blocks, halves, block_halves] = self.sections;
        let matrix =
            [self.groups, self.rows, self.first_row, self.count_at, blocks, halves, block_halves, self.x_quads];
        let rows = [self.x, self.x_stride, self.dst, self.dst_stride, self.residual, self.fold, self.columns];
        let norms = [self.real.to_bits(), self.y, self.sum, self.y_eps.to_bits()];
        let scales = [self.scale_first.to_bits(), self.scale_second.to_bits(), 0, 0, 0];
        let stacks = [self.stack, self.stack_rows, self.second_stack, self.second_rows];
        let parts = [self.part_x, self.part_dst, self.used, self.route];
        let curve = self.curve.map(f32::to_bits);
        [&matrix[..], &rows[..], &norms[..], &scales[..], &curve[..], &stacks[..], &parts[..]].concat()
    }
}

/// A shader under construction: its flags, constants and bindings.
pub(super) struct Text {
    pub flags: Vec<&'static str>,
    constants: Vec<(&'static str, u32)>,
    bindings: Vec<Binding>,
    buffers: Vec<BufferRef>,
}

impl Text {
    /// The flags and constants of every kernel over a matrix of this layout.
    pub fn new(layout: &Layout) -> Text {
        let format = layout.format;
        let mut text =
            Text { flags: vec![format.flag], constants: Vec::new(), bindings: Vec::new(), buffers: Vec::new() };
        let sections = ["", "BLOCKS", "WORDS", "HALVES", "BLOCK_HALVES"];
        text.flags.extend(sections.iter().zip(format.elements).filter(|(_, n)| *n > 0).map(|(flag, _)| *flag));
        let more = [
            (format.offset, "OFFSET"),
            (format.sixes, "SIXES"),
            (format.scales > 0, "CODES"),
            (format.scales > 1, "TWO_SCALES"),
        ];
        text.flags.extend(more.iter().filter(|(has, _)| *has).map(|(_, flag)| *flag));
        if let Some(table) = format.table {
            text.flags.push("TABLE");
            let words = table.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(four.map(i8::cast_unsigned)));
            text.constants.extend(["TABLE_0", "TABLE_1", "TABLE_2", "TABLE_3"].into_iter().zip(words));
        }
        text.constant("TILE", TILE);
        text.constant("BLOCK_GROUPS", BLOCK_GROUPS);
        text.constant("QUADS", format.elements[QUADS]);
        text.constant("WORDS", format.elements[WORDS]);
        text.bind("BIND_WS", Binding::Write, BufferRef::Workspace);
        text.bind("BIND_FRAME", Binding::Read, BufferRef::Frame);
        text.bind("BIND_PARAMS", Binding::Uniform, BufferRef::Params);
        text
    }

    pub fn constant(&mut self, name: &'static str, value: usize) {
        self.constants.push((name, value as u32));
    }

    /// Adds a binding with the next number and this name in the shader.
    pub fn bind(&mut self, name: &'static str, kind: Binding, buffer: BufferRef) {
        self.constant(name, self.bindings.len());
        self.bindings.push(kind);
        self.buffers.push(buffer);
    }

    /// What belongs to a matrix besides its weights; returns its factor.
    fn term(&mut self, term: &Term<'_>, [scaled, biased, bind]: [&'static str; 3]) -> f32 {
        if let Some(bias) = term.bias {
            self.bind(bind, Binding::Read, bias.bound());
            self.flags.push(biased);
        }
        self.flags.extend(term.scale.map(|_| scaled));
        term.scale.unwrap_or(1.0)
    }

    /// A slice's one or two bindings.
    pub fn matrix(&mut self, [wide, narrow]: [&'static str; 2], slice: &Slice) {
        self.bind(wide, Binding::Read, slice.wide());
        if let Some(bound) = slice.narrow() {
            self.bind(narrow, Binding::Read, bound);
            self.flags.push("NARROW");
        }
    }

    pub fn step(
        self,
        gpu: &Gpu,
        name: &'static str,
        source: &str,
        words: &Words,
        groups: [GroupCount; 3],
    ) -> Result<Step> {
        let mut source = [source, FETCH].concat();
        if self.flags.contains(&"GATED") {
            source += &FETCH.replace("first", "second").replace("FIRST", "SECOND");
        }
        let text = compose(&source, &self.flags, &self.constants)?;
        let kernel = gpu.kernel(name, &text, &self.bindings)?;
        Ok(Step { kernel, buffers: self.buffers, params: words.params(), groups })
    }
}

#[cfg(test)]
mod narrow_tests;
#[cfg(test)]
mod tests;
