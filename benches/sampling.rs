//! Microseconds per sampled token for a few chains over made-up logits (normal, standard deviation 2.5, 20 of them
//! raised by 8), at three vocabulary sizes. Run with `cargo bench --bench sampling`.
//!
//! Each figure is the median over rounds; the row is copied anew before each token, outside the time taken.

#![allow(clippy::unwrap_used)] // a bench

use std::time::Instant;

use elizainference::sampling::{Chain, Legal, Sampler, random};

const SIZES: [usize; 3] = [32_000, 151_936, 262_144];
const ROUNDS: u32 = 41;

fn row(n: usize) -> Vec<f32> {
    let uniform = |i: usize, draw: u32| (f64::from(random::bits(7, i as u32, draw)) + 0.5) / 4_294_967_296.0;
    let mut row: Vec<f32> = (0..n)
        .map(|i| (2.5 * (-2.0 * uniform(i, 0).ln()).sqrt() * (std::f64::consts::TAU * uniform(i, 1)).cos()) as f32)
        .collect();
    for i in 0..20 {
        row[random::bits(8, i, 0) as usize % n] += 8.0;
    }
    row
}

/// The bits of a mask that allows all but about one token in ten, as inside a string of JSON.
fn mask(n: usize) -> Vec<u32> {
    let mut bits = vec![0; n.div_ceil(32)];
    let legal = (0..n).filter(|&token| !random::bits(10, token as u32, 0).is_multiple_of(10));
    legal.for_each(|token| bits[token / 32] |= 1 << (token % 32));
    bits
}

fn main() {
    let chains = [
        ("greedy", "greedy"),
        ("temp, dist", "temp=0.8;dist"),
        ("top-k 40, top-p 0.95, min-p 0.05, temp, dist", "top_k=40;top_p=0.95;min_p=0.05;temp=0.8;dist"),
        ("top-p 0.95, temp, dist", "top_p=0.95;temp=0.8;dist"),
        (
            "penalties, top-k 40, top-p 0.95, min-p 0.05, temp, dist",
            "penalties=64,1.1,0.1,0.1;top_k=40;top_p=0.95;min_p=0.05;temp=0.8;dist",
        ),
        ("min-p 0.05, temp, dist", "min_p=0.05;temp=0.8;dist"),
        ("top-k 10000, temp, dist", "top_k=10000;temp=0.8;dist"),
    ];
    println!("{:58}{:>10}{:>10}{:>10}", "microseconds per token", SIZES[0], SIZES[1], SIZES[2]);
    for (name, text) in chains {
        line(name, text, |_| None);
    }
    let children: Vec<i32> = (0..30).map(|i| i * 1000 + 5).collect();
    let masks = SIZES.map(mask);
    let masked = |n: usize, greedy| {
        let bits = masks.iter().find(|bits| bits.len() == n.div_ceil(32));
        bits.map(|bits| Legal::mask(bits, 1, greedy))
    };
    let default = chains[2].1;
    line("30 legal tokens, greedy", default, |_| Some(Legal::list(&children, true)));
    line("30 legal tokens, the chain of the third line", default, |_| Some(Legal::list(&children, false)));
    line("a mask of nine tenths, greedy", default, |n| masked(n, true));
    line("a mask of nine tenths, the chain of the third line", default, |n| masked(n, false));
}

fn line<'a>(name: &str, text: &str, legal: impl Fn(usize) -> Option<Legal<'a>>) {
    let chain: Chain = text.parse().unwrap();
    print!("{name:58}");
    for size in SIZES {
        let (row, legal) = (row(size), legal(size));
        let mut sampler = Sampler::new(&chain, size, 1).unwrap();
        for i in 0..64 {
            sampler.accept(random::bits(9, i, 0) as i32 & 0x3fff);
        }
        let mut scratch = row.clone();
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|position| {
                scratch.copy_from_slice(&row);
                let start = Instant::now();
                std::hint::black_box(sampler.sample(std::hint::black_box(&mut scratch), legal, &[], position).unwrap());
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        print!("{:10.1}", times[times.len() / 2]);
    }
    println!();
}
