//! Matrix kernels by themselves, one thread: packing, one column (decode) and many columns (prompt).
//!
//! Prints medians for each weight format and shape, the current level only (`ELIZA_CPU_ISA` narrows it). GB/s count
//! the repacked weights read once; Gop/s count two operations for each weight and column. What one column's share is
//! of, is a plain read of as many bytes, in turns with it: the first two shapes lie in the caches, the last in memory.
//!
//! `cargo bench --bench matmul -- [formats, comma separated] [columns]`

#![allow(clippy::expect_used)]

use elizainference::backend::cpu::host::bandwidth;
use elizainference::backend::cpu::kernels::activations;
use elizainference::backend::cpu::kernels::matmul::{Columns, matmul};
use elizainference::backend::cpu::packed::{ActivationKind, PackedMatrix};
use elizainference::quant::TensorType;
use elizainference::simd::Isa;
use std::hint::black_box;

/// The time this thread has run, so that other work on the machine counts only through the memory it uses.
#[cfg(unix)]
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The time since the first call.
#[cfg(not(unix))]
fn now() -> f64 {
    use std::{sync::OnceLock, time::Instant};
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Seconds of the median and the best of at least 5 runs, and of at least a fifth of a second together.
fn seconds(mut work: impl FnMut()) -> (f64, f64) {
    work();
    let mut times = Vec::new();
    let begin = now();
    while times.len() < 5 || now() - begin < 0.2 {
        let start = now();
        work();
        times.push(now() - start);
    }
    ends(times)
}

/// [`seconds`] of two pieces of work in turns.
fn in_turns(mut one: impl FnMut(), mut other: impl FnMut()) -> [(f64, f64); 2] {
    let (mut times, begin) = ([Vec::new(), Vec::new()], now());
    while times[0].len() < 10 || now() - begin < 0.4 {
        for (times, work) in times.iter_mut().zip([&mut one as &mut dyn FnMut(), &mut other]) {
            let start = now();
            work();
            times.push(now() - start);
        }
    }
    times.map(ends)
}

/// The median and the least.
fn ends(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

/// Bytes that make ordinary weights of any format: scales near one, codes of all kinds.
fn source(ty: TensorType, n_in: usize, n_out: usize) -> Vec<u8> {
    let bytes = n_in / ty.block_len() * ty.block_bytes() * n_out;
    let mut state = 1u32;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8 & 0x3f
        })
        .collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = arguments.first().map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>());
    let columns: usize = arguments.get(1).and_then(|count| count.parse().ok()).unwrap_or(512);
    let isa = Isa::detect();
    println!("level {}, one thread", isa.name());
    println!(
        "{:8} {:>6} x {:<7} {:>15} {:>15} {:>15} {:>6} {:>15}  median (best)",
        "format", "in", "out", "pack GB/s", "1 column GB/s", "read GB/s", "share", "many Gop/s"
    );
    for &ty in TensorType::ALL.iter().filter(|&&ty| PackedMatrix::supports(ty)) {
        if wanted.as_ref().is_some_and(|wanted| !wanted.iter().any(|name| name == ty.name())) {
            continue;
        }
        for (n_in, n_out) in [(1024, 3072), (2048, 5632), (1024, 151_936)] {
            let source = source(ty, n_in, n_out);
            let packing = seconds(|| {
                let mut panels = PackedMatrix::new(ty, n_in, n_out).expect("memory");
                let all = panels.n_panels();
                panels.pack(&source, 0..all).expect("a whole tensor");
            });
            let mut panels = PackedMatrix::new(ty, n_in, n_out).expect("memory");
            let all = panels.n_panels();
            panels.pack(&source, 0..all).expect("a whole tensor");
            let values: Vec<f32> = (0..n_in).map(|i| (i % 17) as f32 - 8.0).collect();
            let row_bytes = match panels.activation_kind() {
                ActivationKind::F32 => n_in * 4,
                ActivationKind::Q8 => activations::row_bytes(n_in),
            };
            // Larger matrices take fewer columns, for all to fit memory and patience.
            let columns = if n_out > 100_000 { columns.min(32) } else { columns };
            let mut rows = vec![0u8; row_bytes * columns + 64];
            let offset = rows.as_ptr().align_offset(64);
            for row in rows[offset..].chunks_exact_mut(row_bytes) {
                match panels.activation_kind() {
                    ActivationKind::F32 => {
                        row.copy_from_slice(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
                    }
                    ActivationKind::Q8 => activations::quantize_row(isa, &values, row),
                }
            }
            let mut out = vec![0f32; n_out * columns];
            let words = vec![1u64; panels.bytes() / 8];
            let mut run = |count: usize| {
                let x = Columns { data: rows[offset..].as_ptr(), row_bytes, count };
                // SAFETY: packed panels; `rows` and `out` hold `columns` rows of the right length, count <= columns.
                unsafe { matmul(isa, &panels, 0..all, x, out.as_mut_ptr(), n_out, false) }
            };
            let [one, read] = in_turns(|| run(1), || _ = black_box(bandwidth::read(&words)));
            let many = seconds(|| run(columns));
            let rate = |size: f64, (median, best): (f64, f64)| {
                format!("{:.1} ({:.1})", size / median / 1e9, size / best / 1e9)
            };
            println!(
                "{:8} {n_in:>6} x {n_out:<7} {:>15} {:>15} {:>15} {:>6.2} {:>15}",
                ty.name(),
                rate(source.len() as f64, packing),
                rate(panels.bytes() as f64, one),
                rate(panels.bytes() as f64, read),
                read.0 / one.0,
                rate(2.0 * (n_in * n_out * columns) as f64, many)
            );
        }
    }
}
