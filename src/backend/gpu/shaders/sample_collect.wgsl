// Decides from the bins which candidates must be looked at one by one, and collects those.
//
// A truncation keeps the candidates before a boundary, in the order of (logit descending, id ascending). Which bin the
// boundary lies in is known from the bins' sums; where an earlier boundary is not resolved yet, two bins bound it. Only
// the candidates of these bins are collected: of the others, the sums are enough. Where few candidates are left in all,
// they are collected too. What follows then gives the same candidates as if the whole row had been sorted.
//#include sample_common
//#include sample_best
//#include sample_sums

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

// New ranges never lie behind those before; where they touch they become one.
fn add_range(low: u32, high: u32) {
    var range = vec2<u32>(low, high);
    while n_ranges > 0u && ranges[n_ranges - 1u].x <= range.y {
        n_ranges -= 1u;
        range = vec2<u32>(min(range.x, ranges[n_ranges].x), max(range.y, ranges[n_ranges].y));
    }
    ranges[n_ranges] = range;
    n_ranges += 1u;
}

fn listed_count() -> u32 {
    var count = 0u;
    for (var i = 0u; i < n_ranges; i++) {
        count += counts[ranges[i].y] - count_before(ranges[i].x);
    }
    return count;
}

// What the ranges are; says how the row goes on.
fn plan(best: f32) -> u32 {
    // The boundary lies in bins low..=high; BINS stands for none.
    var low = BINS;
    var high = BINS;
    var whole = false;
    n_ranges = 0u;
    for (var i = spec[spec_at + SPEC_FIRST]; i < ops_count() && !whole; i++) {
        let op = op_at(i);
        var from_bin = BINS;
        var to_bin = BINS;
        switch word(op, 0u) {
            case OP_SCALE: {}
            case OP_TOP_K: {
                from_bin = bin_of_count(word(op, 1u));
                to_bin = from_bin;
            }
            case OP_MIN_P: {
                from_bin = bin_of(lowest_of(best, number(op, 1u)), best);
                if word(op, 2u) > 1u {
                    from_bin = max(from_bin, bin_of_count(word(op, 2u)));
                }
                to_bin = from_bin;
            }
            case OP_TOP_P: {
                if word(op, 4u) == 0u {
                    whole = true;
                } else {
                    let least = needed(mass_before(low), word(op, 1u), word(op, 2u));
                    let most = needed(mass_before(min(high + 1u, BINS)), word(op, 1u), word(op, 2u));
                    from_bin = bin_of_mass(least);
                    to_bin = bin_of_mass(most);
                    if word(op, 3u) > 1u {
                        let kept = bin_of_count(word(op, 3u));
                        from_bin = max(from_bin, kept);
                        to_bin = max(to_bin, kept);
                    }
                }
            }
            case OP_TRIE: {
                whole = armed() != CHILDREN_NONE;
            }
            default: {
                whole = true;
            }
        }
        from_bin = min(from_bin, low);
        to_bin = min(to_bin, high);
        if to_bin < BINS && (from_bin != low || to_bin != high) {
            low = from_bin;
            high = to_bin;
            add_range(low, high);
        }
    }
    let last = min(high, BINS - 1u);
    let before = n_ranges;
    let lowest = ranges[max(n_ranges, 1u) - 1u];
    add_range(0u, last);
    if listed_count() <= LIST {
        return MODE_LIST;
    }
    if whole {
        return MODE_EXACT;
    }
    // The last range began the one that was added.
    n_ranges = before;
    if before > 0u {
        ranges[before - 1u] = lowest;
    }
    let reported = spec[spec_at + SPEC_REPORT];
    if reported > 0u {
        add_range(0u, min(last, bin_of_count(reported)));
    }
    return select(MODE_EXACT, MODE_CUT, listed_count() <= LIST);
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
    let row = best_of_row(lid);
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
    for (var i = 0u; i < BINS / THREADS; i++) {
        let bin = bins_at + own + i;
        count += atomicLoad(&bins[bin]);
        mass = add64(mass, vec2<u32>(atomicLoad(&bins[bin + BINS]), atomicLoad(&bins[bin + 2u * BINS])));
        counts[own + i] = count;
        masses[own + i] = mass;
    }
    let others = sum_up_to(lid, vec2<u32>(count, 0u)).x - count;
    let other_mass = sub64(sum_up_to(lid, mass), mass);
    for (var i = 0u; i < BINS / THREADS; i++) {
        counts[own + i] += others;
        masses[own + i] = add64(masses[own + i], other_mass);
    }
    for (var i = lid; i < BINS / 32u; i += THREADS) {
        listed[i] = 0u;
    }
    workgroupBarrier();
    if lid == 0u {
        verdict = plan(best);
        for (var i = 0u; i < n_ranges; i++) {
            for (var bin = ranges[i].x; bin <= ranges[i].y; bin++) {
                listed[bin >> 5u] |= 1u << (bin & 31u);
            }
        }
        if group.x == 0u {
            write_plan();
            state[state_at + STATE_MODE] = verdict;
            state[state_at + STATE_BEST] = row.rank;
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
