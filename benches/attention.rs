//! Attention and the pool by themselves: time of a step, arithmetic and bandwidth reached.
//!
//! `cargo bench --bench attention -- [threads] [part of a line's name]`. Times are the best of several, and with one
//! thread on Unix processor time, for machines that are busy with other things. Counted are the multiply-adds of the
//! cells that rows see (2 operations each), and the bytes of keys and values that one pass over the cache reads; beside
//! them, for one row on one thread, what share that is of a plain read of as many bytes. The first line is what
//! the same instruction set reaches in multiply-adds on registers alone.

#![allow(clippy::unwrap_used)]

use elizainference::backend::cpu::host::pool::{Counter, Pool, SharedMut};
use elizainference::backend::cpu::host::{bandwidth, default_thread_count};
use elizainference::backend::cpu::kernels::attention::{Attention, Scoring, SplitSpace, scratch_bytes};
use elizainference::backend::cpu::kv::{KvLayout, store_k, store_v};
use elizainference::quant::TensorType;
use elizainference::simd::Isa;
use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Seconds by a clock that stands still while other processes have the core.
#[cfg(unix)]
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and the clock exists everywhere.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(not(unix))]
fn processor_time() -> f64 {
    wall_time()
}

fn wall_time() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Seconds of the fastest call, which runs on this many threads.
fn best(threads: usize, mut call: impl FnMut()) -> f64 {
    let clock = if threads == 1 { processor_time } else { wall_time };
    let began = Instant::now();
    let mut best = f64::INFINITY;
    for calls in 0.. {
        let start = clock();
        call();
        best = best.min(clock() - start);
        if calls >= 5 && began.elapsed().as_secs_f64() > 0.3 {
            break;
        }
    }
    best
}

/// GFLOP/s of one core in multiply-adds that touch no memory.
#[cfg(target_arch = "x86_64")]
fn peak() -> f64 {
    #[target_feature(enable = "avx512f")]
    unsafe fn wide(n: usize) {
        use std::arch::x86_64::*;
        let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
        let mut sums: [__m512; 12] = std::array::from_fn(|i| _mm512_set1_ps(black_box(i as f32)));
        for _ in 0..n {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }
    if !is_x86_feature_detected!("avx512f") {
        return f64::NAN;
    }
    let n = 1_000_000;
    // SAFETY: the feature was just found.
    (n * 12 * 32) as f64 / best(1, || unsafe { wide(n) }) / 1e9
}

#[cfg(not(target_arch = "x86_64"))]
fn peak() -> f64 {
    f64::NAN
}

struct Bench {
    layout: KvLayout,
    heads: usize,
    k: Vec<u8>,
    v: Vec<u8>,
    cells: usize,
}

impl Bench {
    fn new(ty: TensorType, heads: usize, kv_heads: usize, dim: usize, cells: usize) -> Bench {
        let layout = KvLayout::new(ty, kv_heads, dim, dim, cells).unwrap();
        let (mut k, mut v) = (vec![0; layout.k_bytes()], vec![0; layout.v_bytes()]);
        let isa = Isa::detect();
        for cell in 0..cells {
            let row: Vec<f32> = (0..dim).map(|j| ((j * 31 + cell * 17) % 101) as f32 / 100.0 - 0.5).collect();
            for head in 0..kv_heads {
                // SAFETY: one thread.
                unsafe {
                    store_k(isa, &layout, SharedMut::new(&mut k), cell, head, &row);
                    store_v(isa, &layout, SharedMut::new(&mut v), cell, head, &row);
                }
            }
        }
        Bench { layout, heads, k, v, cells }
    }

    fn run(&self, isa: Isa, rows: usize, threads: usize) -> f64 {
        let dim = self.layout.head_dim_k();
        let q: Vec<f32> = (0..rows * self.heads * dim).map(|i| (i % 89) as f32 / 89.0 - 0.5).collect();
        let mut out = vec![0f32; q.len()];
        let cell_pos: Vec<i32> = (0..self.layout.n_cells() as i32).collect();
        let cell_seq: Vec<u32> = (0..self.layout.n_cells()).map(|i| u32::from(i < self.cells)).collect();
        let row_pos: Vec<i32> = ((self.cells - rows) as i32..self.cells as i32).collect();
        let attention = Attention {
            layout: &self.layout,
            n_heads: self.heads,
            scoring: Scoring { scale: 1.0 / (dim as f32).sqrt(), ..Scoring::default() },
            k: &self.k,
            v: &self.v,
            q: &q,
            q_stride: self.heads * dim,
            row_pos: &row_pos,
            row_seq: &vec![1; rows],
            cell_pos: &cell_pos,
            cell_seq: &cell_seq,
            lists: &[],
            n_kv: self.cells,
        };
        let tasks = attention.tasks(threads);
        let mut space = SplitSpace::default();
        space.reserve(&self.layout, self.heads).unwrap();
        let (split, shared, counter) = (space.share(), SharedMut::new(&mut out), Counter::new());
        let scratch = vec![0f32; scratch_bytes(&self.layout, self.heads) / 4];
        let scratch: Vec<_> = (0..threads).map(|_| Mutex::new(scratch.clone())).collect();
        best(threads, || {
            Pool::global()
                .run(threads, &NEVER, &|worker| {
                    let mut scratch = scratch[worker.index()].lock().unwrap();
                    for task in worker.chunks(&counter, tasks.count, 1) {
                        // SAFETY: chunks are claimed once, and the step ends with the run.
                        unsafe { attention.run(isa, &tasks, task.start, &mut scratch, split, shared) };
                    }
                })
                .unwrap();
        })
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let threads = args.iter().filter_map(|arg| arg.parse().ok()).next().unwrap_or_else(default_thread_count);
    let filter = args.iter().find(|arg| arg.parse::<usize>().is_err()).map_or("", |arg| arg);
    println!("peak of one core: {:.0} GFLOP/s (AVX-512)", peak());
    let empty = best(threads, || Pool::global().run(threads, &NEVER, &|_| ()).unwrap());
    let barriers =
        best(threads, || Pool::global().run(threads, &NEVER, &|w| (0..100).for_each(|_| w.barrier())).unwrap());
    println!("pool, {threads} threads: run {:.2} us, barrier {:.2} us", empty * 1e6, barriers * 1e4);
    println!("{:48} {:>4} {:>10} {:>8} {:>8} {:>6}", "", "thr", "us", "GFLOP/s", "GB/s", "share");
    for (heads, kv_heads, dim) in [(16, 8, 128), (32, 4, 64), (4, 1, 256)] {
        for (what, rows, cells) in [
            ("decode 512", 1, 512),
            ("decode 4096", 1, 4096),
            ("decode 32768", 1, 32_768),
            ("prompt 512", 512, 512),
            ("prompt 512 of 4096", 512, 4096),
        ] {
            for ty in [TensorType::F16, TensorType::Q8_0, TensorType::F32] {
                for isa in Isa::available() {
                    let name = format!("{what} ({heads}, {kv_heads}, {dim}) {isa:?} {ty}");
                    if !name.contains(filter) {
                        continue;
                    }
                    let bench = Bench::new(ty, heads, kv_heads, dim, cells);
                    for threads in if threads > 1 { vec![1, threads] } else { vec![1] } {
                        let seconds = bench.run(isa, rows, threads);
                        let seen = rows * (2 * cells - rows + 1) / 2;
                        let flops = (seen * heads * dim * 4) as f64 / 1e9;
                        let bytes = (bench.k.len() + bench.v.len()) as f64 / 1e9;
                        let (us, flops, bytes) = (seconds * 1e6, flops / seconds, bytes / seconds);
                        print!("{name:48} {threads:>4} {us:>10.1} {flops:>8.1} {bytes:>8.1}");
                        if (rows, threads) == (1, 1) {
                            let words = vec![1u64; (bench.k.len() + bench.v.len()) / 8];
                            print!(" {:>6.2}", best(1, || _ = black_box(bandwidth::read(&words))) / seconds);
                        }
                        println!();
                    }
                }
            }
        }
    }
}
