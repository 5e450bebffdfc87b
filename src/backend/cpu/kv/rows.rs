//! Copies cells of a layer's cache to cell rows, which do not depend on a layout ([`crate::backend::kv_rows`]), and
//! back.

use super::{GROUP, KvLayout, Q8_GROUP_BYTES, q8_quant};
use crate::backend::LayerCache;
use crate::backend::kv_rows::{SCALE, head_bytes};
use crate::quant::TensorType;
use crate::simd::LANES;
use half::f16;

/// Bytes of a row.
pub fn bytes(layout: &KvLayout) -> usize {
    LayerCache::new(layout.n_kv_heads(), layout.head_dim_k(), layout.head_dim_v()).row_bytes(layout.types())
}

/// Read a cell's keys and values into its row.
pub fn read(layout: &KvLayout, [keys, values]: [&[u8]; 2], cell: usize, row: &mut [u8]) {
    let mut rest = row;
    for span in head_spans(layout, cell) {
        let ty = layout.types().of(span.is_key);
        let (head, after) = rest.split_at_mut(head_bytes(ty, span.dim));
        rest = after;
        let bytes = if span.is_key { keys } else { values };
        match ty {
            TensorType::F32 => {
                span.numbers::<4>().zip(head.as_chunks_mut::<4>().0).for_each(|(at, x)| *x = chunk(bytes, at))
            }
            TensorType::Q8_0 => {
                for (g, group) in head.chunks_mut(SCALE + GROUP).enumerate() {
                    let (scale, quants) = group.split_at_mut(SCALE);
                    let stored = f16::from_le_bytes(chunk(bytes, span.scale(g)));
                    scale.copy_from_slice(&stored.to_f32().to_le_bytes());
                    for (x, j) in quants.iter_mut().zip(g * GROUP..) {
                        *x = bytes[span.quant(j)];
                    }
                }
            }
            _ => span.numbers::<2>().zip(head.as_chunks_mut::<2>().0).for_each(|(at, x)| *x = chunk(bytes, at)),
        }
    }
}

/// Write a cell's keys and values from its row. What pads a value is zero, as after a store.
pub fn write(layout: &KvLayout, [keys, values]: [&mut [u8]; 2], cell: usize, row: &[u8]) {
    let mut rest = row;
    for head in 0..layout.n_kv_heads() {
        let start = layout.v_row(head, cell);
        values[start..start + layout.v_row_bytes()].fill(0);
    }
    for span in head_spans(layout, cell) {
        let ty = layout.types().of(span.is_key);
        let (head, after) = rest.split_at(head_bytes(ty, span.dim));
        rest = after;
        let bytes = if span.is_key { &mut *keys } else { &mut *values };
        match ty {
            TensorType::F32 => span.numbers::<4>().zip(head.as_chunks().0).for_each(|(at, x)| set::<4>(bytes, at, x)),
            TensorType::Q8_0 => {
                for (g, group) in head.chunks(SCALE + GROUP).enumerate() {
                    let (scale, quants) = group.split_at(SCALE);
                    let scale = f32::from_le_bytes(chunk(scale, 0));
                    // As a store rounds it: a value beyond f16's range becomes the largest finite number, NaN stays.
                    let scale = if scale.is_nan() { f16::NAN } else { f16::from_f32(scale.min(f16::MAX.to_f32())) };
                    set(bytes, span.scale(g), &scale.to_le_bytes());
                    for (&x, j) in quants.iter().zip(g * GROUP..) {
                        bytes[span.quant(j)] = x;
                    }
                }
            }
            _ => span.numbers::<2>().zip(head.as_chunks().0).for_each(|(at, x)| set::<2>(bytes, at, x)),
        }
    }
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn set<const N: usize>(bytes: &mut [u8], at: usize, x: &[u8; N]) {
    bytes[at..at + N].copy_from_slice(x);
}

/// The heads of a cell in the order of a row: keys, then values.
fn head_spans(layout: &KvLayout, cell: usize) -> impl Iterator<Item = HeadSpan> {
    let (layout, heads) = (*layout, 0..layout.n_kv_heads());
    let key = move |head| {
        let (at, dim) = (layout.k_block(head, cell), layout.head_dim_k());
        HeadSpan { is_key: true, dim, at, lane: cell % LANES, scales: at }
    };
    let value = move |head| {
        let (at, dim) = (layout.v_row(head, cell), layout.head_dim_v());
        HeadSpan { is_key: false, dim, at, lane: 0, scales: at + layout.v_width() }
    };
    heads.clone().map(key).chain(heads.map(value))
}

/// Where one head of a cell is in the key or value buffer.
struct HeadSpan {
    is_key: bool,
    dim: usize,
    /// The key's block, or the value's row.
    at: usize,
    /// The cell's lane in a key's block.
    lane: usize,
    /// Where scales are counted from.
    scales: usize,
}

impl HeadSpan {
    /// Of every number, `N` bytes each.
    fn numbers<const N: usize>(&self) -> impl Iterator<Item = usize> + use<N> {
        let step = if self.is_key { LANES * N } else { N };
        let first = self.at + self.lane * N;
        (0..self.dim).map(move |j| first + j * step)
    }

    /// Of a quant.
    fn quant(&self, j: usize) -> usize {
        if self.is_key { self.at + q8_quant(j) + self.lane } else { self.at + j }
    }

    /// Of a group's scale.
    fn scale(&self, g: usize) -> usize {
        self.scales + if self.is_key { g * Q8_GROUP_BYTES + 2 * self.lane } else { 2 * g }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::KvTypes;
    use crate::backend::cpu::host::pool::SharedMut;
    use crate::backend::cpu::kv::{load_k, store_k, store_v};
    use crate::simd::Isa;

    const HEADS: usize = 3;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
    }

    fn cache(layout: &KvLayout, fill: u8) -> [Vec<u8>; 2] {
        [vec![fill; layout.k_bytes()], vec![fill; layout.v_bytes()]]
    }

    /// The numbers of a row, as its description says.
    fn decoded(ty: TensorType, head: &[u8]) -> Vec<f32> {
        match ty {
            TensorType::F32 => head.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
            TensorType::F16 => head.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
            _ => {
                let numbers = |group: &[u8]| {
                    let scale = f32::from_le_bytes(group[..4].try_into().unwrap());
                    group[4..].iter().map(|&q| scale * f32::from(q as i8)).collect::<Vec<_>>()
                };
                head.chunks(36).flat_map(numbers).collect()
            }
        }
    }

    #[test]
    fn a_row_holds_what_was_stored_and_writes_back_to_the_same_bytes_of_another_cell() {
        let all = [TensorType::F32, TensorType::F16, TensorType::Q8_0];
        for types in all.into_iter().flat_map(|k| all.map(|v| KvTypes { k, v })) {
            for (dk, dv) in [(8, 40), (80, 80), (64, 128)] {
                let layout = KvLayout::new(types, HEADS, dk, dv, 48).unwrap();
                let [mut k, mut v] = cache(&layout, 0xa5);
                for (cell, head) in [17, 31].into_iter().flat_map(|cell| (0..HEADS).map(move |head| (cell, head))) {
                    // SAFETY: one thread.
                    unsafe {
                        store_k(Isa::Portable, &layout, SharedMut::new(&mut k), cell, head, &values(dk, cell + head));
                        store_v(Isa::Portable, &layout, SharedMut::new(&mut v), cell, head, &values(dv, cell * head));
                    }
                }
                let mut row = vec![0xff; bytes(&layout)];
                read(&layout, [&k, &v], 17, &mut row);
                let (key, value) = (head_bytes(types.k, dk), head_bytes(types.v, dv));
                for head in 0..HEADS {
                    let mut stored = vec![0.0; dk];
                    // SAFETY: one thread.
                    unsafe { load_k(&layout, SharedMut::new(&mut k), 17, head, &mut stored) };
                    assert_eq!(decoded(types.k, &row[head * key..][..key]), stored, "{types} key of head {head}");
                    let got = decoded(types.v, &row[HEADS * key + head * value..][..value]);
                    for (got, wanted) in got.iter().zip(values(dv, 17 * head)) {
                        assert!((got - wanted).abs() <= 0.01, "{types} value of head {head}: {got} for {wanted}");
                    }
                }
                // Over what another cell holds, and over a store of the same numbers there.
                let mut expected = [k.clone(), v.clone()];
                for head in 0..HEADS {
                    let [k, v] = &mut expected;
                    // SAFETY: one thread.
                    unsafe {
                        store_k(Isa::Portable, &layout, SharedMut::new(k), 31, head, &values(dk, 17 + head));
                        store_v(Isa::Portable, &layout, SharedMut::new(v), 31, head, &values(dv, 17 * head));
                    }
                }
                write(&layout, [&mut k, &mut v], 31, &row);
                assert!([k, v] == expected, "{types} {dk} {dv}");
            }
        }
    }

    #[test]
    fn scales_of_another_backend_are_rounded_as_a_store_rounds_them() {
        let layout = KvLayout::new(TensorType::Q8_0, 1, 32, 32, 16).unwrap();
        for (scale, kept) in [(0.1, f16::from_f32(0.1).to_f32()), (1e9, 65_504.0), (0.0, 0.0), (1e-20, 0.0)] {
            let [mut k, mut v] = cache(&layout, 0);
            let head = [&f32::to_le_bytes(scale)[..], &[7; 32]].concat();
            write(&layout, [&mut k, &mut v], 3, &[head.clone(), head].concat());
            let mut row = vec![0; 72];
            read(&layout, [&k, &v], 3, &mut row);
            assert_eq!(decoded(TensorType::Q8_0, &row), [7.0 * kept; 64]);
        }
        let [mut k, mut v] = cache(&layout, 0);
        let head = [&f32::NAN.to_le_bytes()[..], &[0; 32]].concat();
        write(&layout, [&mut k, &mut v], 3, &[head.clone(), head].concat());
        let mut row = vec![0; 72];
        read(&layout, [&k, &v], 3, &mut row);
        assert!(decoded(TensorType::Q8_0, &row).iter().all(|x| x.is_nan()));
    }
}
