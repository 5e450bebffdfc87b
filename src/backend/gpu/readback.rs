//! Rows on their way from the device to the host: one staging buffer, kept, and the host's copy.

use super::device::Gpu;
use super::memory::Buffer;
use crate::{Error, Result};

/// See the module's documentation. Both buffers grow to the largest read and stay.
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
