// Follows the chain over a list of candidates, in one workgroup: those that were collected, or a mask's children.
//
// The list is in the order of candidates; what is left of it is its first part. Candidates that were not collected are
// in gaps: the ranges tell for each place in the list how many are missing before it and what they weigh. Where all that
// is left is in the list, the token is drawn here, or the list handed over; else only the cut is found.
//
// Every step goes through the same few parts (change logits, put in order, weigh, cut), so that each of them is in
// the code once. The draw is the last of the steps: the list is put in order by id and cut where the share is reached.
// Typical sampling takes two turns: in the second the list is in the order of what is typical. It and XTC leave a list that
// is put in order again.
//#include sample/common
//#include sample/dry
//#include sample/sums
//#include sample/units
//#include sample/statistics

const PER_THREAD = LIST / THREADS;
// Behind the chain: the report, then the draw.
const OP_REPORT = 100u;
const OP_TAKE = 101u;

var<workgroup> ranks: array<u32, LIST>;
var<workgroup> tokens: array<u32, LIST>;
// First index, missing count, missing mass; after the last range those of the whole row.
var<workgroup> gaps: array<vec4<u32>, RANGES + 1>;
var<workgroup> gap_bins: array<u32, RANGES + 1>;
var<workgroup> n_gaps: u32;
var<workgroup> n_listed: u32;
var<workgroup> mode: u32;
var<workgroup> nan_token: atomic<u32>;
var<workgroup> alive: atomic<u32>;
var<workgroup> place: atomic<u32>;

// The same in all invocations.
var<private> n: u32;
var<private> cut: vec2<u32>;
var<private> scale: f32;
var<private> best: f32;
var<private> gap: u32;
var<private> by_token: bool;
var<private> by_typical: bool;
var<private> mean: f32;

fn key_at(i: u32) -> vec2<u32> {
    if by_typical {
        return vec2<u32>(tokens[i], typical_rank(z_at(i), mean));
    }
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

fn logit_at(i: u32) -> f32 {
    return logit_of(select(ranks[i], tokens[i], by_token));
}

fn z_at(i: u32) -> f32 {
    return below(logit_at(i), best, scale);
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

fn cut_at(i: u32) {
    cut = key_at(i);
    gap = gap_at(i);
    n = i + 1u;
}

fn keep_best(count: u32) {
    for (var r = 0u; r < n_gaps; r++) {
        let i = count - 1u - gaps[r].y;
        // The last one is for the candidates after all ranges.
        if r + 1u < n_gaps && count > gaps[r].y && i >= gaps[r].x && i < min(n, gaps[r + 1u].x) {
            cut_at(i);
            return;
        }
    }
}

// Keeps what is not below a logit, but at least so many.
fn cut_below(lowest: f32, min_keep: u32) {
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
    if low + gaps[at].y < min_keep {
        keep_best(min_keep);
    } else {
        n = low;
        cut = key;
        gap = at;
    }
}

// By one invocation: the list has no gaps from here on.
fn close_gaps() {
    n_gaps = 2u;
    gaps[0] = vec4<u32>(0u);
    gaps[1] = vec4<u32>(LIST, 0u, 0u, 0u);
    gap_bins[0] = 0u;
    gap_bins[1] = 0xffffffffu;
}

// A candidate's rank after a step that changes logits or masks them.
fn changed(op: u32, rank: u32, token: u32) -> u32 {
    let masks = word(op, 0u) == OP_TRIE;
    // A ban does not hold for what a mask allows.
    if masks || (word(op, 0u) == OP_BIAS && word(op, 3u) != 0u) {
        let child = is_child(token);
        if masks || child {
            return select(RANK_DEAD, rank, child);
        }
    }
    if word(op, 0u) == OP_BIAS {
        return rank_of(biased(op, entry_of(op, token), token, bits_of(rank)));
    }
    if word(op, 0u) == OP_DRY {
        return rank_of(dried(op, token, bits_of(rank)));
    }
    var count = 0u;
    for (var back = 0u; back < window_of(op); back++) {
        count += select(0u, 1u, token_back(back) == token);
    }
    if count == 0u {
        return rank;
    }
    return rank_of(penalized(op, count, bits_of(rank)));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_SELECT && path != PATH_CHILDREN {
        return;
    }
    if lid == 0u {
        mode = state[state_at + STATE_MODE];
        n_listed = state[state_at + STATE_N_LISTED];
        n_gaps = state[state_at + STATE_N_RANGES] + 1u;
    }
    workgroupBarrier();
    var first = 0u;
    scale = 1.0f;
    cut = END;
    var outcome = failure(STATUS_NONE, 0u);
    let failed = path == PATH_SELECT && mode == MODE_FAILED;
    let ops = ops_count();
    if path == PATH_SELECT {
        if failed {
            outcome = failure(state[state_at + STATE_STATUS], state[state_at + STATE_TOLD]);
        } else if mode != MODE_LIST && mode != MODE_CUT {
            return;
        }
        n = select(n_listed, 0u, failed);
        for (var i = lid; i < n; i += THREADS) {
            ranks[i] = work[work_at + CANDIDATES_AT + 2u * i];
            tokens[i] = work[work_at + CANDIDATES_AT + 2u * i + 1u];
        }
        for (var r = lid; r < n_gaps; r += THREADS) {
            let at = state_at + STATE_RANGES + r * RANGE_WORDS;
            gap_bins[r] = state[at];
            gaps[r] = vec4<u32>(state[at + 1u], state[at + 2u], state[at + 3u], state[at + 4u]);
        }
        gap = n_gaps - 1u;
        first = spec[spec_at + SPEC_FIRST];
        scale = bitcast<f32>(spec[spec_at + SPEC_FIRST_SCALE]);
    } else {
        n = children[child_at + CHILD_COUNT];
        for (var i = lid; i < n; i += THREADS) {
            let token = children[child_at + CHILD_DATA + i];
            tokens[i] = token;
            ranks[i] = rank_at(token);
        }
        if lid == 0u {
            close_gaps();
        }
        gap = 1u;
    }
    let cuts = path == PATH_SELECT && mode == MODE_CUT;
    var dirty = true;
    // Whether the temperature is only known here.
    var changing = false;
    var reported = 0u;
    for (var i = first; i < ops + 2u && !failed; i++) {
        workgroupBarrier();
        let op = op_at(min(i, ops - 1u));
        var kind = OP_TAKE;
        if i == ops {
            kind = OP_REPORT;
        } else if i < ops {
            kind = word(op, 0u);
        }
        if kind == OP_SCALE {
            scale = number(op, 1u);
            continue;
        }
        var most = word(op, 1u);
        if kind == OP_SCALE_BY {
            let next = divided(scale, number(op, 1u));
            if next > 0.0f {
                scale = next;
                continue;
            }
            kind = OP_TOP_K;
            most = 1u;
        }
        if kind == OP_XTC && !acts(op) {
            continue;
        }
        let masks = kind == OP_TRIE && armed() != CHILDREN_NONE && masked_at == 0u;
        let adjusts = changes_logits(kind);
        if adjusts || masks {
            if lid == 0u {
                close_gaps();
            }
            gap = 1u;
            cut = END;
            dirty = true;
            // Without repetitions DRY changes nothing.
            if kind == OP_DRY && !find_repetitions(lid, op) {
                continue;
            }
            for (var own = lid; own < n; own += THREADS) {
                ranks[own] = changed(op, ranks[own], tokens[own]);
            }
        }
        if adjusts || (kind == OP_TRIE && !masks) {
            continue;
        }
        if kind == OP_TAKE {
            for (var own = lid; own < n; own += THREADS) {
                let rank = ranks[own];
                ranks[own] = tokens[own];
                tokens[own] = rank;
            }
            by_token = true;
        } else if dirty {
            if lid == 0u {
                atomicStore(&nan_token, 0xffffffffu);
                atomicStore(&alive, 0u);
            }
            workgroupBarrier();
            for (var own = lid; own < n; own += THREADS) {
                if rank_is_nan(ranks[own]) {
                    atomicMin(&nan_token, tokens[own]);
                } else if ranks[own] != RANK_DEAD {
                    atomicAdd(&alive, 1u);
                }
                ranks[own] = finite_rank(ranks[own]);
            }
        }
        if dirty || by_typical || kind == OP_TAKE {
            sort(lid, n);
        }
        if dirty {
            dirty = false;
            n = atomicLoad(&alive);
            let nan = atomicLoad(&nan_token);
            if nan != 0xffffffffu || (n == 0u && !masks && !cuts) {
                outcome = failure(select(STATUS_NONE, STATUS_NAN, nan != 0xffffffffu), nan);
                break;
            }
            if cuts {
                best = logit_of(state[state_at + STATE_BEST]);
            } else {
                best = logit_of(ranks[0]);
            }
            if n == 0u && masks {
                // Of no child, the first alone is kept.
                n = 1u;
                best = 0.0f;
                workgroupBarrier();
                if lid == 0u {
                    ranks[0] = rank_of(0u);
                    tokens[0] = children[child_at + CHILD_FIRST];
                }
            }
        }
        if kind == OP_TOP_K {
            keep_best(most);
            continue;
        }
        if kind == OP_MIN_P {
            var offset = number(op, 1u);
            if changing {
                offset = offset_after(number(op, 3u), scale);
            }
            cut_below(lowest_of(best, offset), word(op, 2u));
            continue;
        }
        if kind == OP_SIGMA && path == PATH_SELECT && word(op, 2u) != 0u {
            cut_below(bitcast<f32>(state[state_at + STATE_LOWEST]), 0u);
            continue;
        }
        if masks {
            continue;
        }
        // The others weigh the list.
        let from_index = lid * PER_THREAD;
        let to_index = min(from_index + PER_THREAD, n);
        var units = 0.0f;
        if kind == OP_SIGMA {
            units = units_of(best, logit_at(n - 1u));
        }
        var first_total = vec2<u32>(0u);
        var least = vec2<u32>(0u);
        var before = vec2<u32>(0u);
        var total = vec2<u32>(0u);
        let from_round = select(first_round(kind), ROUND_LAST, by_typical);
        for (var round = from_round; round <= ROUND_LAST + zero; round++) {
            if lid == 0u && round == from_round {
                atomicStore(&place, n);
            }
            var mass = vec2<u32>(0u);
            for (var own = from_index; own < to_index; own++) {
                let added = measured(kind, round, logit_at(own), best, scale, units, least);
                mass = add64(mass, added);
                if kind == OP_XTC && round == ROUND_LAST && added.x > 0u {
                    // From the end: the last top choice is looked for.
                    atomicMin(&place, n - 1u - own);
                }
            }
            before = sub64(sum_up_to(lid, Sum(mass, 0u)).mass, mass);
            total = sum_of_all().mass;
            if round == ROUND_FIRST {
                first_total = total;
                if kind == OP_XTC {
                    least = enough(op, total);
                }
                workgroupBarrier();
            }
        }
        if kind == OP_REPORT {
            reported = min(n, spec[spec_at + SPEC_REPORT]);
            for (var own = lid; own < reported; own += THREADS) {
                report(own, tokens[own], ranks[own], scale, float64(weight(z_at(own))) / float64(total));
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
            if spec[spec_at + SPEC_HAND_OVER] > 0u {
                for (var own = lid; own < n; own += THREADS) {
                    hand_over_one(own, tokens[own], ranks[own]);
                }
                outcome = hand_over(n);
                break;
            }
            continue;
        }
        if kind == OP_SIGMA {
            cut_below(lowest_within(number(op, 1u), best, logit_at(n - 1u), n, first_total, total), 0u);
            continue;
        }
        if kind == OP_XTC {
            let choices = total.x;
            if choices > 1u && n - (choices - 1u) >= word(op, 4u) {
                let last = n - 1u - atomicLoad(&place);
                for (var own = from_index; own < min(to_index, last); own++) {
                    ranks[own] = RANK_DEAD;
                }
                if lid == 0u {
                    close_gaps();
                }
                gap = 1u;
                cut = END;
                dirty = true;
            }
            continue;
        }
        if kind == OP_DYNAMIC {
            if n > 1u {
                let next = dynamic_scale(op, scale, n, total, first_total);
                changing = true;
                if next == 0.0f {
                    keep_best(1u);
                } else {
                    scale = next;
                }
            }
            continue;
        }
        if kind == OP_TYPICAL && !by_typical {
            mean = mean_distance(first_total, total);
            by_typical = true;
            i -= 1u;
            continue;
        }
        // Top-p, typical, or the draw: the first place at which the weights, what lies in gaps included, reach `need`.
        var need: vec2<u32>;
        if kind == OP_TOP_P {
            need = needed(add64(total, gaps[gap].zw), word(op, 1u), word(op, 2u));
        } else if kind == OP_TYPICAL {
            need = exceeded(total, word(op, 1u), word(op, 2u));
        } else {
            need = add64(share_of(total, random_bits(DRAW_TOKEN)), vec2<u32>(1u, 0u));
        }
        for (var own = from_index; own < to_index; own++) {
            before = add64(before, weight(z_at(own)));
            var reached = before;
            if !by_token && !by_typical {
                reached = add64(before, gaps[gap_at(own)].zw);
            }
            if !less64(reached, need) {
                atomicMin(&place, own);
                break;
            }
        }
        workgroupBarrier();
        let at = atomicLoad(&place);
        if kind == OP_TAKE {
            let taken = min(at, n - 1u);
            outcome = Outcome(STATUS_OK, ranks[taken], z_at(taken), total, n, reported);
        } else if kind == OP_TYPICAL {
            n = min(n, max(at + 1u, word(op, 3u)));
            by_typical = false;
            if lid == 0u {
                close_gaps();
            }
            gap = 1u;
            cut = END;
            dirty = true;
        } else if at < n {
            if at + 1u + gaps[gap_at(at)].y < word(op, 3u) {
                keep_best(word(op, 3u));
            } else {
                cut_at(at);
            }
        }
    }
    // What others still read of the state is changed now.
    workgroupBarrier();
    if lid == 0u {
        publish(outcome);
    }
}
