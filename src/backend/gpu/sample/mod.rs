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
//! bits are the same function of seed and position, every cut is exact, and what is no integer is made of f32
//! operations that are rounded one by one.
//!
//! A chain that the device cannot run as a whole is cut in two ([`split`]). The first part returns the few candidates
//! that it left; the host runs the rest of the chain on them and passes the token to [`SampleProgram::accept`].
//!
//! How a row is sampled depends on its chain: an argmax takes two dispatches, a draw without truncation (or with min-p)
//! three, a list of legal tokens one, all other chains seven; biases, penalties and DRY of the whole row one more. A
//! mask of bits adds none: the kernels read the row through it. Rows of different chains share dispatches.

mod layout;
mod masks;
mod probe;
pub mod queue;
mod results;
mod spec;
mod stages;
#[cfg(test)]
mod tests;

pub use crate::backend::{ChainStep, Legal, LegalTokens, SampleProblem, SampleResult, SampleRow, SampleSpec};
pub(crate) use probe::add_trial;
pub use results::{HANDED_OVER_BYTES, RESULT_BYTES, read_candidates, read_handed_over, read_result};
pub use spec::{MAX_CANDIDATES, MAX_HANDED_OVER, split, supported};

use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::device::memory::{Buffer, buffer_bytes};
use crate::backend::gpu::kernel::{Gpu, Kernel};
use crate::{Error, Result, Token};
use layout::*;
pub(crate) use layout::{WalkedWords, constants, walked_words};
use masks::{MaskHead, MaskTable};
use spec::Compiled;
use stages::{STAGES, Stage, Way, kernels, threads};
use std::sync::Arc;

/// Words of the uniform before the rows.
const ROWS_AT: usize = 4;

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
    children: Children,
    position: u32,
    count: u32,
}

/// The mask of a sequence.
#[derive(Clone, Copy, PartialEq)]
struct Children {
    kind: u32,
    greedy: bool,
    /// Of a mask of bits.
    slot: usize,
}

const NO_CHILDREN: Children = Children { kind: CHILDREN_NONE, greedy: false, slot: 0 };

/// Samples the sequences of one engine.
pub struct SampleProgram {
    gpu: Arc<Gpu>,
    n_vocab: usize,
    groups: u32,
    child_words: usize,
    masks: MaskTable,
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
        let child_words = CHILD_DATA + LIST;
        let storage = |what: &str, words: usize| gpu.buffer(what, words as u64 * 4, STORAGE);
        let frame_usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let chain = spec::compile(&SampleSpec::default(), n_vocab)?;
        let sequence = || SequenceState { chain: chain.clone(), children: NO_CHILDREN, position: 0, count: 0 };
        let mut program = SampleProgram {
            gpu: gpu.clone(),
            n_vocab,
            groups: groups as u32,
            child_words,
            masks: MaskTable::new(max_rows),
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
            scratch: Vec::with_capacity(child_words.max(STATE_WORDS).max(n_vocab.div_ceil(32))),
        };
        program.write_chains()?;
        Ok(program)
    }

    /// Words of the buffers: rows, chains, masks, states, bins, candidates, tokens.
    fn sizes(n_vocab: usize, max_rows: usize) -> [usize; 7] {
        let each = [SPEC_WORDS, CHILD_DATA + LIST, STATE_WORDS, BINS_WORDS, WORK_WORDS].map(|words| max_rows * words);
        let [spec, children, state, bins, work] = each;
        let children = children + MaskTable::slots(max_rows) * n_vocab.div_ceil(32);
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

    /// Sets or removes a sequence's mask; returns the bytes that were sent to the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the tokens are not ascending, not in the vocabulary, or none, and for a
    /// sequence that is not there.
    pub fn arm(&mut self, sequence: usize, legal: Option<Legal<'_>>) -> Result<u64> {
        let n_vocab = self.n_vocab;
        let at = sequence * self.child_words;
        let before = self.sequence(sequence)?.children;
        let Some(Legal { tokens, greedy }) = legal else {
            self.sequences[sequence].children = NO_CHILDREN;
            return Ok(self.write(&self.children, at + CHILD_KIND, &[CHILDREN_NONE]));
        };
        if let LegalTokens::List(tokens) = tokens
            && tokens.windows(2).any(|pair| pair[0] >= pair[1])
        {
            return Err(Error::InvalidArgument(format!("{} tokens of a mask are not ascending", tokens.len())));
        }
        let mut words = std::mem::take(&mut self.scratch);
        words.clear();
        let sent = match tokens {
            LegalTokens::List(tokens) if tokens.len() <= LIST => {
                let first = legal.map_or(Ok(0), |legal| legal.tokens.first(n_vocab))?;
                self.sequences[sequence].children = Children { kind: CHILDREN_LIST, greedy, slot: 0 };
                words.extend([CHILDREN_LIST, tokens.len() as u32, first as u32, u32::from(greedy), 0]);
                words.extend(tokens.iter().map(|&token| token as u32));
                self.write(&self.children, at, &words)
            }
            tokens => {
                let (slot, head, sent) = self.mask_slot(sequence, tokens, &mut words)?;
                let children = Children { kind: CHILDREN_MASK, greedy, slot };
                self.sequences[sequence].children = children;
                let mask_at = self.mask_at(slot) as u32;
                let head = [CHILDREN_MASK, head.count, head.first as u32, u32::from(greedy), mask_at];
                if children == before { sent } else { sent + self.write(&self.children, at, &head) }
            }
        };
        self.scratch = words;
        Ok(sent)
    }

    /// The slot of a mask of bits, which is sent if it is not there; and the bytes that were sent.
    fn mask_slot(
        &mut self,
        sequence: usize,
        tokens: LegalTokens<'_>,
        words: &mut Vec<u32>,
    ) -> Result<(usize, MaskHead, u64)> {
        let number = match tokens {
            LegalTokens::Mask { number, .. } => Some(number),
            LegalTokens::List(_) => None,
        };
        if let Some((slot, head)) = number.and_then(|number| self.masks.find(number)) {
            return Ok((slot, head, 0));
        }
        let first = tokens.first(self.n_vocab)?;
        let bits = match tokens {
            LegalTokens::Mask { bits, .. } => bits,
            LegalTokens::List(tokens) => {
                words.resize(self.n_vocab.div_ceil(32), 0);
                for &token in tokens {
                    words[token as usize / 32] |= 1 << (token % 32);
                }
                &words[..]
            }
        };
        let head = MaskHead { first, count: bits.iter().map(|word| word.count_ones()).sum() };
        // What this sequence was armed with may go.
        let sequences = &self.sequences;
        let in_use = |slot: usize| {
            let others = sequences.iter().enumerate().filter(|(other, _)| *other != sequence);
            others
                .into_iter()
                .any(|(_, other)| other.children == Children { slot, kind: CHILDREN_MASK, ..other.children })
        };
        let slot = self.masks.take(number, head, in_use);
        Ok((slot, head, self.write(&self.children, self.mask_at(slot), bits)))
    }

    /// The first word of a mask's bits.
    fn mask_at(&self, slot: usize) -> usize {
        self.sequences.len() * self.child_words + slot * self.n_vocab.div_ceil(32)
    }

    /// Starts a sequence anew: at this position, after these tokens, of which penalties and DRY see the last 1024.
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
        let (chain, Children { kind, greedy, .. }) = (&sequence.chain, sequence.children);
        let path = match kind {
            CHILDREN_NONE => chain.path,
            CHILDREN_MASK if !chain.reads_masked(greedy) => PATH_ROW,
            CHILDREN_MASK => {
                if greedy {
                    PATH_GREEDY
                } else {
                    chain.path
                }
            }
            _ if greedy || chain.trie_first => PATH_CHILDREN,
            _ => PATH_SELECT,
        };
        Way { path, adjusts: chain.adjusts(kind != CHILDREN_NONE && greedy), short: self.n_vocab <= LIST }
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

    /// Writes words; returns their bytes.
    fn write(&self, buffer: &wgpu::Buffer, word: usize, words: &[u32]) -> u64 {
        if !words.is_empty() {
            self.gpu.queue.write_buffer(buffer, word as u64 * 4, bytemuck::cast_slice(words));
        }
        size_of_val(words) as u64
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
