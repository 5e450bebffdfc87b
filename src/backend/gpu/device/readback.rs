//! Copies from the device to the host: rows, through one staging buffer that is kept, and the results of a step.

use super::Device;
use super::memory::Buffer;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a wait spins before the thread sleeps: some drivers take a millisecond to wake it.
const SPIN: Duration = Duration::from_micros(200);

/// The staging buffer and the host's copy of what was read. Both buffers grow to the largest read and stay.
#[derive(Default)]
pub struct Readback {
    staging: Option<Buffer>,
    host: Vec<f32>,
}

impl Readback {
    /// Reserve memory for reads of at most `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for; [`Error::Device`] where the device was lost.
    pub fn reserve(&mut self, gpu: &Device, bytes: u64) -> Result<()> {
        if bytes > 0 && self.staging.as_ref().is_none_or(|staging| staging.size() < bytes) {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            self.staging = Some(gpu.buffer("staging for rows", bytes, usage)?);
            self.host.reserve(bytes as usize / 4);
        }
        Ok(())
    }

    /// `len` floats from byte `offset` of `buffer`, after everything submitted so far.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where `cancel` was set, [`Error::Internal`]
    /// without [`Readback::reserve`].
    pub fn read(
        &mut self,
        gpu: &Device,
        buffer: &wgpu::Buffer,
        offset: u64,
        len: usize,
        cancel: &AtomicBool,
    ) -> Result<&mut [f32]> {
        let bytes = len as u64 * 4;
        self.reserve(gpu, bytes)?;
        // After an error a new one is made: this one may still be mapped.
        let staging = self.staging.take().ok_or_else(|| Error::Internal("No staging for rows".into()))?;
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, bytes);
        gpu.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        gpu.wait_for(None, cancel)?;
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

/// A staging buffer for the results of one submission at a time; the submission ends with the copy to it.
///
/// The buffer is mapped after its submission is done, never before. wgpu (30.0) ties a request to map to the submission
/// that was last to use the buffer, and forgets none that was withdrawn: at the end of that submission it would map
/// the buffer for the next one's results, before they are there.
pub struct Landing {
    buffer: Buffer,
    /// Submissions so far.
    count: u64,
    /// The number of the last submission that is done.
    done: Arc<AtomicU64>,
    submission: Option<wgpu::SubmissionIndex>,
}

impl Landing {
    /// A staging buffer of `bytes` bytes; `what` names it in errors.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for; [`Error::Device`] where the device was lost.
    pub fn new(gpu: &Device, what: &str, bytes: u64) -> Result<Landing> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(Landing { buffer: gpu.buffer(what, bytes, usage)?, count: 0, done: Arc::default(), submission: None })
    }

    /// Append the copy of a part of `from` to byte `at`.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, from: &wgpu::Buffer, offset: u64, at: u64, bytes: u64) {
        encoder.copy_buffer_to_buffer(from, offset, &self.buffer, at, bytes);
    }

    /// Note the submission that has the copies.
    pub fn submitted(&mut self, gpu: &Device, submission: wgpu::SubmissionIndex) {
        self.count += 1;
        let (count, done) = (self.count, self.done.clone());
        // Another thread may call this late, after the next submission.
        gpu.queue.on_submitted_work_done(move || {
            done.fetch_max(count, Ordering::Release);
        });
        self.submission = Some(submission);
    }

    /// Drop the results of the last submission.
    pub fn give_up(&mut self) {
        self.submission = None;
    }

    /// Wait for the first bytes and pass them to `take`.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where `cancel` was set, [`Error::Internal`] where
    /// no submission has copies.
    pub fn read<T>(
        &mut self,
        gpu: &Device,
        bytes: u64,
        cancel: &AtomicBool,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let none = || Error::Internal("Results were asked for, and none are under way".into());
        let submission = self.submission.take().ok_or_else(none)?;
        self.wait(gpu, submission, cancel)?;
        self.buffer.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        gpu.look()?;
        let mapped = self.buffer.get_mapped_range(..bytes);
        let mapped = mapped.map_err(|e| Error::Device(format!("Reading from {}: {e}", gpu.info.name)))?;
        let taken = take(&mapped);
        drop(mapped);
        self.buffer.unmap();
        Ok(taken)
    }

    fn wait(&self, gpu: &Device, submission: wgpu::SubmissionIndex, cancel: &AtomicBool) -> Result<()> {
        let began = Instant::now();
        while !self.is_done() && began.elapsed() < SPIN {
            gpu.look()?;
            std::hint::spin_loop();
        }
        if self.is_done() { Ok(()) } else { gpu.wait_for(Some(submission), cancel) }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) >= self.count
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::gpu::device::adapters;
    use crate::backend::gpu::device::test_limits::TestLimits;
    use crate::backend::gpu::kernel::{Binding, Gpu};
    use crate::backend::gpu::testing::harness::{devices, kernel, storage};

    /// A kernel that counts so long, and the copy of its result.
    fn commands(gpu: &Gpu, landing: &Landing, turns: u32) -> wgpu::CommandBuffer {
        let text = format!(
            "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(1) fn main() {{
                var n = 0u;
                for (var i = 0u; i < {turns}u; i++) {{ n = n * 1664525u + 1u; }}
                out[0] = select(0u, {turns}u, n > 0u);
            }}"
        );
        let out = storage(gpu, &[0; 4]);
        let kernel = kernel(gpu, &text, &[Binding::Write]);
        let group = gpu.bind(&kernel, &[out.as_entire_buffer_binding()]);
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&kernel.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        landing.copy(&mut encoder, &out, 0, 0, 4);
        encoder.finish()
    }

    fn submit(gpu: &Gpu, landing: &mut Landing, commands: wgpu::CommandBuffer) -> wgpu::SubmissionIndex {
        let index = gpu.queue.submit([commands]);
        landing.submitted(gpu, index.clone());
        index
    }

    /// For the host, a device that hangs is like one that is busy for long.
    #[test]
    fn l10_a_device_that_gives_no_answer_can_be_left() {
        if devices().is_empty() {
            return;
        }
        // A device of its own: where other tests wait for theirs, wgpu may hold up this one's waits.
        let gpu = &Gpu::new(&adapters()[0], &TestLimits::default()).unwrap();
        let mut landing = Landing::new(gpu, "test", 4).unwrap();
        let (never, cancel) = (AtomicBool::new(false), AtomicBool::new(true));
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        let mut read = |turns: u32, cancel: &AtomicBool| {
            gpu.guard(|| {
                let commands = commands(gpu, &landing, turns);
                submit(gpu, &mut landing, commands);
                landing.read(gpu, 4, cancel, number)
            })
        };
        assert_eq!(read(7, &never), Ok(7));
        assert_eq!(read(2_000_000_000, &cancel), Err(Error::Cancelled));
        let now = wgpu::PollType::Wait { submission_index: None, timeout: Some(Duration::ZERO) };
        assert!(gpu.raw.poll(now).is_err(), "the cancel waited for the device");
        // Later reads are not disturbed by an abandoned submission.
        assert_eq!(read(9, &never), Ok(9));
        gpu.guard(|| {
            // Results that are there are read, whether cancelled or not.
            let [small, long, longer] = [8, 50_000_000, 50_000_001].map(|turns| commands(gpu, &landing, turns));
            submit(gpu, &mut landing, small);
            gpu.wait()?;
            assert_eq!(landing.read(gpu, 4, &cancel, number), Ok(8));
            // Results that were not read are not taken for the next.
            let index = submit(gpu, &mut landing, long);
            landing.give_up();
            submit(gpu, &mut landing, longer);
            gpu.wait_for(Some(index), &never)?;
            assert_eq!(landing.read(gpu, 4, &never, number), Ok(50_000_001));
            assert!(matches!(landing.read(gpu, 4, &never, number), Err(Error::Internal(_))));
            Ok(())
        })
        .unwrap();
    }
}
