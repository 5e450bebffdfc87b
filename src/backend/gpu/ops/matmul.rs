//! Products of matrices and rows of the workspace, and rows of a table, as steps.
//!
//! Up to [`VECTOR_ROWS`] rows a product is bound by reading the weights: `matvec.wgsl` reads them once for all rows,
//! and can also apply an RMS norm to its input. More rows are computed in the tiles of `matmul.wgsl`. Each slice of a
//! matrix is a dispatch of its own.
//!
//! Bytes and widths are those of the workspace: offsets are multiples of 16 bytes, row `r` of an operand starts `r`
//! times its width after the first. A product with a matrix whose number of rows is no multiple of 4 also writes the
//! columns up to the next multiple.

use crate::backend::gpu::kernel::dispatch::{
    BufferRef, FRAME_CONSTANTS, FRAME_LISTED, FRAME_N_LISTED, GroupCount, Step,
};
use crate::backend::gpu::kernel::{Binding, Gpu, compose};
use crate::backend::gpu::weights::layout::{BLOCK_GROUPS, GROUP, Layout, QUADS, TILE, WORDS};
use crate::backend::gpu::weights::matrix::{Matrix, Slice, Vector};
use crate::graph::{Activation, Rows};
use crate::{Error, Result};

const MATVEC: &str = include_str!("../shaders/ops/matvec.wgsl");
const MATMUL: &str = include_str!("../shaders/ops/matmul.wgsl");
const EMBED: &str = include_str!("../shaders/ops/embed.wgsl");
const FETCH: &str = include_str!("../shaders/ops/fetch.wgsl");

/// The most rows of a product that is computed by `matvec.wgsl`.
pub const VECTOR_ROWS: usize = 8;

/// Token ids from here on mean the token that a sequence sampled last: all ones for sequence 0, one less for each
/// further sequence.
pub const SAMPLED_TOKEN: u32 = 1 << 31;

/// Threads of the kernel that looks up rows of a table; each reads a group of weights.
const EMBED_THREADS: usize = 64;
/// Rows of matrices in a tile of a product with many rows.
const TILE_ROWS: usize = 64;
/// No residual.
const NONE: u32 = u32::MAX;

/// The input rows of a product.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Byte offset of the rows.
    pub x: u64,
    /// Width: values of a row.
    pub width: usize,
    /// A norm of `x`; only for products of at most [`VECTOR_ROWS`] rows.
    pub norm: Option<Norm<'a>>,
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

/// `dst = [w · x + b for each part, side by side] + residual`
pub struct MatMul<'a> {
    /// Matrices with their biases; all but the last have a multiple of 4 rows.
    pub parts: &'a [(&'a Matrix, Option<&'a Vector>)],
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

/// `dst = act(gate · x) ⊙ (up · x)`
pub struct Gated<'a> {
    /// The gate.
    pub gate: &'a Matrix,
    /// The up matrix, of the same size and layout.
    pub up: &'a Matrix,
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

/// `dst = scale · table[token]` for every batch row. The token is that of the row record; an id from [`SAMPLED_TOKEN`]
/// on selects a word of [`BufferRef::Sampled`]. A row whose token is outside the table is not written.
pub struct Embed<'a> {
    /// The table.
    pub table: &'a Matrix,
    /// Factor on every value.
    pub scale: f32,
    /// Byte offset of the output rows.
    pub dst: u64,
    /// Values of an output row.
    pub width: usize,
}

/// The steps of a product.
pub fn matmul(gpu: &Gpu, m: &MatMul<'_>) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut column = 0usize;
    for (matrix, bias) in m.parts {
        if !column.is_multiple_of(4) || column + matrix.n_out > m.width {
            return Err(Error::Internal(format!("{} columns from {column} of {}", matrix.n_out, m.width)));
        }
        if bias.is_some_and(|bias| bias.len != matrix.n_out) {
            return Err(Error::Internal(format!("A bias for {} columns has another length", matrix.n_out)));
        }
        let product = Product {
            matrix,
            up: None,
            bias: *bias,
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
    if g.gate.layout.format != g.up.layout.format {
        let problem = format!("A gate of type {} beside a matrix of type {} on a GPU", g.gate.ty, g.up.ty);
        return Err(Error::Unsupported(problem));
    }
    if (g.gate.n_in, g.gate.n_out) != (g.up.n_in, g.up.n_out) || g.gate.n_out > g.width {
        return Err(Error::Internal("A gate and its matrix have different sizes".into()));
    }
    let product = Product {
        matrix: g.gate,
        up: Some((g.up, g.act)),
        bias: None,
        input: g.input,
        residual: None,
        dst: g.dst,
        width: g.width,
        rows: g.rows,
        max_rows: g.max_rows,
        logits: false,
    };
    let mut steps = Vec::new();
    product.steps(gpu, &mut steps)?;
    Ok(steps)
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
        text.bind("BIND_SAMPLED", Binding::Read, BufferRef::Sampled);
        text.constant("THREADS", EMBED_THREADS);
        text.constants.push(("SAMPLED_TOKEN", SAMPLED_TOKEN));
        text.constants.extend(FRAME_CONSTANTS);
        let words = Words { dst, dst_stride: width, real: e.scale, ..Words::of(e.table, slice) };
        let groups = [GroupCount::Fixed(columns), GroupCount::Rows(1, 1), GroupCount::Fixed(1)];
        steps.push(text.step(gpu, "embed", EMBED, &words, groups)?);
    }
    Ok(steps)
}

/// One matrix's product, plain or gated.
struct Product<'a> {
    matrix: &'a Matrix,
    up: Option<(&'a Matrix, Activation)>,
    bias: Option<&'a Vector>,
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
        let (n_in, Input { x, width, norm }) = (self.matrix.n_in, self.input);
        let norms = norm.iter().flat_map(|norm| [Some(norm.weight), norm.added.map(|added| added.weight)]);
        if width != n_in || norms.flatten().any(|weight| weight.len != n_in) {
            return Err(Error::Internal(format!("Rows of {width} values for a matrix of {n_in}")));
        }
        if norm.is_some() && self.max_rows > VECTOR_ROWS {
            return Err(Error::Internal(format!("A norm within a product of {} rows", self.max_rows)));
        }
        for (i, slice) in self.matrix.slices.iter().enumerate() {
            let mut text = Text::new(&self.matrix.layout);
            text.matrix(["WIDE_FIRST", "NARROW_FIRST"], slice);
            if let Some((up, act)) = self.up {
                text.matrix(["WIDE_SECOND", "NARROW_SECOND"], &up.slices[i]);
                text.flags.extend(["GATED", if act == Activation::Gelu { "GELU" } else { "SILU" }]);
            }
            if let Some(bias) = self.bias {
                text.bind("BIND_BIAS", Binding::Read, bias.bound());
                text.flags.push("BIAS");
            }
            if !n_in.is_multiple_of(GROUP) {
                text.flags.push("RAGGED");
            }
            text.constants.push(("NONE", NONE));
            let mut words = Words::of(self.matrix, slice);
            words.count_at = u32::from(self.rows == Rows::Output);
            let first = 4 * slice.first_row as u64;
            words.x = quads("x", x, 16)?;
            words.x_stride = quads("x width", width as u64, 4)?;
            words.dst = quads("dst", self.dst + first, 16)?;
            words.dst_stride = quads("width", self.width as u64, 4)?;
            words.residual = self.residual.map_or(Ok(NONE), |at| quads("residual", at + first, 16))?;
            // The first step of a job stores the sum for all.
            let stores = steps.is_empty();
            steps.push(match self.max_rows <= VECTOR_ROWS {
                true => self.vectors(gpu, slice, text, words, stores)?,
                false => self.tiles(gpu, slice, text, words)?,
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
        let columns = if self.max_rows == 1 { 1 } else { VECTOR_ROWS };
        // Two tiles share the activations, except where one row's are too few to matter and threads are worth more.
        let (sides, out_tiles) = match (self.up.is_some(), columns) {
            (true, _) => (2, 1),
            (false, 1) => (1, 1),
            (false, _) => (2, 2),
        };
        let k_lanes = if columns == 1 { 16 } else { 8 };
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
        let sides = if self.up.is_some() { 2 } else { 1 };
        let rows_out = TILE_ROWS / sides;
        let rows_in = if self.max_rows <= 16 { 16 } else { 32 };
        text.constant("SIDES", sides);
        text.constant("ROWS_OUT", rows_out);
        text.constant("ROWS_IN", rows_in);
        text.constant("THREADS", rows_out / 4 * (rows_in / 4));
        let [y, z] = fold(gpu, slice.rows.div_ceil(rows_out))?;
        words.fold = y;
        // Workgroups of one piece of the matrix run next to each other.
        let x = match self.rows {
            Rows::Batch => GroupCount::Rows(1, rows_in as u32),
            Rows::Output => GroupCount::Outputs(1, rows_in as u32),
        };
        text.step(gpu, "matmul", MATMUL, &words, [x, GroupCount::Fixed(y), GroupCount::Fixed(z)])
    }
}

/// A number of workgroups in two dimensions that a device can dispatch.
fn fold(gpu: &Gpu, groups: usize) -> Result<[u32; 2]> {
    let most = gpu.caps.max_workgroups as usize;
    let y = groups.div_ceil(most).max(1);
    let x = groups.div_ceil(y);
    if y > most {
        return Err(Error::Unsupported(format!("{groups} workgroups on {}", gpu.info.name)));
    }
    Ok([x as u32, y as u32])
}

/// An offset or width of the workspace in vec4s, from units of which `by` make one vec4.
fn quads(what: &str, n: u64, by: u64) -> Result<u32> {
    let whole = n.is_multiple_of(by).then(|| u32::try_from(n / by).ok()).flatten().filter(|&n| n != NONE);
    whole.ok_or_else(|| Error::Internal(format!("{what} of {n} in the workspace")))
}

/// `Params` of weights.wgsl.
#[derive(Default)]
struct Words {
    groups: u32,
    rows: u32,
    first_row: u32,
    count_at: u32,
    sections: [u32; 3],
    x_quads: u32,
    x: u32,
    x_stride: u32,
    dst: u32,
    dst_stride: u32,
    residual: u32,
    fold: u32,
    columns: u32,
    real: f32,
    y: u32,
    sum: u32,
    y_eps: f32,
}

impl Words {
    fn of(matrix: &Matrix, slice: &Slice) -> Words {
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
        let norms = [self.real.to_bits(), self.y, self.sum, self.y_eps.to_bits(), 0];
        [&matrix[..], &rows[..], &norms[..]].concat()
    }
}

/// A shader under construction: its flags, constants and bindings.
struct Text {
    flags: Vec<&'static str>,
    constants: Vec<(&'static str, u32)>,
    bindings: Vec<Binding>,
    buffers: Vec<BufferRef>,
}

impl Text {
    /// The flags and constants of every kernel over a matrix of this layout.
    fn new(layout: &Layout) -> Text {
        let format = layout.format;
        let mut text =
            Text { flags: vec![format.flag], constants: Vec::new(), bindings: Vec::new(), buffers: Vec::new() };
        let sections = ["", "BLOCKS", "WORDS", "HALVES", "BLOCK_HALVES"];
        text.flags.extend(sections.iter().zip(format.elements).filter(|(_, n)| *n > 0).map(|(flag, _)| *flag));
        text.flags.extend([(format.offset, "OFFSET"), (format.sixes, "SIXES")].iter().filter(|f| f.0).map(|f| f.1));
        text.constant("TILE", TILE);
        text.constant("BLOCK_GROUPS", BLOCK_GROUPS);
        text.constant("QUADS", format.elements[QUADS]);
        text.constant("WORDS", format.elements[WORDS]);
        text.bind("BIND_WS", Binding::Write, BufferRef::Workspace);
        text.bind("BIND_FRAME", Binding::Read, BufferRef::Frame);
        text.bind("BIND_PARAMS", Binding::Uniform, BufferRef::Params);
        text
    }

    fn constant(&mut self, name: &'static str, value: usize) {
        self.constants.push((name, value as u32));
    }

    /// Adds a binding with the next number and this name in the shader.
    fn bind(&mut self, name: &'static str, kind: Binding, buffer: BufferRef) {
        self.constant(name, self.bindings.len());
        self.bindings.push(kind);
        self.buffers.push(buffer);
    }

    /// A slice's one or two bindings.
    fn matrix(&mut self, [wide, narrow]: [&'static str; 2], slice: &Slice) {
        self.bind(wide, Binding::Read, slice.wide());
        if let Some(bound) = slice.narrow() {
            self.bind(narrow, Binding::Read, bound);
            self.flags.push("NARROW");
        }
    }

    fn step(self, gpu: &Gpu, name: &'static str, source: &str, words: &Words, groups: [GroupCount; 3]) -> Result<Step> {
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
mod tests;
