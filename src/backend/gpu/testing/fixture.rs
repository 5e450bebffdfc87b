//! Helpers for tests of whole steps: the buffers of an engine, a frame, and the cache as bytes.
#![allow(clippy::unwrap_used)]

use super::harness::{run, storage, uniform};
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::dispatch::{
    BufferRef, FRAME_CELLS, FRAME_LISTED, FRAME_N_LISTED, FRAME_OUTPUTS, FRAME_ROWS, RunCounts, Step,
};
use crate::backend::gpu::ops::kv_cache::{BLOCK, KvLayout};
use crate::quant::TensorType;
use half::f16;

/// The buffers that steps name.
pub struct Fixture<'a> {
    pub gpu: &'a Gpu,
    pub workspace: wgpu::Buffer,
    pub frame: wgpu::Buffer,
    pub keys: wgpu::Buffer,
    pub values: wgpu::Buffer,
    pub partials: wgpu::Buffer,
    pub state: wgpu::Buffer,
}

impl<'a> Fixture<'a> {
    pub fn new(
        gpu: &'a Gpu,
        workspace: &[f32],
        frame: &[u32],
        [keys, values]: [&[u8]; 2],
        partials: u64,
    ) -> Fixture<'a> {
        Fixture {
            gpu,
            workspace: storage(gpu, bytemuck::cast_slice(workspace)),
            frame: storage(gpu, bytemuck::cast_slice(frame)),
            keys: storage(gpu, keys),
            values: storage(gpu, values),
            // Nothing may be read that was not written: every word is NaN.
            partials: storage(gpu, &vec![0xff; partials as usize]),
            state: storage(gpu, &[]),
        }
    }

    /// Run steps one after the other.
    pub fn run(&self, steps: &[Step], counts: RunCounts) {
        for step in steps {
            let owned: Vec<wgpu::Buffer> = step
                .buffers
                .iter()
                .map(|bound| match bound {
                    BufferRef::Workspace => self.workspace.clone(),
                    BufferRef::Params => uniform(self.gpu, &step.params),
                    BufferRef::Frame | BufferRef::WindowFrame => self.frame.clone(),
                    BufferRef::Keys(_) => self.keys.clone(),
                    BufferRef::Values(_) => self.values.clone(),
                    BufferRef::State(_) => self.state.clone(),
                    BufferRef::Partials => self.partials.clone(),
                    BufferRef::Sampled => panic!("no token was sampled"),
                    BufferRef::Weight(buffer, offset, _) => {
                        assert_eq!(*offset, 0, "tests bind whole buffers");
                        buffer.clone()
                    }
                })
                .collect();
            let groups = step.groups.map(|count| count.of(&counts));
            run(self.gpu, &step.kernel, &owned.iter().collect::<Vec<_>>(), groups);
        }
    }

    pub fn workspace(&self, len: usize) -> Vec<f32> {
        super::harness::floats(self.gpu, &self.workspace, len)
    }

    /// Keys and values as they are now.
    pub fn cache(&self, layout: &KvLayout) -> [Vec<u8>; 2] {
        let read = |buffer, bytes: u64| self.gpu.read(buffer, 0, bytes as usize).unwrap();
        [read(&self.keys, layout.k_bytes()), read(&self.values, layout.v_bytes())]
    }
}

/// A frame under construction.
#[derive(Default, Clone)]
pub struct Frame {
    /// Position, sequences, cell.
    pub rows: Vec<(i32, u32, u32)>,
    pub outputs: Vec<u32>,
    pub listed: Vec<u32>,
    /// Position, sequences.
    pub cells: Vec<(i32, u32)>,
    pub n_kv: usize,
    /// Number, cells of each.
    pub splits: (u32, u32),
}

impl Frame {
    pub fn words(&self) -> Vec<u32> {
        // Words that are not set must not matter: they hold a position and sequences that would be seen.
        let mut words = vec![1; FRAME_CELLS + 2 * self.cells.len()];
        let counts = [self.rows.len(), self.outputs.len(), self.n_kv].map(|n| n as u32);
        words[..3].copy_from_slice(&counts);
        words[3..5].copy_from_slice(&[self.splits.0, self.splits.1]);
        words[FRAME_N_LISTED] = self.listed.len() as u32;
        words[FRAME_LISTED..][..self.listed.len()].copy_from_slice(&self.listed);
        for (i, &(position, sequences, cell)) in self.rows.iter().enumerate() {
            words[FRAME_ROWS + 4 * i..][..4].copy_from_slice(&[7, position as u32, sequences, cell]);
        }
        words[FRAME_OUTPUTS..][..self.outputs.len()].copy_from_slice(&self.outputs);
        for (i, &(position, sequences)) in self.cells.iter().enumerate() {
            words[FRAME_CELLS + 2 * i..][..2].copy_from_slice(&[position as u32, sequences]);
        }
        words
    }

    pub fn counts(&self) -> RunCounts {
        RunCounts {
            rows: self.rows.len() as u32,
            outputs: self.outputs.len() as u32,
            splits: [self.splits.0; 2],
            listed: self.listed.len() as u32,
            strands: 0,
        }
    }
}

/// Numbers in (-1, 1), always the same.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    pub fn next(&mut self) -> f32 {
        (self.bits() & 0xff_ffff) as f32 / 8_388_608.0 - 1.0
    }

    pub fn take(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// Where the bytes of a head of a cell are, written a second time from the layout's description.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub layout: &'a KvLayout,
    /// A key, else a value.
    pub key: bool,
    pub head: usize,
    pub cell: usize,
}

impl Head<'_> {
    pub fn dim(&self) -> usize {
        self.layout.dim(self.key)
    }

    fn ty(&self) -> TensorType {
        self.layout.types.of(self.key)
    }

    fn element_bytes(&self) -> usize {
        match self.ty() {
            TensorType::F32 => 4,
            TensorType::F16 => 2,
            _ => 1,
        }
    }

    fn unit(&self, unit: usize) -> usize {
        let scales = if self.ty() == TensorType::Q8_0 { self.dim().div_ceil(32) } else { 0 };
        let units = self.dim() / 4 + scales;
        let index = if self.key {
            ((self.head * (self.layout.cells / BLOCK) + self.cell / BLOCK) * units + unit) * BLOCK + self.cell % BLOCK
        } else {
            (self.head * self.layout.cells + self.cell) * units + unit
        };
        index * 4 * self.element_bytes()
    }

    /// Byte offset of a number.
    pub fn element(&self, i: usize) -> usize {
        self.unit(i / 4) + i % 4 * self.element_bytes()
    }

    /// Byte offset of the scale of a number's group.
    pub fn scale(&self, i: usize) -> usize {
        self.unit(self.dim() / 4 + i / 32)
    }

    /// All bytes that are this head's.
    pub fn bytes(&self) -> Vec<usize> {
        let scales = if self.ty() == TensorType::Q8_0 { self.dim() } else { 0 };
        let scales = (0..scales).step_by(32).flat_map(|i| self.scale(i)..self.scale(i) + 4);
        (0..self.dim()).flat_map(|i| self.element(i)..self.element(i) + self.element_bytes()).chain(scales).collect()
    }

    pub fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let number = |i| {
            let at = self.element(i);
            f64::from(match self.ty() {
                TensorType::F32 => float(at),
                TensorType::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
                _ => f32::from(bytes[at] as i8) * float(self.scale(i)),
            })
        };
        (0..self.dim()).map(number).collect()
    }

    pub fn encode(&self, bytes: &mut [u8], x: &[f32]) {
        for i in 0..self.dim() {
            let at = self.element(i);
            match self.ty() {
                TensorType::F32 => bytes[at..at + 4].copy_from_slice(&x[i].to_le_bytes()),
                TensorType::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f32(x[i]).to_le_bytes()),
                _ => {
                    let group = &x[i / 32 * 32..(i / 32 * 32 + 32).min(self.dim())];
                    let scale = group.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
                    bytes[at] = (x[i] / scale).round() as i8 as u8;
                    bytes[self.scale(i)..][..4].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
    }

    /// The largest error that storing these numbers may make, number by number.
    pub fn rounding(&self, x: &[f64]) -> Vec<f64> {
        let error = |i: usize| match self.ty() {
            TensorType::F32 => 0.0,
            // To nearest among 11 bits; among the small ones the driver may round either way.
            TensorType::F16 => (x[i].abs() / 2048.0).max(6e-8),
            _ => {
                let group = &x[i / 32 * 32..(i / 32 * 32 + 32).min(x.len())];
                group.iter().fold(0f64, |m, x| m.max(x.abs())) / 127.0 * 0.5001
            }
        };
        (0..x.len()).map(error).collect()
    }
}
