//! The sampler of an engine's state: its sequences' chains on the device, and the copies of their results to the host.
//!
//! A step's results have a staging buffer of their own until they are read; there is one for every step that may be in
//! flight.

use crate::backend::gpu::device::memory::buffer_bytes;
use crate::backend::gpu::device::readback::Landing;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::sample::{
    BufferSpan, HANDED_OVER_BYTES, MAX_HANDED_OVER, RESULT_BYTES, SampleProgram, read_candidates, read_handed_over,
    read_result, split,
};
use crate::backend::{Followed, Legal, SampleRow, SampleSpec, SampledRow};
use crate::{Error, Result, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Steps in flight at once: the one that the host waits for, and the speculative one after it.
const UNDER_WAY: usize = 2;

/// The chains of an engine's sequences on the device, and the results that are being copied to the host.
pub struct Sampler {
    gpu: Arc<Gpu>,
    program: SampleProgram,
    n_vocab: usize,
    /// Candidates that each sequence's chain reports.
    candidates: Vec<usize>,
    /// Rows of logits that can be sampled from.
    rows: usize,
    staging: Vec<Staging>,
    /// The steps in flight as indices into `staging`, the oldest first.
    under_way: VecDeque<usize>,
    next: usize,
}

/// The results of one step, then the candidates of those rows that report any.
struct Staging {
    landing: Landing,
    /// The step's rows.
    rows: Vec<SampleRow>,
}

impl Sampler {
    /// A sampler for this many sequences, from rows of `n_vocab` logits.
    ///
    /// # Errors
    /// As [`SampleProgram::new`].
    pub fn new(gpu: &Arc<Gpu>, n_vocab: usize, sequences: usize) -> Result<Sampler> {
        let program = SampleProgram::new(gpu, n_vocab, sequences)?;
        let bytes = Self::staging_bytes(sequences);
        let staging = |_| -> Result<Staging> {
            let landing = Landing::new(gpu, "sampled tokens", bytes)?;
            Ok(Staging { landing, rows: Vec::with_capacity(sequences) })
        };
        let staging = (0..UNDER_WAY).map(staging).collect::<Result<_>>()?;
        let under_way = VecDeque::with_capacity(UNDER_WAY);
        let candidates = vec![0; sequences];
        Ok(Sampler { gpu: gpu.clone(), program, n_vocab, candidates, rows: 0, staging, under_way, next: 0 })
    }

    /// Bytes that [`Sampler::new`] takes.
    pub fn bytes(n_vocab: usize, sequences: usize) -> u64 {
        SampleProgram::bytes(n_vocab, sequences) + UNDER_WAY as u64 * buffer_bytes(Self::staging_bytes(sequences))
    }

    /// Bytes of the results of a step of all sequences, each with the most candidates.
    fn staging_bytes(sequences: usize) -> u64 {
        let candidates = SampleProgram::candidate_bytes().max(u64::from(MAX_HANDED_OVER) * HANDED_OVER_BYTES as u64);
        sequences as u64 * (RESULT_BYTES as u64 + candidates)
    }

    /// Set where the rows of logits are, at least `rows` of them.
    ///
    /// # Errors
    /// As [`SampleProgram::bind`].
    pub fn bind(&mut self, buffer: &wgpu::Buffer, offset: u64, rows: usize) -> Result<()> {
        self.rows = self.rows.max(rows);
        self.program.bind(buffer, offset, (self.rows * self.n_vocab) as u64 * 4, self.n_vocab)
    }

    /// The buffer whose words are the tokens that the sequences sampled last.
    pub fn tokens(&self) -> &wgpu::Buffer {
        self.program.sampled()
    }

    /// Run this chain, or its first part, after `history`; `None` where the device can run no part of it.
    ///
    /// # Errors
    /// As [`SampleProgram::set_chain`].
    pub fn start(&mut self, sequence: usize, spec: &SampleSpec, history: &[Token]) -> Result<Option<Followed>> {
        let Some((own, steps)) = split(spec) else { return Ok(None) };
        self.program.set_chain(sequence, &own)?;
        self.candidates[sequence] = own.candidates as usize;
        self.program.arm(sequence, None)?;
        self.program.restart(sequence, history.len() as u32, history)?;
        let (_, bytes) = report(&self.program, &self.candidates, sequence);
        Ok(Some(Followed { steps, candidates: self.candidates[sequence].max(bytes as usize / HANDED_OVER_BYTES) }))
    }

    /// Set the token mask; `None` allows all tokens. Returns the bytes that were sent.
    ///
    /// # Errors
    /// As [`SampleProgram::arm`].
    pub fn arm(&mut self, sequence: usize, legal: Option<Legal<'_>>) -> Result<u64> {
        self.program.arm(sequence, legal)
    }

    /// Append tokens that were not sampled here.
    ///
    /// # Errors
    /// As [`SampleProgram::accept`].
    pub fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        self.program.accept(sequence, tokens)
    }

    /// Roll back the last tokens.
    ///
    /// # Errors
    /// As [`SampleProgram::roll_back`].
    pub fn roll_back(&mut self, sequence: usize, tokens: u32, last: Token) -> Result<()> {
        self.program.roll_back(sequence, tokens, last)
    }

    /// Whether a walk can choose among the children that the sequence has.
    pub fn walks(&self, sequence: usize) -> bool {
        self.candidates.get(sequence) == Some(&0) && self.program.walks(sequence)
    }

    /// The kernels and their state.
    pub fn program(&mut self) -> &mut SampleProgram {
        &mut self.program
    }

    /// Append the sampling to a pass that computes logits; returns the number of dispatches.
    ///
    /// # Errors
    /// As [`SampleProgram::encode`]; [`Error::Internal`] where two steps are in flight already.
    pub fn encode(&mut self, pass: &mut wgpu::ComputePass<'_>, rows: &[SampleRow]) -> Result<u64> {
        if self.under_way.len() == UNDER_WAY {
            return Err(Error::Internal("More steps under way than results can be kept".into()));
        }
        let dispatches = self.program.dispatches(rows);
        self.program.encode(pass, rows)?;
        Ok(dispatches as u64)
    }

    /// Append the copy of the results, after the pass.
    pub fn copy(&mut self, encoder: &mut wgpu::CommandEncoder, rows: &[SampleRow]) {
        let staging = &mut self.staging[self.next];
        staging.rows.clear();
        staging.rows.extend_from_slice(rows);
        let landing = &self.staging[self.next].landing;
        let results = self.program.results();
        let mut at = 0;
        for row in rows {
            let from = results.offset + u64::from(row.sequence) * RESULT_BYTES as u64;
            landing.copy(encoder, results.buffer, from, at, RESULT_BYTES as u64);
            at += RESULT_BYTES as u64;
        }
        for row in rows {
            let (place, bytes) = report(&self.program, &self.candidates, row.sequence as usize);
            if bytes > 0 {
                landing.copy(encoder, place.buffer, place.offset, at, bytes);
                at += bytes;
            }
        }
    }

    /// Note the submission that has the copy.
    pub fn submitted(&mut self, submission: wgpu::SubmissionIndex) {
        self.staging[self.next].landing.submitted(&self.gpu, submission);
        self.under_way.push_back(self.next);
        self.next = (self.next + 1) % UNDER_WAY;
    }

    /// Steps whose results were not read yet.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Drops the steps after the first `kept`.
    pub fn forget(&mut self, kept: usize) {
        for index in self.under_way.drain(kept.min(self.under_way.len())..).rev() {
            self.staging[index].landing.give_up();
            self.next = index;
        }
    }

    /// Waits for the oldest step's results; returns the number of rows and of bytes read.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where `cancel` was set, [`Error::Internal`] where
    /// no step is in flight.
    pub fn read(&mut self, out: &mut [SampledRow], cancel: &AtomicBool) -> Result<(usize, u64)> {
        let none = || Error::Internal("A sampled token was asked for, and none is under way".into());
        let index = self.under_way.pop_front().ok_or_else(none)?;
        let (program, candidates, Staging { landing, rows }) =
            (&self.program, &self.candidates, &mut self.staging[index]);
        let reported = |row: &SampleRow| report(program, candidates, row.sequence as usize).1;
        let bytes = (rows.len() * RESULT_BYTES) as u64 + rows.iter().map(reported).sum::<u64>();
        let whole = landing.read(&self.gpu, bytes, cancel, |bytes| {
            let (results, mut lists) = bytes.split_at(rows.len() * RESULT_BYTES);
            for ((row, words), out) in rows.iter().zip(results.chunks_exact(RESULT_BYTES)).zip(&mut *out) {
                let Some(result) = read_result(words) else { return false };
                let (own, rest) = lists.split_at(reported(row) as usize);
                lists = rest;
                (out.sequence, out.result) = (row.sequence, result);
                out.candidates.clear();
                match candidates[row.sequence as usize] {
                    0 => {
                        let handed = read_handed_over(own, result.reported);
                        out.candidates.extend(handed.map(|(token, logit)| (token, logit, 0.0)));
                    }
                    most => out.candidates.extend(read_candidates(own, result.reported).take(most)),
                }
            }
            rows.len() <= out.len()
        })?;
        if whole { Ok((rows.len(), bytes)) } else { Err(Error::Internal("Sampled rows that do not fit".into())) }
    }
}

/// The candidates that come with a sequence's result: where they are, and their bytes, 0 where there are none.
fn report<'a>(program: &'a SampleProgram, candidates: &[usize], sequence: usize) -> (BufferSpan<'a>, u64) {
    let handed = program.handed_over(sequence);
    if handed.bytes > 0 {
        return (handed, handed.bytes);
    }
    let place = program.candidates(sequence);
    (place, if candidates[sequence] > 0 { place.bytes } else { 0 })
}
