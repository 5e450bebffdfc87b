// Follows the chain over a list of candidates, in one workgroup: those that were collected, or a mask's children.
//
// The list stands in the order of candidates; what is left of it is its first part. Candidates that were not collected lie
// in gaps: the ranges tell for each place in the list how many are missing before it and what they weigh. Where all that
// is left is in the list, the token is drawn here; else only the cut is found.
//#include sample_common
//#include sample_sums

const PER_THREAD = LIST / THREADS;

var<workgroup> ranks: array<u32, LIST>;
var<workgroup> tokens: array<u32, LIST>;
// First index, missing count, missing mass; behind the last range those of the whole row.
var<workgroup> gaps: array<vec4<u32>, RANGES + 1>;
var<workgroup> gap_bins: array<u32, RANGES + 1>;
var<workgroup> found: atomic<u32>;
var<workgroup> alive: atomic<u32>;
var<workgroup> mode: u32;
var<workgroup> n_gaps: u32;
var<workgroup> n_listed: u32;

// The same in all invocations.
var<private> n: u32;
var<private> cut: vec2<u32>;
var<private> scale: f32;
var<private> best: f32;
var<private> gap: u32;
var<private> dirty: bool;
var<private> by_token: bool;
var<private> status: u32;
var<private> told: u32;

fn key_at(i: u32) -> vec2<u32> {
    return vec2<u32>(tokens[i], ranks[i]);
}

fn gap_at(i: u32) -> u32 {
    var at = 0u;
    for (var r = 1u; r < n_gaps && gaps[r].x <= i; r++) {
        at = r;
    }
    return at;
}

fn gap_of_bin(bin: u32) -> u32 {
    var at = 0u;
    for (var r = 1u; r < n_gaps && gap_bins[r] <= bin; r++) {
        at = r;
    }
    return at;
}

fn z_at(i: u32) -> f32 {
    return below(logit_of(select(ranks[i], tokens[i], by_token)), best, scale);
}

// Sorts the list by (rank, token).
fn sort(lid: u32, count: u32) {
    workgroupBarrier();
    for (var size = 2u; size < 2u * count; size <<= 1u) {
        for (var step = size >> 1u; step > 0u; step >>= 1u) {
            let flip = step == size >> 1u;
            for (var pair = lid; pair < count; pair += THREADS) {
                let inside = pair & (step - 1u);
                let first = 2u * (pair - inside) + inside;
                let other = select(first + step, 2u * (pair - inside) + 2u * step - 1u - inside, flip);
                if other < count && less64(key_at(other), key_at(first)) {
                    let rank = ranks[first];
                    let token = tokens[first];
                    ranks[first] = ranks[other];
                    tokens[first] = tokens[other];
                    ranks[other] = rank;
                    tokens[other] = token;
                }
            }
            workgroupBarrier();
        }
    }
}

// After a change of logits: puts the list in order, without what is no candidate any more.
fn scan(lid: u32) {
    if !dirty {
        return;
    }
    dirty = false;
    if lid == 0u {
        atomicStore(&found, 0xffffffffu);
        atomicStore(&alive, 0u);
    }
    workgroupBarrier();
    for (var i = lid; i < n; i += THREADS) {
        if rank_is_nan(ranks[i]) {
            atomicMin(&found, tokens[i]);
        } else if ranks[i] != RANK_DEAD {
            atomicAdd(&alive, 1u);
        }
        ranks[i] = finite_rank(ranks[i]);
    }
    sort(lid, n);
    told = atomicLoad(&found);
    n = atomicLoad(&alive);
    cut = END;
    best = logit_of(ranks[0]);
    if told != 0xffffffffu {
        status = STATUS_NAN;
    } else if n == 0u {
        status = STATUS_NONE;
    }
    workgroupBarrier();
}

// The weight of the list's first n, without gaps.
fn mass_of_list(lid: u32) -> vec2<u32> {
    var sum = vec2<u32>(0u);
    for (var i = lid; i < n; i += THREADS) {
        sum = add64(sum, weight(z_at(i)));
    }
    sum_up_to(lid, sum);
    return sums[THREADS - 1u];
}

// The first place at which the weights, gaps included, reach `need`; n where they do not.
fn place_of_mass(lid: u32, need: vec2<u32>) -> u32 {
    let first = lid * PER_THREAD;
    let end = min(first + PER_THREAD, n);
    var sum = vec2<u32>(0u);
    for (var i = first; i < end; i++) {
        sum = add64(sum, weight(z_at(i)));
    }
    if lid == 0u {
        atomicStore(&found, n);
    }
    var before = sub64(sum_up_to(lid, sum), sum);
    for (var i = first; i < end; i++) {
        before = add64(before, weight(z_at(i)));
        var reached = before;
        if !by_token {
            reached = add64(before, gaps[gap_at(i)].zw);
        }
        if !less64(reached, need) {
            atomicMin(&found, i);
            break;
        }
    }
    workgroupBarrier();
    let place = atomicLoad(&found);
    workgroupBarrier();
    return place;
}

fn cut_at(i: u32) {
    cut = key_at(i);
    gap = gap_at(i);
    n = i + 1u;
}

fn keep_best(count: u32) {
    for (var r = 0u; r < n_gaps; r++) {
        let i = count - 1u - gaps[r].y;
        // The last one stands for what lies behind all ranges.
        if r + 1u < n_gaps && count > gaps[r].y && i >= gaps[r].x && i < min(n, gaps[r + 1u].x) {
            cut_at(i);
            return;
        }
    }
}

fn top_p(lid: u32, op: u32) {
    let total = add64(mass_of_list(lid), gaps[gap].zw);
    let i = place_of_mass(lid, needed(total, word(op, 1u), word(op, 2u)));
    if i < n {
        if i + 1u + gaps[gap_at(i)].y < word(op, 3u) {
            keep_best(word(op, 3u));
        } else {
            cut_at(i);
        }
    }
}

fn min_p(op: u32, changing: bool) {
    var offset = number(op, 1u);
    if changing {
        offset = number(op, 3u) / scale;
    }
    let lowest = lowest_of(best, offset);
    let key = vec2<u32>(0xffffffffu, rank_of(bitcast<u32>(lowest)));
    if !less64(key, cut) {
        return;
    }
    var low = 0u;
    var high = n;
    while low < high {
        let middle = (low + high) / 2u;
        if less64(key, key_at(middle)) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    let at = gap_of_bin(bin_of(lowest, best));
    if low + gaps[at].y < word(op, 2u) {
        keep_best(word(op, 2u));
    } else {
        n = low;
        cut = key;
        gap = at;
    }
}

// Says whether the scale changes with the row from here on.
fn dynamic_temperature(lid: u32, op: u32) -> bool {
    if n <= 1u {
        return false;
    }
    var moment = 0.0f;
    for (var i = lid; i < n; i += THREADS) {
        let z = z_at(i);
        if z > -32.0f {
            moment += exp_of(z) * z;
        }
    }
    let next = dynamic_scale(op, scale, n, mass_of_list(lid), sum_floats(lid, moment));
    if next == 0.0f {
        keep_best(1u);
    } else {
        scale = next;
    }
    return true;
}

// Without gaps from here on.
fn no_gaps(lid: u32) {
    workgroupBarrier();
    if lid == 0u {
        n_gaps = 2u;
        gaps[0] = vec4<u32>(0u);
        gaps[1] = vec4<u32>(LIST, 0u, 0u, 0u);
        gap_bins[0] = 0u;
        gap_bins[1] = 0xffffffffu;
    }
    gap = 1u;
    cut = END;
    workgroupBarrier();
}

fn adjust(lid: u32, op: u32) {
    no_gaps(lid);
    for (var i = lid; i < n; i += THREADS) {
        let token = tokens[i];
        if word(op, 0u) == OP_BIAS {
            ranks[i] = rank_of(biased(op, entry_of(op, token), token, bits_of(ranks[i])));
            continue;
        }
        var count = 0u;
        for (var back = 0u; back < window_of(op); back++) {
            count += select(0u, 1u, token_back(back) == token);
        }
        if count > 0u {
            ranks[i] = rank_of(penalized(op, count, bits_of(ranks[i])));
        }
    }
    dirty = true;
    workgroupBarrier();
}

// Leaves the children; of none, the first alone.
fn keep_children(lid: u32) {
    no_gaps(lid);
    for (var i = lid; i < n; i += THREADS) {
        if !is_child(tokens[i]) {
            ranks[i] = RANK_DEAD;
        }
    }
    dirty = true;
    scan(lid);
    if status == STATUS_NONE {
        status = STATUS_OK;
        n = 1u;
        best = 0.0f;
        workgroupBarrier();
        if lid == 0u {
            ranks[0] = rank_of(0u);
            tokens[0] = children[child_at + CHILD_FIRST];
        }
        workgroupBarrier();
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_SELECT && path != PATH_CHILDREN {
        return;
    }
    var first = 0u;
    scale = 1.0f;
    if lid == 0u {
        mode = state[state_at + STATE_MODE];
        n_listed = state[state_at + STATE_N_LISTED];
        n_gaps = state[state_at + STATE_N_RANGES] + 1u;
    }
    workgroupBarrier();
    if path == PATH_CHILDREN {
        n = children[child_at + CHILD_COUNT];
        for (var i = lid; i < n; i += THREADS) {
            let token = children[child_at + CHILD_DATA + i];
            tokens[i] = token;
            ranks[i] = rank_at(token);
        }
        no_gaps(lid);
        dirty = true;
    } else {
        if mode == MODE_FAILED && lid == 0u {
            publish_failure(state[state_at + STATE_STATUS], state[state_at + STATE_TOLD]);
        }
        if mode != MODE_LIST && mode != MODE_CUT {
            return;
        }
        n = n_listed;
        for (var i = lid; i < n; i += THREADS) {
            ranks[i] = work[work_at + CANDIDATES_AT + 2u * i];
            tokens[i] = work[work_at + CANDIDATES_AT + 2u * i + 1u];
        }
        for (var r = lid; r < n_gaps; r += THREADS) {
            let at = state_at + STATE_RANGES + r * RANGE_WORDS;
            gap_bins[r] = state[at];
            gaps[r] = vec4<u32>(state[at + 1u], state[at + 2u], state[at + 3u], state[at + 4u]);
        }
        sort(lid, n);
        best = logit_of(state[state_at + STATE_BEST]);
        cut = END;
        gap = n_gaps - 1u;
        first = spec[spec_at + SPEC_FIRST];
        scale = bitcast<f32>(spec[spec_at + SPEC_FIRST_SCALE]);
    }
    var changing = false;
    for (var i = first; i < ops_count() && status == STATUS_OK; i++) {
        let op = op_at(i);
        let kind = word(op, 0u);
        if kind == OP_BIAS || kind == OP_PENALTIES {
            adjust(lid, op);
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
            keep_best(word(op, 1u));
        } else if kind == OP_TOP_P {
            top_p(lid, op);
        } else if kind == OP_MIN_P {
            min_p(op, changing);
        } else if kind == OP_DYNAMIC {
            changing = dynamic_temperature(lid, op) || changing;
        }
    }
    if status == STATUS_OK {
        scan(lid);
    }
    workgroupBarrier();
    if status != STATUS_OK {
        if lid == 0u {
            publish_failure(status, told);
        }
        return;
    }
    let cuts = path == PATH_SELECT && mode == MODE_CUT;
    let reported = min(n, spec[spec_at + SPEC_REPORT]);
    let total = mass_of_list(lid);
    for (var i = lid; i < reported; i += THREADS) {
        report(i, tokens[i], ranks[i], scale, float64(weight(z_at(i))) / float64(total));
    }
    if cuts {
        if lid == 0u {
            state[state_at + STATE_CUT] = cut.x;
            state[state_at + STATE_CUT + 1u] = cut.y;
            state[state_at + STATE_SCALE] = bitcast<u32>(scale);
            state[state_at + STATE_REPORTED] = reported;
            state[state_at + STATE_MODE] = MODE_DRAW;
        }
        return;
    }
    // The draw goes through the candidates by id.
    workgroupBarrier();
    for (var i = lid; i < n; i += THREADS) {
        let rank = ranks[i];
        ranks[i] = tokens[i];
        tokens[i] = rank;
    }
    by_token = true;
    sort(lid, n);
    let share = share_of(total, random_bits());
    let place = place_of_mass(lid, add64(share, vec2<u32>(1u, 0u)));
    if lid == 0u {
        publish(ranks[min(place, n - 1u)], z_at(min(place, n - 1u)), total, n, reported);
    }
}
