//! Known answers: drivers exist that compute wrongly and say nothing.
//!
//! Before a kernel is used on a device it computes something small, and the results are compared with the host's arithmetic.
//! One that is wrong is an error that names adapter, driver and kernel, and the model is not opened there. A kernel that
//! gave its answer is not asked again: nothing of this happens after open.
//!
//! Products and look-ups are tried with the first rows of one matrix of each type, before a model's weights are uploaded;
//! the kernels between them (`probe/ops.rs`) and the sampler's (`sample/probe.rs`) wait in [`Pending`] while an engine's
//! programs are lowered and compiled, and are tried before its cache takes the room. A software driver compiles a kernel
//! when it first runs, for seconds, so there the kernels for prompts are left out.

use super::device::{Gpu, name_of};
use super::kernel::Kernel;
use super::matrix::Loader;
use super::memory::Buffer;
use super::product::{self, Embed, Input, MatMul};
use super::sample;
use super::step::{Bound, Counts, FRAME_CELLS, FRAME_OUTPUTS, FRAME_ROWS, Step};
use crate::graph::{Rows, WeightSpec, WeightUse};
use crate::quant::dequantize;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod ops;

/// Rows of a matrix that are tried.
const MATRIX_ROWS: usize = 16;
/// How far a result may be off, in parts of the largest that a sum could be: some ten times the rounding of its terms.
const TOLERANCE: f64 = 4e-5;

const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// A number as it should be, and how far it may be off.
pub type Expected = (f64, f64);

/// Steps with the results that they should have.
pub struct Probe {
    what: String,
    steps: Vec<Step>,
    /// Bytes of the keys, the values and the partial results of attention.
    cache: [u64; 3],
    /// One after the other; the cache goes from one to the next.
    runs: Vec<Run>,
}

/// One run of a probe's steps.
struct Run {
    /// Input rows, then room for the results.
    workspace: Vec<f32>,
    frame: Vec<u32>,
    counts: Counts,
    /// Value of the workspace where the results begin.
    dst: usize,
    expected: Vec<Expected>,
}

impl Run {
    /// Over these rows and room for the results behind them. Row `r` has token `r`, and the last row is the first output.
    fn new(mut workspace: Vec<f32>, rows: usize, expected: Vec<Expected>) -> Run {
        let dst = workspace.len();
        workspace.resize(dst + expected.len(), f32::NAN);
        let rows = rows as u32;
        let mut frame = vec![0u32; FRAME_CELLS];
        (frame[0], frame[1]) = (rows, rows);
        for row in 0..rows {
            frame[FRAME_ROWS + 4 * row as usize] = row;
            frame[FRAME_OUTPUTS + row as usize] = rows - 1 - row;
        }
        Run { workspace, frame, counts: Counts { rows, outputs: rows, splits: 1, listed: 0 }, dst, expected }
    }
}

impl Probe {
    fn new(what: String, steps: Vec<Step>, run: Run) -> Probe {
        Probe { what, steps, cache: [0; 3], runs: vec![run] }
    }

    /// The probes of a weight's kernels; `data` are its rows as the file has them. Their kernels are about to be compiled.
    pub fn of(gpu: &Gpu, spec: &WeightSpec, usage: WeightUse, data: &[u8]) -> Result<Vec<Probe>> {
        let (n_in, n_out) = (spec.n_in, spec.n_out.min(MATRIX_ROWS));
        if n_out == 0 {
            return Ok(Vec::new());
        }
        let data = &data[..data.len() / spec.n_out * n_out];
        let mut weights = vec![0.0; n_in * n_out];
        dequantize(spec.ty, data, &mut weights)?;
        // With weights that are no numbers there is no answer to compare with.
        if !weights.iter().all(|w| w.is_finite()) {
            return Ok(Vec::new());
        }
        let mut ignored = |_| Ok(());
        let mut loader = Loader::new(gpu, &mut ignored);
        let matrix = loader.matrix(&format!("probe of {}", spec.name), spec.ty, n_in, &[data])?;
        loader.finish()?;

        let width = n_out.next_multiple_of(4);
        let largest = weights.iter().fold(0f64, |most, &w| most.max(f64::from(w).abs()));
        let multiplies = matches!(usage, WeightUse::MatMul | WeightUse::RowsAndMatMul);
        let looks_up = matches!(usage, WeightUse::Rows | WeightUse::RowsAndMatMul);
        let mut probes = Vec::new();
        // Rows, and the most that the kernel is made for.
        for (rows, max_rows) in [(1, 1), (3, 8), (5, 16)].into_iter().take(if only_one_row(gpu) { 1 } else { 3 }) {
            if !multiplies {
                break;
            }
            let workspace: Vec<f32> = (0..rows * n_in).map(input).collect();
            let expected = workspace.chunks_exact(n_in).flat_map(|x| {
                let size = x.iter().map(|&x| f64::from(x).abs()).sum::<f64>() * largest * TOLERANCE;
                let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
                let row: Vec<_> = weights.chunks_exact(n_in).map(|w| (dot(w), size)).collect();
                row.into_iter().chain(std::iter::repeat_n((0.0, f64::INFINITY), width - n_out))
            });
            let expected: Vec<_> = expected.collect();
            let dst = workspace.len();
            let job = MatMul {
                parts: &[(&matrix, None)],
                input: Input { x: 0, width: n_in, norm: None },
                residual: None,
                dst: dst as u64 * 4,
                width,
                rows: Rows::Batch,
                max_rows,
                logits: false,
            };
            let (what, steps) = (format!("products with {}", spec.ty), product::matmul(gpu, &job)?);
            probes.push(Probe::new(what, steps, Run::new(workspace, rows, expected)));
        }
        if looks_up {
            // Row `r` of the batch has token `r`.
            let rows = n_out.min(3);
            let job = Embed { table: &matrix, scale: 1.0, dst: 0, width: n_in };
            let expected = weights[..rows * n_in].iter().map(|&w| (f64::from(w), largest * TOLERANCE)).collect();
            let (what, steps) = (format!("rows of {}", spec.ty), product::embed(gpu, &job)?);
            probes.push(Probe::new(what, steps, Run::new(Vec::new(), rows, expected)));
        }
        Ok(probes)
    }

    /// What it tries.
    pub fn kernels(&self) -> impl Iterator<Item = &Arc<Kernel>> {
        self.steps.iter().map(|step| &step.kernel)
    }

    /// Try the kernels that were not tried yet; a wrong result is [`Error::Device`].
    pub fn run_all(gpu: &Gpu, probes: &[Probe]) -> Result<()> {
        if probes.is_empty() {
            return Ok(());
        }
        gpu.compiled(probes.iter().flat_map(Probe::kernels))?;
        for probe in probes.iter().filter(|probe| !tried(probe.kernels())) {
            probe.run(gpu)?;
            passed(probe.kernels());
        }
        Ok(())
    }

    fn run(&self, gpu: &Gpu) -> Result<()> {
        let storage = |bytes: u64| gpu.buffer("probe", bytes, STORAGE);
        let filled = |words: &[u32], usage| -> Result<Buffer> {
            let buffer = gpu.buffer("probe", words.len() as u64 * 4, usage)?;
            gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
            Ok(buffer)
        };
        let [keys, values, partials] = self.cache;
        let (keys, values, partials, sampled) = (storage(keys)?, storage(values)?, storage(partials)?, storage(4)?);
        for run in &self.runs {
            let workspace = filled(bytemuck::cast_slice(&run.workspace), STORAGE)?;
            let frame = filled(&run.frame, STORAGE)?;
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for step in &self.steps {
                let params = filled(&step.params, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST)?;
                let bindings = step.buffers.iter().map(|bound| match bound {
                    Bound::Workspace => workspace.as_entire_buffer_binding(),
                    Bound::Frame => frame.as_entire_buffer_binding(),
                    Bound::Params => params.as_entire_buffer_binding(),
                    Bound::Keys(_) => keys.as_entire_buffer_binding(),
                    Bound::Values(_) => values.as_entire_buffer_binding(),
                    Bound::Partials => partials.as_entire_buffer_binding(),
                    Bound::Sampled => sampled.as_entire_buffer_binding(),
                    Bound::Weight(buffer, offset, bytes) => {
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
            let results = gpu.read(&workspace, run.dst as u64 * 4, run.expected.len() * 4)?;
            let results: Vec<f32> = bytemuck::pod_collect_to_vec(&results);
            compare(gpu, self.kernels(), &self.what, results.into_iter().map(f64::from), &run.expected)?;
        }
        Ok(())
    }
}

/// What is still to be tried on a device, of programs that were lowered since the last time. What fails stays.
#[derive(Default)]
pub struct Pending {
    probes: Vec<Probe>,
    sampler: bool,
}

impl Pending {
    /// A probe with the kernels of these steps, where one of them is neither tried nor waiting.
    pub fn add(&mut self, steps: &[Step], make: impl FnOnce() -> Result<Probe>) -> Result<()> {
        let waits = |step: &Step| self.probes.iter().flat_map(Probe::kernels).any(|k| Arc::ptr_eq(k, &step.kernel));
        if !steps.iter().all(|step| tried([&step.kernel]) || waits(step)) {
            self.probes.push(make()?);
        }
        Ok(())
    }

    /// The sampler's kernels.
    pub fn add_sampler(&mut self) {
        self.sampler = true;
    }

    /// Try all; others who would use the same kernels wait for it.
    pub fn run(gpu: &Arc<Gpu>) -> Result<()> {
        let mut pending = gpu.pending.lock();
        if pending.sampler {
            sample::check(gpu)?;
            pending.sampler = false;
        }
        Probe::run_all(gpu, &pending.probes)?;
        pending.probes.clear();
        Ok(())
    }
}

/// Whether all these kernels gave a known answer.
pub fn tried<'a>(kernels: impl IntoIterator<Item = &'a Arc<Kernel>>) -> bool {
    kernels.into_iter().all(|kernel| kernel.tried.load(Ordering::Acquire))
}

/// These kernels gave a known answer.
pub fn passed<'a>(kernels: impl IntoIterator<Item = &'a Arc<Kernel>>) {
    kernels.into_iter().for_each(|kernel| kernel.tried.store(true, Ordering::Release));
}

/// Whether kernels for several rows are left out.
pub fn only_one_row(gpu: &Gpu) -> bool {
    gpu.info.device_type == wgpu::DeviceType::Cpu
}

/// [`Error::Device`] where what these kernels computed is not what is expected.
pub fn compare<'a>(
    gpu: &Gpu,
    kernels: impl Iterator<Item = &'a Arc<Kernel>>,
    what: &str,
    results: impl Iterator<Item = f64>,
    expected: &[Expected],
) -> Result<()> {
    let mut pairs = results.zip(expected).enumerate();
    let wrong = pairs.find(|(_, (got, (right, off)))| !(off.is_infinite() || (got - right).abs() <= *off));
    let Some((at, (got, (right, _)))) = wrong else { return Ok(()) };
    let mut names: Vec<_> = kernels.map(|kernel| format!("`{}`", kernel.name)).collect();
    names.dedup();
    let (info, names) = (&gpu.info, names.join(", "));
    let driver = format!("{}, driver {} {}", name_of(info), info.driver, info.driver_info);
    let result = format!("result {at} is {got}, not {right}");
    Err(Error::Device(format!("{driver} computes wrongly: kernel {names}, {what} ({result})")))
}

/// Numbers in [-1, 1), always the same, no two neighbours alike.
pub fn input(i: usize) -> f32 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests;
