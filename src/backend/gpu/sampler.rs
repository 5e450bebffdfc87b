//! The sampler of an engine's state: one stream's chain on the device, and its results on their way to the host.
//!
//! A result has a staging buffer of its own until it is read; there are as many as steps that may be under way.

use super::device::Gpu;
use super::sample::{RESULT_BYTES, SampleProgram, SampleRow, read_candidates, read_result, supported};
use crate::backend::{Children, SampleResult, SampleSpec};
use crate::{Error, Result, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Steps under way at once: the one that is waited for, and the one ahead of it.
const UNDER_WAY: usize = 2;

/// How long a wait keeps its core before the thread sleeps: some drivers take a millisecond to wake it.
const SPIN: Duration = Duration::from_micros(200);

/// The stream's rows: one slot, sampled from the first row of logits.
const ROW: [SampleRow; 1] = [SampleRow { slot: 0, row: 0 }];

/// See the module's documentation.
pub struct Sampler {
    gpu: Arc<Gpu>,
    program: SampleProgram,
    n_vocab: usize,
    /// Candidates that the chain reports.
    candidates: usize,
    staging: Vec<Staging>,
    /// Indices into `staging`, the oldest step first.
    under_way: VecDeque<(usize, wgpu::SubmissionIndex)>,
    next: usize,
}

struct Staging {
    buffer: wgpu::Buffer,
    ready: Arc<AtomicBool>,
}

impl Sampler {
    /// A sampler for rows of `n_vocab` logits.
    pub fn new(gpu: &Arc<Gpu>, n_vocab: usize) -> Result<Sampler> {
        let program = SampleProgram::new(gpu, n_vocab, 1)?;
        let bytes = RESULT_BYTES as u64 + program.candidates(0).bytes;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = |_| -> Result<Staging> {
            Ok(Staging { buffer: gpu.buffer("sampled token", bytes, usage)?, ready: Arc::default() })
        };
        let staging = (0..UNDER_WAY).map(staging).collect::<Result<_>>()?;
        let under_way = VecDeque::with_capacity(UNDER_WAY);
        Ok(Sampler { gpu: gpu.clone(), program, n_vocab, candidates: 0, staging, under_way, next: 0 })
    }

    /// Where the row of logits stands.
    pub fn bind(&mut self, buffer: &wgpu::Buffer, offset: u64) -> Result<()> {
        self.program.bind(buffer, offset, self.n_vocab as u64 * 4, self.n_vocab)
    }

    /// The buffer whose first word is the token sampled last.
    pub fn token(&self) -> &wgpu::Buffer {
        self.program.sampled()
    }

    /// Follow this chain behind `history`; false where the device cannot follow all of it.
    pub fn start(&mut self, spec: &SampleSpec, history: &[Token]) -> Result<bool> {
        while !self.under_way.is_empty() {
            self.read(&mut Vec::new())?;
        }
        if supported(&spec.ops) < spec.ops.len() {
            return Ok(false);
        }
        self.candidates = spec.candidates as usize;
        self.program.set_chain(0, spec)?;
        self.program.arm(0, None)?;
        self.program.restart(0, history.len() as u32, history)?;
        Ok(true)
    }

    /// Let only these tokens win.
    pub fn arm(&mut self, children: Option<Children<'_>>) -> Result<()> {
        self.program.arm(0, children)
    }

    /// Take note of tokens that were not sampled here.
    pub fn accept(&mut self, tokens: &[Token]) -> Result<()> {
        self.program.accept(0, tokens)
    }

    /// Take back the last step.
    pub fn take_back(&mut self, last: Token) -> Result<()> {
        self.program.roll_back(0, 1, last)
    }

    /// Append the sampling to a pass that computes logits; says how many dispatches it took.
    pub fn encode(&mut self, pass: &mut wgpu::ComputePass<'_>) -> Result<u64> {
        if self.under_way.len() == UNDER_WAY {
            return Err(Error::Internal("More steps under way than results can be kept".into()));
        }
        let dispatches = self.program.dispatches(&ROW);
        self.program.encode(pass, &ROW)?;
        Ok(dispatches as u64)
    }

    /// Append the copy of the result, behind the pass.
    pub fn copy(&mut self, encoder: &mut wgpu::CommandEncoder) {
        let (staging, results) = (&self.staging[self.next].buffer, self.program.results());
        encoder.copy_buffer_to_buffer(results.buffer, results.offset, staging, 0, RESULT_BYTES as u64);
        if self.candidates > 0 {
            let place = self.program.candidates(0);
            encoder.copy_buffer_to_buffer(place.buffer, place.offset, staging, RESULT_BYTES as u64, place.bytes);
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

    /// Waits for the oldest step's result; says how many bytes were read.
    pub fn read(&mut self, candidates: &mut Vec<(Token, f32, f32)>) -> Result<(SampleResult, u64)> {
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
        let bytes = RESULT_BYTES + if self.candidates > 0 { self.program.candidates(0).bytes as usize } else { 0 };
        let broken = |e: &dyn std::fmt::Display| Error::Device(format!("Reading from {}: {e}", self.gpu.info.name));
        let mapped = staging.buffer.get_mapped_range(..bytes as u64).map_err(|e| broken(&e))?;
        let result = read_result(&mapped).ok_or_else(|| broken(&"a short result"));
        candidates.clear();
        if let Ok(result) = &result {
            candidates.extend(read_candidates(&mapped[RESULT_BYTES..], result.reported).take(self.candidates));
        }
        drop(mapped);
        staging.buffer.unmap();
        Ok((result?, bytes as u64))
    }
}
