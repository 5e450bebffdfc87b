// Counts and weighs the candidates in bins of their distance from the best. Integers only, so the order of adding is free.
//#include sample_common
//#include sample_best

var<workgroup> local_counts: array<atomic<u32>, BINS>;
var<workgroup> local_low: array<atomic<u32>, BINS>;
var<workgroup> local_high: array<atomic<u32>, BINS>;

fn flush(bin: u32, count: u32, mass: vec2<u32>) {
    if count == 0u {
        return;
    }
    atomicAdd(&local_counts[bin], count);
    if any(mass != vec2<u32>(0u)) {
        let before = atomicAdd(&local_low[bin], mass.x);
        let high = mass.y + select(0u, 1u, before + mass.x < before);
        if high > 0u {
            atomicAdd(&local_high[bin], high);
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    if path_of() != PATH_SELECT {
        return;
    }
    let row = best_of_row(lid);
    if row.nan != 0xffffffffu || row.rank == RANK_DEAD {
        return;
    }
    for (var bin = lid; bin < BINS; bin += THREADS) {
        atomicStore(&local_counts[bin], 0u);
        atomicStore(&local_low[bin], 0u);
        atomicStore(&local_high[bin], 0u);
    }
    workgroupBarrier();
    let best = logit_of(row.rank);
    let scale = bitcast<f32>(spec[spec_at + SPEC_MASS_SCALE]);
    let weighs = spec[spec_at + SPEC_MASSES] != 0u;
    let start = group.x * frame.chunk;
    let end = min(start + frame.chunk, frame.n_vocab);
    // Neighbours often share a bin (ties, and the last bin, which weighs nothing): their sums are kept until it changes.
    var at = 0u;
    var count = 0u;
    var mass = vec2<u32>(0u);
    var rest = 0u;
    for (var token = start + lid; token < end; token += THREADS) {
        let rank = finite_rank(rank_at(token));
        if rank == RANK_DEAD {
            continue;
        }
        let logit = logit_of(rank);
        let bin = bin_of(logit, best);
        if bin == BINS - 1u {
            rest += 1u;
            continue;
        }
        if bin != at {
            flush(at, count, mass);
            at = bin;
            count = 0u;
            mass = vec2<u32>(0u);
        }
        count += 1u;
        if weighs {
            mass = add64(mass, weight(below(logit, best, scale)));
        }
    }
    flush(at, count, mass);
    flush(BINS - 1u, rest, vec2<u32>(0u));
    workgroupBarrier();
    for (var bin = lid; bin < BINS; bin += THREADS) {
        let count = atomicLoad(&local_counts[bin]);
        if count > 0u {
            atomicAdd(&bins[bins_at + bin], count);
            let low = atomicLoad(&local_low[bin]);
            var high = atomicLoad(&local_high[bin]);
            if low > 0u {
                let before = atomicAdd(&bins[bins_at + BINS + bin], low);
                high += select(0u, 1u, before + low < before);
            }
            if high > 0u {
                atomicAdd(&bins[bins_at + 2u * BINS + bin], high);
            }
        }
    }
}
