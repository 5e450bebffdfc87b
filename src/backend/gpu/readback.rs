//! What is on its way from the device to the host: rows, through one staging buffer that is kept, and a step's results.

use super::device::Gpu;
use super::memory::Buffer;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a wait keeps its core before the thread sleeps: some drivers take a millisecond to wake it.
const SPIN: Duration = Duration::from_micros(200);

/// The staging buffer and the host's copy of what was read. Both buffers grow to the largest read and stay.
#[derive(Default)]
pub struct Readback {
    staging: Option<Buffer>,
    host: Vec<f32>,
}

impl Readback {
    /// Make room for reads of so many bytes.
    pub fn reserve(&mut self, gpu: &Gpu, bytes: u64) -> Result<()> {
        if bytes > 0 && self.staging.as_ref().is_none_or(|staging| staging.size() < bytes) {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            self.staging = Some(gpu.buffer("staging for rows", bytes, usage)?);
            self.host.reserve(bytes as usize / 4);
        }
        Ok(())
    }

    /// `len` floats from byte `offset` of `buffer`, after everything submitted so far.
    pub fn read(&mut self, gpu: &Gpu, buffer: &wgpu::Buffer, offset: u64, len: usize) -> Result<&mut [f32]> {
        let bytes = len as u64 * 4;
        self.reserve(gpu, bytes)?;
        // After an error it is made again: it may still be mapped.
        let staging = self.staging.take().ok_or_else(|| Error::Internal("No staging for rows".into()))?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, bytes);
        gpu.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        gpu.wait()?;
        let mapped = staging.get_mapped_range(..bytes);
        let mapped = mapped.map_err(|e| Error::Device(format!("Reading from {}: {e}", gpu.info.name)))?;
        self.host.clear();
        self.host.extend_from_slice(bytemuck::cast_slice(&mapped));
        drop(mapped);
        staging.unmap();
        self.staging = Some(staging);
        Ok(&mut self.host)
    }
}

/// A staging buffer for the results of one submission at a time, copied in its end.
pub struct Landing {
    buffer: Buffer,
    ready: Arc<AtomicBool>,
    submission: Option<wgpu::SubmissionIndex>,
}

impl Landing {
    /// For so many bytes.
    pub fn new(gpu: &Gpu, what: &str, bytes: u64) -> Result<Landing> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(Landing { buffer: gpu.buffer(what, bytes, usage)?, ready: Arc::default(), submission: None })
    }

    /// Append the copy of a part of `from` to byte `at`.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, from: &wgpu::Buffer, offset: u64, at: u64, bytes: u64) {
        encoder.copy_buffer_to_buffer(from, offset, &self.buffer, at, bytes);
    }

    /// The submission with the copies is on its way.
    pub fn submitted(&mut self, submission: wgpu::SubmissionIndex) {
        self.ready.store(false, Ordering::Relaxed);
        let ready = self.ready.clone();
        // A failed mapping is found when the range is asked for.
        self.buffer.map_async(wgpu::MapMode::Read, .., move |_| ready.store(true, Ordering::Release));
        self.submission = Some(submission);
    }

    /// Wait for the first bytes and hand them to `take`.
    pub fn read<T>(&mut self, gpu: &Gpu, bytes: u64, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let none = || Error::Internal("Results were asked for, and none are under way".into());
        let submission = self.submission.take().ok_or_else(none)?;
        let began = Instant::now();
        while !self.ready.load(Ordering::Acquire) && began.elapsed() < SPIN {
            gpu.look()?;
            std::hint::spin_loop();
        }
        if !self.ready.load(Ordering::Acquire) {
            gpu.wait_for(submission)?;
        }
        let mapped = self.buffer.get_mapped_range(..bytes);
        let mapped = mapped.map_err(|e| Error::Device(format!("Reading from {}: {e}", gpu.info.name)))?;
        let taken = take(&mapped);
        drop(mapped);
        self.buffer.unmap();
        Ok(taken)
    }
}
