// Follows the chain over the row itself, in one workgroup: for what no list can hold (long runs of equal logits, masks of
// thousands of tokens, steps that change logits or need all candidates while thousands are left).
//
// A cut is found by digits of the key, eight bits at a time, from counts or weights that are integers. Four tokens are
// looked at in each turn of a loop, which keeps the number of turns low.
//#include sample_common
//#include sample_best
//#include sample_sums
//#include sample_scatter

const DIGITS = 256u;
const TURN = 4u * THREADS;

var<workgroup> digit_counts: array<atomic<u32>, DIGITS>;
var<workgroup> digit_low: array<atomic<u32>, DIGITS>;
var<workgroup> digit_high: array<atomic<u32>, DIGITS>;
var<workgroup> picked: u32;
var<workgroup> picked_count: u32;
var<workgroup> picked_before: vec2<u32>;
var<workgroup> gathered: atomic<u32>;
var<workgroup> mode: u32;

// The same in all invocations.
var<private> cut: vec2<u32>;
var<private> best: u32;
var<private> scale: f32;
var<private> scanned: bool;
var<private> status: u32;
var<private> told: u32;

// This invocation's part of a pass.
var<private> at: u32;
var<private> count: u32;
var<private> mass: vec2<u32>;
var<private> moment: f32;

// The candidate's rank, or RANK_DEAD.
fn kept_rank(token: u32) -> u32 {
    if token >= frame.n_vocab {
        return RANK_DEAD;
    }
    let rank = finite_rank(rank_at(token));
    return select(rank, RANK_DEAD, less64(cut, vec2<u32>(token, rank)));
}

fn z_of(rank: u32) -> f32 {
    return below(logit_of(rank), logit_of(best), scale);
}

fn weigh_one(token: u32) {
    let rank = kept_rank(token);
    if rank != RANK_DEAD {
        let z = z_of(rank);
        count += 1u;
        mass = add64(mass, weight(z));
        if z > -32.0f {
            moment += exp_of(z) * z;
        }
    }
}

// Counts and weighs the candidates: returns the count, and leaves their mass in `mass` and the sum of e^z * z in `moment`.
fn weigh_all(lid: u32) -> u32 {
    count = 0u;
    mass = vec2<u32>(0u);
    moment = 0.0f;
    for (var token = lid; token < frame.n_vocab; token += TURN) {
        weigh_one(token);
        weigh_one(token + THREADS);
        weigh_one(token + 2u * THREADS);
        weigh_one(token + 3u * THREADS);
    }
    moment = sum_floats(lid, moment);
    sum_up_to(lid, mass);
    mass = sums[THREADS - 1u];
    sum_up_to(lid, vec2<u32>(count, 0u));
    return sums[THREADS - 1u].x;
}

fn flush() {
    if count > 0u {
        atomicAdd(&digit_counts[at], count);
        let before = atomicAdd(&digit_low[at], mass.x);
        let high = mass.y + select(0u, 1u, before + mass.x < before);
        if high > 0u {
            atomicAdd(&digit_high[at], high);
        }
    }
    count = 0u;
    mass = vec2<u32>(0u);
}

fn tally(token: u32, level: u32, known: vec2<u32>, by_mass: bool) {
    let rank = kept_rank(token);
    if rank == RANK_DEAD {
        return;
    }
    var digits = rank;
    var same = true;
    var prefix = known.y;
    if level >= 4u {
        same = rank == known.y;
        digits = token;
        prefix = known.x;
    }
    let shift = 24u - 8u * (level & 3u);
    // Two shifts, since a shift by 32 is not one.
    same = same && ((digits ^ prefix) >> shift) >> 8u == 0u;
    if !same {
        return;
    }
    let digit = (digits >> shift) & 0xffu;
    if digit != at {
        flush();
        at = digit;
    }
    count += 1u;
    if by_mass {
        mass = add64(mass, weight(z_of(rank)));
    }
}

// The key at which the candidates' weights, or counts, first reach `given`; END where they do not.
fn key_reaching(lid: u32, given: vec2<u32>, by_mass: bool) -> vec2<u32> {
    var need = given;
    var known = vec2<u32>(0u);
    for (var level = 0u; level < 8u; level++) {
        let shift = 24u - 8u * (level & 3u);
        if level >= 4u && ((frame.n_vocab - 1u) >> shift) == 0u {
            continue;
        }
        workgroupBarrier();
        for (var digit = lid; digit < DIGITS; digit += THREADS) {
            atomicStore(&digit_counts[digit], 0u);
            atomicStore(&digit_low[digit], 0u);
            atomicStore(&digit_high[digit], 0u);
        }
        if lid == 0u {
            picked = DIGITS;
        }
        workgroupBarrier();
        count = 0u;
        mass = vec2<u32>(0u);
        for (var token = lid; token < frame.n_vocab; token += TURN) {
            tally(token, level, known, by_mass);
            tally(token + THREADS, level, known, by_mass);
            tally(token + 2u * THREADS, level, known, by_mass);
            tally(token + 3u * THREADS, level, known, by_mass);
        }
        flush();
        workgroupBarrier();
        let first = lid * (DIGITS / THREADS);
        var sum = vec2<u32>(0u);
        for (var digit = first; digit < first + DIGITS / THREADS; digit++) {
            sum = add64(sum, digit_sum(digit, by_mass));
        }
        var before = sub64(sum_up_to(lid, sum), sum);
        for (var digit = first; digit < first + DIGITS / THREADS; digit++) {
            let next = add64(before, digit_sum(digit, by_mass));
            if less64(before, need) && !less64(next, need) {
                picked = digit;
                picked_before = before;
                picked_count = atomicLoad(&digit_counts[digit]);
            }
            before = next;
        }
        workgroupBarrier();
        if picked == DIGITS {
            return END;
        }
        need = sub64(need, picked_before);
        if level < 4u {
            known.y |= picked << shift;
        } else {
            known.x |= picked << shift;
        }
        if level == 3u && picked_count == 1u {
            return vec2<u32>(0xffffffffu, known.y);
        }
    }
    return known;
}

fn digit_sum(digit: u32, by_mass: bool) -> vec2<u32> {
    if by_mass {
        return vec2<u32>(atomicLoad(&digit_low[digit]), atomicLoad(&digit_high[digit]));
    }
    return vec2<u32>(atomicLoad(&digit_counts[digit]), 0u);
}

fn keep(key: vec2<u32>) {
    if less64(key, cut) {
        cut = key;
    }
}

fn keep_best(lid: u32, number: u32) {
    keep(key_reaching(lid, vec2<u32>(number, 0u), false));
}

// Keeps what is up to `key`, but at least so many.
fn keep_at_least(lid: u32, key: vec2<u32>, number: u32) {
    let before = cut;
    keep(key);
    if number > 1u && weigh_all(lid) < number {
        cut = before;
        keep_best(lid, number);
    }
}

fn scan(lid: u32) {
    if scanned {
        return;
    }
    scanned = true;
    var mine = NOTHING;
    for (var token = lid; token < frame.n_vocab; token += THREADS) {
        mine = seen(mine, token);
    }
    let all = best_of_all(lid, mine);
    best = all.rank;
    if all.nan != 0xffffffffu {
        status = STATUS_NAN;
        told = all.nan;
    } else if all.rank == RANK_DEAD {
        status = STATUS_NONE;
    }
}

// Writes into the row what is left of it.
fn settle(lid: u32, children_only: bool) {
    for (var token = lid; token < frame.n_vocab; token += THREADS) {
        let bits = logits[row_at + token];
        let rank = rank_of(bits);
        var stays = rank_is_nan(rank) || !less64(cut, vec2<u32>(token, finite_rank(rank)));
        if children_only {
            stays = stays && is_child(token);
        }
        if !stays {
            logits[row_at + token] = MINUS_INFINITY_BITS;
        } else if scanned {
            logits[row_at + token] = bits_of(finite_rank(rank));
        }
    }
    cut = END;
    scanned = false;
    storageBarrier();
    workgroupBarrier();
}

// Leaves the children; of none, the first alone.
fn keep_children(lid: u32) {
    settle(lid, true);
    scan(lid);
    if status == STATUS_NONE {
        status = STATUS_OK;
        best = rank_of(0u);
        if lid == 0u {
            logits[row_at + children[child_at + CHILD_FIRST]] = 0u;
        }
        storageBarrier();
        workgroupBarrier();
    }
}

fn dynamic_temperature(lid: u32, op: u32) {
    let number = weigh_all(lid);
    if number <= 1u {
        return;
    }
    let next = dynamic_scale(op, scale, number, mass, moment);
    if next == 0.0f {
        keep_best(lid, 1u);
    } else {
        scale = next;
    }
}

// Writes the best candidates, whose probabilities the draw adds.
fn write_report(lid: u32, most: u32) -> u32 {
    let whole = cut;
    keep_best(lid, most);
    if lid == 0u {
        atomicStore(&gathered, 0u);
    }
    workgroupBarrier();
    for (var token = lid; token < frame.n_vocab; token += THREADS) {
        let rank = kept_rank(token);
        if rank != RANK_DEAD {
            let index = work_at + CANDIDATES_AT + 2u * atomicAdd(&gathered, 1u);
            work[index] = rank;
            work[index + 1u] = token;
        }
    }
    storageBarrier();
    workgroupBarrier();
    cut = whole;
    let all = atomicLoad(&gathered);
    for (var i = lid; i < all; i += THREADS) {
        let rank = work[work_at + CANDIDATES_AT + 2u * i];
        let token = work[work_at + CANDIDATES_AT + 2u * i + 1u];
        var place = 0u;
        for (var j = 0u; j < all; j++) {
            let other = work_at + CANDIDATES_AT + 2u * j;
            place += select(0u, 1u, less64(vec2<u32>(work[other + 1u], work[other]), vec2<u32>(token, rank)));
        }
        report(place, token, rank, scale, 0.0f);
    }
    return all;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_SELECT && path != PATH_ROW {
        return;
    }
    if lid == 0u {
        mode = state[state_at + STATE_MODE];
    }
    workgroupBarrier();
    var first = 0u;
    cut = END;
    scale = 1.0f;
    if path == PATH_SELECT {
        if mode != MODE_EXACT {
            return;
        }
        first = spec[spec_at + SPEC_FIRST];
        scale = bitcast<f32>(spec[spec_at + SPEC_FIRST_SCALE]);
        best = state[state_at + STATE_BEST];
        scanned = true;
    }
    var changing = false;
    for (var i = first; i < ops_count() && status == STATUS_OK; i++) {
        let op = op_at(i);
        let kind = word(op, 0u);
        if kind == OP_BIAS || kind == OP_PENALTIES {
            if scanned {
                settle(lid, false);
            }
            scatter(lid, op);
            continue;
        }
        if kind == OP_TRIE {
            if armed() != CHILDREN_NONE {
                keep_children(lid);
            }
            continue;
        }
        if kind == OP_SCALE {
            scale = number(op, 1u);
            continue;
        }
        if kind == OP_SCALE_BY {
            scale = clamp(scale / number(op, 1u), 1.17549435e-38f, GREATEST);
            continue;
        }
        scan(lid);
        if status != STATUS_OK {
            continue;
        }
        if kind == OP_TOP_K {
            keep_best(lid, word(op, 1u));
        } else if kind == OP_TOP_P {
            weigh_all(lid);
            let need = needed(mass, word(op, 1u), word(op, 2u));
            keep_at_least(lid, key_reaching(lid, need, true), word(op, 3u));
        } else if kind == OP_MIN_P {
            var offset = number(op, 1u);
            if changing {
                offset = number(op, 3u) / scale;
            }
            let lowest = rank_of(bitcast<u32>(lowest_of(logit_of(best), offset)));
            keep_at_least(lid, vec2<u32>(0xffffffffu, lowest), word(op, 2u));
        } else if kind == OP_DYNAMIC {
            dynamic_temperature(lid, op);
            changing = true;
        }
    }
    if status == STATUS_OK {
        scan(lid);
    }
    var reported = spec[spec_at + SPEC_REPORT];
    if status == STATUS_OK && reported > 0u {
        reported = write_report(lid, reported);
    }
    if lid == 0u {
        state[state_at + STATE_MODE] = select(MODE_FAILED, MODE_DRAW, status == STATUS_OK);
        state[state_at + STATE_STATUS] = status;
        state[state_at + STATE_TOLD] = told;
        state[state_at + STATE_BEST] = best;
        state[state_at + STATE_CUT] = cut.x;
        state[state_at + STATE_CUT + 1u] = cut.y;
        state[state_at + STATE_SCALE] = bitcast<u32>(scale);
        state[state_at + STATE_REPORTED] = reported;
    }
}
