//! The sampler of an engine's state: its sequences' chains on the device, and their results on the way to the host.
//!
//! A step's results have a staging buffer of their own until they are read; there are as many as steps that may be under way.

use super::device::Gpu;
use super::memory::{Buffer, buffer_bytes};
use super::sample::{
    HANDED_OVER_BYTES, MAX_HANDED_OVER, Place, RESULT_BYTES, SampleProgram, read_candidates, read_handed_over,
    read_result, split,
};
use crate::backend::{Children, Followed, SampleRow, SampleSpec, SampledRow};
use crate::{Error, Result, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Steps under way at once: the one that is waited for, and the one ahead of it.
const UNDER_WAY: usize = 2;

/// How long a wait keeps its core before the thread sleeps: some drivers take a millisecond to wake it.
const SPIN: Duration = Duration::from_micros(200);

/// See the module's documentation.
pub struct Sampler {
    gpu: Arc<Gpu>,
    program: SampleProgram,
    n_vocab: usize,
    /// Candidates that each sequence's chain reports.
    candidates: Vec<usize>,
    /// Rows of logits that can be sampled from.
    rows: usize,
    staging: Vec<Staging>,
    /// Indices into `staging`, the oldest step first.
    under_way: VecDeque<(usize, wgpu::SubmissionIndex)>,
    next: usize,
}

/// The results of one step, then the candidates of those rows that report any.
struct Staging {
    buffer: Buffer,
    ready: Arc<AtomicBool>,
    /// The step's rows.
    rows: Vec<SampleRow>,
}

impl Sampler {
    /// A sampler for this many sequences, from rows of `n_vocab` logits.
    pub fn new(gpu: &Arc<Gpu>, n_vocab: usize, sequences: usize) -> Result<Sampler> {
        let program = SampleProgram::new(gpu, n_vocab, sequences)?;
        let bytes = Self::staging_bytes(sequences);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = |_| -> Result<Staging> {
            let buffer = gpu.buffer("sampled tokens", bytes, usage)?;
            Ok(Staging { buffer, ready: Arc::default(), rows: Vec::with_capacity(sequences) })
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

    /// Where the rows of logits stand, at least so many.
    pub fn bind(&mut self, buffer: &wgpu::Buffer, offset: u64, rows: usize) -> Result<()> {
        self.rows = self.rows.max(rows);
        self.program.bind(buffer, offset, (self.rows * self.n_vocab) as u64 * 4, self.n_vocab)
    }

    /// The buffer whose words are the tokens that the sequences sampled last.
    pub fn tokens(&self) -> &wgpu::Buffer {
        self.program.sampled()
    }

    /// Follow this chain behind `history`, or its beginning; `None` where even that cannot be.
    pub fn start(&mut self, sequence: usize, spec: &SampleSpec, history: &[Token]) -> Result<Option<Followed>> {
        let Some((own, steps)) = split(spec) else { return Ok(None) };
        self.program.set_chain(sequence, &own)?;
        self.candidates[sequence] = own.candidates as usize;
        self.program.arm(sequence, None)?;
        self.program.restart(sequence, history.len() as u32, history)?;
        let (_, bytes) = self.report(sequence);
        Ok(Some(Followed { steps, candidates: self.candidates[sequence].max(bytes as usize / HANDED_OVER_BYTES) }))
    }

    /// What comes with a sequence's results, if anything: where it stands, and its bytes.
    fn report(&self, sequence: usize) -> (Place<'_>, u64) {
        let handed = self.program.handed_over(sequence);
        if handed.bytes > 0 {
            return (handed, handed.bytes);
        }
        let place = self.program.candidates(sequence);
        (place, if self.candidates[sequence] > 0 { place.bytes } else { 0 })
    }

    /// Let only these tokens win.
    pub fn arm(&mut self, sequence: usize, children: Option<Children<'_>>) -> Result<()> {
        self.program.arm(sequence, children)
    }

    /// Take note of tokens that were not sampled here.
    pub fn accept(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        self.program.accept(sequence, tokens)
    }

    /// Take back the last token.
    pub fn take_back(&mut self, sequence: usize, last: Token) -> Result<()> {
        self.program.roll_back(sequence, 1, last)
    }

    /// Append the sampling to a pass that computes logits; says how many dispatches it took.
    pub fn encode(&mut self, pass: &mut wgpu::ComputePass<'_>, rows: &[SampleRow]) -> Result<u64> {
        if self.under_way.len() == UNDER_WAY {
            return Err(Error::Internal("More steps under way than results can be kept".into()));
        }
        let dispatches = self.program.dispatches(rows);
        self.program.encode(pass, rows)?;
        Ok(dispatches as u64)
    }

    /// Append the copy of the results, behind the pass.
    pub fn copy(&mut self, encoder: &mut wgpu::CommandEncoder, rows: &[SampleRow]) {
        let staging = &mut self.staging[self.next];
        staging.rows.clear();
        staging.rows.extend_from_slice(rows);
        let staging = &self.staging[self.next].buffer;
        let results = self.program.results();
        let mut at = 0;
        for row in rows {
            let from = results.offset + u64::from(row.slot) * RESULT_BYTES as u64;
            encoder.copy_buffer_to_buffer(results.buffer, from, staging, at, RESULT_BYTES as u64);
            at += RESULT_BYTES as u64;
        }
        for row in rows {
            let (place, bytes) = self.report(row.slot as usize);
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(place.buffer, place.offset, staging, at, bytes);
                at += bytes;
            }
        }
    }

    /// The submission with the copy is on its way.
    pub fn submitted(&mut self, submission: wgpu::SubmissionIndex) {
        let staging = &self.staging[self.next];
        staging.ready.store(false, Ordering::Relaxed);
        let ready = staging.ready.clone();
        // A failed mapping is found when the range is asked for.
        staging.buffer.map_async(wgpu::MapMode::Read, .., move |_| ready.store(true, Ordering::Release));
        self.under_way.push_back((self.next, submission));
        self.next = (self.next + 1) % UNDER_WAY;
    }

    /// Waits for the oldest step's results; says how many rows they are, and how many bytes were read.
    pub fn read(&mut self, out: &mut [SampledRow]) -> Result<(usize, u64)> {
        let none = || Error::Internal("A sampled token was asked for, and none is under way".into());
        let (index, submission) = self.under_way.pop_front().ok_or_else(none)?;
        let staging = &self.staging[index];
        let began = Instant::now();
        while !staging.ready.load(Ordering::Acquire) && began.elapsed() < SPIN {
            self.gpu.look()?;
            std::hint::spin_loop();
        }
        if !staging.ready.load(Ordering::Acquire) {
            self.gpu.wait_for(submission)?;
        }
        let reports: u64 = staging.rows.iter().map(|row| self.report(row.slot as usize).1).sum();
        let bytes = (staging.rows.len() * RESULT_BYTES) as u64 + reports;
        let broken = |e: &dyn std::fmt::Display| Error::Device(format!("Reading from {}: {e}", self.gpu.info.name));
        let mapped = staging.buffer.get_mapped_range(..bytes).map_err(|e| broken(&e))?;
        let (results, mut candidates) = mapped.split_at(staging.rows.len() * RESULT_BYTES);
        let mut whole = staging.rows.len() <= out.len();
        for ((row, words), out) in staging.rows.iter().zip(results.chunks_exact(RESULT_BYTES)).zip(out) {
            let Some(result) = read_result(words) else {
                whole = false;
                break;
            };
            let sequence = row.slot as usize;
            let (own, rest) = candidates.split_at(self.report(sequence).1 as usize);
            candidates = rest;
            (out.slot, out.result) = (row.slot, result);
            out.candidates.clear();
            match self.candidates[sequence] {
                0 => {
                    let handed = read_handed_over(own, result.reported);
                    out.candidates.extend(handed.map(|(token, logit)| (token, logit, 0.0)));
                }
                most => out.candidates.extend(read_candidates(own, result.reported).take(most)),
            }
        }
        drop(mapped);
        staging.buffer.unmap();
        if whole { Ok((staging.rows.len(), bytes)) } else { Err(broken(&"results that do not fit")) }
    }
}
