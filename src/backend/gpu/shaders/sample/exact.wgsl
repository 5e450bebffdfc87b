// Follows the chain over the row itself, in one workgroup: for what no list can hold (long runs of equal logits, masks of
// thousands of tokens, steps that change logits or need all candidates while thousands are left).
//
// A cut is found by digits of the key, eight bits at a time, from counts or weights that are integers. Two tokens are
// looked at in each turn of a loop, which keeps the number of turns low. Every step goes through the same few parts (write
// the row, look for the best, weigh, find a key), so that each of them is in the code once.
//#include sample/common
//#include sample/best
//#include sample/group_best
//#include sample/sums
//#include sample/scatter

const DIGITS = 256u;
const TURN = 2u * THREADS;
// Behind the chain.
const OP_REPORT = 100u;

var<workgroup> digit_counts: array<atomic<u32>, DIGITS>;
var<workgroup> digit_low: array<atomic<u32>, DIGITS>;
var<workgroup> digit_high: array<atomic<u32>, DIGITS>;
var<workgroup> picked: u32;
var<workgroup> picked_count: u32;
var<workgroup> picked_before: vec2<u32>;
// Candidates counted, or gathered.
var<workgroup> counted: atomic<u32>;
var<workgroup> mode: u32;

// The same in all invocations.
var<private> cut: vec2<u32>;
var<private> best: u32;
var<private> scale: f32;

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

fn weigh(token: u32) {
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

fn digit_sum(digit: u32, by_mass: bool) -> vec2<u32> {
    if by_mass {
        return vec2<u32>(atomicLoad(&digit_low[digit]), atomicLoad(&digit_high[digit]));
    }
    return vec2<u32>(atomicLoad(&digit_counts[digit]), 0u);
}

// The row as it is after a cut, and a mask.
fn settled(token: u32, scanned: bool, children_only: bool) -> u32 {
    let bits = logits[row_at + token];
    let rank = rank_of(bits);
    let stays = rank_is_nan(rank) || !less64(cut, vec2<u32>(token, finite_rank(rank)));
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
        if kind == OP_SCALE_BY {
            scale = clamp(scale / number(op, 1u), 1.17549435e-38f, GREATEST);
            continue;
        }
        if kind == OP_TRIE && armed() == CHILDREN_NONE {
            continue;
        }
        let adjusts = kind == OP_BIAS || kind == OP_PENALTIES;
        if kind == OP_TRIE || (adjusts && scanned) {
            for (var token = lid; token < frame.n_vocab; token += THREADS) {
                logits[row_at + token] = settled(token, scanned, kind == OP_TRIE);
            }
            cut = END;
            scanned = false;
            storageBarrier();
            workgroupBarrier();
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
            need.x = word(op, 1u);
        } else if kind == OP_REPORT {
            need.x = spec[spec_at + SPEC_REPORT];
        } else if kind == OP_MIN_P {
            let offset = select(number(op, 1u), number(op, 3u) / scale, changing);
            let key = vec2<u32>(0xffffffffu, rank_of(bitcast<u32>(lowest_of(logit_of(best), offset))));
            if less64(key, cut) {
                cut = key;
            }
        }
        let at_least = word(op, select(3u, 2u, kind == OP_MIN_P));
        if kind == OP_TOP_P || kind == OP_DYNAMIC || (kind == OP_MIN_P && at_least > 1u) {
            if lid == 0u {
                atomicStore(&counted, 0u);
            }
            workgroupBarrier();
            count = 0u;
            mass = vec2<u32>(0u);
            moment = 0.0f;
            for (var token = lid; token < frame.n_vocab; token += TURN) {
                weigh(token);
                weigh(token + THREADS);
            }
            atomicAdd(&counted, count);
            sum_up_to(lid, Sum(mass, bitcast<u32>(moment)));
            let total = sum_of_all().mass;
            let all_counted = atomicLoad(&counted);
            if kind == OP_TOP_P {
                need = needed(total, word(op, 1u), word(op, 2u));
            } else if kind == OP_MIN_P {
                if all_counted < at_least {
                    cut = whole;
                    need.x = at_least;
                }
            } else if all_counted > 1u {
                let next = dynamic_scale(op, scale, all_counted, total, sum_of_floats());
                changing = true;
                if next == 0.0f {
                    need.x = 1u;
                } else {
                    scale = next;
                }
            }
        }
        var by_mass = kind == OP_TOP_P;
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
            } else if less64(known, cut) {
                cut = known;
            }
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
