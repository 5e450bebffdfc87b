// Counts and weighs the candidates in bins of their distance from the best, and adds up what the standard deviation is made
// of where the first step asks for it. Integers only, so the order of adding is free.
//#include sample/common
//#include sample/best
//#include sample/units

var<workgroup> local_counts: array<atomic<u32>, BINS>;
var<workgroup> local_low: array<atomic<u32>, BINS>;
var<workgroup> local_high: array<atomic<u32>, BINS>;

// The number of candidates, the sum of their distances, and that of the squares.
var<workgroup> local_spread: array<atomic<u32>, SPREAD_WORDS>;

const NO_BIN = 0xffffffffu;

fn spread(at: u32, sum: vec2<u32>) {
    let before = atomicAdd(&local_spread[at], sum.x);
    atomicAdd(&local_spread[at + 1u], sum.y + select(0u, 1u, before + sum.x < before));
}

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
    if lid < SPREAD_WORDS {
        atomicStore(&local_spread[lid], 0u);
    }
    workgroupBarrier();
    let best = logit_of(row.rank);
    let spreads = spec[spec_at + SPEC_SPREADS] != 0u;
    var units = 0.0f;
    if spreads {
        units = units_of(best, logit_of(least_of_row()));
    }
    var candidates = 0u;
    var distances = vec2<u32>(0u);
    var squares = vec2<u32>(0u);
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
            if spreads && alive {
                let distance = distance_of(logit, best, units);
                candidates += 1u;
                distances = add64(distances, vec2<u32>(distance, 0u));
                squares = add64(squares, mul32(distance, distance));
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
    if spreads {
        atomicAdd(&local_spread[0], candidates);
        spread(1u, distances);
        spread(3u, squares);
    }
    workgroupBarrier();
    if spreads && lid == 0u {
        let at = bins_at + SPREAD;
        atomicAdd(&bins[at], atomicLoad(&local_spread[0]));
        for (var i = 1u; i < SPREAD_WORDS + zero; i += 2u) {
            let low = atomicLoad(&local_spread[i]);
            let before = atomicAdd(&bins[at + i], low);
            atomicAdd(&bins[at + i + 1u], atomicLoad(&local_spread[i + 1u]) + select(0u, 1u, before + low < before));
        }
    }
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
