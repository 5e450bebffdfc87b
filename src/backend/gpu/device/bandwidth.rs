//! The bandwidth of a device's memory. It bounds decoding, which reads every weight once for each token.

use super::Device;
use crate::Result;
use std::time::Instant;

/// Bytes of a copy, where a buffer can be so large: more than the caches of common devices hold.
const BYTES: u64 = 256 << 20;
/// How long a pass should take at least, in seconds, so that the time to submit it and to wait for it is negligible.
const PASS_SECONDS: f64 = 0.02;
const MOST_COPIES: f64 = 100.0;
const PASSES: usize = 3;

/// Bytes per second that copies within the device's memory read and write: the best of several passes.
///
/// # Errors
/// [`OutOfMemory`](crate::Error::OutOfMemory) naming what the memory is for, [`Device`](crate::Error::Device) where the
/// device fails.
pub fn measure(gpu: &Device) -> Result<f64> {
    let bytes = BYTES.min(gpu.caps.max_buffer);
    let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let [from, to] = [gpu.buffer("bandwidth test", bytes, usage)?, gpu.buffer("bandwidth test", bytes, usage)?];
    let pass = |copies: usize| -> Result<f64> {
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        for _ in 0..copies {
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
        }
        let started = Instant::now();
        gpu.queue.submit([encoder.finish()]);
        gpu.wait()?;
        Ok(started.elapsed().as_secs_f64() / copies as f64)
    };
    // In the first pass the buffers are cleared.
    pass(1)?;
    let copies = (PASS_SECONDS / pass(1)?).clamp(1.0, MOST_COPIES) as usize;
    let mut fastest = f64::INFINITY;
    for _ in 0..PASSES {
        fastest = fastest.min(pass(copies)?);
    }
    Ok(2.0 * bytes as f64 / fastest)
}
