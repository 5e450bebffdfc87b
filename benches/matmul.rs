//! Matrix kernels by themselves, one thread: packing, one column (decode) and many columns (prompt).
//!
//! Prints medians for each weight format and shape, the current level only (`ELIZA_CPU_ISA` narrows it). GB/s count
//! the repacked weights read once; Gop/s count two operations for each weight and column.
//!
//! `cargo bench --bench matmul -- [formats, comma separated] [columns]`

use std::time::Instant;

use elizainference::backend::cpu::acts;
use elizainference::backend::cpu::isa::Isa;
use elizainference::backend::cpu::matmul::{Columns, matmul};
use elizainference::backend::cpu::panels::{ActKind, Panels};
use elizainference::quant::TensorType;

/// Seconds of the median run of at least 5, and of at least a fifth of a second together.
fn median(mut work: impl FnMut()) -> f64 {
    work();
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || begin.elapsed().as_secs_f64() < 0.2 {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
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
    println!("{:8} {:>6} x {:<7} {:>9} {:>9} {:>9}", "format", "in", "out", "pack GB/s", "1: GB/s", "many: Gop/s");
    for &ty in TensorType::ALL.iter().filter(|&&ty| Panels::supports(ty)) {
        if wanted.as_ref().is_some_and(|wanted| !wanted.iter().any(|name| name == ty.name())) {
            continue;
        }
        for (n_in, n_out) in [(1024, 3072), (2048, 5632), (1024, 151_936)] {
            let source = source(ty, n_in, n_out);
            let packing = median(|| {
                let mut panels = Panels::new(ty, n_in, n_out).expect("memory");
                let all = panels.n_panels();
                panels.pack(&source, 0..all).expect("a whole tensor");
            });
            let mut panels = Panels::new(ty, n_in, n_out).expect("memory");
            let all = panels.n_panels();
            panels.pack(&source, 0..all).expect("a whole tensor");
            let values: Vec<f32> = (0..n_in).map(|i| (i % 17) as f32 - 8.0).collect();
            let row_bytes = match panels.act_kind() {
                ActKind::F32 => n_in * 4,
                ActKind::Q8 => acts::row_bytes(n_in),
            };
            // Larger matrices take fewer columns, for all to fit memory and patience.
            let columns = if n_out > 100_000 { columns.min(32) } else { columns };
            let mut rows = vec![0u8; row_bytes * columns + 64];
            let offset = rows.as_ptr().align_offset(64);
            for row in rows[offset..].chunks_exact_mut(row_bytes) {
                match panels.act_kind() {
                    ActKind::F32 => {
                        row.copy_from_slice(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
                    }
                    ActKind::Q8 => acts::quantize_row(isa, &values, row),
                }
            }
            let mut out = vec![0f32; n_out * columns];
            let mut run = |count: usize| {
                let x = Columns { data: rows[offset..].as_ptr(), row_bytes, count };
                // SAFETY: packed panels; `rows` and `out` hold `columns` rows of the right length, count <= columns.
                median(|| unsafe { matmul(isa, &panels, 0..all, x, out.as_mut_ptr(), n_out, false) })
            };
            let (one, many) = (run(1), run(columns));
            println!(
                "{:8} {n_in:>6} x {n_out:<7} {:>9.2} {:>9.2} {:>9.1}",
                ty.name(),
                source.len() as f64 / packing / 1e9,
                panels.bytes() as f64 / one / 1e9,
                2.0 * (n_in * n_out * columns) as f64 / many / 1e9
            );
        }
    }
}
