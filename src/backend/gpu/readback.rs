//! Rows on their way from the device to the host: one staging buffer, kept, and the host's copy.

use super::device::Gpu;
use crate::{Error, Result};

/// See the module's documentation. Both buffers grow to the largest read and stay.
#[derive(Default)]
pub struct Readback {
    staging: Option<wgpu::Buffer>,
    host: Vec<f32>,
}

impl Readback {
    /// `len` floats from byte `offset` of `buffer`, after everything submitted so far.
    pub fn read(&mut self, gpu: &Gpu, buffer: &wgpu::Buffer, offset: u64, len: usize) -> Result<&mut [f32]> {
        let bytes = len as u64 * 4;
        let staging = match self.staging.take().filter(|staging| staging.size() >= bytes) {
            Some(staging) => staging,
            None => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                gpu.buffer("staging for rows", bytes, usage)?
            }
        };
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
