//! Known-answer tests: some drivers compute wrong results without an error.
//!
//! Before a kernel is used on a device it runs on small inputs, and its results are compared with the host's
//! arithmetic. A wrong result is an error that names adapter, driver and kernel, and the model is not opened there. A
//! kernel is tested once: nothing of this happens after open.
//!
//! Every lowered step adds a probe of its kernel: products and look-ups in `products.rs`, those with a state in
//! `states.rs`, other operations in `ops.rs`.
//! The sampler and the trie walk have their own, in `sample/probe.rs` and `trie_walk/probe.rs`. All are a [`Trial`]:
//! they wait in [`Gpu`] while an engine's programs are lowered and compiled, and run before its cache is allocated. A
//! software driver takes seconds to compile a kernel when it first runs, so there the kernels for several rows are not
//! tested.

mod attention;
mod experts;
mod ops;
mod products;
pub mod source;
mod states;
#[cfg(test)]
mod tests;

use crate::backend::gpu::device::memory::Buffer;
use crate::backend::gpu::device::{STORAGE, name_of};
use crate::backend::gpu::kernel::dispatch::{BufferRef, FRAME_CELLS, FRAME_OUTPUTS, FRAME_ROWS, RunCounts, Step};
use crate::backend::gpu::kernel::{Gpu, Kernel, Trial};
use crate::{Error, Result};
use std::sync::Arc;

/// The tolerance of a result, relative to the greatest possible sum: about ten times the rounding error of its terms.
const TOLERANCE: f64 = 4e-5;

/// An expected number and its tolerance.
pub type Expected = (f64, f64);

/// Steps with their expected results.
pub struct Probe {
    what: String,
    steps: Vec<Step>,
    /// Initial keys, values and partial results of attention, and state cells.
    cache: [Vec<f32>; 4],
    /// Runs in order; each continues with the cache that the one before left.
    runs: Vec<Run>,
}

/// Where a run leaves its results.
#[derive(Clone, Copy)]
enum From {
    Workspace,
    Keys,
    Values,
    State,
}

/// One run of a probe's steps.
#[derive(Clone)]
struct Run {
    /// Input rows, then room for the results.
    workspace: Vec<f32>,
    frame: Vec<u32>,
    counts: RunCounts,
    /// The buffer of the results, and the index of the first.
    from: From,
    dst: usize,
    expected: Vec<Expected>,
}

impl Run {
    /// A run over these rows, with room for the results after them. Row `r` has token `r`, and the last row is the
    /// first output row.
    fn new(mut workspace: Vec<f32>, rows: usize, expected: Vec<Expected>) -> Run {
        let dst = workspace.len();
        workspace.resize((dst + expected.len()).next_multiple_of(4), f32::NAN);
        let rows = rows as u32;
        let mut frame = vec![0u32; FRAME_CELLS];
        (frame[0], frame[1]) = (rows, rows);
        for row in 0..rows {
            frame[FRAME_ROWS + 4 * row as usize] = row;
            frame[FRAME_OUTPUTS + row as usize] = rows - 1 - row;
        }
        Run {
            workspace,
            frame,
            counts: RunCounts { rows, outputs: rows, splits: [1; 2], listed: 0, strands: 0 },
            from: From::Workspace,
            dst,
            expected,
        }
    }
}

impl Probe {
    fn new(what: String, steps: Vec<Step>, run: Run) -> Probe {
        Probe { what, steps, cache: Default::default(), runs: vec![run] }
    }
}

impl Trial for Probe {
    fn kernels(&self) -> Vec<Arc<Kernel>> {
        self.steps.iter().map(|step| step.kernel.clone()).collect()
    }

    fn run(&self, gpu: &Arc<Gpu>) -> Result<()> {
        let filled = |words: &[u32], usage| -> Result<Buffer> {
            let buffer = gpu.buffer("probe", words.len() as u64 * 4, usage)?;
            gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
            Ok(buffer)
        };
        let cache = |i: usize| filled(bytemuck::cast_slice(&self.cache[i]), STORAGE);
        let (keys, values, partials) = (cache(0)?, cache(1)?, cache(2)?);
        let (state, sampled) = (cache(3)?, filled(&[0], STORAGE)?);
        for run in &self.runs {
            let workspace = filled(bytemuck::cast_slice(&run.workspace), STORAGE)?;
            let frame = filled(&run.frame, STORAGE)?;
            let mut encoder = gpu.raw.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for step in &self.steps {
                let params = filled(&step.params, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST)?;
                let bindings = step.buffers.iter().map(|bound| match bound {
                    BufferRef::Workspace => workspace.as_entire_buffer_binding(),
                    BufferRef::Frame | BufferRef::WindowFrame => frame.as_entire_buffer_binding(),
                    BufferRef::Params => params.as_entire_buffer_binding(),
                    BufferRef::Keys(_) => keys.as_entire_buffer_binding(),
                    BufferRef::Values(_) => values.as_entire_buffer_binding(),
                    BufferRef::State(_) => state.as_entire_buffer_binding(),
                    BufferRef::Partials => partials.as_entire_buffer_binding(),
                    BufferRef::Sampled => sampled.as_entire_buffer_binding(),
                    BufferRef::Weight(buffer, offset, bytes) => {
                        wgpu::BufferBinding { buffer, offset: *offset, size: wgpu::BufferSize::new(*bytes) }
                    }
                });
                let group = gpu.bind(&step.kernel, &bindings.collect::<Vec<_>>());
                let [x, y, z] = step.groups.map(|count| count.of(&run.counts));
                pass.set_pipeline(&step.kernel.pipeline);
                pass.set_bind_group(0, &group, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
            drop(pass);
            gpu.queue.submit([encoder.finish()]);
            let results = match run.from {
                From::Workspace => &workspace,
                From::Keys => &keys,
                From::Values => &values,
                From::State => &state,
            };
            let results = gpu.read(results, run.dst as u64 * 4, run.expected.len() * 4)?;
            let results: Vec<f32> = bytemuck::pod_collect_to_vec(&results);
            compare(gpu, &self.kernels(), &self.what, results.into_iter().map(f64::from), &run.expected)?;
        }
        Ok(())
    }
}

/// Whether kernels for `max_rows` rows are not tested on this device.
pub fn left_out(gpu: &Gpu, max_rows: usize) -> bool {
    max_rows > 1 && gpu.info.device_type == wgpu::DeviceType::Cpu
}

/// [`Error::Internal`] where a step's kernel was not tested: a program runs only tested kernels.
pub fn refuse_untried(steps: &[Step]) -> Result<()> {
    match steps.iter().find(|step| !step.kernel.is_tried()) {
        Some(step) => Err(Error::Internal(format!("Kernel `{}` was not tried", step.kernel.name))),
        None => Ok(()),
    }
}

/// [`Error::Device`] where the results of these kernels are not within the tolerance of the expected ones.
pub fn compare(
    gpu: &Gpu,
    kernels: &[Arc<Kernel>],
    what: &str,
    results: impl Iterator<Item = f64>,
    expected: &[Expected],
) -> Result<()> {
    let mut pairs = results.zip(expected).enumerate();
    let wrong = pairs.find(|(_, (got, (right, off)))| !(off.is_infinite() || (got - right).abs() <= *off));
    let Some((at, (got, (right, _)))) = wrong else { return Ok(()) };
    let mut names: Vec<_> = kernels.iter().map(|kernel| format!("`{}`", kernel.name)).collect();
    names.dedup();
    let (info, names) = (&gpu.info, names.join(", "));
    let driver = format!("{}, driver {} {}", name_of(info), info.driver, info.driver_info);
    let result = format!("result {at} is {got}, not {right}");
    Err(Error::Device(format!("{driver} computes wrongly: kernel {names}, {what} ({result})")))
}

/// Deterministic numbers in [-1, 1); neighbours differ.
pub fn input(i: usize) -> f32 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 23) as f32 - 1.0
}
