//! Known answers: drivers exist that compute wrongly and say nothing.
//!
//! Before a model's matrices are used on a device, the first rows of one of each type go through the kernels of that type,
//! and the results are compared with the host's arithmetic. One that is wrong is an error that names adapter, driver and
//! kernel, and the model is not opened there. A software driver compiles a kernel when it first runs, for seconds, so there
//! the kernels for prompts are left out.

use super::device::{Gpu, name_of};
use super::kernel::Kernel;
use super::matrix::Loader;
use super::memory::Buffer;
use super::product::{self, Embed, Input, MatMul};
use super::step::{Bound, Counts, FRAME_CELLS, FRAME_ROWS, Step};
use crate::graph::{Rows, WeightSpec, WeightUse};
use crate::quant::dequantize;
use crate::{Error, Result};
use std::sync::Arc;

/// Rows of a matrix that are tried.
const MATRIX_ROWS: usize = 16;
/// How far a result may be off, in parts of the largest that a sum could be: some ten times the rounding of its terms.
const TOLERANCE: f64 = 4e-5;

const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// Steps with the results that they should have.
pub struct Probe {
    what: String,
    steps: Vec<Step>,
    /// Input rows, then room for the results.
    workspace: Vec<f32>,
    rows: u32,
    /// Value of the workspace where the results begin.
    dst: usize,
    /// The results, and how far each may be off.
    expected: Vec<(f64, f64)>,
}

impl Probe {
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
        let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
        let mut probes = Vec::new();
        // Rows, and the most that the kernel is made for.
        for (rows, max_rows) in [(1, 1), (3, 8), (5, 16)].into_iter().take(if software { 1 } else { 3 }) {
            if !multiplies {
                break;
            }
            let mut workspace: Vec<f32> = (0..rows * n_in).map(input).collect();
            let expected = workspace.chunks_exact(n_in).flat_map(|x| {
                let size = x.iter().map(|&x| f64::from(x).abs()).sum::<f64>() * largest * TOLERANCE;
                let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
                let row: Vec<_> = weights.chunks_exact(n_in).map(|w| (dot(w), size)).collect();
                row.into_iter().chain(std::iter::repeat_n((0.0, f64::INFINITY), width - n_out))
            });
            let expected: Vec<_> = expected.collect();
            let dst = workspace.len();
            workspace.resize(dst + expected.len(), f32::NAN);
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
            probes.push(Probe { what, steps, workspace, rows: rows as u32, dst, expected });
        }
        if looks_up {
            // Row `r` of the batch has token `r`.
            let rows = n_out.min(3);
            let job = Embed { table: &matrix, scale: 1.0, dst: 0, width: n_in };
            let expected = weights[..rows * n_in].iter().map(|&w| (f64::from(w), largest * TOLERANCE)).collect();
            let (what, steps) = (format!("rows of {}", spec.ty), product::embed(gpu, &job)?);
            let workspace = vec![f32::NAN; rows * n_in];
            probes.push(Probe { what, steps, workspace, rows: rows as u32, dst: 0, expected });
        }
        Ok(probes)
    }

    /// What it tries.
    pub fn kernels(&self) -> impl Iterator<Item = &Arc<Kernel>> {
        self.steps.iter().map(|step| &step.kernel)
    }

    /// Compare; a wrong result is [`Error::Device`].
    pub fn run(&self, gpu: &Gpu) -> Result<()> {
        let mut frame = vec![0u32; FRAME_CELLS];
        (frame[0], frame[1]) = (self.rows, self.rows);
        for row in 0..self.rows {
            frame[FRAME_ROWS + 4 * row as usize] = row;
        }
        let buffer = |words: &[u32], usage| -> Result<Buffer> {
            let buffer = gpu.buffer("probe", words.len() as u64 * 4, usage)?;
            gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
            Ok(buffer)
        };
        let workspace = buffer(bytemuck::cast_slice(&self.workspace), STORAGE)?;
        let (frame, sampled) = (buffer(&frame, STORAGE)?, buffer(&[0], STORAGE)?);
        let counts = Counts { rows: self.rows, outputs: self.rows, splits: 1, listed: 0 };
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for step in &self.steps {
            let params = buffer(&step.params, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST)?;
            let bindings = step.buffers.iter().map(|bound| match bound {
                Bound::Workspace => Ok(workspace.as_entire_buffer_binding()),
                Bound::Frame => Ok(frame.as_entire_buffer_binding()),
                Bound::Params => Ok(params.as_entire_buffer_binding()),
                Bound::Sampled => Ok(sampled.as_entire_buffer_binding()),
                Bound::Weight(buffer, offset, bytes) => {
                    Ok(wgpu::BufferBinding { buffer, offset: *offset, size: wgpu::BufferSize::new(*bytes) })
                }
                _ => Err(Error::Internal("A probe without a cache".into())),
            });
            let group = gpu.bind(&step.kernel, &bindings.collect::<Result<Vec<_>>>()?);
            let [x, y, z] = step.groups.map(|count| count.of(&counts));
            pass.set_pipeline(&step.kernel.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        gpu.queue.submit([encoder.finish()]);
        let results = gpu.read(&workspace, self.dst as u64 * 4, self.expected.len() * 4)?;
        let results: Vec<f32> = bytemuck::pod_collect_to_vec(&results);
        let right = |(&got, &(expected, off)): (&f32, &(f64, f64))| {
            off.is_infinite() || (f64::from(got) - expected).abs() <= off
        };
        let Some(wrong) = results.iter().zip(&self.expected).position(|pair| !right(pair)) else { return Ok(()) };
        let (got, (expected, _), info) = (results[wrong], self.expected[wrong], &gpu.info);
        let kernel = self.steps.first().map_or("", |step| step.kernel.name);
        let driver = format!("{}, driver {} {}", name_of(info), info.driver, info.driver_info);
        let result = format!("result {wrong} is {got}, not {expected}");
        Err(Error::Device(format!("{driver} computes wrongly: kernel `{kernel}`, {} ({result})", self.what)))
    }
}

/// Numbers in [-1, 1), always the same, no two neighbours alike.
fn input(i: usize) -> f32 {
    ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::gpu::testing::devices;
    use crate::quant::TensorType;

    #[test]
    fn a_wrong_result_names_driver_and_kernel() {
        let spec =
            WeightSpec { name: "w".into(), n_in: 44, n_out: 21, ty: TensorType::F32, usage: WeightUse::RowsAndMatMul };
        let data: Vec<u8> = (0..44 * 21).flat_map(|i| input(i + 7).to_le_bytes()).collect();
        for gpu in devices() {
            let mut probes = Probe::of(gpu, &spec, spec.usage, &data).unwrap();
            assert!(probes.len() >= 2);
            for probe in &mut probes {
                probe.run(gpu).unwrap();
                for wrong in [1e-2, f64::NAN] {
                    let right = probe.expected[5].0;
                    probe.expected[5].0 += wrong;
                    let Err(Error::Device(text)) = probe.run(gpu) else { panic!("{} passed", probe.what) };
                    probe.expected[5].0 = right;
                    let kernel = probe.steps[0].kernel.name;
                    for part in [&gpu.info.name, &gpu.info.driver, kernel, "result 5", "F32"] {
                        assert!(text.contains(part), "{text}");
                    }
                }
            }
        }
    }
}
