// Decides from the bins which candidates must be looked at one by one, and collects those.
//
// A truncation keeps the candidates before a boundary, in the order of (logit descending, id ascending). Which bin the
// boundary lies in is known from the bins' sums; where an earlier boundary is not resolved yet, two bins bound it. Only
// the candidates of these bins are collected: of the others, the sums are enough. Where few candidates are left in all,
// they are collected too. What follows then gives the same candidates as if the whole row had been sorted.
//#include sample/common
//#include sample/best
//#include sample/sums
//#include sample/units

// Behind the chain.
const OP_REPORT = 100u;
const OP_END = 101u;

// Sums of all bins up to and with each.
var<workgroup> counts: array<u32, BINS>;
var<workgroup> masses: array<vec2<u32>, BINS>;
// One bit per bin whose candidates are collected.
var<workgroup> listed: array<u32, BINS / 32>;
var<workgroup> verdict: u32;

// Ranges of bins that are collected, the last ones first.
var<private> ranges: array<vec2<u32>, RANGES>;
var<private> n_ranges: u32;

fn bin_of_count(count: u32) -> u32 {
    var low = 0u;
    var high = BINS;
    while low < high {
        let middle = (low + high) / 2u;
        if counts[middle] < count {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

fn bin_of_mass(mass: vec2<u32>) -> u32 {
    var low = 0u;
    var high = BINS;
    while low < high {
        let middle = (low + high) / 2u;
        if less64(masses[middle], mass) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

fn count_before(bin: u32) -> u32 {
    if bin == 0u {
        return 0u;
    }
    return counts[bin - 1u];
}

fn mass_before(bin: u32) -> vec2<u32> {
    if bin == 0u {
        return vec2<u32>(0u);
    }
    return masses[bin - 1u];
}

fn listed_count() -> u32 {
    var count = 0u;
    for (var i = 0u; i < n_ranges; i++) {
        count += counts[ranges[i].y] - count_before(ranges[i].x);
    }
    return count;
}

// What the ranges are; returns how the row goes on. After the chain come the report and the end. The first step may keep
// what is not below `lowest`.
fn plan(best: f32, lowest: f32) -> u32 {
    // The boundary lies in bins low..=high; BINS means none.
    var low = BINS;
    var high = BINS;
    // Whether all candidates that are left must be in the list.
    var whole = false;
    var report_to = BINS;
    var verdict = MODE_LIST;
    n_ranges = 0u;
    let ops = ops_count();
    for (var i = spec[spec_at + SPEC_FIRST]; i < ops + 2u; i++) {
        let op = op_at(min(i, ops - 1u));
        var kind = select(OP_REPORT, OP_END, i > ops);
        if i < ops {
            kind = word(op, 0u);
        }
        whole = whole || changes_logits(kind) || kind == OP_DYNAMIC;
        whole = whole || kind == OP_TYPICAL || (kind == OP_XTC && acts(op)) || (kind == OP_SIGMA && word(op, 2u) == 0u);
        whole = whole || (kind == OP_TRIE && armed() != CHILDREN_NONE && masked_at == 0u) || (kind == OP_TOP_P && word(op, 4u) == 0u);
        let bounds = kind == OP_TOP_K || kind == OP_MIN_P || kind == OP_TOP_P || kind == OP_SIGMA;
        if (whole && i < ops) || (!bounds && i < ops) {
            continue;
        }
        // The bin up to which candidates are kept for their number alone.
        var least = 0u;
        switch kind {
            case OP_TOP_K: {
                least = word(op, 1u);
            }
            case OP_MIN_P: {
                least = word(op, 2u);
            }
            case OP_TOP_P: {
                least = word(op, 3u);
            }
            case OP_REPORT: {
                least = spec[spec_at + SPEC_REPORT];
            }
            default: {}
        }
        var from_bin = bin_of_count(least);
        var to_bin = from_bin;
        if kind == OP_REPORT {
            report_to = min(from_bin, BINS - 1u);
            continue;
        }
        if kind == OP_MIN_P || kind == OP_SIGMA {
            let to_logit = select(lowest_of(best, number(op, 1u)), lowest, kind == OP_SIGMA);
            from_bin = max(from_bin, bin_of(to_logit, best));
            from_bin = select(from_bin, BINS, kind == OP_SIGMA && lowest == -GREATEST);
            to_bin = from_bin;
        }
        if kind == OP_TOP_P {
            // What is left weighs as much as all before the boundary's first bin at least, and up to its last at most.
            for (var side = 0u; side < 2u + zero; side++) {
                let total = mass_before(select(low, min(high + 1u, BINS), side == 1u));
                let bin = bin_of_mass(needed(total, word(op, 1u), word(op, 2u)));
                from_bin = select(from_bin, max(from_bin, bin), side == 0u);
                to_bin = select(to_bin, max(to_bin, bin), side == 1u);
            }
        }
        if kind == OP_END {
            // All that is left is collected if it fits.
            let last = min(high, BINS - 1u);
            var all = counts[last];
            if n_ranges > 0u {
                all = listed_count() + count_before(ranges[n_ranges - 1u].x);
            }
            from_bin = 0u;
            to_bin = last;
            if all > LIST {
                verdict = select(MODE_CUT, MODE_EXACT, whole);
                to_bin = min(last, report_to);
                if spec[spec_at + SPEC_REPORT] == 0u {
                    to_bin = BINS;
                }
            }
        } else {
            from_bin = min(from_bin, low);
            to_bin = min(to_bin, high);
            if from_bin == low && to_bin == high {
                continue;
            }
            low = select(low, from_bin, to_bin < BINS);
            high = min(high, to_bin);
        }
        if to_bin < BINS {
            // New ranges never come after earlier ones; where they touch they become one.
            var range = vec2<u32>(from_bin, to_bin);
            while n_ranges > 0u && ranges[n_ranges - 1u].x <= range.y {
                n_ranges -= 1u;
                range = vec2<u32>(min(range.x, ranges[n_ranges].x), max(range.y, ranges[n_ranges].y));
            }
            ranges[n_ranges] = range;
            n_ranges += 1u;
        }
    }
    if verdict == MODE_CUT && listed_count() > LIST {
        return MODE_EXACT;
    }
    return verdict;
}

// For the workgroup that finishes: each range with the index of its first candidate, and count and mass of all that is
// not collected before it; then those of the whole row.
fn write_plan() {
    var count = 0u;
    var mass = vec2<u32>(0u);
    for (var i = 0u; i <= n_ranges; i++) {
        var range = vec2<u32>(BINS, BINS);
        if i < n_ranges {
            range = ranges[n_ranges - 1u - i];
        }
        let missing = sub64(mass_before(range.x), mass);
        let at = state_at + STATE_RANGES + i * RANGE_WORDS;
        state[at] = range.x;
        state[at + 1u] = count;
        state[at + 2u] = count_before(range.x) - count;
        state[at + 3u] = missing.x;
        state[at + 4u] = missing.y;
        if i < n_ranges {
            count += counts[range.y] - count_before(range.x);
            mass = add64(mass, sub64(masses[range.y], mass_before(range.x)));
        }
    }
    state[state_at + STATE_N_RANGES] = n_ranges;
    state[state_at + STATE_N_LISTED] = count;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    if path_of() != PATH_SELECT {
        return;
    }
    let row = best_of_row();
    if row.nan != 0xffffffffu || row.rank == RANK_DEAD {
        if group.x == 0u && lid == 0u {
            state[state_at + STATE_MODE] = MODE_FAILED;
            state[state_at + STATE_STATUS] = select(STATUS_NONE, STATUS_NAN, row.nan != 0xffffffffu);
            state[state_at + STATE_TOLD] = row.nan;
        }
        return;
    }
    let best = logit_of(row.rank);
    let own = lid * (BINS / THREADS);
    var count = 0u;
    var mass = vec2<u32>(0u);
    for (var i = 0u; i < BINS / THREADS + zero; i++) {
        let bin = bins_at + own + i;
        count += atomicLoad(&bins[bin]);
        mass = add64(mass, vec2<u32>(atomicLoad(&bins[bin + BINS]), atomicLoad(&bins[bin + 2u * BINS])));
        counts[own + i] = count;
        masses[own + i] = mass;
    }
    let up_to = sum_up_to(lid, Sum(mass, count));
    let before = Sum(sub64(up_to.mass, mass), up_to.count - count);
    for (var i = 0u; i < BINS / THREADS + zero; i++) {
        counts[own + i] += before.count;
        masses[own + i] = add64(masses[own + i], before.mass);
    }
    for (var i = lid; i < BINS / 32u; i += THREADS) {
        listed[i] = 0u;
    }
    workgroupBarrier();
    if lid == 0u {
        var lowest = -GREATEST;
        if spec[spec_at + SPEC_SPREADS] != 0u {
            let at = bins_at + SPREAD;
            let sum = vec2<u32>(atomicLoad(&bins[at + 1u]), atomicLoad(&bins[at + 2u]));
            let squares = vec2<u32>(atomicLoad(&bins[at + 3u]), atomicLoad(&bins[at + 4u]));
            let least = logit_of(least_of_row());
            let times = bitcast<f32>(spec[spec_at + SPEC_SPREADS]);
            lowest = lowest_within(times, best, least, atomicLoad(&bins[at]), sum, squares);
        }
        verdict = plan(best, lowest);
        for (var i = 0u; i < n_ranges; i++) {
            for (var bin = ranges[i].x; bin <= ranges[i].y; bin++) {
                listed[bin >> 5u] |= 1u << (bin & 31u);
            }
        }
        if group.x == 0u {
            write_plan();
            state[state_at + STATE_MODE] = verdict;
            state[state_at + STATE_BEST] = row.rank;
            state[state_at + STATE_LOWEST] = bitcast<u32>(lowest);
        }
    }
    workgroupBarrier();
    if verdict == MODE_EXACT {
        return;
    }
    let start = group.x * frame.chunk;
    let end = min(start + frame.chunk, frame.n_vocab);
    for (var token = start + lid; token < end; token += THREADS) {
        let rank = finite_rank(rank_at(token));
        if rank == RANK_DEAD {
            continue;
        }
        let bin = bin_of(logit_of(rank), best);
        if ((listed[bin >> 5u] >> (bin & 31u)) & 1u) == 1u {
            let index = atomicAdd(&bins[bins_at + APPENDED], 1u);
            if index < LIST {
                let at = work_at + CANDIDATES_AT + 2u * index;
                work[at] = rank;
                work[at + 1u] = token;
            }
        }
    }
}
