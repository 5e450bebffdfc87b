//! Walking a trie: the kernel that runs between two passes in place of the host, and its buffers.
//!
//! A walk is one submission: a program's steps once for every pass that the walk may have, each time after the kernel
//! of `shaders/trie_walk.wgsl`, which writes the pass's inputs to the frame and the number of workgroups of every step.
//! A pass that is not needed has no workgroups. The last run of the kernel records what the last pass sampled; the
//! records are copied to the host.

mod probe;

use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::device::memory::{Buffer, buffer_bytes};
use crate::backend::gpu::device::readback::Landing;
use crate::backend::gpu::kernel::dispatch::{FRAME_CONSTANTS, FRAME_LISTED, FRAME_N_LISTED, GroupCount, Step};
use crate::backend::gpu::kernel::{Binding, Gpu, Kernel, compose};
use crate::backend::gpu::sample::{RESULT_BYTES, constants, read_result};
use crate::backend::memory::Component;
use crate::backend::{
    Batch, Table, TableCells, WALK_CELLS, WALK_PASSES, WALK_ROWS, Walk, WalkNode, Walked, WalkedStep,
};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use probe::add_trial;

const THREADS: u32 = 128;

/// Words of the counters before the cells.
const HEAD: usize = 17;
/// Where the cells of sliding layers begin, after those of the other layers.
const WINDOW_CELL: usize = HEAD + WALK_CELLS;
const LOG: usize = WINDOW_CELL + WALK_CELLS;
/// A result, the rows before it, its node.
const LOG_WORDS: usize = RESULT_BYTES / 4 + 2;
const WORDS: usize = LOG + WALK_PASSES * LOG_WORDS;

/// Words of the counters that the host reads.
const SEQUENCE: usize = 0;
const SAMPLED: usize = 12;
const PASSES_MADE: usize = 13;
const ROWS_MADE: usize = 14;
const LOGITS_MADE: usize = 15;

/// Indices in the walk's words, for the shader.
const PLACES: [(&str, u32); 21] = [
    ("WALK_SEQUENCE", SEQUENCE as u32),
    ("WALK_NODE", 1),
    ("WALK_GOING", 2),
    ("WALK_LEFT", 3),
    ("WALK_RUN", 4),
    ("WALK_POSITION", 5),
    ("WALK_SEQUENCES", 6),
    ("WALK_USED", 7),
    ("WALK_CELLS_LEFT", 8),
    ("WALK_PASSES_LEFT", 9),
    ("WALK_CHILD_WORDS", 10),
    ("WALK_COUNTED", 11),
    ("WALK_SAMPLED", SAMPLED as u32),
    ("WALK_PASSES_MADE", PASSES_MADE as u32),
    ("WALK_ROWS_MADE", ROWS_MADE as u32),
    ("WALK_LOGITS_MADE", LOGITS_MADE as u32),
    // The first word of the frame of sliding layers, or 0.
    ("WALK_WINDOW", 16),
    ("WALK_CELL", HEAD as u32),
    ("WALK_WINDOW_CELL", WINDOW_CELL as u32),
    ("WALK_LOG", LOG as u32),
    ("WALK_LOG_WORDS", LOG_WORDS as u32),
];

/// The kinds of [`GroupCount`]; the last kind, one where there is a logit subset, needs no name.
const COUNTS: [(&str, u32); 6] = [
    ("COUNT_FIXED", 0),
    ("COUNT_ROWS", 1),
    ("COUNT_OUTPUTS", 2),
    ("COUNT_SPLITS", 3),
    ("COUNT_LISTED", 4),
    ("COUNT_WINDOW_SPLITS", 5),
];

/// Words of a count.
const COUNT_WORDS: usize = 3;
/// Words of the workgroups of a dispatch.
const ARG_WORDS: usize = 3;

/// What a program needs to walk a trie: the kernel, and how the workgroups of each of its steps are counted.
pub struct Walker {
    kernel: Arc<Kernel>,
    /// How the workgroups of each step are counted, and their numbers; after those of the steps the sampler's.
    counted: Buffer,
    args: Buffer,
    steps: usize,
    words: Buffer,
    landing: Landing,
    trie: Option<Buffer>,
    group: Option<wgpu::BindGroup>,
    scratch: Vec<u32>,
}

/// The buffers of the engine and the sampler that a walk reads and writes.
pub struct Surroundings<'a> {
    /// The frame.
    pub frame: &'a wgpu::Buffer,
    /// The sampler's masks, states and tokens.
    pub sampler: [&'a wgpu::Buffer; 3],
}

fn kind(name: &str) -> u32 {
    COUNTS.iter().find(|(known, _)| *known == name).map_or(COUNTS.len() as u32, |(_, kind)| *kind)
}

fn counted(count: GroupCount) -> [u32; COUNT_WORDS] {
    match count {
        // The kernel that joins splits finds by itself that there is one.
        GroupCount::Fixed(n) | GroupCount::Joins(_, n) => [kind("COUNT_FIXED"), n, 1],
        GroupCount::Rows(times, by) => [kind("COUNT_ROWS"), times, by],
        GroupCount::Outputs(times, by) => [kind("COUNT_OUTPUTS"), times, by],
        GroupCount::Splits(Table::All) => [kind("COUNT_SPLITS"), 0, 1],
        GroupCount::Splits(Table::Window) => [kind("COUNT_WINDOW_SPLITS"), 0, 1],
        GroupCount::Listed(_) => [kind("COUNT_LISTED"), 0, 1],
        GroupCount::Unlisted(_) => [kind("COUNT_UNLISTED"), 0, 1],
        // Models with states do not walk.
        GroupCount::Strands => [kind("COUNT_FIXED"), 0, 1],
    }
}

impl Walker {
    /// For the steps of a program of up to [`WALK_ROWS`] rows from tokens to logits.
    pub fn new(gpu: &Gpu, steps: &[Step]) -> Result<Walker> {
        let counts: Vec<_> = steps.iter().map(|step| step.groups).collect();
        Walker::of(gpu, &counts)
    }

    fn of(gpu: &Gpu, steps: &[[GroupCount; ARG_WORDS]]) -> Result<Walker> {
        let kernel = kernel(gpu)?;
        let sampling = [GroupCount::Outputs(1, 1), GroupCount::Fixed(1), GroupCount::Fixed(1)];
        let words: Vec<u32> = steps.iter().chain([&sampling]).flatten().copied().flat_map(counted).collect();
        let buffer = |what: &str, words: u64| gpu.buffer(what, words * 4, STORAGE);
        let table = buffer("counts of a walk", words.len() as u64)?;
        gpu.queue.write_buffer(&table, 0, bytemuck::cast_slice(&words));
        let args = STORAGE | wgpu::BufferUsages::INDIRECT;
        Ok(Walker {
            kernel,
            counted: table,
            args: gpu.buffer("workgroups of a walk", Self::arg_bytes(steps.len()), args)?,
            steps: steps.len(),
            words: buffer("walk", WORDS as u64)?,
            landing: Landing::new(gpu, "walk's results", WORDS as u64 * 4)?,
            trie: None,
            group: None,
            scratch: Vec::with_capacity(WORDS),
        })
    }

    fn arg_bytes(steps: usize) -> u64 {
        ((steps + 1) * ARG_WORDS) as u64 * 4
    }

    /// Bytes that [`Walker::new`] takes for so many steps; a trie takes its own.
    pub fn bytes(steps: usize) -> u64 {
        let table = ((steps + 1) * ARG_WORDS * COUNT_WORDS) as u64 * 4;
        [table, Self::arg_bytes(steps), WORDS as u64 * 4, WORDS as u64 * 4].into_iter().map(buffer_bytes).sum()
    }

    /// Upload this trie in place of the one before. False where the device cannot bind it.
    pub fn hold(&mut self, gpu: &Gpu, nodes: &[WalkNode]) -> Result<bool> {
        self.group = None;
        let bytes = size_of_val(nodes) as u64;
        if bytes > gpu.caps.max_binding {
            return Ok(false);
        }
        let trie = match self.trie.take().filter(|trie| trie.size() >= bytes) {
            Some(trie) => trie,
            None => gpu.buffer_of(Component::Other, "token trie", bytes, STORAGE)?,
        };
        gpu.queue.write_buffer(&trie, 0, bytemuck::cast_slice(nodes));
        self.trie = Some(trie);
        Ok(true)
    }

    /// Bind the trie and its surroundings, which must not be replaced afterwards.
    pub fn bind(&mut self, gpu: &Gpu, around: &Surroundings<'_>) -> Result<()> {
        gpu.compiled([&self.kernel])?;
        let Some(trie) = &self.trie else { return Ok(()) };
        let [children, state, out] = around.sampler;
        let buffers = [around.frame, trie, &self.words, children, state, out, &self.counted, &self.args];
        self.group = Some(gpu.bind(&self.kernel, &buffers.map(|buffer| buffer.as_entire_buffer_binding())));
        Ok(())
    }

    /// Whether there is a trie to walk.
    pub fn is_bound(&self) -> bool {
        self.group.is_some()
    }

    /// Write the initial state of a walk; returns the number of bytes. The frame of sliding layers begins at word
    /// `window`, or there is none.
    pub fn begin(
        &mut self,
        gpu: &Gpu,
        batch: &Batch<'_>,
        walk: &Walk,
        child_words: usize,
        window: usize,
    ) -> Result<u64> {
        let [TableCells { rows: cells, .. }, TableCells { rows: window_cells, .. }] = batch.cells;
        let rows = cells.len();
        let (Some(&position), Some(&sequences)) = (batch.positions.first(), batch.sequences.first()) else {
            return Err(Error::Internal("A walk without cells".into()));
        };
        if rows > WALK_CELLS || walk.passes > WALK_PASSES {
            return Err(Error::Internal(format!("A walk of {} passes over {rows} cells", walk.passes)));
        }
        let words = &mut self.scratch;
        words.clear();
        words.extend([walk.sequence as u32, walk.node, 1, 0, 0, position as u32, sequences, 0]);
        words.extend([rows as u32, walk.passes as u32, child_words as u32, self.steps as u32 + 1, 0, 0, 0, 0]);
        words.push(window as u32);
        words.extend_from_slice(cells);
        words.resize(WINDOW_CELL, 0);
        words.extend_from_slice(window_cells);
        gpu.queue.write_buffer(&self.words, 0, bytemuck::cast_slice(words));
        Ok(words.len() as u64 * 4)
    }

    /// Encode the kernel that prepares the next pass.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.kernel.pipeline);
        pass.set_bind_group(0, self.group.as_ref(), &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }

    /// The numbers of workgroups, and the first byte of those of a step; the one after the last is the sampler's.
    pub fn args(&self, step: usize) -> (&wgpu::Buffer, u64) {
        (&self.args, (step * ARG_WORDS) as u64 * 4)
    }

    /// Append the copy of the results.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder) {
        self.landing.copy(encoder, &self.words, 0, 0, WORDS as u64 * 4);
    }

    /// Note the submission that has the copy.
    pub fn submitted(&mut self, gpu: &Gpu, submission: wgpu::SubmissionIndex) {
        self.landing.submitted(gpu, submission);
    }

    /// Drop the results of the walk.
    pub fn forget(&mut self) {
        self.landing.give_up();
    }

    /// Wait for the results; returns the sequence that walked, and the number of bytes read.
    pub fn read(&mut self, gpu: &Gpu, walked: &mut Walked, cancel: &AtomicBool) -> Result<(usize, u64)> {
        let bytes = WORDS as u64 * 4;
        let sequence = self.landing.read(gpu, bytes, cancel, |bytes| read(bytes, walked))?;
        Ok((sequence, bytes))
    }
}

fn kernel(gpu: &Gpu) -> Result<Arc<Kernel>> {
    let mut all = constants(THREADS);
    all.extend(PLACES);
    all.extend(COUNTS);
    all.extend(FRAME_CONSTANTS);
    all.extend([("WALK_ROWS", WALK_ROWS as u32), ("FRAME_N_LISTED", FRAME_N_LISTED as u32)]);
    all.push(("FRAME_LISTED", FRAME_LISTED as u32));
    let text = compose(include_str!("../shaders/trie_walk.wgsl"), &[], &all)?;
    let [read, write] = [Binding::Read, Binding::Write];
    gpu.kernel("trie_walk", &text, &[write, read, write, write, write, read, read, write])
}

/// The records of a walk from its words, and its sequence.
fn read(bytes: &[u8], walked: &mut Walked) -> usize {
    let (words, _) = bytes.as_chunks::<4>();
    let word = |at: usize| words.get(at).map_or(0, |word| u32::from_le_bytes(*word));
    (walked.passes, walked.rows, walked.logits) = (word(PASSES_MADE), word(ROWS_MADE), word(LOGITS_MADE));
    // The first is that of the step before the walk.
    let steps = (word(SAMPLED).saturating_sub(1) as usize).min(WALK_PASSES);
    walked.steps.clear();
    for at in (LOG..).step_by(LOG_WORDS).take(steps) {
        let Some(result) = bytes.get(at * 4..).and_then(read_result) else { break };
        let after = at + RESULT_BYTES / 4;
        walked.steps.push(WalkedStep { result, rows: word(after), node: word(after + 1) });
    }
    word(SEQUENCE) as usize
}
