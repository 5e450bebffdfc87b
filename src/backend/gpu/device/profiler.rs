//! Timestamps around the dispatches of a submission, for [`kernel_times`].

use crate::backend::kernel_times;
use crate::{Error, Result};
use parking_lot::{Mutex, MutexGuard};

/// What a device needs to write timestamps between the dispatches of a pass.
pub const FEATURES: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);
/// Timestamps of a submission; dispatches after the last are not measured.
const MOST: u32 = 4096;
const BYTES: u64 = MOST as u64 * 8;

/// Writes timestamps, of one submission at a time.
pub struct Profiler {
    one: Mutex<Queries>,
    /// Nanoseconds of a unit.
    period: f32,
}

struct Queries {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    /// What ran before each timestamp but the first.
    kernels: Vec<String>,
}

/// The timestamps of a submission that is being encoded.
pub struct Stamps<'a> {
    queries: MutexGuard<'a, Queries>,
    period: f32,
}

impl Profiler {
    /// For a device with [`FEATURES`].
    pub fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Profiler {
        let set = device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count: MOST,
        });
        let buffer = |usage| {
            let label = Some("timestamps");
            device.create_buffer(&wgpu::BufferDescriptor { label, size: BYTES, usage, mapped_at_creation: false })
        };
        let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
        let staging = buffer(wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ);
        let queries = Queries { set, resolved, staging, kernels: Vec::new() };
        Profiler { one: Mutex::new(queries), period: queue.get_timestamp_period() }
    }

    /// The first timestamp of a submission.
    pub fn begin(&self, pass: &mut wgpu::ComputePass<'_>) -> Stamps<'_> {
        let mut queries = self.one.lock();
        queries.kernels.clear();
        pass.write_timestamp(&queries.set, 0);
        Stamps { queries, period: self.period }
    }
}

impl Stamps<'_> {
    /// A timestamp after the dispatch of this kernel.
    pub fn after(&mut self, pass: &mut wgpu::ComputePass<'_>, kernel: &str) {
        if self.queries.kernels.len() + 1 < MOST as usize {
            self.queries.kernels.push(kernel.to_string());
            pass.write_timestamp(&self.queries.set, self.queries.kernels.len() as u32);
        }
    }

    /// Copies the timestamps to where they are read, after the pass.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let Queries { set, resolved, staging, kernels } = &*self.queries;
        let count = kernels.len() as u32 + 1;
        encoder.resolve_query_set(set, 0..count, resolved, 0);
        encoder.copy_buffer_to_buffer(resolved, 0, staging, 0, u64::from(count) * 8);
    }

    /// Records the times of a submission's kernels, when `wait` has waited for it.
    ///
    /// # Errors
    /// That of `wait`, [`Error::Device`] where the timestamps cannot be read.
    pub fn record(self, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let Queries { staging, kernels, .. } = &*self.queries;
        let bytes = (kernels.len() as u64 + 1) * 8;
        staging.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        wait()?;
        let mapped = staging.get_mapped_range(..bytes);
        let mapped = mapped.map_err(|e| Error::Device(format!("Timestamps: {e}")))?;
        let stamps: Vec<u64> = bytemuck::pod_collect_to_vec(&mapped);
        drop(mapped);
        staging.unmap();
        for (kernel, pair) in kernels.iter().zip(stamps.windows(2)) {
            let units = pair[1].saturating_sub(pair[0]);
            kernel_times::record(kernel, units as f64 * f64::from(self.period) / 1e3);
        }
        Ok(())
    }
}
