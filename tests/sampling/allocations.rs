//! Sampling a token allocates nothing once the sampler is set up.

use crate::testing::allocator::allocations;
use elizainference::Token;
use elizainference::sampling::{Legal, Sampler, random};

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(5)))), 1);
}

#[test]
fn sampling_allocates_nothing() {
    let n = 20_000;
    let rows: Vec<Vec<f32>> = vec![
        (0..n).map(|i| (random::bits(1, i as u32, 0) % 10_000) as f32 / 700.0).collect(),
        vec![1.0; n],
        (0..n).map(|i| if i % 2 == 0 { f32::NEG_INFINITY } else { (i % 5) as f32 }).collect(),
        (0..n).map(|i| if i == 77 { f32::INFINITY } else { -(i as f32) }).collect(),
    ];
    let few: Vec<Token> = (0..30).map(|i| i * 600 + 1).collect();
    let many: Vec<Token> = (0..9000).map(|i| i * 2 + 1).collect();
    let sparse: Vec<u32> = (0..n as u32 / 32).map(|i| u32::from(i % 9 == 0)).collect();
    let dense: Vec<u32> = (0..n as u32 / 32).map(|i| !(i % 7)).collect();
    for chain in [
        "greedy",
        "temp=0.8",
        "top_k=40;top_p=0.95;min_p=0.05;temp=0.8",
        "top_k=3000;temp=2",
        "top_p=0.95",
        "top_p=0.5,5000;temp=0.7",
        "min_p=0.01,10",
        "logit_bias=5:1,6:-inf;penalties=64,1.1,0.1,0.1;top_k=40;trie;temp=0.8",
        "temp=0",
        "dynatemp=1,0.5,1",
        "top_k=40;dynatemp=1,0.5,1.5;penalties=64,1.1,0.1,0.1",
        "dry=0.8,1.75,1,64,none;top_k=40;mirostat=5,0.1",
        "temp=0.9;mirostat_v2=5,0.1",
        "adaptive_p=0.3,0.9",
        "top_k=100;xtc=0.5,0.01;adaptive_p=0.3,0.9",
        "rng=mt19937;top_p=0.95;penalties=64,1.1,0,0;xtc=0.5,0.01;temp=0.8",
        "rng=mt19937;typ_p=0.9;dry=0.8,1.75,1,64,none",
        "rng=mt19937;mirostat=5,0.1",
    ] {
        let mut sampler = Sampler::new(&chain.parse().unwrap(), n, 1).unwrap();
        sampler.keep_candidates(10);
        let mut scratch = vec![0.0; n];
        let spent = allocations(|| {
            for position in 0..40u32 {
                for row in &rows {
                    let greedy = position % 2 == 0;
                    let lists = [&few, &many].map(|tokens| Some(Legal::list(tokens, greedy)));
                    let masks = [&sparse, &dense].map(|bits| Some(Legal::mask(bits, 1, greedy)));
                    for legal in [None].into_iter().chain(lists).chain(masks) {
                        scratch.copy_from_slice(row);
                        let token = sampler.sample(&mut scratch, legal, &[2, 3], position).unwrap();
                        sampler.accept(token);
                        sampler.accept((position * 31) as Token);
                    }
                }
                let left = (0..4000).rev().map(|token| (token, (token % 61) as f32));
                sampler.resume(1, left, None, position).unwrap();
            }
            sampler.restart(0);
        });
        assert_eq!(spent, 0, "{chain}");
    }
}
