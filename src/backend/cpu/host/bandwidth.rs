//! The bandwidth of the host's memory. It bounds decoding, which reads every weight once for each token.

use std::hint::black_box;
use std::time::Instant;

/// Bytes read in a pass: more than the caches of common machines hold.
const BYTES: usize = 512 << 20;
const PASSES: usize = 6;

/// Bytes per second that `threads` threads together read from memory: the best of several passes.
pub fn measure(threads: usize) -> f64 {
    let words = vec![1u64; BYTES / 8];
    let part = words.len().div_ceil(threads.max(1));
    let pass = |_| {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(part) {
                scope.spawn(|| black_box(read(part)));
            }
        });
        BYTES as f64 / started.elapsed().as_secs_f64()
    };
    (0..PASSES).map(pass).fold(0.0, f64::max)
}

/// Reads `words` once, in order, and returns their sum, of enough partial sums that the loop is bound by memory and not
/// by additions.
pub fn read(words: &[u64]) -> u64 {
    let mut parts = [0u64; 16];
    for line in words.as_chunks::<16>().0 {
        for (part, word) in parts.iter_mut().zip(line) {
            *part = part.wrapping_add(*word);
        }
    }
    parts.iter().fold(0, |a, b| a.wrapping_add(*b))
}
