//! Counter-based randomness: Threefry2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! <https://doi.org/10.1145/2063384.2063405>).
//!
//! A draw is a function of the seed and a counter, without any state, so a stream is reproducible whatever was batched,
//! cancelled or rolled back before. The function uses 32-bit additions, rotations and exclusive-ors only, so that a
//! shader computes the same bits.

use std::hash::{BuildHasher, Hasher};

/// The draw index of the draw of a token.
pub const DRAW: u32 = 0;
/// The draw index of XTC.
pub const XTC: u32 = 1;

const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
const PARITY: u32 = 0x1bd1_1bda;

/// Threefry2x32-20 of `counter` under `key`.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], PARITY ^ key[0] ^ key[1]];
    let mut x0 = counter[0].wrapping_add(schedule[0]);
    let mut x1 = counter[1].wrapping_add(schedule[1]);
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(rotation) ^ x0;
        }
        let injection = group + 1;
        x0 = x0.wrapping_add(schedule[injection % 3]);
        x1 = x1.wrapping_add(schedule[(injection + 1) % 3]).wrapping_add(injection as u32);
    }
    [x0, x1]
}

/// The 32 random bits `r` of one draw; they mean the uniform number (r + 0.5) · 2^-32.
pub fn bits(seed: u64, position: u32, draw: u32) -> u32 {
    threefry2x32([seed as u32, (seed >> 32) as u32], [position, draw])[0]
}

/// The uniform number that 32 random bits mean.
pub fn uniform(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) / 4_294_967_296.0
}

/// A random seed from the system, different in every call.
pub fn unchosen_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (`kat_vectors`, threefry2x32, 20 rounds).
    #[test]
    fn gives_the_published_answers() {
        let cases = [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
            ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
        ];
        for (key, counter, answer) in cases {
            assert_eq!(threefry2x32(key, counter), answer);
        }
    }

    #[test]
    fn takes_the_seed_low_word_first() {
        assert_eq!(bits(0x0370_7344_1319_8a2e, 0x243f_6a88, 0x85a3_08d3), 0xc492_3a9c);
    }

    #[test]
    fn unchosen_seeds_differ() {
        assert_ne!(unchosen_seed(), unchosen_seed());
    }
}
