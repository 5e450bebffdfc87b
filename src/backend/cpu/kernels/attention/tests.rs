//! Attention against a plain f64 softmax over what the cache holds.

use super::*;
use crate::backend::KvTypes;
use crate::backend::cpu::host::pool::{Counter, Pool};
use crate::backend::cpu::kv::{store_k, store_v};
use crate::graph::DistanceBias;
use std::sync::LazyLock;

static NEVER: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// The buckets of attention to what is before, and to both sides, of 32.
static OF_DISTANCES: LazyLock<[Vec<u32>; 2]> = LazyLock::new(|| [32, 16].map(DistanceBias::of_distances));

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    /// In -1..1, with many small ones.
    fn value(&mut self) -> f32 {
        let x = (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        x * x * x.signum() * 1.5
    }
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

#[derive(Clone, Debug)]
struct Case {
    layout: KvLayout,
    n_heads: usize,
    softcap: f32,
    bidirectional: bool,
    window: u32,
    chunk: u32,
    alibi: f32,
    /// For each of 32 buckets a number per head; empty for none.
    distances: Vec<f32>,
    temperature: Option<Temperature>,
    /// Empty for none.
    sinks: Vec<f32>,
    k: Vec<u8>,
    v: Vec<u8>,
    q: Vec<f32>,
    row_pos: Vec<i32>,
    row_seq: Vec<u32>,
    cell_pos: Vec<i32>,
    cell_seq: Vec<u32>,
    lists: Vec<Vec<u32>>,
    n_kv: usize,
}

impl Case {
    /// `n_kv` cells of which one in `holes` is free, holding up to three sequences, and `rows` rows among their ends.
    fn random(random: &mut Random, layout: KvLayout, n_heads: usize, n_kv: usize, rows: usize, holes: usize) -> Case {
        let isa = Isa::detect();
        // Memory that nobody has written holds anything.
        let (mut k, mut v) = (vec![0xffu8; layout.k_bytes()], vec![0xffu8; layout.v_bytes()]);
        let (mut cell_pos, mut cell_seq) = (vec![-1; layout.n_cells()], vec![0u32; layout.n_cells()]);
        let sequences = 1 + random.below(3);
        let mut next = [0i32; 3];
        for cell in 0..n_kv {
            if holes != 0 && random.below(holes) == 0 {
                continue;
            }
            let s = random.below(sequences);
            // Now and then a cell is shared by two sequences.
            let shared = if random.below(5) == 0 { 1 << random.below(sequences) } else { 0 };
            (cell_pos[cell], cell_seq[cell]) = (next[s], 1 << s | shared);
            next[s] += 1 + random.below(2) as i32;
            for head in 0..layout.n_kv_heads() {
                // SAFETY: one thread.
                unsafe {
                    let key = random.values(layout.head_dim_k());
                    store_k(isa, &layout, SharedMut::new(&mut k), cell, head, &key);
                    let value = random.values(layout.head_dim_v());
                    store_v(isa, &layout, SharedMut::new(&mut v), cell, head, &value);
                }
            }
        }
        let mut case = Case {
            layout,
            n_heads,
            softcap: 0.0,
            bidirectional: false,
            window: 0,
            chunk: 0,
            alibi: 0.0,
            distances: Vec::new(),
            temperature: None,
            sinks: Vec::new(),
            k,
            v,
            q: random.values(rows * n_heads * layout.head_dim_k()).iter().map(|x| x * 2.0).collect(),
            row_pos: Vec::new(),
            row_seq: Vec::new(),
            cell_pos,
            cell_seq,
            lists: Vec::new(),
            n_kv,
        };
        for row in 0..rows {
            let s = row * sequences / rows;
            case.row_seq.push(1 << s);
            case.row_pos.push(next[s] - random.below(1 + rows.min(next[s] as usize + 1)) as i32);
        }
        case
    }

    fn attention(&self) -> Attention<'_> {
        Attention {
            layout: &self.layout,
            n_heads: self.n_heads,
            scoring: Scoring {
                scale: 1.0 / (self.layout.head_dim_k() as f32).sqrt(),
                temperature: self.temperature,
                softcap: self.softcap,
                bidirectional: self.bidirectional,
                window: self.window,
                chunk: self.chunk,
                alibi: self.alibi,
                distances: Some(&self.distances[..]).filter(|biases| !biases.is_empty()).map(|biases| Distances {
                    biases,
                    buckets: &OF_DISTANCES[usize::from(self.bidirectional)],
                    after: if self.bidirectional { 16 } else { 0 },
                }),
                sinks: Some(&self.sinks[..]).filter(|sinks| !sinks.is_empty()),
            },
            k: &self.k,
            v: &self.v,
            q: &self.q,
            q_stride: self.n_heads * self.layout.head_dim_k(),
            row_pos: &self.row_pos,
            row_seq: &self.row_seq,
            cell_pos: &self.cell_pos,
            cell_seq: &self.cell_seq,
            lists: &self.lists,
            n_kv: self.n_kv,
        }
    }

    fn run(&self, isa: Isa, threads: usize) -> Vec<f32> {
        let attention = self.attention();
        let tasks = attention.tasks(threads);
        self.run_tasks(isa, threads, &tasks)
    }

    fn run_tasks(&self, isa: Isa, threads: usize, tasks: &Tasks) -> Vec<f32> {
        let attention = self.attention();
        let mut out = vec![f32::NAN; self.row_pos.len() * self.n_heads * self.layout.head_dim_v()];
        let mut space = SplitSpace::default();
        space.reserve(&self.layout, self.n_heads).unwrap();
        let (split, shared, counter) = (space.share(), SharedMut::new(&mut out), Counter::new());
        let job = |worker: &crate::backend::cpu::host::pool::Worker<'_>| {
            let mut scratch = vec![f32::NAN; scratch_bytes(&self.layout, self.n_heads) / 4];
            for task in worker.chunks(&counter, tasks.count, 1) {
                // SAFETY: chunks are claimed once, and the step ends with the run.
                unsafe { attention.run(isa, tasks, task.start, &mut scratch, split, shared) };
            }
        };
        Pool::global().run(threads, &NEVER, &job).unwrap();
        out
    }

    /// Element of the key buffer, straight from the layout's description.
    fn key(&self, head: usize, cell: usize, j: usize) -> f64 {
        let (d, lane, blocks) = (self.layout.head_dim_k(), cell % 16, self.layout.n_cells() / 16);
        let block = head * blocks + cell / 16;
        match self.layout.types().k {
            TensorType::F32 => f64::from(f32_at(&self.k, (block * d + j) * 16 + lane)),
            TensorType::F16 => f64::from(f16_at(&self.k, ((block * d + j) * 16 + lane) * 2)),
            _ => {
                let group = block * (16 * d + 32 * d.div_ceil(32)) + j / 32 * (32 + 512);
                let scale = f16_at(&self.k, group + 2 * lane);
                f64::from(scale) * f64::from(self.k[group + 32 + j % 32 * 16 + lane] as i8)
            }
        }
    }

    fn value(&self, head: usize, cell: usize, j: usize) -> f64 {
        let d = self.layout.head_dim_v();
        let (width, row) = (d.next_multiple_of(16), head * self.layout.n_cells() + cell);
        match self.layout.types().v {
            TensorType::F32 => f64::from(f32_at(&self.v, row * width + j)),
            TensorType::F16 => f64::from(f16_at(&self.v, (row * width + j) * 2)),
            _ => {
                let start = row * (width + 2 * d.div_ceil(32));
                f64::from(f16_at(&self.v, start + width + j / 32 * 2)) * f64::from(self.v[start + j] as i8)
            }
        }
    }

    /// Whether a row sees a cell, word for word.
    fn sees(&self, row: usize, cell: usize) -> bool {
        if self.bidirectional {
            let near = self.row_pos[row].abs_diff(self.cell_pos[cell]) <= self.window / 2;
            return self.cell_seq[cell] & self.row_seq[row] != 0 && (self.window == 0 || near);
        }
        self.cell_seq[cell] & self.row_seq[row] != 0
            && self.cell_pos[cell] <= self.row_pos[row]
            && (self.window == 0 || self.row_pos[row] - self.cell_pos[cell] < self.window as i32)
            && (self.chunk == 0 || self.row_pos[row] / self.chunk as i32 == self.cell_pos[cell] / self.chunk as i32)
    }

    /// The bucket of T5, of 32, as its authors' code has it.
    fn bucket(&self, row: usize, cell: usize) -> usize {
        let ahead = self.cell_pos[cell] - self.row_pos[row];
        let (n, first, distance) = match self.bidirectional {
            true => (16, if ahead > 0 { 16 } else { 0 }, ahead.abs()),
            false => (32, 0, (-ahead).max(0)),
        };
        let alone = n / 2;
        if distance < alone {
            return (first + distance) as usize;
        }
        let power = (f64::from(distance) / f64::from(alone)).ln() / (128.0 / f64::from(alone)).ln();
        // Just above what a distance that is a power of two is rounded to.
        let bucket = alone + (power * f64::from(n - alone) + 1e-9) as i32;
        (first + bucket.min(n - 1)) as usize
    }

    /// Compare with the softmax in f64, element by element.
    fn assert_right(&self, out: &[f32], what: &str) {
        let (dk, dv) = (self.layout.head_dim_k(), self.layout.head_dim_v());
        let scale = f64::from(1.0 / (dk as f32).sqrt());
        let unit = f64::powi(2.0, -24);
        for row in 0..self.row_pos.len() {
            let cells: Vec<usize> = (0..self.n_kv).filter(|&cell| self.sees(row, cell)).collect();
            for head in 0..self.n_heads {
                let kv = head * self.layout.n_kv_heads() / self.n_heads;
                let q = &self.q[(row * self.n_heads + head) * dk..][..dk];
                let out = &out[(row * self.n_heads + head) * dv..][..dv];
                // Bloom's heads are a power of two, or one and a half times it: then every second slope of the next.
                let power = f64::powi(2.0, self.n_heads.ilog2() as i32);
                let step = match (head as f64) < power {
                    true => (head + 1) as f64 / power,
                    false => (2.0 * (head as f64 - power) + 1.0) / (2.0 * power),
                };
                let slope = if self.alibi == 0.0 { 0.0 } else { f64::powf(2.0, -f64::from(self.alibi) * step) };
                let scale = match self.temperature {
                    None => scale,
                    Some(Temperature { scale: growth, length, offset }) => {
                        let steps = (f64::from(self.row_pos[row]) + f64::from(offset)) / f64::from(length);
                        scale * (1.0 + f64::from(growth) * (1.0 + steps.floor().max(0.0)).ln())
                    }
                };
                let dots = cells.iter().map(|&cell| {
                    let terms = (0..dk).map(|j| f64::from(q[j]) * self.key(kv, cell, j) * scale);
                    terms.fold((0.0, 0.0f64), |(sum, size), x| (sum + x, size + x.abs()))
                });
                let (mut scores, sizes): (Vec<f64>, Vec<f64>) = dots.unzip();
                // A dot product of n terms in f32 errs by at most (n + 2) units of the sum of their sizes, the soft
                // cap by 8 more of its range, the maximum's subtraction by one of the score.
                let largest = sizes.iter().fold(0.0, |m: f64, &s| m.max(s));
                let mut error = (dk + 4) as f64 * unit * largest;
                for (score, &cell) in scores.iter_mut().zip(&cells) {
                    let bias = slope * f64::from(self.row_pos[row].abs_diff(self.cell_pos[cell]));
                    *score -= bias;
                    if !self.distances.is_empty() {
                        *score += f64::from(self.distances[self.bucket(row, cell) * self.n_heads + head]);
                    }
                    error = error.max((dk + 4) as f64 * unit * largest + 4.0 * unit * bias.abs());
                }
                if self.softcap != 0.0 {
                    let cap = f64::from(self.softcap);
                    scores.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
                    error += 8.0 * unit * cap;
                }
                let sink = self.sinks.get(head).map(|&sink| f64::from(sink));
                let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
                // Weights err by both scores' errors, exp, and the sums over the cells and ranges.
                let relative = 2.0 * error + (cells.len() + 4 * self.n_kv.div_ceil(RANGE) + 12) as f64 * unit;
                for (j, &got) in out.iter().enumerate() {
                    let terms = cells.iter().zip(&weights).map(|(&cell, w)| w * self.value(kv, cell, j));
                    let (exact, size) = terms.fold((0.0, 0.0), |(e, s), x| (e + x, s + x.abs()));
                    let (exact, size) = if cells.is_empty() { (0.0, 0.0) } else { (exact / sum, size / sum) };
                    let off = (f64::from(got) - exact).abs();
                    assert!(off <= relative * size, "{what}: row {row} head {head} value {j}: {got} {exact}");
                }
            }
        }
    }
}

fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_ne_bytes(bytes[index * 4..][..4].try_into().unwrap())
}

fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    half::f16::from_ne_bytes([bytes[offset], bytes[offset + 1]]).to_f32()
}

const TYPES: [TensorType; 3] = [TensorType::F32, TensorType::F16, TensorType::Q8_0];

#[test]
fn every_width_group_and_type_matches_f64() {
    let mut random = Random(1);
    for ty in TYPES {
        for dim in [8, 32, 64, 80, 96, 128, 256] {
            for group in [1, 2, 3, 4, 8] {
                let kv_heads = 1 + random.below(2);
                let n_kv = [1, 5, 16, 17, 40, 128, 129, 200, 300][random.below(9)];
                let layout = KvLayout::new(ty, kv_heads, dim, dim, 320).unwrap();
                let rows = [1, 1, 2, 7, 19][random.below(5)];
                let holes = [0, 4][random.below(2)];
                let mut case = Case::random(&mut random, layout, kv_heads * group, n_kv, rows, holes);
                case.window = [0, 0, 1, 30, 150][random.below(5)];
                case.softcap = [0.0, 0.0, 5.0][random.below(3)];
                for isa in Isa::available() {
                    let what = format!("{isa:?} {ty} width {dim} group {group} cells {n_kv} rows {rows}");
                    case.assert_right(&case.run(isa, 1), &what);
                }
            }
        }
    }
}

#[test]
fn long_and_odd_shapes_match_f64() {
    let mut random = Random(2);
    // Different widths of keys and values, 71 heads to one, hundreds of rows, many ranges.
    for (kv_heads, heads, dk, dv, n_kv, rows) in
        [(1, 71, 64, 64, 90, 3), (2, 4, 192, 128, 260, 9), (1, 2, 24, 40, 700, 150), (1, 1, 8, 8, 1500, 40)]
    {
        for types in TYPES.into_iter().flat_map(|k| TYPES.map(|v| KvTypes { k, v })) {
            let layout = KvLayout::new(types, kv_heads, dk, dv, n_kv).unwrap();
            let mut case = Case::random(&mut random, layout, heads, n_kv, rows, 7);
            for (window, softcap) in [(0, 0.0), (64, 20.0)] {
                (case.window, case.softcap) = (window, softcap);
                for isa in Isa::available() {
                    case.assert_right(&case.run(isa, 2), &format!("{isa:?} {types} {heads} heads, {dk} and {dv}"));
                }
            }
        }
    }
}

#[test]
fn slopes_sinks_chunks_and_temperatures_match_f64() {
    let mut random = Random(6);
    for (kv_heads, heads, dim, n_kv, rows) in [(2, 8, 64, 300, 9), (1, 6, 32, 200, 1), (3, 12, 48, 150, 20)] {
        for ty in TYPES {
            let layout = KvLayout::new(ty, kv_heads, dim, dim, 320).unwrap();
            let plain = Case::random(&mut random, layout, heads, n_kv, rows, 5);
            let temperature = Some(Temperature { scale: 0.3, length: 16, offset: 1 });
            let cases = [
                Case { alibi: 8.0, ..plain.clone() },
                Case { sinks: random.values(heads).iter().map(|x| x * 3.0).collect(), ..plain.clone() },
                Case { chunk: 32, ..plain.clone() },
                Case { bidirectional: true, alibi: 8.0, ..plain.clone() },
                Case { bidirectional: true, window: 25, ..plain.clone() },
                Case { distances: random.values(32 * heads), ..plain.clone() },
                Case { bidirectional: true, distances: random.values(32 * heads), ..plain.clone() },
                Case { temperature, window: 70, ..plain },
            ];
            for (i, case) in cases.iter().enumerate() {
                for isa in Isa::available() {
                    for threads in [1, 2] {
                        case.assert_right(&case.run(isa, threads), &format!("{isa:?} {ty} {heads} heads, case {i}"));
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_depends_on_the_order_of_its_list_not_on_where_its_blocks_are() {
    let mut random = Random(9);
    for ty in TYPES {
        for (kv_heads, heads, dim, n_kv, rows) in [(2, 4, 64, 400, 40), (1, 4, 128, 640, 1), (2, 10, 80, 300, 7)] {
            let layout = KvLayout::new(ty, kv_heads, dim, dim, 640).unwrap();
            let mut case = Case::random(&mut random, layout, heads, n_kv, rows, 9);
            case.window = [0, 100][random.below(2)];
            // Nothing is in the third block, which is no block in the other list.
            case.cell_seq[32..48].fill(0);
            let blocks = 640 / 16;
            let mut order: Vec<u32> = (0..blocks as u32).collect();
            (1..blocks).rev().for_each(|i| order.swap(i, random.below(i + 1)));
            let mut moved = case.clone();
            for (block, &to) in order.iter().enumerate() {
                let (from, to) = (block * 16, to as usize * 16);
                moved.cell_pos[to..to + 16].copy_from_slice(&case.cell_pos[from..from + 16]);
                moved.cell_seq[to..to + 16].copy_from_slice(&case.cell_seq[from..from + 16]);
                for head in 0..kv_heads {
                    let (from_k, to_k) = (layout.k_block(head, from), layout.k_block(head, to));
                    let bytes = layout.k_block_bytes();
                    moved.k[to_k..to_k + bytes].copy_from_slice(&case.k[from_k..from_k + bytes]);
                    let (from_v, to_v) = (layout.v_row(head, from), layout.v_row(head, to));
                    let bytes = 16 * layout.v_row_bytes();
                    moved.v[to_v..to_v + bytes].copy_from_slice(&case.v[from_v..from_v + bytes]);
                }
            }
            moved.lists = vec![order[..n_kv.div_ceil(16)].to_vec(); 3];
            moved.lists.iter_mut().for_each(|list| list[2] = crate::backend::NO_BLOCK);
            moved.n_kv = 0;
            for isa in Isa::available() {
                for threads in [1, 2] {
                    assert!(same(&moved.run(isa, threads), &case.run(isa, threads)), "{isa:?} {ty} {rows} rows");
                }
            }
        }
    }
}

#[test]
fn a_row_depends_on_itself_alone() {
    let mut random = Random(3);
    for ty in TYPES {
        for (kv_heads, heads, dim, n_kv, rows) in [(2, 4, 64, 300, 60), (1, 4, 128, 700, 30), (2, 10, 80, 140, 25)] {
            let layout = KvLayout::new(ty, kv_heads, dim, dim, n_kv).unwrap();
            let mut case = Case::random(&mut random, layout, heads, n_kv, rows, 9);
            case.window = [0, 100][random.below(2)];
            case.alibi = [0.0, 8.0][random.below(2)];
            let sinks = [0, heads][random.below(2)];
            case.sinks = random.values(sinks);
            for isa in Isa::available() {
                let whole = case.run(isa, 1);
                for threads in [2, 3] {
                    assert!(same(&case.run(isa, threads), &whole), "{isa:?} {ty}");
                }
                for tile_rows in [1, 2, 5] {
                    let tasks = Tasks { count: rows.div_ceil(tile_rows) * kv_heads, tile_rows };
                    assert!(same(&case.run_tasks(isa, 1, &tasks), &whole), "{isa:?} {ty}");
                }
                for row in 0..rows {
                    let (q, out) = (heads * dim, heads * dim);
                    let mut alone = case.clone();
                    alone.q = case.q[row * q..][..q].to_vec();
                    (alone.row_pos, alone.row_seq) = (vec![case.row_pos[row]], vec![case.row_seq[row]]);
                    let expected = &whole[row * out..][..out];
                    assert!(same(&alone.run(isa, 1), expected), "{isa:?} {ty} row {row}");
                    let split = Tasks { count: kv_heads * n_kv.div_ceil(RANGE), tile_rows: 0 };
                    assert!(same(&alone.run_tasks(isa, 2, &split), expected), "{isa:?} {ty} row {row} split");
                }
            }
        }
    }
}

/// Whether two results are equal bit for bit.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let mut random = Random(4);
    let layout = KvLayout::new(TensorType::F16, 1, 32, 32, 64).unwrap();
    let mut case = Case::random(&mut random, layout, 2, 50, 4, 0);
    (case.row_seq[0], case.row_pos[1], case.row_seq[2]) = (0, -1, 1 << 31);
    for isa in Isa::available() {
        for threads in [1, 2] {
            let out = case.run(isa, threads);
            assert!(out[..3 * 64].iter().all(|&x| x == 0.0), "{isa:?}");
            case.assert_right(&out, "empty rows");
        }
        let mut none = case.clone();
        none.n_kv = 0;
        assert!(none.run(isa, 1).iter().all(|&x| x == 0.0), "{isa:?}");
    }
}

#[test]
fn nan_stays_in_its_sequence() {
    let mut random = Random(5);
    for ty in TYPES {
        let layout = KvLayout::new(ty, 1, 32, 32, 64).unwrap();
        let mut case = Case::random(&mut random, layout, 2, 40, 3, 0);
        case.cell_seq.iter_mut().take(40).enumerate().for_each(|(i, seq)| *seq = 1 << (i % 2));
        case.cell_pos.iter_mut().take(40).enumerate().for_each(|(i, pos)| *pos = i as i32 / 2);
        (case.row_seq, case.row_pos) = (vec![1, 2, 2], vec![19, 19, 3]);
        let nan = vec![f32::NAN; 32];
        for isa in Isa::available() {
            // SAFETY: one thread.
            unsafe {
                store_k(isa, &layout, SharedMut::new(&mut case.k), 21, 0, &nan);
                store_v(isa, &layout, SharedMut::new(&mut case.v), 21, 0, &nan);
            }
            let out = case.run(isa, 1);
            // Cell 21 is the second sequence's at position 10.
            assert!(out[..64].iter().all(|x| x.is_finite()), "{isa:?} {ty}");
            assert!(out[64..128].iter().all(|x| x.is_nan()), "{isa:?} {ty}");
        }
    }
}

#[test]
fn l7_room_for_split_rows_that_no_machine_has_is_an_error() {
    let layout = KvLayout::new(TensorType::F16, 1, 2, 1, 1 << 30).unwrap();
    let mut space = SplitSpace::default();
    let error = space.reserve(&layout, 1 << 22).unwrap_err();
    assert!(matches!(&error, crate::Error::OutOfMemory(text) if text.contains("split attention")), "{error}");
    assert_eq!(space.bytes(), 0);
    // One that can be had counts whole, and the cache with it.
    let layout = KvLayout::new(TensorType::F16, 4, 32, 32, 1024).unwrap();
    space.reserve(&layout, 8).unwrap();
    assert_eq!(space.bytes(), SplitSpace::floats(&layout, 8) * 4);
}
