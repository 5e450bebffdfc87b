//! A compiled run of nodes: its steps, the uniforms they read, and the bind groups of the engine it belongs to.
//!
//! A short batch is one submission. A prompt's chunk is several submissions of a few layers each, of which at most two
//! are in flight. So a cancel takes effect within the time of a few layers, and no submission reaches a driver's time
//! limit.

mod fusion;
mod lower;
pub mod operations;
pub mod sizing;
pub mod state;

use crate::backend::gpu::device::memory::{Buffer, buffer_bytes};
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{BufferRef, PARAM_WORDS, Step};
use crate::backend::gpu::ops::rows::RowSpan;
use crate::backend::gpu::trie_walk::Walker;
use crate::backend::gpu::weights::GpuWeights;
use crate::backend::gpu::{probe, sample, trie_walk};
use crate::backend::{Batch, Program, State, WALK_ROWS, Walk, Weights, Work};
use crate::graph::{NodeId, Op, Output};
use crate::{Error, Result};
use lower::Lowering;
use parking_lot::Mutex;
use state::{GpuState, LogitRows, Needs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps of one submission of a prompt.
const STEPS_PER_SUBMISSION: usize = 24;

/// Batches of at most this many rows are one submission.
const SHORT: usize = 8;

/// Names in profiles of what a sampler and a walker dispatch.
const SAMPLER: &str = "sampler";
const WALK: &str = "walk";

const PARAM_BYTES: u64 = PARAM_WORDS as u64 * 4;

/// A compiled run of nodes.
pub struct GpuProgram {
    gpu: Arc<Gpu>,
    steps: Vec<Step>,
    params: Buffer,
    needs: Needs,
    /// Whether it computes a walk's pass: from its tokens to the logits of one row.
    walks: bool,
    /// Whether all its kernels must have passed their known-answer tests.
    tried: bool,
    bound: Mutex<BindGroups>,
}

#[derive(Default)]
struct BindGroups {
    generation: Option<u64>,
    groups: Vec<wgpu::BindGroup>,
}

impl GpuProgram {
    /// Lower the nodes of `work` to steps and upload their uniforms.
    pub fn new(gpu: Arc<Gpu>, work: &Work<'_>, weights: &Weights) -> Result<GpuProgram> {
        let weights = Arc::downcast::<GpuWeights>(weights.0.clone())
            .map_err(|_| Error::Internal("Weights of another backend".into()))?;
        let Lowering { steps, partial_bytes, fusions, left_out, .. } = operations::lower(&gpu, work, &weights)?;
        let mut words = vec![0u32; Self::param_bytes(steps.len()) as usize / 4];
        for (step, uniform) in steps.iter().zip(words.chunks_exact_mut(PARAM_WORDS)) {
            uniform[..step.params.len()].copy_from_slice(&step.params);
        }
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let params = gpu.buffer("step parameters", words.len() as u64 * 4, usage)?;
        gpu.queue.write_buffer(&params, 0, bytemuck::cast_slice(&words));
        let mut nodes = (work.nodes.0..work.nodes.1).map(NodeId);
        let logits = nodes.find(|&id| work.graph.node(id).output == Some(Output::Logits));
        let place = |id: NodeId| RowSpan { offset: work.offsets[id.0 as usize], width: work.graph.node(id).width };
        let logits = logits.map(|id| LogitRows { place: place(id), rows: work.max_out_rows });
        let workspace_bytes = fusions.workspace_bytes as u64;
        if logits.is_some() {
            sample::add_trial(&gpu)?;
            trie_walk::add_trial(&gpu)?;
        }
        let states = steps.iter().flat_map(|step| &step.buffers).any(|bound| matches!(bound, BufferRef::State(_)));
        let needs = Needs { workspace_bytes, partial_bytes, logits, states };
        let (walks, tried, bound) = (walks(work), !left_out, Mutex::default());
        Ok(GpuProgram { gpu, steps, params, needs, walks, tried, bound })
    }

    /// Bytes of the uniforms of so many steps.
    pub fn param_bytes(steps: usize) -> u64 {
        buffer_bytes(steps.max(1) as u64 * PARAM_BYTES)
    }

    /// Make the bind groups for a state, unless they are there.
    fn bind(&self, state: &GpuState) -> Result<()> {
        let mut bound = self.bound.lock();
        if bound.generation == Some(state.generation()) {
            return Ok(());
        }
        let group = |(i, step): (usize, &Step)| {
            let params = wgpu::BufferBinding {
                buffer: &self.params,
                offset: i as u64 * PARAM_BYTES,
                size: std::num::NonZeroU64::new(PARAM_BYTES),
            };
            let buffers = step.buffers.iter().map(|b| state.bound(b, params.clone())).collect::<Result<Vec<_>>>()?;
            Ok(self.gpu.bind(&step.kernel, &buffers))
        };
        let groups = self.steps.iter().enumerate().map(group).collect::<Result<_>>()?;
        self.gpu.compiled(self.steps.iter().map(|step| &step.kernel))?;
        self.gpu.run_trials()?;
        if self.tried {
            probe::refuse_untried(&self.steps)?;
        }
        *bound = BindGroups { generation: Some(state.generation()), groups };
        Ok(())
    }
}

fn gpu_state(state: &mut dyn State) -> Result<&mut GpuState> {
    state.as_any().downcast_mut().ok_or_else(|| Error::Internal("A state of another backend".into()))
}

/// Whether the program of this work computes a walk's pass: from its tokens to the logits of one row.
pub fn walks(work: &Work<'_>) -> bool {
    let nodes = || (work.nodes.0..work.nodes.1).map(|i| work.graph.node(NodeId(i)));
    let embeds = nodes().any(|node| matches!(node.op, Op::Embed { .. }));
    embeds
        && nodes().any(|node| node.output == Some(Output::Logits))
        && (work.max_rows, work.max_out_rows) == (WALK_ROWS, 1)
}

impl GpuProgram {
    fn submit(
        &self,
        groups: &[wgpu::BindGroup],
        state: &mut GpuState,
        batch: &Batch<'_>,
        out_rows: usize,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let counts = state.upload(batch, out_rows, &self.needs)?;
        let size = if batch.tokens.len() > SHORT { STEPS_PER_SUBMISSION } else { self.steps.len().max(1) };
        let sample = !batch.sample.is_empty() && self.needs.logits.is_some();
        let last = self.steps.len().saturating_sub(1) / size;
        let mut before = None;
        for (i, (steps, groups)) in self.steps.chunks(size).zip(groups.chunks(size)).enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let mut encoder = self.gpu.raw.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut stamps = self.gpu.profiler.as_ref().map(|profiler| profiler.begin(&mut pass));
            for (step, group) in steps.iter().zip(groups) {
                let [x, y, z] = step.groups.map(|count| count.of(&counts));
                if x > 0 && y > 0 && z > 0 {
                    pass.set_pipeline(&step.kernel.pipeline);
                    pass.set_bind_group(0, group, &[]);
                    pass.dispatch_workgroups(x, y, z);
                    state.traffic.dispatches += 1;
                    if let Some(stamps) = &mut stamps {
                        stamps.after(&mut pass, &step.kernel.what);
                    }
                }
            }
            let sample = sample && i == last;
            if sample {
                state.traffic.dispatches += state.sampler()?.encode(&mut pass, batch.sample)?;
                if let Some(stamps) = &mut stamps {
                    stamps.after(&mut pass, SAMPLER);
                }
            }
            drop(pass);
            if let Some(stamps) = &stamps {
                stamps.resolve(&mut encoder);
            }
            if sample {
                state.sampler()?.copy(&mut encoder, batch.sample);
            }
            let index = self.gpu.queue.submit([encoder.finish()]);
            if sample {
                state.sampler()?.submitted(index.clone());
            }
            if let Some(stamps) = stamps {
                stamps.record(|| self.gpu.wait())?;
            }
            state.traffic.submissions += 1;
            if let Some(earlier) = before.replace(index)
                && size < self.steps.len()
            {
                self.gpu.wait_for(Some(earlier), cancel)?;
                state.traffic.waits += 1;
            }
        }
        Ok(())
    }

    fn submit_walk(
        &self,
        groups: &[wgpu::BindGroup],
        state: &mut GpuState,
        batch: &Batch<'_>,
        walk: &Walk,
    ) -> Result<()> {
        state.upload_walk(batch, walk)?;
        let mut encoder = self.gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let mut stamps = self.gpu.profiler.as_ref().map(|profiler| profiler.begin(&mut pass));
        let mut after = |pass: &mut wgpu::ComputePass<'_>, kernel: &str| {
            stamps.iter_mut().for_each(|stamps| stamps.after(pass, kernel));
        };
        for _ in 0..walk.passes {
            state.walker()?.encode(&mut pass);
            after(&mut pass, WALK);
            for (i, (step, group)) in self.steps.iter().zip(groups).enumerate() {
                let (args, at) = state.walker()?.args(i);
                pass.set_pipeline(&step.kernel.pipeline);
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups_indirect(args, at);
                after(&mut pass, &step.kernel.what);
            }
            state.encode_choice(&mut pass, self.steps.len())?;
            after(&mut pass, SAMPLER);
        }
        state.walker()?.encode(&mut pass);
        after(&mut pass, WALK);
        drop(pass);
        state.walker()?.copy(&mut encoder);
        if let Some(stamps) = &stamps {
            stamps.resolve(&mut encoder);
        }
        let index = self.gpu.queue.submit([encoder.finish()]);
        state.walker()?.submitted(&self.gpu, index);
        if let Some(stamps) = stamps {
            stamps.record(|| self.gpu.wait())?;
        }
        state.traffic.dispatches += (walk.passes * (self.steps.len() + 2) + 1) as u64;
        state.traffic.submissions += 1;
        Ok(())
    }
}

impl Program for GpuProgram {
    fn reserve(&self, state: &mut dyn State, workspace_bytes: usize) -> Result<()> {
        let state = gpu_state(state)?;
        let workspace_bytes = self.needs.workspace_bytes.max(workspace_bytes as u64);
        self.gpu.guard(|| {
            state.make_room(&Needs { workspace_bytes, ..self.needs })?;
            if self.walks {
                state.have_walker(|| Walker::new(&self.gpu, &self.steps))?;
            }
            self.bind(state)
        })
    }

    fn run(&self, state: &mut dyn State, batch: &Batch<'_>, out_rows: usize, cancel: &AtomicBool) -> Result<()> {
        let state = gpu_state(state)?;
        let bound = self.bound.lock();
        if bound.generation != Some(state.generation()) {
            return Err(Error::Internal("A program for which no memory was reserved".into()));
        }
        self.gpu.check()?;
        let under_way = state.under_way();
        let done = self.gpu.guard(|| self.submit(&bound.groups, state, batch, out_rows, cancel));
        done.inspect_err(|_| state.forget(under_way))
    }

    fn walk(&self, state: &mut dyn State, batch: &Batch<'_>, walk: &Walk, cancel: &AtomicBool) -> Result<()> {
        let state = gpu_state(state)?;
        let bound = self.bound.lock();
        if bound.generation != Some(state.generation()) || !self.walks {
            return Err(Error::Internal("A program that cannot walk".into()));
        }
        self.gpu.check()?;
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let done = self.gpu.guard(|| self.submit_walk(&bound.groups, state, batch, walk));
        done.inspect_err(|_| state.forget_walk())
    }
}
