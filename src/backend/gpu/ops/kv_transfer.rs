//! Copies cells of a layer's cache to cell rows, which do not depend on a layout ([`crate::backend::kv_rows`]), and
//! back.
//!
//! Whole blocks of cells are copied, a *window* of a few at a time: one after the other they are a small cache of the
//! same layout. To write cells, their window is read, changed and written back; nothing else runs on the cache during
//! that. The staging buffer lives as long as one window.

use super::kv_cache::{BLOCK, KvLayout};
use crate::backend::gpu::device::Device;
use crate::backend::kv_rows::{GROUP, SCALE, head_bytes};
use crate::backend::{LayerCache, Traffic};
use crate::quant::TensorType;
use crate::{Error, Result};
use std::sync::atomic::AtomicBool;

/// Blocks in a window, at most.
const WINDOW: usize = 16;

/// A layer's cache on the device.
pub struct LayerCells<'a> {
    pub layout: &'a KvLayout,
    pub keys: &'a wgpu::Buffer,
    pub values: &'a wgpu::Buffer,
}

impl LayerCells<'_> {
    /// Read these cells into `rows`, one after the other.
    pub fn read(&self, gpu: &Device, cells: &[u32], rows: &mut [u8], cancel: &AtomicBool) -> Result<Traffic> {
        let mut traffic = Traffic::default();
        let row_bytes = self.row_bytes();
        for (cells, rows) in pieces(cells, rows.chunks_exact_mut(row_bytes)) {
            let window = Window::new(self.layout, &cells);
            let words = window.fetch(self, gpu, cancel, &mut traffic)?;
            let mut places = Vec::new();
            for (&cell, row) in cells.iter().zip(rows) {
                for (key, part) in window.sides(row) {
                    window.places(key, cell, &mut places);
                    window.head(key, &places, part, |place, bytes| *bytes = words[place].to_le_bytes());
                }
            }
        }
        Ok(traffic)
    }

    /// Write `rows` into these cells.
    pub fn write(&self, gpu: &Device, cells: &[u32], rows: &[u8], cancel: &AtomicBool) -> Result<Traffic> {
        let mut traffic = Traffic::default();
        let row_bytes = self.row_bytes();
        for (cells, rows) in pieces(cells, rows.chunks_exact(row_bytes)) {
            let window = Window::new(self.layout, &cells);
            let mut words = window.fetch(self, gpu, cancel, &mut traffic)?;
            let (mut places, mut copy) = (Vec::new(), vec![0; row_bytes]);
            for (&cell, row) in cells.iter().zip(rows) {
                copy.copy_from_slice(row);
                for (key, part) in window.sides(&mut copy) {
                    window.places(key, cell, &mut places);
                    window.head(key, &places, part, |place, bytes| words[place] = u32::from_le_bytes(*bytes));
                }
            }
            window.each_copy(self, |buffer, at, start, bytes| {
                let part = &words[start as usize / 4..(start + bytes) as usize / 4];
                gpu.queue.write_buffer(buffer, at, bytemuck::cast_slice(part));
                traffic.bytes_uploaded += bytes;
            });
        }
        Ok(traffic)
    }

    fn row_bytes(&self) -> usize {
        let l = self.layout;
        LayerCache::new(l.n_kv_heads, l.head_dim_k, l.head_dim_v).row_bytes(l.types)
    }
}

/// Cells with their rows, in pieces of at most [`WINDOW`] blocks each.
fn pieces<R>(cells: &[u32], rows: impl Iterator<Item = R>) -> Vec<(Vec<u32>, Vec<R>)> {
    let mut pieces: Vec<(Vec<u32>, Vec<R>)> = Vec::new();
    let mut blocks = Vec::new();
    for (&cell, row) in cells.iter().zip(rows) {
        let block = cell / BLOCK as u32;
        if !blocks.contains(&block) {
            if blocks.len() == WINDOW {
                blocks.clear();
            }
            if blocks.is_empty() {
                pieces.push((Vec::new(), Vec::new()));
            }
            blocks.push(block);
        }
        if let Some((cells, rows)) = pieces.last_mut() {
            cells.push(cell);
            rows.push(row);
        }
    }
    pieces
}

/// A few blocks of a cache, keys then values.
struct Window {
    /// Ascending.
    blocks: Vec<u32>,
    /// Of the blocks side by side.
    layout: KvLayout,
}

impl Window {
    fn new(layout: &KvLayout, cells: &[u32]) -> Window {
        let mut blocks: Vec<u32> = cells.iter().map(|cell| cell / BLOCK as u32).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let layout = KvLayout { cells: blocks.len() * BLOCK, ..*layout };
        Window { blocks, layout }
    }

    /// The window's words as the device has them.
    fn fetch(
        &self,
        cache: &LayerCells<'_>,
        gpu: &Device,
        cancel: &AtomicBool,
        traffic: &mut Traffic,
    ) -> Result<Vec<u32>> {
        let bytes = self.layout.k_bytes() + self.layout.v_bytes();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = gpu.buffer("staging for cells", bytes, usage)?;
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        self.each_copy(cache, |buffer, at, start, bytes| {
            encoder.copy_buffer_to_buffer(buffer, at, &staging, start, bytes);
        });
        gpu.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
        gpu.wait_for(None, cancel)?;
        let mapped = staging.get_mapped_range(..bytes);
        let mapped = mapped.map_err(|e| Error::Device(format!("Reading cells from {}: {e}", gpu.info.name)))?;
        traffic.submissions += 1;
        traffic.waits += 1;
        traffic.bytes_read += bytes;
        Ok(bytemuck::pod_collect_to_vec(&mapped))
    }

    /// The copies that make up the window: buffer, byte in it, byte in the window, bytes.
    fn each_copy(&self, cache: &LayerCells<'_>, mut copy: impl FnMut(&wgpu::Buffer, u64, u64, u64)) {
        let all = (cache.layout.cells / BLOCK) as u64;
        let own = self.blocks.len() as u64;
        let heads = self.layout.n_kv_heads as u64;
        let sides =
            [(cache.keys, 0, self.layout.k_bytes()), (cache.values, self.layout.k_bytes(), self.layout.v_bytes())];
        for (buffer, start, bytes) in sides {
            let block = bytes / heads / own;
            for head in 0..heads {
                let mut first = 0;
                for run in self.blocks.chunk_by(|a, b| a + 1 == *b) {
                    let at = (head * all + u64::from(run[0])) * block;
                    copy(buffer, at, start + (head * own + first) * block, run.len() as u64 * block);
                    first += run.len() as u64;
                }
            }
        }
    }

    /// The key's and the value's part of a row.
    fn sides<'a>(&self, row: &'a mut [u8]) -> [(bool, &'a mut [u8]); 2] {
        let head = head_bytes(self.layout.types.k, self.layout.head_dim_k);
        let (keys, values) = row.split_at_mut(self.layout.n_kv_heads * head);
        [(true, keys), (false, values)]
    }

    /// The words of a cell's keys or values.
    fn places(&self, key: bool, cell: u32, places: &mut Vec<usize>) {
        let block = self.blocks.partition_point(|&block| block < cell / BLOCK as u32);
        let start = if key { 0 } else { self.layout.k_bytes() as usize / 4 };
        places.clear();
        places.extend(self.layout.words(key, block * BLOCK + cell as usize % BLOCK).map(|word| start + word));
    }

    /// Call `each` with every word's index and its four bytes in the row.
    fn head(&self, key: bool, places: &[usize], row: &mut [u8], mut each: impl FnMut(usize, &mut [u8; 4])) {
        let (ty, dim) = (self.layout.types.of(key), self.layout.dim(key));
        if ty != TensorType::Q8_0 {
            places.iter().zip(row.as_chunks_mut().0).for_each(|(&place, bytes)| each(place, bytes));
            return;
        }
        let heads = row.chunks_exact_mut(head_bytes(ty, dim));
        for (head, places) in heads.zip(places.chunks_exact(dim / 4 + dim.div_ceil(GROUP))) {
            let (quants, scales) = places.split_at(dim / 4);
            let groups = head.chunks_mut(SCALE + GROUP).zip(quants.chunks(GROUP / 4));
            for ((group, quants), &scale) in groups.zip(scales) {
                let words = [scale].into_iter().chain(quants.iter().copied());
                words.zip(group.as_chunks_mut().0).for_each(|(place, bytes)| each(place, bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::KvTypes;
    use crate::backend::gpu::testing::fixture::{Fixture, Frame, Head, Numbers};
    use crate::backend::gpu::testing::harness::devices;

    const TYPES: [KvTypes; 5] = [
        KvTypes { k: TensorType::F32, v: TensorType::F32 },
        KvTypes { k: TensorType::F16, v: TensorType::F16 },
        KvTypes { k: TensorType::Q8_0, v: TensorType::Q8_0 },
        KvTypes { k: TensorType::F32, v: TensorType::Q8_0 },
        KvTypes { k: TensorType::Q8_0, v: TensorType::F16 },
    ];

    /// The numbers of one head of a row, as its description says.
    fn decoded(ty: TensorType, head: &[u8]) -> Vec<f64> {
        match ty {
            TensorType::F32 => head.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect(),
            TensorType::F16 => head.as_chunks().0.iter().map(|x| half::f16::from_le_bytes(*x).to_f64()).collect(),
            _ => {
                let numbers = |group: &[u8]| {
                    let scale = f32::from_le_bytes(group[..4].try_into().unwrap());
                    group[4..].iter().map(|&q| f64::from(scale * f32::from(q as i8))).collect::<Vec<_>>()
                };
                head.chunks(36).flat_map(numbers).collect()
            }
        }
    }

    #[test]
    fn rows_hold_what_the_cells_hold_and_go_to_other_cells_alone() {
        for (gpu, types) in devices().iter().flat_map(|gpu| TYPES.map(|types| (gpu, types))) {
            for (dk, dv) in [(8, 256), (80, 40)] {
                let layout = KvLayout::new(types, 3, dk, dv, 64 * 40).unwrap();
                let mut numbers = Numbers(5);
                let filled = [true, false].map(|key| {
                    let mut bytes = vec![0; if key { layout.k_bytes() } else { layout.v_bytes() } as usize];
                    for (head, cell) in (0..3).flat_map(|head| (0..layout.cells).map(move |cell| (head, cell))) {
                        let head = Head { layout: &layout, key, head, cell };
                        head.encode(&mut bytes, &numbers.take(head.dim()));
                    }
                    bytes
                });
                let fixture = Fixture::new(gpu, &[0.0; 4], &Frame::default().words(), [&filled[0], &filled[1]], 16);
                let cache = LayerCells { layout: &layout, keys: &fixture.keys, values: &fixture.values };
                // More blocks than a window has, out of order, side by side and alone.
                let from: Vec<u32> = (0..40).map(|i| 64 * ((i * 7) % 40) + i).chain([3, 2, 129, 2559]).collect();
                let to: Vec<u32> = from.iter().map(|cell| (cell + 1000) % 2560).collect();
                let mut rows = vec![0; from.len() * cache.row_bytes()];
                cache.read(gpu, &from, &mut rows, &AtomicBool::new(false)).unwrap();
                let head_bytes = [head_bytes(types.k, dk), head_bytes(types.v, dv)];
                for (&cell, row) in from.iter().zip(rows.chunks(cache.row_bytes())) {
                    let (keys, values) = row.split_at(3 * head_bytes[0]);
                    for (side, (key, part)) in [(true, keys), (false, values)].into_iter().enumerate() {
                        for (head, got) in part.chunks(head_bytes[side]).enumerate() {
                            let place = Head { layout: &layout, key, head, cell: cell as usize };
                            let ty = types.of(key);
                            assert_eq!(decoded(ty, got), place.decode(&filled[side]), "{ty} cell {cell} head {head}");
                        }
                    }
                }
                cache.write(gpu, &to, &rows, &AtomicBool::new(false)).unwrap();
                let mut expected = filled.clone();
                for (side, key) in [true, false].into_iter().enumerate() {
                    for (head, (&from, &to)) in
                        (0..3).flat_map(|head| from.iter().zip(&to).map(move |pair| (head, pair)))
                    {
                        let [from, to] =
                            [from, to].map(|cell| Head { layout: &layout, key, head, cell: cell as usize }.bytes());
                        from.into_iter().zip(to).for_each(|(from, to)| expected[side][to] = filled[side][from]);
                    }
                }
                assert!(fixture.cache(&layout) == expected, "{types} {dk} {dv}");
            }
        }
    }
}
