// Counts and weighs the candidates in bins of their distance from the best. Integers only, so the order of adding is free.
//#include sample/common
//#include sample/best

var<workgroup> local_counts: array<atomic<u32>, BINS>;
var<workgroup> local_low: array<atomic<u32>, BINS>;
var<workgroup> local_high: array<atomic<u32>, BINS>;

const NO_BIN = 0xffffffffu;

fn flush(bin: u32, count: u32, mass: vec2<u32>) {
    if bin == NO_BIN {
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
    let row = best_of_row();
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
    // Neighbours often share a bin (ties, for example): their sums are kept until it changes. The last bin weighs nothing.
    var at = NO_BIN;
    var count = 0u;
    var mass = vec2<u32>(0u);
    var rest = 0u;
    var token = start + lid;
    loop {
        let inside = token < end;
        var bin = NO_BIN;
        var added = vec2<u32>(0u);
        if inside {
            let rank = finite_rank(rank_at(token));
            let logit = logit_of(rank);
            let alive = rank != RANK_DEAD;
            bin = select(BINS - 1u, bin_of(logit, best), alive);
            rest += select(0u, 1u, alive & (bin == BINS - 1u));
            if weighs {
                added = weight(below(logit, best, scale));
            }
        }
        let last = bin == BINS - 1u;
        if bin != at && !last {
            flush(at, count, mass);
            at = bin;
            count = 0u;
            mass = vec2<u32>(0u);
        }
        if !inside {
            break;
        }
        count += select(1u, 0u, last);
        mass = add64(mass, select(added, vec2<u32>(0u), last));
        token += THREADS;
    }
    if rest > 0u {
        atomicAdd(&local_counts[BINS - 1u], rest);
    }
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
