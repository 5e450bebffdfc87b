//! Microseconds of the llama.cpp sampler's `apply` beside those of one pass over the same candidates, as a greedy
//! sampler makes it: a trie of 200 names that begin with different tokens, two vocabularies, and candidates in id
//! order, sorted by logit, shuffled, and sorted with the top 40 left. Run with `cargo bench --bench plugin`.
//!
//! Each figure is the median over rounds; the candidates are copied anew before each, outside the time taken. The last
//! columns are `apply`'s share of the pass.

#![allow(clippy::unwrap_used)] // a bench

use std::ffi::CString;
use std::time::Instant;

use elizainference::ffi::{
    TokenDataArray, eliza_inference_sampler_apply, eliza_inference_sampler_free, llama_sampler_init_token_trie,
};
use elizainference::sampling::random;
use elizainference::trie::Candidate;

const SIZES: [usize; 2] = [151_936, 262_144];
const NAMES: usize = 200;
const ROUNDS: usize = 201;

fn main() {
    println!(
        "{:24}{:>10}{:>12}{:>12}{:>12}{:>8}{:>8}",
        "candidates", "count", "pass us", "mode 0 us", "mode 1 us", "", ""
    );
    for size in SIZES {
        let id_order: Vec<Candidate> = (0..size)
            .map(|i| Candidate { id: i as i32, logit: random::bits(7, i as u32, 0) as f32 / 1e8, p: 0.0 })
            .collect();
        let mut sorted = id_order.clone();
        sorted.sort_by(|a, b| b.logit.total_cmp(&a.logit));
        let mut shuffled = id_order.clone();
        shuffled.sort_by_key(|one| random::bits(8, one.id as u32, 0));
        let top = sorted[..40].to_vec();
        let trie = payload(size);
        for (name, list) in [("id order", &id_order), ("sorted", &sorted), ("shuffled", &shuffled), ("top 40", &top)] {
            let pass = median(list, |list| {
                let mut best = 0;
                for (i, one) in list.iter().enumerate() {
                    if one.logit > list[best].logit {
                        best = i;
                    }
                }
                std::hint::black_box(best);
            });
            let [greedy, sampled] = [0, 1].map(|mode| apply(list, &trie, mode));
            println!(
                "{name:24}{:10}{pass:12.2}{greedy:12.2}{sampled:12.2}{:8.2}{:8.2}",
                list.len(),
                greedy / pass,
                sampled / pass
            );
        }
    }
}

/// 200 names of 3 tokens; the first tokens are spread over the vocabulary.
fn payload(n_vocab: usize) -> CString {
    let token = |name: usize, at: u32| random::bits(9, name as u32, at) as usize % n_vocab;
    let leaves: Vec<String> = (0..NAMES)
        .map(|i| {
            let first = (i * n_vocab + n_vocab / 2) / NAMES;
            format!(r#"{{"name":"{i}","tokens":[{first},{},{}]}}"#, token(i, 1), token(i, 2))
        })
        .collect();
    CString::new(format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, leaves.join(","))).unwrap()
}

fn apply(list: &[Candidate], trie: &CString, mode: i32) -> f64 {
    // SAFETY: the payload is terminated, and there is no vocabulary.
    let smpl = unsafe { llama_sampler_init_token_trie(std::ptr::null(), trie.as_ptr(), mode) };
    assert!(!smpl.is_null());
    let time = median(list, |list| {
        let mut array = TokenDataArray { data: list.as_mut_ptr(), size: list.len(), selected: -1, sorted: 0 };
        // SAFETY: a live sampler and a list of candidates.
        let status = unsafe { eliza_inference_sampler_apply(smpl, &raw mut array) };
        assert!(status == 0 && array.size == if mode == 0 { 1 } else { list.len() });
    });
    // SAFETY: a live sampler, and its last use.
    assert_eq!(unsafe { eliza_inference_sampler_free(smpl) }, 0);
    time
}

fn median(list: &[Candidate], mut work: impl FnMut(&mut [Candidate])) -> f64 {
    let mut scratch = list.to_vec();
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            scratch.copy_from_slice(list);
            let start = Instant::now();
            work(std::hint::black_box(&mut scratch));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
