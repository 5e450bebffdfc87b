// Follows the chain over the row itself, in one workgroup: for what no list can hold (long runs of equal logits, masks of
// thousands of tokens, steps that change logits or need all candidates while thousands are left).
//
// A cut is found by digits of the key, eight bits at a time, from counts or weights that are integers. Two tokens are
// looked at in each turn of a loop, which keeps the number of turns low. Every step goes through the same few parts (write
// the row, look for the best, weigh, find a key), so that each of them is in the code once. Steps that leave no beginning of
// the order take a second turn, in which the row is written without what they remove.
//#include sample/common
//#include sample/best
//#include sample/group_best
//#include sample/sums
//#include sample/units
//#include sample/statistics
//#include sample/scatter

const DIGITS = 256u;
const TURN = 2u * THREADS;
// Behind the chain.
const OP_REPORT = 100u;
// After the other rounds: the last of the top choices that are equal.
const ROUND_TOKEN = 3u;

var<workgroup> digit_counts: array<atomic<u32>, DIGITS>;
var<workgroup> digit_low: array<atomic<u32>, DIGITS>;
var<workgroup> digit_high: array<atomic<u32>, DIGITS>;
var<workgroup> picked: u32;
var<workgroup> picked_count: u32;
var<workgroup> picked_before: vec2<u32>;
// Candidates counted, or gathered.
var<workgroup> counted: atomic<u32>;
// The greatest rank of those that a round is about, and the greatest token of that rank.
var<workgroup> last_rank: atomic<u32>;
var<workgroup> last_token: atomic<u32>;
var<workgroup> mode: u32;

// The same in all invocations.
var<private> cut: vec2<u32>;
var<private> best: u32;
var<private> scale: f32;
// What a step removes: all before a key, or all after one in the order of what is typical.
var<private> from_key: vec2<u32>;
var<private> typical_cut: vec2<u32>;
var<private> by_typical: bool;
var<private> mean: f32;

// This invocation's part of a pass.
var<private> at: u32;
var<private> count: u32;
var<private> mass: vec2<u32>;

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

// The key in the order of what is typical.
fn typical_key(token: u32, rank: u32) -> vec2<u32> {
    return vec2<u32>(token, typical_rank(z_of(rank), mean));
}

fn weigh(token: u32, kind: u32, round: u32, units: f32, least: vec2<u32>, tied: u32) {
    let rank = kept_rank(token);
    if rank == RANK_DEAD {
        return;
    }
    if round == ROUND_LEAST {
        atomicMax(&last_rank, rank);
        return;
    }
    if round == ROUND_TOKEN {
        if rank == tied {
            atomicMax(&last_token, token);
        }
        return;
    }
    let added = measured(kind, round, logit_of(rank), logit_of(best), scale, units, least);
    count += 1u;
    mass = add64(mass, added);
    if kind == OP_XTC && round == ROUND_LAST && added.x > 0u {
        atomicMax(&last_rank, rank);
    }
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
    var by = rank;
    if by_typical {
        by = typical_key(token, rank).y;
    }
    var digits = by;
    var same = true;
    var prefix = known.y;
    if level >= 4u {
        same = by == known.y;
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

fn digit_sum(digit: u32, by_mass: bool) -> vec2<u32> {
    if by_mass {
        return vec2<u32>(atomicLoad(&digit_low[digit]), atomicLoad(&digit_high[digit]));
    }
    return vec2<u32>(atomicLoad(&digit_counts[digit]), 0u);
}

// The row as it is after a cut, what a step removes, and a mask.
fn settled(token: u32, scanned: bool, children_only: bool) -> u32 {
    let bits = logits[row_at + token];
    let rank = rank_of(bits);
    let key = vec2<u32>(token, finite_rank(rank));
    var stays = rank_is_nan(rank) || !(less64(cut, key) || less64(key, from_key));
    if by_typical {
        stays = stays && !less64(typical_cut, typical_key(token, key.y));
    }
    if !stays || (children_only && !is_child(token)) {
        return MINUS_INFINITY_BITS;
    }
    return select(bits, bits_of(finite_rank(rank)), scanned);
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
    // Whether the row holds no NaN and `best` is its best.
    var scanned = false;
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
    // Whether the temperature is only known here.
    var changing = false;
    // Whether this is a step's second turn.
    var removes = false;
    var reported = 0u;
    let ops = ops_count();
    for (var i = first; i <= ops; i++) {
        workgroupBarrier();
        let op = op_at(min(i, ops - 1u));
        var kind = OP_REPORT;
        if i < ops {
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
        if kind == OP_TRIE && (armed() == CHILDREN_NONE || masked_at != 0u) {
            continue;
        }
        let adjusts = changes_logits(kind);
        if kind == OP_TRIE || (adjusts && scanned) || removes {
            for (var token = lid; token < frame.n_vocab; token += THREADS) {
                logits[row_at + token] = settled(token, scanned, kind == OP_TRIE);
            }
            cut = END;
            scanned = false;
            from_key = vec2<u32>(0u);
            by_typical = false;
            storageBarrier();
            workgroupBarrier();
        }
        if removes {
            removes = false;
            continue;
        }
        if adjusts {
            scatter(lid, op);
            continue;
        }
        if !scanned {
            scanned = true;
            var mine = NOTHING;
            for (var token = lid; token < frame.n_vocab; token += THREADS) {
                mine = seen(mine, token);
            }
            let row = best_of_group(lid, mine);
            best = row.rank;
            if row.rank == RANK_DEAD && row.nan == 0xffffffffu && kind == OP_TRIE {
                // Of no child, the first alone is kept.
                best = rank_of(0u);
                if lid == 0u {
                    logits[row_at + children[child_at + CHILD_FIRST]] = 0u;
                }
                storageBarrier();
                workgroupBarrier();
            } else if row.rank == RANK_DEAD || row.nan != 0xffffffffu {
                if lid == 0u {
                    state[state_at + STATE_MODE] = MODE_FAILED;
                    state[state_at + STATE_STATUS] = select(STATUS_NONE, STATUS_NAN, row.nan != 0xffffffffu);
                    state[state_at + STATE_TOLD] = row.nan;
                }
                return;
            }
        }
        // A key is looked for at which so many candidates, or so much mass, is reached.
        var need = vec2<u32>(0u);
        let whole = cut;
        if kind == OP_TOP_K {
            need.x = most;
        } else if kind == OP_REPORT {
            need.x = spec[spec_at + SPEC_REPORT];
        } else if kind == OP_MIN_P {
            var offset = number(op, 1u);
            if changing {
                offset = offset_after(number(op, 3u), scale);
            }
            let key = vec2<u32>(0xffffffffu, rank_of(bitcast<u32>(lowest_of(logit_of(best), offset))));
            if less64(key, cut) {
                cut = key;
            }
        }
        let at_least = word(op, select(3u, 2u, kind == OP_MIN_P));
        if kind == OP_TOP_P || first_round(kind) == ROUND_FIRST || (kind == OP_MIN_P && at_least > 1u) {
            if lid == 0u {
                atomicStore(&counted, 0u);
                atomicStore(&last_rank, 0u);
                atomicStore(&last_token, 0u);
            }
            var units = 0.0f;
            var tied = 0u;
            var first_total = vec2<u32>(0u);
            var least = vec2<u32>(0u);
            var total = vec2<u32>(0u);
            let to_round = select(ROUND_LAST, ROUND_TOKEN, kind == OP_XTC);
            for (var round = select(first_round(kind), ROUND_LEAST, kind == OP_SIGMA); round <= to_round + zero; round++) {
                workgroupBarrier();
                count = 0u;
                mass = vec2<u32>(0u);
                for (var token = lid; token < frame.n_vocab; token += TURN) {
                    weigh(token, kind, round, units, least, tied);
                    weigh(token + THREADS, kind, round, units, least, tied);
                }
                if round == ROUND_LAST {
                    atomicAdd(&counted, count);
                }
                sum_up_to(lid, Sum(mass, 0u));
                let sum = sum_of_all().mass;
                if round == ROUND_LEAST {
                    units = units_of(logit_of(best), logit_of(atomicLoad(&last_rank)));
                } else if round == ROUND_FIRST {
                    first_total = sum;
                    if kind == OP_XTC {
                        least = enough(op, sum);
                    }
                } else if round == ROUND_LAST {
                    total = sum;
                    tied = atomicLoad(&last_rank);
                }
            }
            let all_counted = atomicLoad(&counted);
            if kind == OP_TOP_P {
                need = needed(total, word(op, 1u), word(op, 2u));
            } else if kind == OP_MIN_P {
                if all_counted < at_least {
                    cut = whole;
                    need.x = at_least;
                }
            } else if kind == OP_SIGMA {
                let from_logit = logit_of(best);
                let to_logit = logit_of(atomicLoad(&last_rank));
                let lowest = lowest_within(number(op, 1u), from_logit, to_logit, all_counted, first_total, total);
                let key = vec2<u32>(0xffffffffu, rank_of(bitcast<u32>(lowest)));
                if less64(key, cut) {
                    cut = key;
                }
            } else if kind == OP_XTC {
                if total.x > 1u && all_counted - (total.x - 1u) >= word(op, 4u) {
                    from_key = vec2<u32>(atomicLoad(&last_token), atomicLoad(&last_rank));
                    removes = true;
                }
            } else if kind == OP_TYPICAL {
                mean = mean_distance(first_total, total);
                by_typical = true;
                need = exceeded(total, word(op, 1u), word(op, 2u));
            } else if all_counted > 1u {
                let next = dynamic_scale(op, scale, all_counted, total, first_total);
                changing = true;
                if next == 0.0f {
                    need.x = 1u;
                } else {
                    scale = next;
                }
            }
        }
        var by_mass = kind == OP_TOP_P || kind == OP_TYPICAL;
        while any(need != vec2<u32>(0u)) {
            var known = vec2<u32>(0u);
            var rest = need;
            workgroupBarrier();
            if lid == 0u {
                atomicStore(&counted, 1u);
            }
            // The bound is not known to a compiler, which would write the loop out.
            for (var level = 0u; level < 8u + zero; level++) {
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
                }
                flush();
                workgroupBarrier();
                let own = lid * (DIGITS / THREADS);
                var sum = vec2<u32>(0u);
                for (var digit = own; digit < own + DIGITS / THREADS + zero; digit++) {
                    sum = add64(sum, digit_sum(digit, by_mass));
                }
                var before = sub64(sum_up_to(lid, Sum(sum, 0u)).mass, sum);
                for (var digit = own; digit < own + DIGITS / THREADS + zero; digit++) {
                    let next = add64(before, digit_sum(digit, by_mass));
                    if less64(before, rest) && !less64(next, rest) {
                        picked = digit;
                        picked_before = before;
                        picked_count = atomicLoad(&digit_counts[digit]);
                    }
                    before = next;
                }
                workgroupBarrier();
                if picked == DIGITS {
                    // There is not as much.
                    known = END;
                    break;
                }
                for (var digit = own; digit < min(own + DIGITS / THREADS, picked); digit++) {
                    atomicAdd(&counted, atomicLoad(&digit_counts[digit]));
                }
                rest = sub64(rest, picked_before);
                if level < 4u {
                    known.y |= picked << shift;
                } else {
                    known.x |= picked << shift;
                }
                if level == 3u && picked_count == 1u {
                    known.x = 0xffffffffu;
                    break;
                }
            }
            workgroupBarrier();
            need = vec2<u32>(0u);
            if by_mass && less64(known, END) && atomicLoad(&counted) < at_least {
                by_mass = false;
                need.x = at_least;
            } else if kind == OP_TYPICAL {
                typical_cut = known;
                removes = true;
            } else if less64(known, cut) {
                cut = known;
            }
        }
        if removes {
            i -= 1u;
            continue;
        }
        if kind == OP_REPORT && spec[spec_at + SPEC_REPORT] > 0u {
            // The best candidates; the draw adds their probabilities.
            workgroupBarrier();
            if lid == 0u {
                atomicStore(&counted, 0u);
            }
            workgroupBarrier();
            for (var token = lid; token < frame.n_vocab; token += THREADS) {
                let rank = kept_rank(token);
                if rank != RANK_DEAD {
                    let index = work_at + CANDIDATES_AT + 2u * atomicAdd(&counted, 1u);
                    work[index] = rank;
                    work[index + 1u] = token;
                }
            }
            storageBarrier();
            workgroupBarrier();
            cut = whole;
            reported = atomicLoad(&counted);
            for (var own = lid; own < reported; own += THREADS) {
                let rank = work[work_at + CANDIDATES_AT + 2u * own];
                let token = work[work_at + CANDIDATES_AT + 2u * own + 1u];
                var better = 0u;
                for (var j = 0u; j < reported; j++) {
                    let other = work_at + CANDIDATES_AT + 2u * j;
                    better += select(0u, 1u, less64(vec2<u32>(work[other + 1u], work[other]), vec2<u32>(token, rank)));
                }
                report(better, token, rank, scale, 0.0f);
            }
        }
    }
    if lid == 0u {
        state[state_at + STATE_MODE] = MODE_DRAW;
        state[state_at + STATE_BEST] = best;
        state[state_at + STATE_CUT] = cut.x;
        state[state_at + STATE_CUT + 1u] = cut.y;
        state[state_at + STATE_SCALE] = bitcast<u32>(scale);
        state[state_at + STATE_REPORTED] = reported;
    }
}
