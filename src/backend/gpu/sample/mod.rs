//! Sampling on the device: from rows of logits to tokens, without the host in between.
//!
//! A [`SampleProgram`] belongs to an engine. For each sequence it has a chain, a mask, a position and a
//! history, and samples any of them together, each from a row of the engine's workspace. All buffers,
//! pipelines and bindings are made by [`SampleProgram::new`], [`SampleProgram::bind`] and [`SampleProgram::set_chain`];
//! a step writes at most which sequence samples from which row.
//!
//! The token stays on the device: in a buffer for the embedding of the next step, in the history, and in a small result
//! that the caller copies at any time. So a step can be submitted before the host has read the token of the last one (a
//! speculative step), and rolled back.
//!
//! The kernels choose the same token as the host's sampler: the weights of candidates are the same integers, the random
//! bits are the same function of seed and position, every cut is exact, and what is no integer is made of f32 operations
//! that are rounded one by one.
//!
//! A chain that the device cannot run as a whole is cut in two ([`split`]). The first part returns the few candidates
//! that it left; the host runs the rest of the chain on them and passes the token to [`SampleProgram::accept`].
//!
//! How a row is sampled depends on its chain: an argmax takes two dispatches, a draw without truncation (or with min-p)
//! three, a mask one, all other chains seven; biases and penalties of the whole row one more. Rows of different chains
//! share dispatches.

mod layout;
mod probe;
pub mod queue;
mod spec;
#[cfg(test)]
mod tests;

pub use crate::backend::{ChainStep, Legal, LegalTokens, SampleProblem, SampleResult, SampleRow, SampleSpec};
pub(crate) use probe::add_trial;
pub use spec::{MAX_CANDIDATES, MAX_HANDED_OVER, split, supported};

use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::device::memory::{Buffer, buffer_bytes};
use crate::backend::gpu::kernel::{Binding, Gpu, Kernel, compose};
use crate::{Error, Result, Token};
use layout::*;
pub(crate) use layout::{WalkedWords, constants, walked_words};
use spec::Compiled;
use std::sync::Arc;

const BINDINGS: [Binding; 8] = [
    Binding::Write,
    Binding::Uniform,
    Binding::Read,
    Binding::Read,
    Binding::Write,
    Binding::Write,
    Binding::Write,
    Binding::Write,
];

/// Words of the uniform before the rows.
const ROWS_AT: usize = 4;

/// One dispatch of a step.
struct Stage {
    name: &'static str,
    text: &'static str,
    /// Whether all workgroups of a row take part, or one.
    shared: bool,
    /// Whether a row that is sampled in this way needs the dispatch.
    needed: fn(&Way) -> bool,
}

/// The way in which a sequence is sampled now.
struct Way {
    path: u32,
    /// Whether logits of the row change first.
    adjusts: bool,
    /// Whether every row fits a list.
    short: bool,
}

const STAGES: [Stage; 8] = [
    Stage {
        name: "sample_adjust",
        text: include_str!("../shaders/sample/adjust.wgsl"),
        shared: false,
        needed: |way| way.adjusts && way.row(),
    },
    Stage {
        name: "sample_stats",
        text: include_str!("../shaders/sample/stats.wgsl"),
        shared: true,
        needed: |way| way.row(),
    },
    Stage {
        name: "sample_bins",
        text: include_str!("../shaders/sample/bins.wgsl"),
        shared: true,
        needed: |way| way.path == PATH_SELECT,
    },
    Stage {
        name: "sample_collect",
        text: include_str!("../shaders/sample/collect.wgsl"),
        shared: true,
        needed: |way| way.path == PATH_SELECT,
    },
    Stage {
        name: "sample_finish",
        text: include_str!("../shaders/sample/finish.wgsl"),
        shared: false,
        needed: |way| matches!(way.path, PATH_SELECT | PATH_CHILDREN),
    },
    Stage {
        name: "sample_exact",
        text: include_str!("../shaders/sample/exact.wgsl"),
        shared: false,
        needed: |way| way.path == PATH_ROW || way.long(),
    },
    Stage {
        name: "sample_masses",
        text: include_str!("../shaders/sample/masses.wgsl"),
        shared: true,
        needed: |way| matches!(way.path, PATH_DIRECT | PATH_ROW) || way.long(),
    },
    Stage {
        name: "sample_draw",
        text: include_str!("../shaders/sample/draw.wgsl"),
        shared: false,
        needed: |way| matches!(way.path, PATH_GREEDY | PATH_DIRECT | PATH_ROW) || way.long(),
    },
];

impl Way {
    /// Whether the row is read as a whole from the start.
    fn row(&self) -> bool {
        matches!(self.path, PATH_GREEDY | PATH_DIRECT | PATH_SELECT)
    }

    /// Whether the list may not hold what is left.
    fn long(&self) -> bool {
        self.path == PATH_SELECT && !self.short
    }
}

/// A range of a buffer on the device, for the host to copy.
#[derive(Debug, Clone, Copy)]
pub struct BufferSpan<'a> {
    /// The buffer; it can be copied from.
    pub buffer: &'a wgpu::Buffer,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

struct SequenceState {
    chain: Compiled,
    /// Kind of mask, and whether it is followed greedily.
    children: (u32, bool),
    position: u32,
    count: u32,
}

/// Samples the sequences of one engine.
pub struct SampleProgram {
    gpu: Arc<Gpu>,
    n_vocab: usize,
    groups: u32,
    child_words: usize,
    kernels: Vec<Arc<Kernel>>,
    frame: Buffer,
    spec: Buffer,
    children: Buffer,
    state: Buffer,
    bins: Buffer,
    work: Buffer,
    out: Buffer,
    sequences: Vec<SequenceState>,
    /// Where the rows of logits are; `None` before [`SampleProgram::bind`].
    logits: Option<Logits>,
    bindings: Vec<wgpu::BindGroup>,
    /// The rows that the frame holds.
    rows: Vec<SampleRow>,
    /// For writes.
    scratch: Vec<u32>,
}

struct Logits {
    buffer: wgpu::Buffer,
    offset: u64,
    bytes: u64,
    first: u32,
    stride: u32,
    rows: u32,
}

impl SampleProgram {
    /// A program for up to `max_rows` sequences, each with the empty chain and seed 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0 or more than 64 sequences, 0 or more than 2^20 tokens; [`Error::OutOfMemory`]
    /// naming what the memory is for; [`Error::Device`] where the device fails.
    pub fn new(gpu: &Arc<Gpu>, n_vocab: usize, max_rows: usize) -> Result<SampleProgram> {
        if max_rows == 0 || max_rows > ROWS {
            return Err(Error::InvalidArgument(format!("{max_rows} sequences of a sampler, 1 to {ROWS} can be had")));
        }
        // Each loop of the kernel with one workgroup stays below 65,535 turns up to here.
        if n_vocab == 0 || n_vocab > 1 << 20 {
            return Err(Error::InvalidArgument(format!("A vocabulary of {n_vocab} tokens cannot be sampled")));
        }
        let threads = threads(gpu);
        let kernels = kernels(gpu)?;
        let groups = n_vocab.div_ceil(threads as usize * 8).min(GROUPS);
        let [frame, spec, children, state, bins, work, out] = Self::sizes(n_vocab, max_rows);
        let child_words = children / max_rows;
        let storage = |what: &str, words: usize| gpu.buffer(what, words as u64 * 4, STORAGE);
        let frame_usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let chain = spec::compile(&SampleSpec::default(), n_vocab)?;
        let sequence =
            || SequenceState { chain: chain.clone(), children: (CHILDREN_NONE, false), position: 0, count: 0 };
        let mut program = SampleProgram {
            gpu: gpu.clone(),
            n_vocab,
            groups: groups as u32,
            child_words,
            kernels,
            frame: gpu.buffer("sampler's rows", frame as u64 * 4, frame_usage)?,
            spec: storage("sampler's chains", spec)?,
            children: storage("sampler's masks", children)?,
            state: storage("sampler's states", state)?,
            bins: storage("sampler's bins", bins)?,
            work: storage("sampler's candidates", work)?,
            out: storage("sampled tokens", out)?,
            sequences: (0..max_rows).map(|_| sequence()).collect(),
            logits: None,
            bindings: Vec::new(),
            rows: Vec::with_capacity(max_rows),
            scratch: Vec::with_capacity(child_words.max(STATE_WORDS)),
        };
        program.write_chains()?;
        Ok(program)
    }

    /// Words of the buffers: rows, chains, masks, states, bins, candidates, tokens.
    fn sizes(n_vocab: usize, max_rows: usize) -> [usize; 7] {
        let child_words = CHILD_DATA + LIST.max(n_vocab.div_ceil(32));
        let each = [SPEC_WORDS, child_words, STATE_WORDS, BINS_WORDS, WORK_WORDS].map(|words| max_rows * words);
        let [spec, children, state, bins, work] = each;
        [ROWS_AT + 4 * ROWS, spec, children, state, bins, work, OUT_WORDS]
    }

    /// Bytes that [`SampleProgram::new`] takes.
    pub fn bytes(n_vocab: usize, max_rows: usize) -> u64 {
        Self::sizes(n_vocab, max_rows).iter().map(|&words| buffer_bytes(words as u64 * 4)).sum()
    }

    /// Bytes of the reported candidates of a sequence.
    pub fn candidate_bytes() -> u64 {
        (REPORT * REPORT_WORDS) as u64 * 4
    }

    /// Sets where the logits are: in rows of `stride` floats, from byte `offset` of a storage buffer, `bytes` bytes in
    /// all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an offset or size without a row, [`Error::Device`] for more than a binding holds
    /// and for a kernel that could not be compiled.
    pub fn bind(&mut self, buffer: &wgpu::Buffer, offset: u64, bytes: u64, stride: usize) -> Result<()> {
        let first = offset % u64::from(self.gpu.caps.storage_align.max(4));
        let logits = Logits {
            buffer: buffer.clone(),
            offset: offset - first,
            bytes: bytes + first,
            first: (first / 4) as u32,
            stride: stride as u32,
            rows: bytes.checked_div(stride as u64 * 4).unwrap_or(0) as u32,
        };
        let end = offset.checked_add(bytes).is_some_and(|end| end <= buffer.size());
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) || !end || stride < self.n_vocab || logits.rows == 0 {
            let place = format!("{bytes} bytes at {offset} of {} in rows of {stride}", buffer.size());
            return Err(Error::InvalidArgument(format!("{place} for logits of {} tokens", self.n_vocab)));
        }
        if logits.bytes > self.gpu.caps.max_binding {
            let most = self.gpu.caps.max_binding;
            return Err(Error::Device(format!("{} bytes of logits, a binding holds {most}", logits.bytes)));
        }
        self.gpu.compiled(&self.kernels)?;
        self.logits = Some(logits);
        self.rows.clear();
        self.remake_bindings();
        Ok(())
    }

    /// Sets a sequence's chain.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a chain that cannot be used or a sequence that is not there,
    /// [`Error::Unsupported`] for more steps than [`supported`] returns, [`Error::OutOfMemory`] for its tables.
    pub fn set_chain(&mut self, sequence: usize, spec: &SampleSpec) -> Result<()> {
        self.sequence(sequence)?.chain = spec::compile(spec, self.n_vocab)?;
        self.write_chains()
    }

    /// Sets or removes a sequence's mask.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the tokens are not ascending, not in the vocabulary, or none, and for a
    /// sequence that is not there.
    pub fn arm(&mut self, sequence: usize, legal: Option<Legal<'_>>) -> Result<()> {
        let n_vocab = self.n_vocab;
        let at = sequence * self.child_words;
        let state = self.sequence(sequence)?;
        let Some(Legal { tokens, greedy }) = legal else {
            state.children = (CHILDREN_NONE, false);
            self.write(&self.children, at + CHILD_KIND, &[CHILDREN_NONE]);
            return Ok(());
        };
        let first = tokens.first(n_vocab)?;
        let (kind, count) = match tokens {
            LegalTokens::List(tokens) if tokens.windows(2).any(|pair| pair[0] >= pair[1]) => {
                let problem = format!("{} tokens of a mask are not ascending", tokens.len());
                return Err(Error::InvalidArgument(problem));
            }
            LegalTokens::List(tokens) if tokens.len() <= LIST => (CHILDREN_LIST, tokens.len() as u32),
            LegalTokens::List(tokens) => (CHILDREN_MASK, tokens.len() as u32),
            LegalTokens::Mask { bits, .. } => (CHILDREN_MASK, bits.iter().map(|word| word.count_ones()).sum()),
        };
        state.children = (kind, greedy);
        let mut words = std::mem::take(&mut self.scratch);
        words.clear();
        words.extend([kind, count, first as u32, u32::from(greedy)]);
        match tokens {
            LegalTokens::List(tokens) if kind == CHILDREN_LIST => words.extend(tokens.iter().map(|&id| id as u32)),
            LegalTokens::List(tokens) => {
                words.resize(CHILD_DATA + n_vocab.div_ceil(32), 0);
                for &token in tokens {
                    words[CHILD_DATA + token as usize / 32] |= 1 << (token % 32);
                }
            }
            LegalTokens::Mask { bits, .. } => words.extend_from_slice(bits),
        }
        self.write(&self.children, at, &words);
        self.scratch = words;
        Ok(())
    }

    /// Starts a sequence anew: at this position, after these tokens, of which the penalties see the last 1024.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that is not there.
    pub fn restart(&mut self, sequence: usize, position: u32, history: &[Token]) -> Result<()> {
        let state = self.sequence(sequence)?;
        (state.position, state.count) = (position, 0);
        self.append(sequence, history)
    }

    /// Adds tokens that were not sampled, forced ones for example, at the end of a sequence.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that is not there.
    pub fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        let state = self.sequence(sequence)?;
        state.position += tokens.len() as u32;
        self.append(sequence, tokens)
    }

    /// Rolls back the last `steps` tokens of a sequence, sampled or not, at most 1024. `last` is the sequence's last
    /// token after that: the next step's embedding reads it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that is not there, or more tokens than the sequence has.
    pub fn roll_back(&mut self, sequence: usize, steps: u32, last: Token) -> Result<()> {
        let state = self.sequence(sequence)?;
        if steps > state.count.min(WINDOW as u32) || steps > state.position {
            let problem = format!("{steps} steps cannot be taken back of {}", state.count);
            return Err(Error::InvalidArgument(problem));
        }
        state.position -= steps;
        state.count -= steps;
        let words = [last as u32, state.position, state.count];
        self.write(&self.state, sequence * STATE_WORDS + STATE_TOKEN, &words);
        self.write(&self.out, sequence, &words[..1]);
        Ok(())
    }

    /// Encodes a step: a token for each of these rows, whose sequences are all different, or the candidates for the
    /// host; then the sequence stays at its position until [`Self::accept`] is called with a token. The logits are
    /// changed. The rows are written to the queue, so a submission holds one step, or several of the same rows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence or row that is not there and for a sequence that is named twice,
    /// [`Error::Internal`] before [`Self::bind`].
    pub fn encode(&mut self, pass: &mut wgpu::ComputePass<'_>, rows: &[SampleRow]) -> Result<()> {
        let Some(logits) = &self.logits else {
            return Err(Error::Internal("sampling without logits".into()));
        };
        for (index, row) in rows.iter().enumerate() {
            let twice = rows[..index].iter().any(|other| other.sequence == row.sequence);
            if twice || row.sequence as usize >= self.sequences.len() || row.row >= logits.rows {
                let problem = format!("Sequence {} sampling from row {}", row.sequence, row.row);
                return Err(Error::InvalidArgument(problem));
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        if self.rows != rows {
            let mut words = std::mem::take(&mut self.scratch);
            words.clear();
            words.extend([self.n_vocab as u32, self.chunk(), self.child_words as u32, 0]);
            words.extend(rows.iter().flat_map(|row| [row.sequence, logits.first + row.row * logits.stride, 0, 0]));
            self.write(&self.frame, 0, &words);
            self.scratch = words;
            self.rows.clear();
            self.rows.extend_from_slice(rows);
        }
        for ((stage, kernel), binding) in STAGES.iter().zip(&self.kernels).zip(&self.bindings) {
            if rows.iter().any(|row| (stage.needed)(&self.way(&self.sequences[row.sequence as usize]))) {
                pass.set_pipeline(&kernel.pipeline);
                pass.set_bind_group(0, binding, &[]);
                pass.dispatch_workgroups(if stage.shared { self.groups } else { 1 }, rows.len() as u32, 1);
            }
        }
        for row in rows {
            let state = &mut self.sequences[row.sequence as usize];
            let sampled = u32::from(state.chain.samples());
            state.position += sampled;
            state.count += sampled;
        }
        Ok(())
    }

    /// Whether the children of a sequence are chosen from by one kernel, which needs no other logits: then a walk may
    /// arm others and sample again by [`Self::encode_choice`].
    pub fn walks(&self, sequence: usize) -> bool {
        self.sequences
            .get(sequence)
            .is_some_and(|sequence| sequence.chain.samples() && self.way(sequence).path == PATH_CHILDREN)
    }

    /// Encodes the choice among children of the row that [`Self::encode`] sampled last, with as many workgroups as
    /// `args` says: one, or none.
    pub fn encode_choice(&self, pass: &mut wgpu::ComputePass<'_>, args: &wgpu::Buffer, at: u64) {
        let mut stages = STAGES.iter().zip(&self.kernels).zip(&self.bindings);
        if let Some(((_, kernel), binding)) = stages.find(|((stage, _), _)| stage.name == "sample_finish") {
            pass.set_pipeline(&kernel.pipeline);
            pass.set_bind_group(0, binding, &[]);
            pass.dispatch_workgroups_indirect(args, at);
        }
    }

    /// Masks, states and tokens, which a walk reads and writes, and the words of a sequence's mask.
    pub fn walked_buffers(&self) -> ([&wgpu::Buffer; 3], usize) {
        ([&self.children, &self.state, &self.out], self.child_words)
    }

    /// Advances a sequence by `tokens` tokens that a walk added on the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that is not there.
    pub fn walked(&mut self, sequence: usize, tokens: u32) -> Result<()> {
        let state = self.sequence(sequence)?;
        state.position += tokens;
        state.count += tokens;
        Ok(())
    }

    /// How many dispatches [`Self::encode`] makes for these rows.
    pub fn dispatches(&self, rows: &[SampleRow]) -> usize {
        let needed = |stage: &&Stage| {
            let sequences = rows.iter().filter_map(|row| self.sequences.get(row.sequence as usize));
            sequences.into_iter().any(|sequence| (stage.needed)(&self.way(sequence)))
        };
        STAGES.iter().filter(needed).count()
    }

    /// The buffer whose word `sequence` is the token that the sequence sampled last, for the embedding of the next
    /// step.
    pub fn sampled(&self) -> &wgpu::Buffer {
        &self.out
    }

    /// The results of all sequences, [`RESULT_BYTES`] each, for [`read_result`].
    pub fn results(&self) -> BufferSpan<'_> {
        let bytes = (self.sequences.len() * RESULT_WORDS * 4) as u64;
        BufferSpan { buffer: &self.out, offset: RESULTS_AT as u64 * 4, bytes }
    }

    /// The best candidates of a sequence, as many as its result says are reported, for [`read_candidates`].
    pub fn candidates(&self, sequence: usize) -> BufferSpan<'_> {
        let offset = (sequence * STATE_WORDS + STATE_REPORT) as u64 * 4;
        BufferSpan { buffer: &self.state, offset, bytes: Self::candidate_bytes() }
    }

    /// The candidates that a sequence leaves for the host, in no order, for [`read_handed_over`]; empty for a chain
    /// that samples.
    pub fn handed_over(&self, sequence: usize) -> BufferSpan<'_> {
        let offset = (sequence * WORK_WORDS + CANDIDATES_AT) as u64 * 4;
        let most = self.sequences.get(sequence).map_or(0, |sequence| sequence.chain.hands_over());
        BufferSpan { buffer: &self.work, offset, bytes: u64::from(most) * HANDED_OVER_BYTES as u64 }
    }

    fn sequence(&mut self, sequence: usize) -> Result<&mut SequenceState> {
        let sequences = self.sequences.len();
        self.sequences
            .get_mut(sequence)
            .ok_or_else(|| Error::InvalidArgument(format!("Sequence {sequence} of a sampler of {sequences}")))
    }

    fn way(&self, sequence: &SequenceState) -> Way {
        let path = match sequence.children {
            (CHILDREN_NONE, _) => sequence.chain.path,
            (CHILDREN_MASK, _) => PATH_ROW,
            (_, greedy) if greedy || sequence.chain.trie_first => PATH_CHILDREN,
            _ => PATH_SELECT,
        };
        Way { path, adjusts: sequence.chain.adjusts(), short: self.n_vocab <= LIST }
    }

    fn chunk(&self) -> u32 {
        (self.n_vocab as u32).div_ceil(self.groups)
    }

    /// Adds to the history and writes the state's head. Without tokens, the token of the last submitted step stays the
    /// last one.
    fn append(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        let at = sequence * STATE_WORDS;
        let state = self.sequence(sequence)?;
        let (before, position) = (state.count as usize, state.position);
        state.count += tokens.len() as u32;
        let count = state.count;
        let seen = tokens.len().min(RING);
        let mut words = std::mem::take(&mut self.scratch);
        words.clear();
        words.extend(tokens[tokens.len() - seen..].iter().map(|&token| token as u32));
        // In two pieces where the ring ends.
        let start = (before + tokens.len() - seen) % RING;
        let (head, tail) = words.split_at(seen.min(RING - start));
        self.write(&self.state, at + STATE_RING + start, head);
        self.write(&self.state, at + STATE_RING, tail);
        self.write(&self.state, at + STATE_POSITION, &[position, count]);
        if let Some(last) = words.last() {
            self.write(&self.state, at + STATE_TOKEN, &[*last]);
            self.write(&self.out, sequence, &[*last]);
        }
        self.scratch = words;
        Ok(())
    }

    fn write(&self, buffer: &wgpu::Buffer, word: usize, words: &[u32]) {
        if !words.is_empty() {
            self.gpu.queue.write_buffer(buffer, word as u64 * 4, bytemuck::cast_slice(words));
        }
    }

    /// Writes all chains, into a larger buffer where they have outgrown theirs.
    fn write_chains(&mut self) -> Result<()> {
        let heads = self.sequences.len() * SPEC_WORDS;
        let words = heads + self.sequences.iter().map(|sequence| sequence.chain.table_words()).sum::<usize>();
        let mut all = vec![0; words];
        let (sequences, mut tables) = all.split_at_mut(heads);
        let mut at = heads;
        for (sequence, words) in self.sequences.iter().zip(sequences.chunks_exact_mut(SPEC_WORDS)) {
            let (own, others) = tables.split_at_mut(sequence.chain.table_words());
            sequence.chain.write(words, own, at);
            at += own.len();
            tables = others;
        }
        if words as u64 * 4 > self.spec.size() {
            self.spec = self.gpu.buffer("sampler's chains", words as u64 * 4, STORAGE)?;
            self.remake_bindings();
        }
        self.write(&self.spec, 0, &all);
        Ok(())
    }

    fn remake_bindings(&mut self) {
        let Some(logits) = &self.logits else { return };
        let logits = wgpu::BufferBinding {
            buffer: &logits.buffer,
            offset: logits.offset,
            size: wgpu::BufferSize::new(logits.bytes),
        };
        let own = [&self.frame, &self.spec, &self.children, &self.state, &self.bins, &self.work, &self.out];
        let buffers: Vec<_> = [logits].into_iter().chain(own.map(|buffer| buffer.as_entire_buffer_binding())).collect();
        self.bindings = self.kernels.iter().map(|kernel| self.gpu.bind(kernel, &buffers)).collect();
    }
}

/// Threads of a workgroup.
fn threads(gpu: &Gpu) -> u32 {
    if gpu.caps.max_threads >= 256 { 256 } else { 128 }
}

/// The kernels of [`STAGES`].
fn kernels(gpu: &Gpu) -> Result<Vec<Arc<Kernel>>> {
    let constants = constants(threads(gpu));
    let kernel = |stage: &Stage| gpu.kernel(stage.name, &compose(stage.text, &[], &constants)?, &BINDINGS);
    STAGES.iter().map(kernel).collect()
}

/// Bytes of a result.
pub const RESULT_BYTES: usize = RESULT_WORDS * 4;

/// Bytes of a candidate for the host.
pub const HANDED_OVER_BYTES: usize = 8;

/// A result from its bytes, `None` for less than [`RESULT_BYTES`].
pub fn read_result(bytes: &[u8]) -> Option<SampleResult> {
    let (words, _) = bytes.as_chunks::<4>();
    let [token, logprob, prob, kept, status, at, position, reported, ..] = words else { return None };
    let [kept, status, at, position, reported] = [kept, status, at, position, reported].map(|w| u32::from_le_bytes(*w));
    Some(SampleResult {
        token: Token::from_le_bytes(*token),
        logprob: f32::from_le_bytes(*logprob),
        prob: f32::from_le_bytes(*prob),
        kept,
        position,
        reported,
        problem: match status {
            STATUS_OK => None,
            STATUS_NAN => Some(SampleProblem::Nan(at as Token)),
            _ => Some(SampleProblem::NoCandidate),
        },
    })
}

/// The first `reported` candidates from their bytes, best first, each as (token, logit, probability); the logit is that
/// after biases, penalties and temperature.
pub fn read_candidates(bytes: &[u8], reported: u32) -> impl Iterator<Item = (Token, f32, f32)> + '_ {
    let (entries, _) = bytes.as_chunks::<{ REPORT_WORDS * 4 }>();
    entries.iter().take(reported as usize).map(|entry| {
        let (words, _) = entry.as_chunks::<4>();
        (Token::from_le_bytes(words[0]), f32::from_le_bytes(words[1]), f32::from_le_bytes(words[2]))
    })
}

/// The first `reported` candidates for the host, from their bytes, each as (token, logit); the logit is that after
/// biases and penalties, before temperature.
pub fn read_handed_over(bytes: &[u8], reported: u32) -> impl Iterator<Item = (Token, f32)> + '_ {
    let (entries, _) = bytes.as_chunks::<HANDED_OVER_BYTES>();
    entries.iter().take(reported as usize).map(|entry| {
        let (words, _) = entry.as_chunks::<4>();
        (Token::from_le_bytes(words[0]), f32::from_le_bytes(words[1]))
    })
}
