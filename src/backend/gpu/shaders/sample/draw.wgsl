// Draws from the row, by id: first the chunk, then the token in it. Takes the best where the chain asks for no more, and
// hands over what is left where the host is to choose.
//#include sample/common
//#include sample/best
//#include sample/sums

var<workgroup> mode: u32;
var<workgroup> listed: atomic<u32>;

// 0 for what is no candidate.
fn kept_weight(token: u32, cut: vec2<u32>, best: f32, scale: f32) -> vec2<u32> {
    let rank = finite_rank(rank_at(token));
    let mass = weight(below(logit_of(rank), best, scale));
    return select(mass, vec2<u32>(0u), less64(cut, vec2<u32>(token, rank)));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path == PATH_CHILDREN {
        return;
    }
    if lid == 0u {
        mode = state[state_at + STATE_MODE];
        atomicStore(&listed, 0u);
    }
    workgroupBarrier();
    var outcome = failure(STATUS_NONE, 0u);
    var mine = lid == 0u;
    if path == PATH_GREEDY {
        let row = best_of_row();
        if row.nan != 0xffffffffu {
            outcome = failure(STATUS_NAN, row.nan);
        } else if row.rank != RANK_DEAD {
            let reported = min(1u, spec[spec_at + SPEC_REPORT]);
            if mine && reported == 1u {
                // A mask that is followed greedily leaves temperatures out.
                let scale = select(bitcast<f32>(spec[spec_at + SPEC_SCALE]), 1.0f, forced());
                report(0u, row.token, row.rank, scale, 1.0f);
            }
            outcome = Outcome(STATUS_OK, row.token, 0.0f, outcome.total, 1u, reported);
        }
    } else if mode == MODE_FAILED {
        outcome = failure(state[state_at + STATE_STATUS], state[state_at + STATE_TOLD]);
    } else if mode != MODE_DRAW {
        return;
    }
    if masked_at != 0u && path == PATH_DIRECT {
        best_of_row();
    }
    let draws = path != PATH_GREEDY && mode == MODE_DRAW;
    let cut = vec2<u32>(state[state_at + STATE_CUT], state[state_at + STATE_CUT + 1u]);
    if draws && spec[spec_at + SPEC_HAND_OVER] > 0u {
        for (var token = lid; token < frame.n_vocab; token += THREADS) {
            let rank = finite_rank(rank_at(token));
            if !less64(cut, vec2<u32>(token, rank)) {
                hand_over_one(atomicAdd(&listed, 1u), token, rank);
            }
        }
        workgroupBarrier();
        outcome = hand_over(atomicLoad(&listed));
    } else if draws {
        let best = logit_of(state[state_at + STATE_BEST]);
        let scale = bitcast<f32>(state[state_at + STATE_SCALE]);
        let reported = state[state_at + STATE_REPORTED];
        // Every invocation looks through all chunks: the reads do not wait for each other.
        var all = Sum(vec2<u32>(0u), 0u);
        for (var chunk = 0u; chunk * frame.chunk < frame.n_vocab; chunk++) {
            let at = work_at + chunk * PARTIAL_WORDS;
            all = Sum(add64(all.mass, vec2<u32>(work[at + 3u], work[at + 4u])), all.count + work[at + 5u]);
        }
        let share = share_of(all.mass, random_bits(DRAW_TOKEN));
        var chosen = 0u;
        var before = vec2<u32>(0u);
        var up_to = vec2<u32>(0u);
        for (var chunk = 0u; chunk * frame.chunk < frame.n_vocab; chunk++) {
            let at = work_at + chunk * PARTIAL_WORDS;
            let here = !less64(share, up_to);
            chosen = select(chosen, chunk, here);
            before = select(before, up_to, here);
            up_to = add64(up_to, vec2<u32>(work[at + 3u], work[at + 4u]));
        }
        let end = min((chosen + 1u) * frame.chunk, frame.n_vocab);
        let run = (frame.chunk + THREADS - 1u) / THREADS;
        let first = chosen * frame.chunk + lid * run;
        let last = min(first + run, end);
        var mass = vec2<u32>(0u);
        for (var token = first; token < last; token++) {
            mass = add64(mass, kept_weight(token, cut, best, scale));
        }
        up_to = add64(before, sum_up_to(lid, Sum(mass, 0u)).mass);
        before = sub64(up_to, mass);
        mine = !less64(share, before) && less64(share, up_to);
        if mine {
            var token = first;
            for (; token < last; token++) {
                before = add64(before, kept_weight(token, cut, best, scale));
                if less64(share, before) {
                    break;
                }
            }
            let z = below(logit_of(finite_rank(rank_at(token))), best, scale);
            outcome = Outcome(STATUS_OK, token, z, all.mass, all.count, reported);
        }
        for (var i = lid; i < reported; i += THREADS) {
            let at = state_at + STATE_REPORT + 4u * i;
            let z = below(logit_of(state[at + 3u]), best, scale);
            state[at + 2u] = bitcast<u32>(float64(weight(z)) / float64(all.mass));
        }
    }
    // What others still read of the state is changed now.
    workgroupBarrier();
    if mine {
        publish(outcome);
    }
}
