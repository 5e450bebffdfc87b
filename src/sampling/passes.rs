//! The passes over a whole row: the only code here whose cost grows with the vocabulary.
//!
//! Written over fixed lanes without branches or calls so that the compiler turns them into vector code. Their results
//! are maxima and integer sums, equal to the last bit at every vector width.

use super::weigh::{self, weight};

/// Logits per block: the row's maxima and masses are kept per block, so that later steps look into few of them.
pub(super) const BLOCK: usize = 128;
const LANES: usize = 16;

/// Bins of [`mass_bins`].
pub(super) const BINS: usize = 4096;

/// Writes the maximum of each block to `maxima` (one per started block; -inf where all are NaN) and says whether the row
/// holds a NaN.
pub(super) fn block_maxima(row: &[f32], maxima: &mut [f32]) -> bool {
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
}

/// Writes the sum of the weights of each block to `masses` and returns the whole sum.
pub(super) fn block_masses(row: &[f32], best: f32, scale: f32, masses: &mut [u64]) -> u64 {
    let mut total = 0;
    for (block, out) in row.chunks(BLOCK).zip(masses) {
        let mut lanes = [0u64; LANES];
        let (groups, rest) = block.as_chunks::<LANES>();
        for group in groups {
            for lane in 0..LANES {
                lanes[lane] += weight((group[lane] - best) * scale);
            }
        }
        let mass = lanes.iter().sum::<u64>() + rest.iter().map(|&x| weight((x - best) * scale)).sum::<u64>();
        *out = mass;
        total += mass;
    }
    total
}

/// The bin of a candidate: 128 bins per nat below the best, the last one for all that weigh nothing. Never falls as the
/// logit falls.
#[inline(always)]
pub(super) fn bin(z: f32) -> usize {
    const PER_NAT: f32 = BINS as f32 / -weigh::LOWEST;
    let below = -z * PER_NAT;
    let last = (BINS - 1) as f32;
    (if below < last { below } else { last }) as u32 as usize
}

/// Adds each candidate's weight to its bin and returns the whole sum.
pub(super) fn mass_bins(row: &[f32], best: f32, scale: f32, bins: &mut [u64; BINS]) -> u64 {
    bins.fill(0);
    let mut weights = [0u64; LANES];
    let mut places = [0u32; LANES];
    let (groups, rest) = row.as_chunks::<LANES>();
    for group in groups {
        for lane in 0..LANES {
            let z = (group[lane] - best) * scale;
            weights[lane] = weight(z);
            places[lane] = bin(z) as u32;
        }
        for lane in 0..LANES {
            bins[places[lane] as usize % BINS] += weights[lane];
        }
    }
    for &x in rest {
        let z = (x - best) * scale;
        bins[bin(z) % BINS] += weight(z);
    }
    bins.iter().sum()
}
