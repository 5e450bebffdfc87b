//! Fused attention over the KV cache: scores, masks, softmax and weighted values without a score matrix.
//!
//! Cells are taken in fixed ranges of [`RANGE`]. For one query vector, each range by itself yields its largest score
//! m, the sum l of e^(s - m) and the values weighted by them, o; ranges are then joined in ascending order:
//!
//! ```text
//! M' = max(M, m)    L' = L e^(M - M') + l e^(m - M')    O' = O e^(M - M') + o e^(m - M')
//! ```
//!
//! and the result is O / L. (The running maximum and sum are those of Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", <https://arxiv.org/abs/1805.02867>; with the values in the same pass it is what
//! FlashAttention does, <https://arxiv.org/abs/2205.14135>.) That is the definition, bit for bit: tiles of rows, blocks
//! that are skipped because nothing in them is seen, and the split of one row's ranges over threads all leave it
//! unchanged, so a row's result depends on the row and on the cells it sees, not on the batch or on the number of
//! threads.
//!
//! Where a row's sequence has a list of blocks ([`TableCells::lists`]), ranges are of the cells in its order, else in
//! that of their numbers.
//!
//! A row sees a cell when they share a sequence (or the row's node of a tree stands below the cell's, see [`sees`]),
//! the cell is not after the row (unless attention is bidirectional), and it lies within the window. Cells that no row
//! of a tile sees are never multiplied in, so what a freed cell holds (even NaN) does no harm. A row that sees nothing
//! yields zeros.
//!
//! [`sees`]: crate::backend::sees
//! [`TableCells::lists`]: crate::backend::TableCells::lists

mod cells;
#[cfg(test)]
mod tests;
mod tile;

pub use tile::RANGE;

use super::vecmath::exp;
use crate::backend::cpu::host::pool::SharedMut;
use crate::backend::cpu::host::region::Region;
use crate::backend::cpu::kv::KvLayout;
use crate::backend::{LIST_BLOCK, NO_BLOCK, SUM_RANGE, TREE};
use crate::graph::{Temperature, alibi_slope};
use crate::quant::TensorType;
use crate::simd::{Isa, Kernel, LANES, Vector, dispatch};
use crate::{Result, reserve};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use tile::{BLOCKS, Block, Head, MAX_ENTRIES};

/// Query vectors (rows times heads of a group) that one task works on, at most.
const TILE_ENTRIES: usize = 48;

const _: () = assert!(LIST_BLOCK == LANES && SUM_RANGE == RANGE);

/// How scores are made of products of queries and keys, and which cells a row sees.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scoring<'a> {
    /// Factor of the scores.
    pub scale: f32,
    /// Factor of the queries by their position.
    pub temperature: Option<Temperature>,
    /// Scores s become cap tanh(s / cap); 0 for none.
    pub softcap: f32,
    /// Whether a row sees cells after it.
    pub bidirectional: bool,
    /// A row sees this many positions, its own included, or half as many to either side; 0 for all.
    pub window: u32,
    /// A row sees positions from the last multiple of this on; 0 for all.
    pub chunk: u32,
    /// Largest bias of ALiBi, see [`alibi_slope`]; 0 for none. The bias comes before the cap.
    pub alibi: f32,
    /// Biases by distance; they come before the cap.
    pub distances: Option<Distances<'a>>,
    /// Per query head a score without a value.
    pub sinks: Option<&'a [f32]>,
}

/// Biases of scores by the distance of key and query, see [`crate::graph::DistanceBias`].
#[derive(Debug, Clone, Copy)]
pub struct Distances<'a> {
    /// For each bucket a number per query head.
    pub biases: &'a [f32],
    /// The bucket of each distance; those beyond are in the last one's.
    pub buckets: &'a [u32],
    /// The first bucket of keys after the query; 0 where those are not seen.
    pub after: u32,
}

/// One layer's attention over one batch. Slices of rows have one length, those of cells at least `n_kv` rounded up
/// to 16.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Shape of the cache.
    pub layout: &'a KvLayout,
    /// Query heads, a multiple of the layout's key heads; neighbours share a key head.
    pub n_heads: usize,
    /// How scores are made.
    pub scoring: Scoring<'a>,
    /// Key buffer.
    pub k: &'a [u8],
    /// Value buffer.
    pub v: &'a [u8],
    /// Queries: rows of `q_stride` values that begin with `[head][head_dim_k]`.
    pub q: &'a [f32],
    /// Values from one row of queries to the next.
    pub q_stride: usize,
    /// Position of each row.
    pub row_pos: &'a [i32],
    /// Sequences of each row, one bit each, or where in a tree it stands.
    pub row_seq: &'a [u32],
    /// Position of each cell.
    pub cell_pos: &'a [i32],
    /// Sequences of each cell, one bit each; 0 for a free cell.
    pub cell_seq: &'a [u32],
    /// By sequence the blocks of its cells, all of which are there.
    pub lists: &'a [Vec<u32>],
    /// Cells from here on are not looked at, but for those of lists.
    pub n_kv: usize,
}

/// How a step is cut into tasks; see [`Attention::tasks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tasks {
    /// Number of tasks.
    pub count: usize,
    /// Rows of a tile; 0 when the ranges of one row are split instead.
    tile_rows: usize,
}

/// Room for the parts of split rows. One per engine, reserved at open; used by one step at a time.
#[derive(Debug, Default)]
pub struct SplitSpace {
    parts: Region,
    done: Vec<AtomicU32>,
}

impl SplitSpace {
    /// Floats of the parts of a layer of this shape.
    pub fn floats(layout: &KvLayout, n_heads: usize) -> usize {
        layout.n_cells().div_ceil(RANGE) * n_heads * part_len(layout)
    }

    /// Bytes of the parts that there is room for.
    pub fn bytes(&self) -> usize {
        self.parts.bytes
    }

    /// Make room for a layer of this shape.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn reserve(&mut self, layout: &KvLayout, n_heads: usize) -> Result<()> {
        self.parts.grow("parts of split attention", Self::floats(layout, n_heads).saturating_mul(4))?;
        let heads = layout.n_kv_heads();
        if heads > self.done.len() {
            self.done = reserve::list(heads, "heads of split attention")?;
            self.done.resize_with(heads, AtomicU32::default);
        }
        Ok(())
    }

    /// For the tasks of one step. Also puts the room in order after a run that failed.
    pub fn share(&mut self) -> SplitShare<'_> {
        self.done.iter_mut().for_each(|n| *n.get_mut() = 0);
        SplitShare { parts: SharedMut::new(self.parts.floats()), done: &self.done }
    }
}

/// A [`SplitSpace`] in use.
#[derive(Clone, Copy)]
pub struct SplitShare<'a> {
    parts: SharedMut<'a, f32>,
    /// Per key head, the ranges that are done.
    done: &'a [AtomicU32],
}

/// Floats of a split part of one head: largest score, sum of weights, then (a vector on) the weighted values.
fn part_len(layout: &KvLayout) -> usize {
    LANES + layout.v_width()
}

/// Bytes of scratch memory that each thread needs for [`Attention::run`].
pub fn scratch_bytes(layout: &KvLayout, n_heads: usize) -> usize {
    Scratch::floats(layout, n_heads / layout.n_kv_heads()) * size_of::<f32>()
}

/// A thread's scratch memory, cut up.
struct Scratch<'a> {
    /// Scaled queries, per group of n entries `[dim_k][n]`.
    q: &'a mut [f32],
    /// Sums of values, `[entry][dim_v]`.
    o: &'a mut [f32],
    /// Largest score of each entry so far.
    max: &'a mut [f32],
    /// Sum of weights of each entry so far.
    sum: &'a mut [f32],
    /// Scores, then weights, of the entries at work, `[entry][RANGE]`.
    s: &'a mut [f32],
    /// Weighted values of the range at work, `[entry][dim_v]`.
    values: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn entries(group: usize) -> usize {
        TILE_ENTRIES.max(group).next_multiple_of(LANES)
    }

    fn floats(layout: &KvLayout, group: usize) -> usize {
        let dims = layout.head_dim_k().next_multiple_of(LANES) + layout.v_width();
        Self::entries(group) * (dims + 2) + MAX_ENTRIES * (RANGE + layout.v_width())
    }

    fn cut(scratch: &'a mut [f32], layout: &KvLayout, group: usize) -> Self {
        assert!(scratch.len() >= Self::floats(layout, group), "Attention has too little scratch memory");
        let entries = Self::entries(group);
        let (q, rest) = scratch.split_at_mut(entries * layout.head_dim_k().next_multiple_of(LANES));
        let (o, rest) = rest.split_at_mut(entries * layout.v_width());
        let (max, rest) = rest.split_at_mut(entries);
        let (sum, rest) = rest.split_at_mut(entries);
        let (s, values) = rest.split_at_mut(MAX_ENTRIES * RANGE);
        Scratch { q, o, max, sum, s, values }
    }

    /// Begin the sums of some entries.
    #[inline(always)]
    fn clear(&mut self, entries: usize, width: usize) {
        self.max[..entries].fill(f32::NEG_INFINITY);
        self.sum[..entries].fill(0.0);
        self.o[..entries * width].fill(0.0);
    }
}

impl Attention<'_> {
    fn rows(&self) -> usize {
        self.row_pos.len()
    }

    fn group(&self) -> usize {
        self.n_heads / self.layout.n_kv_heads()
    }

    /// The blocks that rows with this word look at, in their order; `None` for all of them by their numbers.
    #[inline(always)]
    fn list(&self, word: u32) -> Option<&[u32]> {
        let sequences = if word & TREE == 0 { word } else { word & 0xffff };
        match sequences.is_power_of_two() {
            true => self.lists.get(sequences.trailing_zeros() as usize).map(Vec::as_slice),
            false => None,
        }
    }

    /// The number of ranges that rows with this word look at.
    fn ranges(&self, word: u32) -> usize {
        self.list(word).map_or(self.n_kv.div_ceil(RANGE), |list| list.len().div_ceil(BLOCKS))
    }

    /// How to cut the step for a number of threads. The cut changes no result.
    pub fn tasks(&self, threads: usize) -> Tasks {
        let (rows, heads) = (self.rows(), self.layout.n_kv_heads());
        if rows == 1 && threads > 1 && heads < 4 * threads && self.ranges(self.row_seq[0]) > 1 {
            return Tasks { count: heads * self.ranges(self.row_seq[0]), tile_rows: 0 };
        }
        // Several tasks for each thread, as far as there are rows.
        let tile_rows = (TILE_ENTRIES / self.group()).min(rows * heads / (4 * threads)).max(1);
        Tasks { count: rows.div_ceil(tile_rows) * heads, tile_rows }
    }

    /// Do one task: write `[row][head][head_dim_v]` of some rows and heads to `out`.
    ///
    /// `scratch` is this thread's, of [`scratch_bytes`]; `split` has been reserved for this layer's shape.
    ///
    /// # Safety
    ///
    /// Every task of a step runs exactly once, and nobody else touches `out` and `split` until all are done.
    pub unsafe fn run(
        &self,
        isa: Isa,
        tasks: &Tasks,
        task: usize,
        scratch: &mut [f32],
        split: SplitShare<'_>,
        out: SharedMut<'_, f32>,
    ) {
        self.check(tasks, task, &out);
        let heads = self.layout.n_kv_heads();
        let head = task % heads;
        let scratch = Scratch::cut(scratch, self.layout, self.group());
        let (rows, split) = if tasks.tile_rows == 0 {
            let room = heads * self.ranges(self.row_seq[0]) * self.group() * part_len(self.layout);
            assert!(split.parts.len() >= room && split.done.len() >= heads, "Attention has too little split space");
            (0..1, Some((task / heads, split)))
        } else {
            // The last rows see most cells and come first.
            let start = (tasks.count - 1 - task) / heads * tasks.tile_rows;
            (start..(start + tasks.tile_rows).min(self.rows()), None)
        };
        dispatch(isa, Task { attention: self, head, rows, scratch, split, out });
    }

    /// Refuse slices that do not belong together, which would be read out of bounds.
    fn check(&self, tasks: &Tasks, task: usize, out: &SharedMut<'_, f32>) {
        let (layout, rows) = (self.layout, self.rows());
        assert!(task < tasks.count, "Attention has no task {task}");
        assert!(self.n_heads.is_multiple_of(layout.n_kv_heads()), "Query heads are no multiple of key heads");
        assert_eq!(self.row_seq.len(), rows, "Attention rows differ in number");
        assert_eq!(self.q.len(), rows * self.q_stride, "Queries do not fit the rows");
        assert!(self.q_stride >= self.n_heads * layout.head_dim_k(), "Query rows are too narrow");
        assert_eq!(out.len(), rows * self.n_heads * layout.head_dim_v(), "Output does not fit the rows");
        assert!(self.scoring.sinks.is_none_or(|sinks| sinks.len() == self.n_heads), "Sinks do not fit the heads");
        assert!(self.k.len() == layout.k_bytes() && self.v.len() == layout.v_bytes(), "KV buffers do not fit");
        let cells = self.n_kv.next_multiple_of(LANES);
        assert!(cells <= layout.n_cells(), "More cells in use than there are");
        assert!(cells <= self.cell_pos.len() && cells <= self.cell_seq.len(), "Cells in use have no position");
    }

    fn head(&self, head: usize) -> Head {
        let layout = self.layout;
        Head {
            index: head,
            k: self.k[layout.k_block(head, 0)..].as_ptr(),
            v: self.v[layout.v_row(head, 0)..].as_ptr(),
            k_block_bytes: layout.k_block_bytes(),
            v_row_bytes: layout.v_row_bytes(),
            dim_k: layout.head_dim_k(),
            dim_v: layout.v_width(),
        }
    }

    /// First and last position that a row sees.
    fn sees(&self, row: usize) -> (i32, i32) {
        let position = self.row_pos[row];
        let Scoring { bidirectional, window, chunk, .. } = self.scoring;
        if bidirectional {
            let reach = if window == 0 { u32::MAX } else { window / 2 };
            return (position.saturating_sub_unsigned(reach), position.saturating_add_unsigned(reach));
        }
        let first = if window == 0 { i32::MIN } else { position.saturating_sub_unsigned(window - 1) };
        let begin = match i32::try_from(chunk) {
            Ok(0) | Err(_) => i32::MIN,
            Ok(chunk) => position.div_euclid(chunk) * chunk,
        };
        (first.max(begin), position)
    }

    /// The factor of a row's scores.
    #[inline(always)]
    fn scale(&self, row: usize) -> f32 {
        let Scoring { scale, temperature, .. } = self.scoring;
        let Some(Temperature { scale: growth, length, offset }) = temperature else { return scale };
        let steps = (i64::from(self.row_pos[row]) + i64::from(offset)).div_euclid(i64::from(length.max(1)));
        (f64::from(scale) * (1.0 + f64::from(growth) * (steps.max(0) as f64).ln_1p())) as f32
    }

    /// Lower the scores of one entry by the distances to the cells, times its head's slope.
    #[inline(always)]
    fn add_alibi(&self, (row, head): (usize, usize), blocks: &[Block], s: &mut [f32]) {
        let slope = alibi_slope(self.scoring.alibi, head, self.n_heads);
        for (block, s) in blocks.iter().zip(s.as_chunks_mut::<LANES>().0) {
            for (s, &cell) in s.iter_mut().zip(&self.cell_pos[block.index * LANES..]) {
                *s -= slope * self.row_pos[row].abs_diff(cell) as f32;
            }
        }
    }

    /// Add the biases of the distances to the cells to the scores of one entry.
    #[inline(always)]
    fn add_distances(&self, of: &Distances<'_>, (row, head): (usize, usize), blocks: &[Block], s: &mut [f32]) {
        for (block, s) in blocks.iter().zip(s.as_chunks_mut::<LANES>().0) {
            for (s, &cell) in s.iter_mut().zip(&self.cell_pos[block.index * LANES..]) {
                let distance = self.row_pos[row].abs_diff(cell) as usize;
                let first = if cell > self.row_pos[row] { of.after } else { 0 };
                let bucket = first + of.buckets[distance.min(of.buckets.len() - 1)];
                *s += of.biases[bucket as usize * self.n_heads + head];
            }
        }
    }

    /// Scale and pack the queries of rows of one sequence set, and clear their sums.
    #[inline(always)]
    fn begin<S: Vector>(&self, kv_head: usize, rows: &Range<usize>, scratch: &mut Scratch<'_>) {
        let (group, dim) = (self.group(), self.layout.head_dim_k());
        let entries = rows.len() * group;
        let mut first = 0;
        while first < entries {
            let n = tile::step::<S>(entries - first);
            let packed = &mut scratch.q[first * dim..][..n * dim];
            for r in 0..n {
                let (row, head) = (rows.start + (first + r) / group, kv_head * group + (first + r) % group);
                let q = &self.q[row * self.q_stride + head * dim..][..dim];
                let scale = self.scale(row);
                for (x, q) in packed[r..].iter_mut().step_by(n).zip(q) {
                    *x = q * scale;
                }
            }
            first += n;
        }
        scratch.clear(entries, self.layout.v_width());
    }

    /// Join one range of cells to the sums of rows of one sequence set.
    ///
    /// # Safety
    ///
    /// [`Attention::check`] has passed.
    #[inline(always)]
    unsafe fn range<S: Vector>(
        &self,
        simd: S,
        head: &Head,
        rows: &Range<usize>,
        range: usize,
        scratch: &mut Scratch<'_>,
    ) {
        let (group, seq) = (self.group(), self.row_seq[rows.start]);
        // The blocks of the range, and the cells of the rows' sequences.
        let mut ours = [(0, 0u16); BLOCKS];
        match self.list(seq) {
            Some(list) => {
                for ((index, ours), &block) in ours.iter_mut().zip(&list[range * BLOCKS..]) {
                    if block != NO_BLOCK {
                        *index = block as usize;
                        // SAFETY: the cells of listed blocks have a sequence set.
                        *ours = unsafe { seen(simd, seq, &self.cell_seq[*index * LANES..]) };
                    }
                }
            }
            None => {
                for (b, (index, ours)) in ours.iter_mut().enumerate() {
                    *index = range * BLOCKS + b;
                    let cell = *index * LANES;
                    if cell < self.n_kv {
                        let inside = u16::MAX >> LANES.saturating_sub(self.n_kv - cell);
                        // SAFETY: cells up to `n_kv` rounded up to 16 have a sequence set.
                        *ours = inside & unsafe { seen(simd, seq, &self.cell_seq[cell..]) };
                    }
                }
            }
        }
        if ours.iter().all(|&(_, ours)| ours == 0) {
            return;
        }
        let entries = rows.len() * group;
        let mut first = 0;
        while first < entries {
            let n = tile::step::<S>(entries - first);
            // SAFETY: the caller's promise.
            unsafe { self.entries(simd, head, rows, first..first + n, &ours, scratch) };
            first += n;
        }
    }

    /// [`Attention::range`] for the entries of one register tile.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn entries<S: Vector>(
        &self,
        simd: S,
        head: &Head,
        rows: &Range<usize>,
        entries: Range<usize>,
        ours: &[(usize, u16); BLOCKS],
        scratch: &mut Scratch<'_>,
    ) {
        let (group, n) = (self.group(), entries.len());
        let (first_row, last_row) = (rows.start + entries.start / group, rows.start + (entries.end - 1) / group);
        // What at least one row and what every row may see, by position.
        let (mut union, mut common) = ((i32::MAX, i32::MIN), (i32::MIN, i32::MAX));
        for row in first_row..=last_row {
            let (first, last) = self.sees(row);
            union = (union.0.min(first), union.1.max(last));
            common = (common.0.max(first), common.1.min(last));
        }
        let mut blocks = [Block { index: 0, union: 0, full: false }; BLOCKS];
        let mut count = 0;
        for &(index, ours) in ours.iter().filter(|&&(_, ours)| ours != 0) {
            let positions = self.cell_pos[index * LANES..].as_ptr();
            // SAFETY: cells of lists, and those up to `n_kv` rounded up to 16, have a position.
            let (seen, by_all) = unsafe {
                (ours & simd.within(positions, union.0, union.1), ours & simd.within(positions, common.0, common.1))
            };
            if seen != 0 {
                blocks[count] = Block { index, union: seen, full: by_all == u16::MAX };
                count += 1;
            }
        }
        let blocks = &blocks[..count];
        if blocks.is_empty() {
            return;
        }
        let q = scratch.q[entries.start * head.dim_k..].as_ptr();
        let s = scratch.s.as_mut_ptr();
        // SAFETY: scratch memory has room for MAX_ENTRIES times RANGE scores; the blocks are in the cache.
        unsafe {
            match self.layout.types().k {
                TensorType::F32 => tile::scores::<S, cells::F32>(simd, n, head, blocks, q, s),
                TensorType::Q8_0 => tile::scores::<S, cells::Q8>(simd, n, head, blocks, q, s),
                _ => tile::scores::<S, cells::F16>(simd, n, head, blocks, q, s),
            }
        }

        let mut weights = Weights { old: [0.0; LANES], new: [f32::NEG_INFINITY; LANES] };
        let mut sums = [0f32; LANES];
        let (mut row_of_bits, mut bits) = (usize::MAX, [0u16; BLOCKS]);
        for (r, entry) in entries.clone().enumerate() {
            let row = rows.start + entry / group;
            if row != row_of_bits {
                row_of_bits = row;
                let (first, last) = self.sees(row);
                for (bits, block) in bits.iter_mut().zip(blocks) {
                    let positions = self.cell_pos[block.index * LANES..].as_ptr();
                    *bits = match block.full {
                        true => u16::MAX,
                        // SAFETY: as above.
                        false => block.union & unsafe { simd.within(positions, first, last) },
                    };
                }
            }
            let bits = &bits[..blocks.len()];
            let s = &mut scratch.s[r * RANGE..][..RANGE];
            if bits.iter().all(|&bits| bits == 0) {
                s[..blocks.len() * LANES].fill(0.0);
                continue;
            }
            if self.scoring.alibi != 0.0 {
                self.add_alibi((row, head.index * group + entry % group), blocks, s);
            }
            if let Some(distances) = &self.scoring.distances {
                self.add_distances(distances, (row, head.index * group + entry % group), blocks, s);
            }
            // SAFETY: `s` holds RANGE scores.
            let (max, sum) = unsafe { tile::softmax(simd, s.as_mut_ptr(), bits, self.scoring.softcap) };
            let joined = scratch.max[entry].max(max);
            weights.old[r] = scratch.max[entry] - joined;
            weights.new[r] = max - joined;
            scratch.max[entry] = joined;
            sums[r] = sum;
        }
        weights.exp(simd);
        for (r, sum) in scratch.sum[entries.clone()].iter_mut().enumerate() {
            *sum = *sum * weights.old[r] + sums[r] * weights.new[r];
        }
        // SAFETY: scratch memory has room for the values of MAX_ENTRIES; the blocks are in the cache.
        unsafe {
            let (s, sums) = (scratch.s.as_ptr(), scratch.values.as_mut_ptr());
            match self.layout.types().v {
                TensorType::F32 => tile::values::<S, cells::F32>(simd, n, head, blocks, s, sums),
                TensorType::Q8_0 => tile::values::<S, cells::Q8>(simd, n, head, blocks, s, sums),
                _ => tile::values::<S, cells::F16>(simd, n, head, blocks, s, sums),
            }
        }
        let o = scratch.o[entries.start * head.dim_v..].chunks_exact_mut(head.dim_v);
        for ((o, sums), r) in o.zip(scratch.values.chunks_exact(head.dim_v)).zip(0..n) {
            tile::blend(simd, o, weights.old[r], sums, weights.new[r]);
        }
    }

    /// Put away what one range of the only row yielded; whoever does so last joins the ranges of the head.
    ///
    /// # Safety
    ///
    /// Each range of the head comes here once, and nobody else uses `split` and the
    /// head's part of `out`.
    #[inline(always)]
    unsafe fn join<S: Vector>(
        &self,
        simd: S,
        kv_head: usize,
        range: usize,
        scratch: &mut Scratch<'_>,
        split: SplitShare<'_>,
        out: SharedMut<'_, f32>,
    ) {
        let (group, ranges, width) = (self.group(), self.ranges(self.row_seq[0]), self.layout.v_width());
        let len = part_len(self.layout);
        // SAFETY: a range's part is its task's until that counts itself as done, and then the last task's.
        let parts = |range: usize| unsafe {
            let start = (kv_head * ranges + range) * group * len;
            split.parts.part(start..start + group * len).chunks_exact_mut(len).enumerate()
        };
        for (e, part) in parts(range) {
            (part[0], part[1]) = (scratch.max[e], scratch.sum[e]);
            part[LANES..].copy_from_slice(&scratch.o[e * width..][..width]);
        }
        if split.done[kv_head].fetch_add(1, AcqRel) + 1 != ranges as u32 {
            return;
        }
        split.done[kv_head].store(0, Relaxed);
        scratch.clear(group, width);
        for (e, part) in (0..ranges).flat_map(parts) {
            let (max, sum) = (part[0], part[1]);
            if sum == 0.0 {
                continue;
            }
            let joined = scratch.max[e].max(max);
            let mut weights = Weights { old: [scratch.max[e] - joined; LANES], new: [max - joined; LANES] };
            weights.exp(simd);
            scratch.max[e] = joined;
            scratch.sum[e] = scratch.sum[e] * weights.old[0] + sum * weights.new[0];
            let o = &mut scratch.o[e * width..][..width];
            tile::blend(simd, o, weights.old[0], &part[LANES..], weights.new[0]);
        }
        // SAFETY: the caller's promise.
        unsafe { self.finish(kv_head, &(0..1), scratch, out) };
    }

    /// The factor that makes a head's sums of values its result.
    #[inline(always)]
    fn inverse(&self, head: usize, max: f32, sum: f32) -> f32 {
        match self.scoring.sinks {
            _ if sum == 0.0 => 0.0,
            None => 1.0 / sum,
            Some(sinks) => {
                let largest = max.max(sinks[head]);
                let weight = (max - largest).exp();
                weight / (sum * weight + (sinks[head] - largest).exp())
            }
        }
    }

    /// Write O / L of entries to the output.
    ///
    /// # Safety
    ///
    /// Nobody else uses the rows and heads of the entries in `out`.
    #[inline(always)]
    unsafe fn finish(&self, kv_head: usize, rows: &Range<usize>, scratch: &Scratch<'_>, out: SharedMut<'_, f32>) {
        let (group, dim, width) = (self.group(), self.layout.head_dim_v(), self.layout.v_width());
        for entry in 0..rows.len() * group {
            let (row, head) = (rows.start + entry / group, kv_head * group + entry % group);
            let start = (row * self.n_heads + head) * dim;
            let inverse = self.inverse(head, scratch.max[entry], scratch.sum[entry]);
            // SAFETY: the caller's promise.
            let out = unsafe { out.part(start..start + dim) };
            for (out, o) in out.iter_mut().zip(&scratch.o[entry * width..]) {
                *out = o * inverse;
            }
        }
    }
}

/// Factors of the old and the new sums of each entry; their logarithms before [`Weights::exp`].
struct Weights {
    old: [f32; LANES],
    new: [f32; LANES],
}

impl Weights {
    #[inline(always)]
    fn exp<S: Vector>(&mut self, simd: S) {
        for x in [&mut self.old, &mut self.new] {
            // SAFETY: arrays of one vector.
            unsafe { simd.store(x.as_mut_ptr(), exp(simd, simd.load(x.as_ptr()))) };
        }
    }
}

/// Some rows of one key head.
struct Task<'a> {
    attention: &'a Attention<'a>,
    head: usize,
    rows: Range<usize>,
    scratch: Scratch<'a>,
    /// The only range, where the ranges are not all, and where its result goes.
    split: Option<(usize, SplitShare<'a>)>,
    out: SharedMut<'a, f32>,
}

/// Bits of the first 16 cells that a row sees, by their words alone; the definition is [`crate::backend::sees`].
///
/// # Safety
/// There are 16 cells.
#[inline(always)]
unsafe fn seen<S: Vector>(simd: S, row: u32, cells: &[u32]) -> u16 {
    let words = cells.as_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        let shared = simd.intersects(words, row);
        if row & TREE == 0 {
            return shared;
        }
        // Words of a tree are negative as `i32`, in the order of their numbers.
        let of_tree = simd.within(words.cast(), i32::MIN, -1);
        let not_after = simd.within(words.cast(), i32::MIN, (row | 0xffff) as i32);
        shared & !of_tree | not_after & simd.low_above(words, (row & !TREE) >> 16)
    }
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Task { attention, head: kv_head, rows, mut scratch, split, out } = self;
        let head = attention.head(kv_head);
        let mut start = rows.start;
        // Rows of one sequence set at a time: they share the cells that are theirs.
        for same in attention.row_seq[rows].chunk_by(|a, b| a == b) {
            let run = start..start + same.len();
            start = run.end;
            attention.begin::<S>(kv_head, &run, &mut scratch);
            // SAFETY: `Attention::run` has checked the slices; each task has its own rows and heads of the output.
            unsafe {
                match split {
                    None => {
                        for range in 0..attention.ranges(same[0]) {
                            attention.range(simd, &head, &run, range, &mut scratch);
                        }
                        attention.finish(kv_head, &run, &scratch, out);
                    }
                    Some((range, split)) => {
                        attention.range(simd, &head, &run, range, &mut scratch);
                        attention.join(simd, kv_head, range, &mut scratch, split, out);
                    }
                }
            }
        }
    }
}
