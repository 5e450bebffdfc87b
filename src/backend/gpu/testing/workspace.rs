//! Operations over a workspace that a test lays out, with canaries between the operands.
#![allow(clippy::unwrap_used)]

use super::harness::{floats, storage, uniform};
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{
    BufferRef, FRAME_CELLS, FRAME_LISTED, FRAME_N_LISTED, FRAME_ROWS, RunCounts, Step,
};

/// A quiet NaN, which makes every sum NaN.
pub const CANARY: u32 = 0x7fc0_dead;

/// A workspace under construction.
#[derive(Clone)]
pub struct Space(pub Vec<u32>);

impl Space {
    pub fn new() -> Space {
        Space(vec![CANARY; 16])
    }

    /// Room, with a gap of canaries after it. Byte offset.
    pub fn add(&mut self, floats: usize) -> u64 {
        let at = self.0.len();
        self.0.resize((at + floats + 16).next_multiple_of(16), CANARY);
        at as u64 * 4
    }

    /// Rows with these values.
    pub fn put(&mut self, values: &[f32]) -> u64 {
        let at = self.add(values.len());
        for (to, value) in self.0[at as usize / 4..].iter_mut().zip(values) {
            *to = value.to_bits();
        }
        at
    }
}

/// A run: how many rows, their tokens and positions, what three sequences sampled last, and the listed logits.
pub struct Run<'a> {
    pub rows: usize,
    pub outputs: usize,
    pub tokens: &'a [u32],
    pub positions: &'a [u32],
    pub sampled: [u32; 3],
    pub listed: &'a [u32],
}

impl Run<'_> {
    pub fn of(rows: usize) -> Run<'static> {
        // The other count differs, so that a kernel that reads the wrong one is found.
        Run { rows, outputs: rows + 1, tokens: &[], positions: &[], sampled: [0; 3], listed: &[] }
    }

    /// A workspace that begins with `x` and then has so many canaries, after the steps.
    pub fn over_floats(&self, gpu: &Gpu, steps: &[Step], x: &[f32], canaries: usize) -> Vec<f32> {
        let words = x.iter().map(|x| x.to_bits()).chain(std::iter::repeat_n(CANARY, canaries)).collect();
        self.over(gpu, steps, &Space(words)).into_iter().map(f32::from_bits).collect()
    }

    /// The workspace after the steps.
    pub fn over(&self, gpu: &Gpu, steps: &[Step], space: &Space) -> Vec<u32> {
        let mut frame = vec![0; FRAME_CELLS];
        (frame[0], frame[1], frame[FRAME_N_LISTED]) = (self.rows as u32, self.outputs as u32, self.listed.len() as u32);
        frame[FRAME_LISTED..][..self.listed.len()].copy_from_slice(self.listed);
        for (row, &token) in self.tokens.iter().enumerate() {
            frame[FRAME_ROWS + 4 * row] = token;
        }
        for (row, &position) in self.positions.iter().enumerate() {
            frame[FRAME_ROWS + 4 * row + 1] = position;
        }
        let ws = storage(gpu, bytemuck::cast_slice(&space.0));
        let (frame, sampled) =
            (storage(gpu, bytemuck::cast_slice(&frame)), storage(gpu, bytemuck::cast_slice(&self.sampled)));
        let counts = RunCounts {
            rows: self.rows as u32,
            outputs: self.outputs as u32,
            splits: [1; 2],
            listed: self.listed.len() as u32,
            strands: 0,
        };
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for step in steps {
            let params = uniform(gpu, &step.params);
            let whole = |buffer| wgpu::BufferBinding { buffer, offset: 0, size: None };
            let bindings: Vec<_> = step
                .buffers
                .iter()
                .map(|bound| match bound {
                    BufferRef::Workspace => whole(&ws),
                    BufferRef::Params => whole(&params),
                    BufferRef::Frame => whole(&frame),
                    BufferRef::Sampled => whole(&sampled),
                    BufferRef::Weight(buffer, offset, bytes) => {
                        wgpu::BufferBinding { buffer, offset: *offset, size: wgpu::BufferSize::new(*bytes) }
                    }
                    _ => panic!("an operation on rows has no such buffer"),
                })
                .collect();
            let [x, y, z] = step.groups.map(|count| count.of(&counts));
            assert!([x, y, z].iter().all(|&n| n <= gpu.caps.max_workgroups));
            pass.set_pipeline(&step.kernel.pipeline);
            pass.set_bind_group(0, &gpu.bind(&step.kernel, &bindings), &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        gpu.queue.submit([encoder.finish()]);
        gpu.wait().unwrap();
        floats(gpu, &ws, space.0.len()).into_iter().map(f32::to_bits).collect()
    }
}
