//! Whether a device's matrix instructions compute what they should. A driver that offers them may not do so; then the
//! kernels without them are used.

use super::text::compose;
use crate::backend::gpu::device::{Device, Matrices, STORAGE};
use crate::{Error, Result};

/// Threads of the workgroup: a subgroup of the largest size that devices have, or several smaller ones.
const THREADS: u32 = 64;

/// Multiplies small integers.
///
/// # Errors
/// [`Error::Device`] where the product is wrong, the driver refuses the kernel, or the device fails,
/// [`Error::OutOfMemory`] for its buffer.
pub fn multiply(device: &Device, matrices: Matrices) -> Result<()> {
    let block = matrices.block;
    let text =
        compose(include_str!("../shaders/matrices.wgsl"), matrices.flags(), &[("THREADS", THREADS), ("BLOCK", block)])?;
    #[cfg(test)]
    super::translation::check("matrices", &text);
    let n = block as usize;
    let number = |i: usize, factor: usize| ((i * factor) % 13) as f32 - 6.0;
    let mut numbers: Vec<f32> = (0..n * n).map(|i| number(i, 7)).chain((0..n * n).map(|i| number(i, 5))).collect();
    let sum = |at: usize| (0..n).map(|k| numbers[at / n * n + k] * numbers[n * n + at % n * n + k]).sum::<f32>();
    let times = |factor| (0..n * n).map(|at| factor * sum(at)).collect::<Vec<f32>>();
    let expected = [times(2.0), times(3.0)].concat();
    numbers.resize(4 * n * n, f32::NAN);
    let buffer = device.buffer("test of matrix instructions", 4 * numbers.len() as u64, STORAGE)?;
    let results = device.guard(|| {
        let (raw, label) = (&device.raw, Some("matrices"));
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let pipeline = raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: None,
            module: &raw.create_shader_module(wgpu::ShaderModuleDescriptor { label, source }),
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let group = raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
        });
        device.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&numbers));
        let mut encoder = raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        device.queue.submit([encoder.finish()]);
        device.read(&buffer, 8 * (n * n) as u64, 8 * n * n)
    })?;
    match bytemuck::pod_collect_to_vec::<u8, f32>(&results) == expected {
        true => Ok(()),
        false => Err(Error::Device("a product of small integers is wrong".into())),
    }
}
