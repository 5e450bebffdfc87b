//! The passes over a whole row: the only code here whose cost grows with the vocabulary.
//!
//! Each is plain Rust over fixed lanes, without branches or calls, compiled once per instruction set, so that the
//! compiler makes the widest vector code of the processor. Results are maxima and integer sums, and a product is never
//! fused with a sum, so all instruction sets have the same bits.

use super::candidate::Candidate;
use super::statistics::units;
use super::weigh::{self, moment, weight};
use crate::Token;
use crate::simd::{Isa, LANES, compiled_for};

/// Logits per block: the row's maxima and masses are kept per block, so that later steps read few blocks.
pub(super) const BLOCK: usize = 128;

/// Bins of [`Passes::mass_bins`].
pub(super) const BINS: usize = 4096;

/// The passes, compiled for one instruction set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passes(pub(super) Isa);

impl Passes {
    /// Writes the maximum of each block to `maxima` (one per started block; -inf where all are NaN) and returns whether
    /// the row has a NaN.
    pub(super) fn block_maxima(self, row: &[f32], maxima: &mut [f32]) -> bool {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                let mut nan = [0u32; LANES];
                for (block, out) in row.chunks(BLOCK).zip(maxima) {
                    let mut lanes = [f32::NEG_INFINITY; LANES];
                    let (groups, rest) = block.as_chunks::<LANES>();
                    for group in groups {
                        for lane in 0..LANES {
                            let x = group[lane];
                            lanes[lane] = if x > lanes[lane] { x } else { lanes[lane] };
                            nan[lane] |= u32::from(x.is_nan());
                        }
                    }
                    for &x in rest {
                        lanes[0] = if x > lanes[0] { x } else { lanes[0] };
                        nan[0] |= u32::from(x.is_nan());
                    }
                    *out = lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
                }
                nan.iter().any(|&lane| lane != 0)
            },
        )
    }

    /// Writes the sum of the weights of each block to `masses` and returns the whole sum.
    pub(super) fn block_masses(self, row: &[f32], best: f32, scale: f32, masses: &mut [u64]) -> u64 {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                let mut total = 0;
                for (block, out) in row.chunks(BLOCK).zip(masses) {
                    let mut lanes = [0u64; LANES];
                    let (groups, rest) = block.as_chunks::<LANES>();
                    for group in groups {
                        for lane in 0..LANES {
                            lanes[lane] += weight((group[lane] - best) * scale);
                        }
                    }
                    *out = lanes.iter().sum::<u64>() + rest.iter().map(|&x| weight((x - best) * scale)).sum::<u64>();
                    total += *out;
                }
                total
            },
        )
    }

    /// Adds each candidate's weight to its bin and returns the whole sum.
    pub(super) fn mass_bins(self, row: &[f32], best: f32, scale: f32, bins: &mut [u64; BINS]) -> u64 {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                bins.fill(0);
                let mut weights = [0u64; BLOCK];
                let mut places = [0u32; BLOCK];
                for block in row.chunks(BLOCK) {
                    for ((&x, weight_out), place) in block.iter().zip(&mut weights).zip(&mut places) {
                        let z = (x - best) * scale;
                        *weight_out = weight(z);
                        *place = bin(z);
                    }
                    for (&weight, &place) in weights.iter().zip(&places).take(block.len()) {
                        bins[place as usize % BINS] += weight;
                    }
                }
                bins.iter().sum()
            },
        )
    }

    /// The number of candidates, the sum of their weights, and that of [`weigh::moment`].
    pub(super) fn moments(self, row: &[f32], best: f32, scale: f32) -> (u64, u64, u64) {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                let mut lanes = [[0u64; LANES]; 3];
                let (groups, rest) = row.as_chunks::<LANES>();
                for group in groups {
                    for lane in 0..LANES {
                        let z = (group[lane] - best) * scale;
                        lanes[0][lane] += u64::from(group[lane] > f32::NEG_INFINITY);
                        lanes[1][lane] += weight(z);
                        lanes[2][lane] += moment(z);
                    }
                }
                for &x in rest {
                    let z = (x - best) * scale;
                    lanes[0][0] += u64::from(x > f32::NEG_INFINITY);
                    lanes[1][0] += weight(z);
                    lanes[2][0] += moment(z);
                }
                (lanes[0].iter().sum(), lanes[1].iter().sum(), lanes[2].iter().sum())
            },
        )
    }

    /// The lowest logit of a candidate; +inf without any.
    pub(super) fn lowest(self, row: &[f32]) -> f32 {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                let mut lanes = [f32::INFINITY; LANES];
                let (groups, rest) = row.as_chunks::<LANES>();
                for group in groups {
                    for lane in 0..LANES {
                        let x = group[lane];
                        lanes[lane] = if x > f32::NEG_INFINITY && x < lanes[lane] { x } else { lanes[lane] };
                    }
                }
                let least = lanes.iter().fold(f32::INFINITY, |a, &b| a.min(b));
                rest.iter().filter(|x| **x > f32::NEG_INFINITY).fold(least, |a, &b| a.min(b))
            },
        )
    }

    /// The number of candidates, the sum of their distances from the best in [`units`], and that of the squares.
    pub(super) fn spreads(self, row: &[f32], best: f32, scale: f32) -> (u64, u64, u128) {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                let mut lanes = [[0u64; LANES]; 3];
                let (groups, rest) = row.as_chunks::<LANES>();
                for group in groups {
                    for lane in 0..LANES {
                        let distance = units(best, scale, group[lane]);
                        lanes[0][lane] += u64::from(group[lane] > f32::NEG_INFINITY);
                        lanes[1][lane] += distance;
                        lanes[2][lane] += distance * distance;
                    }
                }
                for &x in rest {
                    let distance = units(best, scale, x);
                    lanes[0][0] += u64::from(x > f32::NEG_INFINITY);
                    lanes[1][0] += distance;
                    lanes[2][0] += distance * distance;
                }
                let squares = lanes[2].iter().map(|&lane| u128::from(lane)).sum();
                (lanes[0].iter().sum(), lanes[1].iter().sum(), squares)
            },
        )
    }

    /// Collects the candidates whose logit is in `low..=high`, of those equal to `low` only the ones up to token
    /// `last`, by id, as long as they fit the capacity of `list`; returns whether all did. `maxima` are the blocks'
    /// maxima; blocks below `low` are not read.
    pub(super) fn between(
        self,
        row: &[f32],
        maxima: &[f32],
        low: f32,
        high: f32,
        last: Token,
        list: &mut Vec<Candidate>,
    ) -> bool {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                list.clear();
                for ((block, &max), number) in row.chunks(BLOCK).zip(maxima).zip(0..) {
                    if max < low {
                        continue;
                    }
                    for (group, start) in block.chunks(LANES).zip((number * BLOCK..).step_by(LANES)) {
                        let mut inside = 0;
                        for &x in group {
                            inside |= u32::from(x >= low) & u32::from(x <= high);
                        }
                        if inside == 0 {
                            continue;
                        }
                        for (&logit, id) in group.iter().zip(start..) {
                            let token = id as Token;
                            if (logit > low || (logit == low && token <= last)) && logit <= high {
                                if list.len() == list.capacity() {
                                    return false;
                                }
                                list.push(Candidate { token, logit });
                            }
                        }
                    }
                }
                true
            },
        )
    }

    /// Removes candidates below `floor`.
    pub(super) fn raise(self, row: &mut [f32], floor: f32) {
        compiled_for(
            self.0,
            #[inline(always)]
            move || {
                for x in row {
                    *x = if *x >= floor { *x } else { f32::NEG_INFINITY };
                }
            },
        )
    }
}

/// Sets every logit to -inf whose bit is not set, 32 to a word. A whole word costs one comparison, and one with few
/// zeroes a store for each: a mask inside a free text is nearly all of that.
pub(super) fn mask(row: &mut [f32], bits: &[u32]) {
    const FEW: u32 = 12;
    for (part, &word) in row.chunks_mut(32).zip(bits) {
        let unused = 32 - part.len() as u32;
        let mut cleared = !word << unused >> unused;
        if cleared.count_ones() <= FEW {
            while cleared != 0 {
                if let Some(logit) = part.get_mut(cleared.trailing_zeros() as usize) {
                    *logit = f32::NEG_INFINITY;
                }
                cleared &= cleared - 1;
            }
            continue;
        }
        let mut kept = [f32::NEG_INFINITY; 32];
        let mut left = word;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            if let (Some(to), Some(&logit)) = (kept.get_mut(at), part.get(at)) {
                *to = logit;
            }
            left &= left - 1;
        }
        part.copy_from_slice(&kept[..part.len()]);
    }
}

/// The bin of a candidate: 128 bins per nat below the best, the last one for all of weight 0. A lower logit never has a
/// lower bin.
#[inline(always)]
pub(super) fn bin(z: f32) -> u32 {
    const PER_NAT: f32 = BINS as f32 / -weigh::LOWEST;
    /// Adding 2^23 rounds to an integer and leaves it in the low bits.
    const SHIFT: f32 = 8_388_608.0;
    let below = z * -PER_NAT;
    let last = (BINS - 1) as f32;
    let below = if below < last { below } else { last };
    (below + SHIFT).to_bits() - SHIFT.to_bits()
}
